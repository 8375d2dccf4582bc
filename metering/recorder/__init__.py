"""The recorder: what the engine did, made durable before it is billed or shown."""

from metering.recorder.recorder import Recorder

__all__ = ["Recorder"]
