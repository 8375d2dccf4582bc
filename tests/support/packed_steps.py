"""Steps packed at random, and the same logits computed one row at a time.

`OneByOne` is the standard: every prefix gets its own row in its own step. `Packer` runs several
requests together, in chunks, trees, after moves and after being started over, and yields what
the decoder said of each row with the prefix that row stands for.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from engine.model.decoder import Decoder
from engine.model.rows import Segment, StepRows

Prefix = tuple[int, ...]


class OneByOne:
    """Logits of any prefix, each computed as the only row of a step."""

    def __init__(self, decoder: Decoder, first_slot: int = 0) -> None:
        self._decoder = decoder
        self._first_slot = first_slot
        self._known: dict[Prefix, tuple[int, Tensor]] = {}

    def logits(self, prefix: Prefix) -> Tensor:
        """Return the logits [vocab] that follow `prefix`, computing what is missing."""
        for length in range(1, len(prefix) + 1):
            if prefix[:length] not in self._known:
                self._compute(prefix[:length])
        return self._known[prefix][1]

    def _compute(self, prefix: Prefix) -> None:
        slot = self._first_slot + len(self._known)
        before = [self._known[prefix[:length]][0] for length in range(1, len(prefix))]
        segment = Segment(int64(before), int64([[slot]]))
        row = StepRows(
            int64(prefix[-1:]), int64([len(prefix) - 1]), int64([slot]), (segment,), int64([0])
        )
        self._known[prefix] = (slot, self._decoder.forward(row)[0])


@dataclass
class Request:
    """What a packed request has computed so far: its tokens, and the slots of their keys."""

    tokens: list[int] = field(default_factory=list)
    slots: list[int] = field(default_factory=list)


@dataclass
class Rows:
    """One request's share of a step."""

    request: Request
    tokens: list[int]
    parents: list[int]  # index of a row's parent, -1 for the committed tokens
    slots: list[int]

    def path(self, row: int) -> list[int]:
        """Return a row's ancestors, itself last."""
        before = [] if self.parents[row] < 0 else self.path(self.parents[row])
        return [*before, row]

    def prefix(self, row: int) -> Prefix:
        """Return the tokens that a row stands for."""
        return (*self.request.tokens, *(self.tokens[node] for node in self.path(row)))

    def segment(self) -> Segment:
        """Return the keys these rows may see."""
        paths = [[self.slots[node] for node in self.path(row)] for row in range(len(self.tokens))]
        width = max(map(len, paths))
        tail = [path + [-1] * (width - len(path)) for path in paths]
        return Segment(int64(self.request.slots), int64(tail))


class Packer:
    """Runs `requests` requests of about `length` tokens at random, in the first `slots` slots."""

    def __init__(
        self,
        decoder: Decoder,
        choice: random.Random,
        *,
        slots: int,
        requests: int,
        length: int,
        alphabet: int,
    ) -> None:
        self._decoder = decoder
        self._choice = choice
        self._length = length
        self._alphabet = alphabet
        self._free = list(range(slots))
        choice.shuffle(self._free)
        self._requests = [Request() for _ in range(requests)]

    def steps(self, count: int) -> Iterator[list[tuple[Prefix, Tensor]]]:
        """Run steps; yield for each its rows' prefixes and logits."""
        for _ in range(count):
            running = self._choice.sample(
                self._requests, self._choice.randint(1, len(self._requests))
            )
            shares = [self._share(request) for request in running]
            logits = self._forward(shares)
            prefixes = [share.prefix(row) for share in shares for row in range(len(share.tokens))]
            yield list(zip(prefixes, logits, strict=True))
            for share in shares:
                self._accept(share)

    def _share(self, request: Request) -> Rows:
        if len(request.tokens) >= self._length or self._choice.random() < 0.05:
            self._free += request.slots  # preempted: everything is computed again
            request.tokens, request.slots = [], []
        count = self._choice.choice([1, 1, 2, 5, 8, self._choice.randint(1, 70)])
        branching = 0.0 if count > 12 else self._choice.choice([0.0, 0.4, 1.0])
        tokens = [self._choice.randrange(self._alphabet) for _ in range(count)]
        parents = [
            row - 1 if self._choice.random() >= branching else self._choice.randint(-1, row - 1)
            for row in range(count)
        ]
        return Rows(request, tokens, parents, [self._free.pop() for _ in range(count)])

    def _forward(self, shares: Sequence[Rows]) -> Tensor:
        rows = [(share, row) for share in shares for row in range(len(share.tokens))]
        return self._decoder.forward(
            StepRows(
                token_ids=int64([share.tokens[row] for share, row in rows]),
                positions=int64([len(share.prefix(row)) - 1 for share, row in rows]),
                slots=int64([share.slots[row] for share, row in rows]),
                segments=tuple(share.segment() for share in shares),
                logit_rows=torch.arange(len(rows)),
            )
        )

    def _accept(self, share: Rows) -> None:
        path = share.path(self._choice.randrange(len(share.tokens)))
        kept = [share.slots[row] for row in path]
        homes = list(kept)
        if self._choice.random() < 0.5:
            homes = share.slots[: len(path)]  # compacted to the front, overlapping
            self._decoder.storage.move(int64(kept), int64(homes))
        share.request.tokens += [share.tokens[row] for row in path]
        share.request.slots += homes
        self._free += [slot for slot in share.slots if slot not in homes]
        self._choice.shuffle(self._free)


def int64(values: Sequence[int] | Sequence[Sequence[int]]) -> Tensor:
    """Return a tensor of indices."""
    return torch.tensor(values, dtype=torch.int64)
