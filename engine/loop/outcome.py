"""What a step has produced so far."""

from __future__ import annotations

from dataclasses import dataclass, field

from engine.loop.degradation import Window
from engine.records import BlockRecord, FinishRecord, RequestWork


@dataclass(slots=True)
class Outcome:
    """Filled by the loop, and told as a step's record."""

    work: list[RequestWork] = field(default_factory=list)
    blocks: list[BlockRecord] = field(default_factory=list)
    finishes: list[FinishRecord] = field(default_factory=list)
    moves: list[tuple[int, int]] = field(default_factory=list)  # slots, from and to
    drawn: int = 0  # tokens
    drafted: Window = field(default_factory=Window)
