"""An independent Llama: the whole sequence at once, full causal attention, straight from a GGUF.

It shares no code with the engine. Weights are read with the `gguf` library and used in the file's
own order, pairs of dimensions next to each other, with complex rotations as in the original.
"""

from __future__ import annotations

from pathlib import Path

import gguf
import torch
from gguf.quants import dequantize
from torch import Tensor


class DenseLlama:
    """A GGUF of the llama family, computed in `dtype`."""

    def __init__(self, path: Path, dtype: torch.dtype = torch.float64) -> None:
        reader = gguf.GGUFReader(path)
        self._fields = {name: field.contents() for name, field in reader.fields.items()}
        self._weights = {
            tensor.name: torch.tensor(
                dequantize(tensor.data, tensor.tensor_type).reshape(*reversed(tensor.shape)),
                dtype=dtype,
            )
            for tensor in reader.tensors
        }

    def logits(self, token_ids: list[int]) -> Tensor:
        """Return the logits [T, vocab] of every position of one sequence."""
        weights = self._weights
        x = weights["token_embd.weight"][token_ids]
        for layer in range(self._fields["llama.block_count"]):
            x = x + self._attention(f"blk.{layer}", self._norm(x, f"blk.{layer}.attn_norm"))
            y = self._norm(x, f"blk.{layer}.ffn_norm")
            gate = self._linear(f"blk.{layer}.ffn_gate", y)
            up = self._linear(f"blk.{layer}.ffn_up", y)
            x = x + self._linear(f"blk.{layer}.ffn_down", gate * torch.sigmoid(gate) * up)
        x = self._norm(x, "output_norm")
        return x @ weights.get("output.weight", weights["token_embd.weight"]).T

    def _attention(self, block: str, x: Tensor) -> Tensor:
        heads = self._fields["llama.attention.head_count"]
        kv_heads = self._fields["llama.attention.head_count_kv"]
        length = len(x)
        query = self._rotate(self._linear(f"{block}.attn_q", x).view(length, heads, -1))
        key = self._rotate(self._linear(f"{block}.attn_k", x).view(length, kv_heads, -1))
        value = self._linear(f"{block}.attn_v", x).view(length, kv_heads, -1)
        key, value = (t.repeat_interleave(heads // kv_heads, dim=1) for t in (key, value))
        scores = torch.einsum("qhd,khd->hqk", query, key) / query.shape[-1] ** 0.5
        future = torch.ones(length, length, dtype=torch.bool).triu(1)
        weights = scores.masked_fill(future, -torch.inf).softmax(-1)
        mixed = torch.einsum("hqk,khd->qhd", weights, value).reshape(length, -1)
        return self._linear(f"{block}.attn_output", mixed)

    def _rotate(self, x: Tensor) -> Tensor:
        length, _, dim = x.shape
        theta = self._fields["llama.rope.freq_base"]
        frequencies = theta ** -(torch.arange(0, dim, 2, dtype=torch.float64) / dim)
        if "rope_freqs.weight" in self._weights:
            frequencies = frequencies / self._weights["rope_freqs.weight"]
        factor = self._fields.get("llama.rope.scaling.factor", 1.0)
        angles = torch.outer(torch.arange(length, dtype=torch.float64) / factor, frequencies)
        turn = torch.polar(torch.ones_like(angles), angles)[:, None]
        pairs = torch.view_as_complex(x.double().reshape(*x.shape[:-1], -1, 2))
        return torch.view_as_real(pairs * turn).flatten(-2).to(x.dtype)

    def _norm(self, x: Tensor, name: str) -> Tensor:
        epsilon = self._fields["llama.attention.layer_norm_rms_epsilon"]
        return (
            x / (x.pow(2).mean(-1, keepdim=True) + epsilon).sqrt() * self._weights[f"{name}.weight"]
        )

    def _linear(self, name: str, x: Tensor) -> Tensor:
        y = x @ self._weights[f"{name}.weight"].T
        return y + self._weights[f"{name}.bias"] if f"{name}.bias" in self._weights else y
