"""Fitting a block head: to foresee the next few tokens of responses the model gave itself.

Every position of a response is an anchor: its token is the root, the tokens after it are the
targets, the features of those before it the window, as in serving. Resumable: a checkpoint
holds parameters, their moving average (which is what is exported), optimiser and place.

Dims: N tokens of a batch, A anchors, S slots, W window, V vocabulary of the head, D hidden.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from engine.draft.head.file import BlockHeadWeights
from engine.draft.head.network import HeadNetwork
from engine.draft.head.shape import HeadShape
from engine.kernels.cpu.linear import block_matrix
from engine.training.corpus import Progress, Sequence, Shard
from engine.training.features import Features
from engine.training.vocabulary_loss import vocabulary_loss

ANCHORS = 512  # of one batch
_POOL = 8  # shards whose anchors are mixed
_LEARNING_RATE = 2e-3
_WARMUP_STEPS = 30
_DECAY_FROM = 0.6  # share of the time given from which on the rate falls
_AVERAGED_STEPS = 150  # horizon of the moving average
_CLIP = 1.0
_DEEPER = 0.8  # a slot's weight, against the one before
_CHECKPOINT_S = 120.0
_REPORT_S = 30.0

ReadFeatures = Callable[[Shard], Features]
Anchors = NDArray[np.int64]  # [A, 3] a root, the first token of its text, the end of it; rows of N


class Batch(NamedTuple):
    """Anchors of a few sequences."""

    taps: Tensor  # [T, N, D]
    last: Tensor  # [A] rows of the tokens before the roots
    windows: Tensor  # [A, W] rows
    visible: Tensor  # [A, W]
    roots: Tensor  # [A] token ids
    targets: Tensor  # [A, S] places in the vocabulary, -1 where there is none


@dataclass(frozen=True, slots=True)
class Pool:
    """A few shards, one behind the other."""

    tokens: NDArray[np.int32]  # [N]
    features: Features

    @classmethod
    def of(cls, sequences: list[list[Sequence]], features: list[Features]) -> Pool:
        """Join shards' sequences and features."""
        tokens = [sequence.tokens for part in sequences for sequence in part]
        return cls(np.concatenate(tokens), Features.joined(features))


@dataclass(frozen=True, slots=True)
class FrozenParts:
    """What a head takes from its model."""

    embedding: Tensor  # [model's vocabulary, D]
    vocabulary: Tensor  # [G, V / G, D / G]
    final_norm: Tensor  # [D]


