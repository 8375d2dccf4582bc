"""The meter's errors. Codes of HTTP are given to them in `api.problems`, nowhere else."""

from __future__ import annotations


class MeteringError(Exception):
    """Anything the meter refuses or fails to do."""


class EventConflict(MeteringError):
    """An event id that is already taken by another body: one of the two states a falsehood."""

    def __init__(self, event_id: str) -> None:
        super().__init__(f"event {event_id} was recorded before with another body")
        self.event_id = event_id


class UnknownRequest(MeteringError):
    """A request that this recorder does not hold: never tracked, or already final."""

    def __init__(self, request_id: str) -> None:
        super().__init__(f"no live request {request_id}")
        self.request_id = request_id


class SourceUnavailable(MeteringError):
    """An energy source that cannot be read here, now; the message says why and what would help."""


class InvalidEnergySettings(MeteringError, ValueError):
    """Energy settings that contradict themselves or name an unknown source."""


class NotCalibrated(MeteringError):
    """There are too few labels to promise what was asked for; the message says how many."""


class InvalidVerdicts(MeteringError, ValueError):
    """Verdicts from outside that are about nothing stored here, or contradict each other."""


class InvalidTrace(MeteringError):
    """A file that is no recorded trace of an energy source, or none that can be played."""


class InvalidCalibration(MeteringError):
    """Measurements of work that say nothing of its cost, or a file of costs that is damaged."""
