"""What the gateway needs of an engine, whichever process it runs in."""

from __future__ import annotations

from typing import Protocol

from engine.records import EngineInfo, EngineStats
from engine.requests import GenerationRequest


class EngineClient(Protocol):
    """The gateway's only view of an engine; what it did arrives at its observer.

    Implemented by `engine.service.EngineService` (this process) and `engine.process.EngineProcess`
    (a process of its own). Every method may be called from any thread.
    """

    @property
    def info(self) -> EngineInfo:
        """What runs the model."""

    @property
    def available(self) -> bool:
        """Whether it takes requests; not so before its start, in between, and once closed."""

    def start(self) -> None:
        """Load the model and begin stepping; raises EngineError when it can't be loaded."""

    def submit(self, request: GenerationRequest) -> None:
        """Take a request, or raise InvalidRequest, EngineOverloaded or EngineUnavailable.

        A request that was taken ends in exactly one finish record.
        """

    def cancel(self, request_id: str) -> None:
        """Stop a request at the next step; unknown and finished ids are ignored."""

    def stats(self) -> EngineStats:
        """A snapshot of the running engine."""

    def close(self) -> None:
        """End live requests, deliver their finish records, and stop."""
