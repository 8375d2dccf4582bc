"""One request on its way: its tokens, and how many of them are computed.

    tokens      prompt ............ | emitted ........ | root
    computed    0 ................................... ^         the root's key is never computed
                                                                before the step that verifies it

A sequence is *prefilling* while more than its last token is pending, for the first time or, after
a preemption, again.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from engine.cache.page_table import PageTable
from engine.requests import GenerationRequest


@dataclass(slots=True, eq=False)
class Sequence:
    """A live request. The scheduler and the loop change it between steps, nobody else."""

    request: GenerationRequest
    table: PageTable
    arrival: int  # order of arrival, which decides who is preempted
    tokens: list[int] = field(init=False)
    computed: int = 0  # leading tokens whose keys lie in the table
    computed_once: int = 0  # the most that `computed` ever was; below it, rows are recomputation
    drafted_at: int = -1  # step that last asked for a draft, for fairness

    def __post_init__(self) -> None:
        self.tokens = list(self.request.prompt_ids)

    @property
    def request_id(self) -> str:
        """The request's id."""
        return self.request.request_id

    @property
    def pending(self) -> int:
        """Tokens still to be computed; 1 in plain decoding."""
        return len(self.tokens) - self.computed

    @property
    def emitted(self) -> int:
        """Tokens drawn so far."""
        return len(self.tokens) - len(self.request.prompt_ids)

    @property
    def remaining(self) -> int:
        """Tokens that may still be drawn."""
        return self.request.max_tokens - self.emitted

    def advance(self, computed: int, drawn: tuple[int, ...] = ()) -> None:
        """Take over what a step computed and drew, and publish the pages it filled."""
        self.tokens += drawn
        self.computed = computed
        self.computed_once = max(self.computed_once, computed)
        self.table.publish(self.tokens, computed)
        self.table.trim(len(self.tokens))
