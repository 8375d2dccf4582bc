"""One request on its way: its tokens, and how many of them are computed.

    tokens      prompt ............ | emitted ........ | root
    computed    0 ................................... ^         the root's key is never computed
                                                                before the step that verifies it

A sequence is *prefilling* while more than its last token is pending, for the first time or, after
a preemption, again. It may run for several requests that ask the same (`engine.loop.flights`);
`request` is the one in whose name it does.
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
    max_tokens: int = field(init=False)  # the most that any of its requests may draw
    computed: int = 0  # leading tokens whose keys lie in the table
    computed_once: int = 0  # the most that `computed` ever was; below it, rows are recomputation
    found: int = 0  # prompt tokens that it never computed: their keys were in the prefix cache
    drafted_at: int = -1  # step that last asked for a draft, for fairness
    held_at: int = -1  # length of the text when it last let another go ahead

    def __post_init__(self) -> None:
        self.tokens = list(self.request.prompt_ids)
        self.max_tokens = self.request.max_tokens

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
        return self.max_tokens - self.emitted

    def start(self) -> list[tuple[int, int]]:
        """Give every token a slot behind what the table has adopted; returns slots to copy.

        Raises PagesExhausted.
        """
        self.table.reserve(len(self.tokens))
        copies = self.table.copies()
        self.computed = self.table.adopted
        prompt_length = len(self.request.prompt_ids)
        self.found += max(0, min(self.computed, prompt_length) - self.computed_once)
        self.computed_once = max(self.computed_once, self.computed)
        return copies

    def advance(self, computed: int, drawn: tuple[int, ...] = ()) -> None:
        """Take over what a step computed and drew, and publish the pages it filled.

        A prompt's last page is published even if it isn't full: others may be asking the same.
        """
        prompt_ends = bool(drawn) and self.computed < len(self.request.prompt_ids)
        self.tokens += drawn
        self.computed = computed
        self.computed_once = max(self.computed_once, computed)
        self.table.publish(self.tokens, computed, partial=prompt_ends)
        self.table.trim(len(self.tokens))

    def release(self) -> None:
        """Give back all pages, once what is computed can be found by others."""
        self.table.publish(self.tokens, self.computed, partial=True)
        self.table.release()
        self.computed = 0
