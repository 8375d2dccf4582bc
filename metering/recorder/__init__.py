"""The recorder: what the engine did, made durable before it is billed or shown."""

from metering.recorder.endings import STOPPED
from metering.recorder.recorder import Recorder

__all__ = ["STOPPED", "Recorder"]
