"""The native kernels' twin in torch: the same bits, wherever torch runs on a CPU.

It is the standard that tests hold the kernels to, and what computes where they can't be compiled;
then single precision is the faster backend.

Dims: N outputs, K inputs, G groups of 32, R rows of a step, H heads, A kv heads, D head dim,
S slots, L keys of a row.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from engine.dfm.blocks import GROUP, unpack
from engine.kernels.cpu.arithmetic import (
    LANES,
    combined,
    exponential,
    fused,
    lane_sum,
    quantise,
    rms_norm,
    rotate,
    summarise,
    swiglu,
)
from engine.kernels.cpu.weights import BlockMatrix, BlockWeights, StepInputs


class TwinRuntime:
    """Computes with torch on torch's threads."""

    instruction_set = "twin"

    def matrix(self, weights: BlockMatrix, *, passing: bool = False) -> TwinMatrix:
        """Prepare one matrix; its memory is freed with it in either case."""
        return TwinMatrix(weights)

    def model(self, weights: BlockWeights, kv_tokens: int) -> TwinModel:
        """Prepare a model with storage for at least `kv_tokens` tokens."""
        return TwinModel(weights, kv_tokens)

    def statistics(self, logits: Tensor) -> Tensor:
        """Summarise each row of logits [Q, V] float32: `STATISTICS`, [Q, 4] float64."""
        largest, sums, weighted = summarise(logits)
        rows = [
            combined(*parts)
            for parts in zip(largest.tolist(), sums.tolist(), weighted.tolist(), strict=True)
        ]
        combinations = torch.tensor(rows, dtype=torch.float64).reshape(-1, 2)
        tops = torch.stack([logits.argmax(1), logits.amax(1)], dim=1)
        return torch.cat([tops, combinations], dim=1)


class TwinMatrix:
    """A matrix as integers and scales."""

    def __init__(self, weights: BlockMatrix) -> None:
        unpacked = unpack(weights.blocks)
        self._integers = torch.from_numpy(unpacked.integers).permute(1, 2, 0).contiguous()
        self._scales = torch.from_numpy(unpacked.scales).T.contiguous()  # [G, N]
        minimums = unpacked.minimums
        self._minimums = None if minimums is None else torch.from_numpy(minimums).T.contiguous()
        self._bias = weights.bias

    def project(self, rows: Tensor) -> Tensor:
        """Return rows [m, K] float32 times the weights, plus the bias: [m, N]."""
        integers, scales, sums = quantise(rows, GROUP)
        # whole numbers below 2^24: exact in whatever order they are summed
        products = torch.bmm(integers.transpose(0, 1), self._integers.float())
        offsets = scales * sums
        result = torch.zeros_like(products[0])
        for group, product in enumerate(products):
            scale = self._scales[group] * scales[:, group, None]
            result = fused(product, scale, result)
            if self._minimums is not None:
                result = fused(self._minimums[group], offsets[:, group, None], result)
        return result if self._bias is None else result + self._bias

    def row(self, indices: Tensor) -> Tensor:
        """Return weights [len(indices), K]: what an embedding looks up."""
        integers = self._integers[:, :, indices].permute(2, 0, 1).float()
        values = integers * self._scales[:, indices].T[..., None]
        if self._minimums is not None:
            values = values + self._minimums[:, indices].T[..., None]
        return values.flatten(1)


