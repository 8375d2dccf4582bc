"""What a request has drawn and what of it may be said: stop strings, ends, blocks.

A token whose bytes may turn out to begin a stop string is held back until that is decided; a found
stop string cuts the pieces where it begins. Whatever is drawn after an end is never emitted.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from engine.graph.acceptance import Clipped
from engine.graph.rollback import anchor
from engine.records import Alternative, BlockRecord, FinishReason, FinishRecord
from engine.requests import GenerationRequest


class Drawn(NamedTuple):
    """A token the verifier drew, and what is known of it."""

    token: int
    logprob: float  # nats, raw
    entropy: float  # nats, raw
    accepted: bool  # it had been drafted
    cached: bool  # by the shared draft cache, if not by it alone
    forced: bool = False  # the grammar allowed no other
    top: tuple[tuple[int, float], ...] = ()  # the likeliest tokens, raw, if they were asked for


@dataclass(slots=True)
class _Said:
    """A token on its way out, with its share of what its step drafted and verified."""

    drawn: Drawn
    piece: bytes
    drafted_nodes: int = 0
    drafted_depth: int = 0
    verified_nodes: int = 0


class Emission:
    """The output of one request, from drawn tokens to block and finish records."""

    def __init__(
        self,
        request: GenerationRequest,
        piece: Callable[[int], bytes],
        eos_ids: frozenset[int],
    ) -> None:
        self._request = request
        self._piece = piece
        self._eos_ids = frozenset() if request.ignore_eos else eos_ids
        self._stops = tuple(stop.encode() for stop in request.stop)
        self._held: list[_Said] = []  # may begin a stop string
        self._decided: list[_Said] = []  # for the next block
        self._uncounted: list[_Said] = []  # of the step that is under way
        self._drawn = 0
        self.blocks = 0
        self.tokens = 0
        self.reason: FinishReason | None = None

    def take(self, drawn: Drawn) -> bool:
        """Take one drawn token; returns whether the text ends with it."""
        self._drawn += 1
        ends = drawn.token in self._eos_ids
        said = _Said(drawn, b"" if ends else self._piece(drawn.token))
        self._held.append(said)
        self._uncounted.append(said)
        if ends:
            self._end(FinishReason.STOP)
        else:
            self._decide()
            if self.reason is None and self._drawn == self._request.max_tokens:
                self._end(FinishReason.LENGTH)
        return self.reason is not None

    def follow(self, drawn: Drawn) -> bool:
        """Take a token that another request's work drew; nothing was drafted or scored here."""
        ends = self.take(drawn._replace(accepted=False, cached=False))
        self._uncounted.clear()
        return ends

    @property
    def uncounted(self) -> int:
        """Tokens taken in the step that is under way."""
        return len(self._uncounted)

    def count(self, drafted: Clipped, verified_nodes: int) -> None:
        """Share out what a step drafted and verified among the tokens it drew.

        Each token has the node it was drawn at, an accepted one the node it was drafted as; what
        is left goes to the last. So a block's counts fit its tokens even if some were held back.
        """
        nodes, depth, verified = drafted.nodes, drafted.depth, verified_nodes
        for said in self._uncounted:
            taken = int(said.drawn.accepted)
            said.drafted_nodes, said.drafted_depth, said.verified_nodes = taken, taken, 1
            nodes, depth, verified = nodes - taken, depth - taken, verified - 1
        last = self._uncounted[-1]
        last.drafted_nodes += nodes
        last.drafted_depth += depth
        last.verified_nodes += verified
        self._uncounted = []

    def block(self, cached_prompt_tokens: int = 0) -> BlockRecord | None:
        """Return what was decided since the last block as one; null if nothing was.

        The first block says how much of the prompt was not computed.
        """
        if not self._decided:
            return None
        drawn = [said.drawn for said in self._decided]
        accepted = [token.accepted for token in drawn]
        entropies = tuple(token.entropy for token in drawn)
        record = BlockRecord(
            request_id=self._request.request_id,
            block_index=self.blocks,
            token_ids=tuple(token.token for token in drawn),
            pieces=tuple(said.piece for said in self._decided),
            logprobs=tuple(token.logprob for token in drawn),
            entropies=entropies,
            drafted_nodes=sum(said.drafted_nodes for said in self._decided),
            drafted_depth=sum(said.drafted_depth for said in self._decided),
            verified_nodes=sum(said.verified_nodes for said in self._decided),
            accepted_tokens=sum(accepted),
            cached_tokens=sum(token.cached for token in drawn),
            anchor=anchor(entropies, accepted),
            cached_prompt_tokens=0 if self.blocks else cached_prompt_tokens,
            forced=tuple(index for index, token in enumerate(drawn) if token.forced),
            alternatives=self._alternatives(drawn) if self._request.top_logprobs else (),
        )
        self.blocks += 1
        self.tokens += len(drawn)
        self._decided = []
        return record

    def finish(self, reason: FinishReason, detail: str | None = None) -> FinishRecord:
        """Return the finish record. What is still held back is dropped: it was never emitted."""
        return FinishRecord(
            request_id=self._request.request_id,
            reason=reason,
            block_count=self.blocks,
            token_count=self.tokens,
            detail=detail,
        )

    def _alternatives(self, drawn: list[Drawn]) -> tuple[tuple[Alternative, ...], ...]:
        return tuple(
            tuple(Alternative(index, self._piece(index), logprob) for index, logprob in token.top)
            for token in drawn
        )

    def _end(self, reason: FinishReason) -> None:
        self._decided += self._held
        self._held = []
        self.reason = reason

    def _decide(self) -> None:
        """Decide what can be: everything, up to the place where a stop string may have begun."""
        window = b"".join(said.piece for said in self._held)
        found = [at for at in (window.find(stop) for stop in self._stops) if at >= 0]
        if found:
            self._cut(min(found))
            self._end(FinishReason.STOP)
            return
        open_bytes = max((_begun(window, stop) for stop in self._stops), default=0)
        # held pieces   | decided ... | x x b e | g i n |        boundary: where "begin" may begin
        #                                  ^ boundary; the whole third piece is held
        boundary, end = len(window) - open_bytes, 0
        for index, said in enumerate(self._held):
            end += len(said.piece)
            if end > boundary:
                self._decided += self._held[:index]
                del self._held[:index]
                return
        self._decided += self._held
        self._held = []

    def _cut(self, at: int) -> None:
        """Cut the held pieces to the first `at` bytes; their tokens stay."""
        start = 0
        for said in self._held:
            length = len(said.piece)
            said.piece = said.piece[: max(0, at - start)]
            start += length


def _begun(text: bytes, stop: bytes) -> int:
    """Return the length of the longest proper beginning of `stop` that ends `text`."""
    longest = min(len(text), len(stop) - 1)
    return next((size for size in range(longest, 0, -1) if text.endswith(stop[:size])), 0)
