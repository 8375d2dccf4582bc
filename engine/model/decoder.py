"""The Llama-family decoder: one forward pass over the rows of one step."""

from __future__ import annotations

import os
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional

from engine.cache.storage import KvStorage
from engine.dfm.container import ModelFile
from engine.dfm.header import Header
from engine.model.rows import StepRows


class Decoder:
    """A loaded model and its key-value storage. Not thread-safe."""

    def __init__(self, file: ModelFile, storage: KvStorage, threads: int) -> None:
        self.header: Header = file.header
        self.info = file.header.model.architecture
        self.eos_ids = frozenset(file.header.tokens.eos_ids)
        self.storage = storage
        self.backend = "fp32"
        self.batch_invariant = False
        self.device = "cpu"
        self.threads = threads
        self._file = file

    @classmethod
    def load(
        cls,
        path: Path | str,
        *,
        backend: str = "fp32",
        device: str = "cpu",
        threads: int | None = None,
        kv_tokens: int = 16384,
    ) -> Decoder:
        """Load a `.dfm`, its checksum verified. Raises InvalidModelFile."""
        assert backend == "fp32", backend
        file = ModelFile.open(path)
        file.verify()
        threads = threads or os.cpu_count() or 1
        torch.set_num_threads(threads)
        shape = file.header.model.architecture
        storage = KvStorage(shape.layers, kv_tokens, shape.kv_heads, shape.head_dim, device)
        return cls(file, storage, threads)

    @torch.inference_mode()
    def forward(self, step: StepRows) -> Tensor:
        """Write the rows' keys and values, return raw logits [Q, vocab] float32."""
        shape = self.info
        weight = self._weight
        rows = step.token_ids.shape[0]
        half = shape.head_dim // 2
        inverse = 1.0 / shape.rope.theta ** (torch.arange(half, dtype=torch.float32) / half)
        angles = step.positions[:, None].float() * inverse
        cos, sin = angles.cos()[:, None], angles.sin()[:, None]

        def rotate(x: Tensor) -> Tensor:
            a, b = x[..., :half], x[..., half:]
            return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)

        keys_of_rows = [
            torch.cat([segment.committed, tail[tail >= 0]])
            for segment in step.segments
            for tail in segment.tail
        ]
        x = weight("embedding.weight")[step.token_ids]
        for layer in range(shape.layers):
            name = f"layers.{layer}"
            y = functional.rms_norm(
                x, (shape.hidden,), weight(f"{name}.attention_norm.weight"), shape.norm_epsilon
            )
            qkv = functional.linear(y, weight(f"{name}.attention.qkv.weight"))
            qkv = qkv.view(rows, -1, shape.head_dim)
            q, k, v = qkv.split([shape.heads, shape.kv_heads, shape.kv_heads], dim=1)
            q, k = rotate(q), rotate(k)
            self.storage.write(layer, step.slots, k, v)
            mixed = []
            for row, slots in enumerate(keys_of_rows):
                keys, values = self.storage.read(layer, slots)
                mixed.append(
                    functional.scaled_dot_product_attention(
                        q[row][:, None],
                        keys.transpose(0, 1),
                        values.transpose(0, 1),
                        enable_gqa=True,
                    ).reshape(-1)
                )
            x = x + functional.linear(torch.stack(mixed), weight(f"{name}.attention.output.weight"))
            y = functional.rms_norm(
                x, (shape.hidden,), weight(f"{name}.mlp_norm.weight"), shape.norm_epsilon
            )
            gate, up = functional.linear(y, weight(f"{name}.mlp.gate_up.weight")).chunk(2, -1)
            x = x + functional.linear(functional.silu(gate) * up, weight(f"{name}.mlp.down.weight"))
        x = functional.rms_norm(
            x[step.logit_rows], (shape.hidden,), weight("final_norm.weight"), shape.norm_epsilon
        )
        head = "embedding.weight" if shape.tied_embeddings else "head.weight"
        return functional.linear(x, weight(head))

    def _weight(self, name: str) -> Tensor:
        return torch.from_numpy(self._file.tensor(name))
