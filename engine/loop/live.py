"""What the loop keeps of a request while it lives, and of a step while it runs."""

from __future__ import annotations

from dataclasses import dataclass, field

from engine.draft.drafter import DraftSession
from engine.loop.degradation import Window
from engine.loop.emission import Emission
from engine.loop.shaping import Shaping
from engine.processors import LogitsProcessor
from engine.records import BlockRecord, FinishRecord, RequestWork
from engine.scheduler.sequence import Sequence as LiveSequence


@dataclass(slots=True, eq=False)
class Live:
    """A request between its submission and its finish record."""

    sequence: LiveSequence
    emission: Emission
    processors: tuple[LogitsProcessor, ...]
    may_draft: bool
    shaping: Shaping | None = None
    session: DraftSession | None = None  # opened with the first draft
    told: int = 0  # tokens that the session knows
    cancelled: bool = False


@dataclass(slots=True)
class Outcome:
    """What a step has produced so far."""

    work: list[RequestWork] = field(default_factory=list)
    blocks: list[BlockRecord] = field(default_factory=list)
    finishes: list[FinishRecord] = field(default_factory=list)
    moves: list[tuple[int, int]] = field(default_factory=list)  # slots, from and to
    drawn: int = 0  # tokens
    drafted: Window = field(default_factory=Window)