class Fitting:
    """A head being fitted. Not thread-safe."""

    def __init__(
        self,
        shape: HeadShape,
        token_ids: NDArray[np.int32],
        frozen: FrozenParts,
        *,
        seed: int,
        exact: bool = False,
    ) -> None:
        """`exact` computes in float32 throughout, for tests; otherwise products are bfloat16."""
        self.shape = shape
        self.token_ids = token_ids
        self.steps = 0
        self.elapsed_s = 0.0
        self._seed = seed
        self._frozen = frozen
        self._exact = exact
        size = len(frozen.embedding)
        self._place_of = torch.full((size,), shape.vocabulary, dtype=torch.int64)
        self._place_of[torch.from_numpy(token_ids).long()] = torch.arange(shape.vocabulary)
        self._parameters = _initial(shape, frozen, torch.Generator().manual_seed(seed))
        self._average = {name: value.detach().clone() for name, value in self._parameters.items()}
        self._optimiser = torch.optim.AdamW(
            self._parameters.values(),
            lr=_LEARNING_RATE,
            betas=(0.9, 0.98),
            weight_decay=0.01,
            fused=True,
        )

    def fit(
        self,
        shards: list[Shard],
        features: ReadFeatures,
        *,
        seconds: float,
        checkpoint: Path,
        progress: Progress = lambda _: None,
    ) -> None:
        """Go on until fitting has taken `seconds` of processor time altogether.

        Checkpoints are written on the way and at the end.
        """
        saved = reported = time.monotonic()
        losses: list[float] = []
        for batch in self._batches(shards, features):
            if self.elapsed_s >= seconds:
                break
            began = time.process_time()
            losses.append(self._step(batch, self.elapsed_s / seconds))
            self.elapsed_s += time.process_time() - began
            now = time.monotonic()
            if now - reported >= _REPORT_S:
                progress(
                    f"fitting: step {self.steps:,}, {self.elapsed_s:,.0f} of {seconds:,.0f} s, "
                    f"loss {sum(losses) / len(losses):.3f}"
                )
                reported, losses = now, []
            if now - saved >= _CHECKPOINT_S:
                self.save(checkpoint)
                saved = now
        self.save(checkpoint)

    def save(self, path: Path) -> None:
        """Write a checkpoint; `path` appears only when it is whole."""
        partial = path.with_suffix(".partial")
        state = {
            "parameters": {name: value.detach() for name, value in self._parameters.items()},
            "average": self._average,
            "optimiser": self._optimiser.state_dict(),
            "steps": self.steps,
            "elapsed_s": self.elapsed_s,
        }
        torch.save(state, partial)
        os.replace(partial, path)

    def resume(self, path: Path) -> None:
        """Take over a checkpoint of the same shape."""
        state = torch.load(path, weights_only=True)
        with torch.no_grad():
            for name, value in self._parameters.items():
                value.copy_(state["parameters"][name])
        self._average = state["average"]
        self._optimiser.load_state_dict(state["optimiser"])
        self.steps, self.elapsed_s = state["steps"], state["elapsed_s"]

    def weights(self) -> BlockHeadWeights:
        """Return the averaged parameters, projections in 8-bit blocks where they fit."""
        vectors = {
            name: self._average[f"vector/{name}"].float().numpy() for name in self.shape.vectors
        }
        linears = {}
        for name in self.shape.linears:
            weight = self._average[f"linear/{name}"].flatten(0, 1)
            fits = weight.shape[1] % 32 == 0
            linears[name] = block_matrix(weight).blocks if fits else weight.numpy()
        return BlockHeadWeights(vectors, linears, self.token_ids)

    def loss(self, batch: Batch, parameters: dict[str, Tensor] | None = None) -> Tensor:
        """Return the weighted cross-entropy of the targets, each given the token before it."""
        parameters = self._parameters if parameters is None else parameters
        network = self._network(parameters)
        shape = self.shape
        fused, injected = network.features(batch.taps)
        roots = self._frozen.embedding[batch.roots].float()
        last = fused[batch.last] * batch.visible[:, -1:]
        hidden = network.slots(roots, last, injected[batch.windows], batch.visible)
        predecessors = torch.cat([self._place_of[batch.roots][:, None], batch.targets[:, :-1]], 1)
        # a target is reached only through targets that could be proposed
        reached = (batch.targets >= 0).cumprod(1).bool()
        weight = (_DEEPER ** torch.arange(shape.slots)).expand_as(reached)[reached]
        slots = hidden[reached]
        before = network.preceding(slots, predecessors[reached])
        vocabulary = self._frozen.vocabulary
        return vocabulary_loss(
            slots.view(len(slots), shape.groups, -1),
            before.view(len(slots), shape.groups, -1),
            parameters["linear/successors"],
            vocabulary=vocabulary.float() if self._exact else vocabulary,
            targets=batch.targets[reached],
            weights=weight / weight.sum().clamp(min=1.0),
        )

    def _step(self, batch: Batch, spent: float) -> float:
        rate = min(1.0, (self.steps + 1) / _WARMUP_STEPS)
        rate *= max(0.05, min(1.0, (1.0 - spent) / (1.0 - _DECAY_FROM)))
        for group in self._optimiser.param_groups:
            group["lr"] = _LEARNING_RATE * rate
        loss = self.loss(batch)
        self._optimiser.zero_grad()
        torch.autograd.backward(loss)
        torch.nn.utils.clip_grad_norm_(list(self._parameters.values()), _CLIP)
        self._optimiser.step()
        self.steps += 1
        forget = 1.0 / min(self.steps, _AVERAGED_STEPS)
        with torch.no_grad():
            torch._foreach_lerp_(
                list(self._average.values()),
                [value.detach() for value in self._parameters.values()],
                forget,
            )
        return float(loss.detach())

    def _network(self, parameters: dict[str, Tensor]) -> HeadNetwork:
        kind = torch.float32 if self._exact else torch.bfloat16

        def project(name: str, rows: Tensor) -> Tensor:
            parts = zip(rows.to(kind).unbind(1), parameters[f"linear/{name}"].to(kind), strict=True)
            # one by one: a batched product runs at half the rate on a CPU
            return torch.stack([functional.linear(own, part) for own, part in parts], dim=1)

        vectors = {name: parameters[f"vector/{name}"] for name in self.shape.vectors}
        return HeadNetwork(self.shape, vectors, project)

    def _batches(self, shards: list[Shard], features: ReadFeatures) -> Iterator[Batch]:
        """Yield batches for ever, from where `steps` says, in an order the seed decides."""
        place, epoch = 0, 0
        while True:
            random = np.random.default_rng((self._seed, epoch))
            order = random.permutation(len(shards))
            for pool in np.array_split(order, -(-len(order) // _POOL)):
                sequences = [shards[index].sequences() for index in pool]
                anchors = _anchors([own for part in sequences for own in part])
                shuffled = self._shuffled(anchors, np.random.default_rng((self._seed, place)))
                count = -(-len(shuffled) // ANCHORS)
                if place + count > self.steps:
                    pooled = Pool.of(sequences, [features(shards[index]) for index in pool])
                    for part in np.array_split(shuffled, count)[max(self.steps - place, 0) :]:
                        yield self.batch(pooled, part)
                place += count
            epoch += 1

    def _shuffled(self, anchors: Anchors, random: np.random.Generator) -> Anchors:
        """Mix anchors; where windows overlap, sequences stay together, since they share rows."""
        if not self.shape.attends:
            return anchors[random.permutation(len(anchors))]
        starts = np.unique(anchors[:, 1])
        rank = random.permutation(len(starts))[np.searchsorted(starts, anchors[:, 1])]
        return anchors[np.argsort(rank, kind="stable")]

    def batch(self, pool: Pool, anchors: Anchors) -> Batch:
        """Gather what some anchors of a pool need."""
        shape = self.shape
        root, low, end = anchors.T
        windows = root[:, None] + np.arange(-max(shape.window * shape.attends, 1), 0)
        visible = windows >= low[:, None]
        needed, places = np.unique(np.where(visible, windows, low[:, None]), return_inverse=True)
        places = places.reshape(windows.shape)
        ahead = root[:, None] + np.arange(1, shape.slots + 1)
        inside = ahead < end[:, None]
        following = torch.from_numpy(pool.tokens[np.where(inside, ahead, 0)].astype(np.int64))
        targets = self._place_of[following]
        known = torch.from_numpy(inside) & (targets < shape.vocabulary)
        taps = pool.features.rows(needed)
        return Batch(
            taps=taps.view(len(needed), -1, shape.hidden).transpose(0, 1),
            last=torch.from_numpy(places[:, -1]),
            windows=torch.from_numpy(places),
            visible=torch.from_numpy(visible),
            roots=torch.from_numpy(pool.tokens[root].astype(np.int64)),
            targets=torch.where(known, targets, -1),
        )


def _anchors(sequences: list[Sequence]) -> Anchors:
    """Return every token of a response that others follow: itself, first of its text, the end."""
    found, at = [], 0
    for sequence in sequences:
        own = np.arange(sequence.prompt_length, len(sequence.tokens) - 1) + at
        end = at + len(sequence.tokens)
        found.append(np.stack([own, np.full(len(own), at), np.full(len(own), end)], axis=1))
        at = end
    return np.concatenate(found)


def _unit_scaled(shape: HeadShape, frozen: FrozenParts) -> Tensor:
    """Return the model's last norm, scaled so that logits of no opinion differ by about 1."""
    norm = frozen.final_norm.view(shape.groups, 1, -1)
    spread = (frozen.vocabulary.float() * norm).square().sum(2).mean().sqrt()
    return frozen.final_norm / spread


def _initial(
    shape: HeadShape, frozen: FrozenParts, generator: torch.Generator
) -> dict[str, Tensor]:
    parameters = {}
    for name, extents in shape.vectors.items():
        value = torch.zeros(extents)
        if name.endswith("norm") or name == "feature_scale":
            value.fill_(1.0)
        if name == "final_norm":
            value.copy_(_unit_scaled(shape, frozen))
        if name == "slots":
            value.normal_(0.0, 0.02, generator=generator)
        if name == "predecessors":
            value.normal_(0.0, 0.1, generator=generator)
        parameters[f"vector/{name}"] = value
    for name, (outputs, inputs) in shape.linears.items():
        own = inputs // shape.groups
        value = torch.empty(shape.groups, outputs // shape.groups, own)
        value.normal_(0.0, own**-0.5, generator=generator)
        if name.endswith(("output", "down", "successors")):
            value.mul_(0.1)
        parameters[f"linear/{name}"] = value
    return {name: value.requires_grad_() for name, value in parameters.items()}
