"""Random cases for the GPU's kernels, and attention computed without them.

Used by the tests in Triton's interpreter and by the check on a real GPU.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

import torch
from packed_steps import Request, Rows, int64
from torch import Tensor

from engine.kernels.triton.attention_reference import AttentionPlan
from engine.model.rows import Segment, StepRows
from engine.model.triton_operations import attention_plan


@dataclass(frozen=True)
class AttentionCase:
    """A step's rows, everything there is in storage, and the rows' queries."""

    step: StepRows
    pool: Tensor  # [2, kv heads, slots, dim]
    queries: Tensor  # [R, heads * dim]
    heads: int

    def plan(self) -> AttentionPlan:
        """Lay out the step's keys."""
        null_slot = self.pool.shape[2] - 1
        group = self.heads // self.pool.shape[1]
        return attention_plan(self.step, group, null_slot, self.pool.device)

    def alone(self, row: int) -> AttentionCase:
        """The same row as the only one of a step."""
        first = 0
        for segment in self.step.segments:
            if row < first + len(segment.tail):
                path = segment.tail[row - first]
                own = Segment(segment.committed, path[path >= 0][None])
                one = int64([0])
                step = StepRows(one, one, one, (own,), one)
                return AttentionCase(step, self.pool, self.queries[row : row + 1], self.heads)
            first += len(segment.tail)
        raise IndexError(row)

    def expected(self) -> Tensor:
        """Attention of every row over its own keys, in double precision: [R, heads * dim]."""
        kv_heads, dim = self.pool.shape[1], self.pool.shape[3]
        paths = [
            torch.cat([segment.committed, tail[tail >= 0]]).to(self.pool.device)
            for segment in self.step.segments
            for tail in segment.tail
        ]
        results = []
        for path, query in zip(paths, self.queries.double(), strict=True):
            keys, values = self.pool[:, :, path].double()
            own = query.view(kv_heads, -1, dim)
            weights = torch.softmax(own @ keys.transpose(1, 2), dim=2)
            results.append((weights @ values).flatten())
        return torch.stack(results)


def attention_case(
    seed: int,
    *,
    heads: int,
    kv_heads: int,
    dim: int,
    requests: int = 3,
    longest: int = 150,
    dtype: torch.dtype = torch.float32,
    device: str = "cpu",
) -> AttentionCase:
    """Requests with up to `longest` committed tokens: chains, bushes, chunks; scattered slots."""
    choice = random.Random(seed)
    free = list(range(requests * (longest + 24)))
    choice.shuffle(free)
    slots = len(free) + 1
    shares = []
    for _ in range(requests):
        committed = [free.pop() for _ in range(choice.randint(0, longest))]
        count = choice.choice([1, 2, 8, 20])
        branching = choice.choice([0.0, 0.5, 1.0])
        parents = [
            row - 1 if choice.random() >= branching else choice.randint(-1, row - 1)
            for row in range(count)
        ]
        own = [free.pop() for _ in range(count)]
        shares.append(Rows(Request([], committed), [0] * count, parents, own))
    rows = sum(len(share.tokens) for share in shares)
    index = torch.arange(rows)
    step = StepRows(index, index, index, tuple(share.segment() for share in shares), index)
    generator = torch.Generator().manual_seed(seed)
    pool = torch.randn(2, kv_heads, slots, dim, generator=generator)
    pool[:, :, -1] = 0  # the null slot
    queries = torch.randn(rows, heads * dim, generator=generator) * dim**-0.5
    return AttentionCase(step, pool.to(device, dtype), queries.to(device), heads)


def random_children(rows: int, most: int, vocabulary: int, seed: int) -> Tensor:
    """Children's tokens of every row, [rows, most] int64, -1 where there is none."""
    generator = torch.Generator().manual_seed(seed)
    children = torch.randint(vocabulary, (rows, most), generator=generator)
    return torch.where(torch.rand(rows, most, generator=generator) < 0.3, -1, children)