class TwinModel:
    """A model and its storage: 8-bit keys and values [layers, 2, A, S, D / group, group]."""

    def __init__(self, weights: BlockWeights, kv_tokens: int) -> None:
        self.slots = -(-kv_tokens // LANES) * LANES
        self._weights = weights
        self._group = weights.key_group
        groups = weights.head_dim // self._group
        shape = (len(weights.layers), 2, weights.kv_heads, self.slots, groups)
        self._integers = torch.zeros(*shape, self._group, dtype=torch.int8)
        self._scales = torch.zeros(shape)
        self._layers = [
            tuple(map(TwinMatrix, (layer.qkv, layer.output, layer.gate_up, layer.down)))
            for layer in weights.layers
        ]
        self._head = TwinMatrix(weights.head)
        tied = weights.embedding is weights.head
        self._embedding = self._head if tied else TwinMatrix(weights.embedding)

    @torch.inference_mode()
    def forward(self, step: StepInputs, tap_layers: Sequence[int] = ()) -> tuple[Tensor, Tensor]:
        """Write the rows' keys and values; return logits [Q, V] and taps [T, R, hidden].

        A tap is the residual stream behind a layer; `tap_layers` ascend. Raises ValueError for
        indices out of range.
        """
        weights, epsilon = self._weights, self._weights.norm_epsilon
        keys_of_rows = [
            torch.cat([committed, tail[tail >= 0]])
            for committed, tails in step.segments
            for tail in tails
        ]
        self._check(step, keys_of_rows)
        cosines, sines = weights.cosines[step.positions], weights.sines[step.positions]
        hidden = self._embedding.row(step.token_ids)
        taps = []
        for index, layer in enumerate(weights.layers):
            qkv, output, gate_up, down = self._layers[index]
            normed = rms_norm(hidden, layer.attention_norm, epsilon)
            heads = qkv.project(normed).view(len(hidden), -1, weights.head_dim)
            queries, keys, values = torch.split(
                heads, [weights.heads, weights.kv_heads, weights.kv_heads], dim=1
            )
            self._store(index, 0, step.slots, rotate(keys, cosines, sines))
            self._store(index, 1, step.slots, values)
            mixed = self._attend(index, rotate(queries, cosines, sines), keys_of_rows)
            hidden = hidden + output.project(mixed)
            normed = rms_norm(hidden, layer.mlp_norm, epsilon)
            gate, up = gate_up.project(normed).chunk(2, dim=1)
            hidden = hidden + down.project(swiglu(gate, up))
            if index in tap_layers:
                taps.append(hidden)
        tapped = torch.stack(taps) if taps else hidden.new_empty(0, *hidden.shape)
        normed = rms_norm(hidden[step.logit_rows], weights.final_norm, epsilon)
        return self._head.project(normed), tapped

    def move(self, src_slots: Tensor, dst_slots: Tensor) -> None:
        """Copy slots in every layer; everything is read before anything is written."""
        for kept in (self._integers, self._scales):
            kept.index_copy_(3, dst_slots, kept.index_select(3, src_slots))

    def _check(self, step: StepInputs, keys_of_rows: Sequence[Tensor]) -> None:
        limits = (
            (step.token_ids, self._weights.head.outputs, "a token outside the vocabulary"),
            (step.positions, len(self._weights.cosines), "a position outside the context"),
            (step.slots, self.slots, "a slot outside the storage"),
            (step.logit_rows, len(step.token_ids), "logits of a row that is not there"),
            (torch.cat(list(keys_of_rows)), self.slots, "a key's slot outside the storage"),
        )
        for values, end, message in limits:
            if ((values < 0) | (values >= end)).any():
                raise ValueError(message)
        if len(keys_of_rows) != len(step.token_ids):
            raise ValueError("the segments' rows are not the step's")

    def _store(self, layer: int, which: int, slots: Tensor, heads: Tensor) -> None:
        integers, scales, _ = quantise(heads.transpose(0, 1), self._group)  # [A, R, ...]
        self._integers[layer, which].index_copy_(1, slots, integers.to(torch.int8))
        self._scales[layer, which].index_copy_(1, slots, scales)

    def _attend(self, layer: int, queries: Tensor, keys_of_rows: Sequence[Tensor]) -> Tensor:
        """Return the mixed values [R, H * D] of rotated queries [R, H, D]."""
        integers, scales, _ = quantise(queries, self._group)
        scales = scales * scales.new_tensor(self._weights.head_dim**-0.5)
        mixed = torch.empty(len(queries), queries.shape[1] * queries.shape[2])
        share = self._weights.heads // self._weights.kv_heads
        for row, slots in enumerate(keys_of_rows):
            padding = -len(slots) % LANES
            keys, values = self._integers[layer][:, :, slots].float().unbind(0)  # [A, L, g, d]
            key_scales, value_scales = self._scales[layer][:, :, slots].unbind(0)  # [A, L, g]
            own = _grouped(integers[row], share)  # [A, share, g, d]
            products = torch.einsum("alsd,ahsd->ahls", keys, own)  # whole numbers
            own_scales = _grouped(scales[row], share)[:, :, None]
            factors = key_scales[:, None] * own_scales  # [A, share, L, g]
            scores = torch.zeros(products.shape[:3])
            for group in range(products.shape[3]):
                scores = fused(products[..., group], factors[..., group], scores)
            weights = exponential(scores - scores.amax(-1, keepdim=True))
            weights = torch.nn.functional.pad(weights, (0, padding))
            total = lane_sum(weights)
            values = torch.nn.functional.pad(values, (0, 0, 0, 0, 0, padding))
            value_scales = torch.nn.functional.pad(value_scales, (0, 0, 0, padding))
            # a tile's weights times scales, in 15 bits of its largest scale
            tile_scales = value_scales.view(
                len(value_scales), -1, LANES, value_scales.shape[2]
            )  # [A, T, 16, g]
            top = tile_scales.amax(2)
            inverse = torch.where(top > 0, top.new_tensor(32767.0) / top, 0.0)
            factors = tile_scales * inverse[:, :, None]
            tile_weights = weights.view(*weights.shape[:2], -1, LANES)  # [A, share, T, 16]
            rounded = torch.round(tile_weights[..., None] * factors[:, None])
            # whole numbers beyond 2^24: exact in double precision
            sums = torch.einsum(
                "ahtlg,atlgd->ahtgd",
                rounded.double(),
                values.view(len(values), -1, LANES, *values.shape[2:]).double(),
            )
            units = top / 32767.0
            result = torch.zeros(*sums.shape[:2], *sums.shape[3:])
            for tile in range(sums.shape[2]):
                unit = units[:, None, tile, :, None].expand_as(result)
                result = fused(sums[:, :, tile].float(), unit, result)
            mixed[row] = (result.flatten(2) * (1.0 / total)[..., None]).flatten()
        return mixed


def _grouped(heads: Tensor, share: int) -> Tensor:
    """Return query heads [H, ...] by key-value head: [A, share, ...]."""
    return heads.view(-1, share, *heads.shape[1:])
