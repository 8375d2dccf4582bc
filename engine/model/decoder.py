"""The Llama-family decoder: one forward pass over the rows of one step.

Pre-norm layers of grouped-query attention with rotary positions and a SwiGLU block, as in Llama,
or a mixture of them (`engine.model.experts`).
Every row's logits are a function of its own path alone, bit for bit: see `engine.kernels.tiles`
for the projections on the CPU, `engine.model.attention` for the keys there, and
`engine.kernels.triton` for the GPU. What lies between is row-wise.

Dims: R rows padded to row tiles, Q wanted rows, H heads, G kv heads, D head dim.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from engine.cache.storage import KvStorage
from engine.dfm.container import ModelFile
from engine.dfm.header import Architecture, Header
from engine.errors import UnsupportedModel
from engine.kernels.backends import TRITON_BACKENDS, open_backend
from engine.kernels.cpu.linear import BlockLinearBackend
from engine.kernels.linear import BLOCK_LINEAR, LinearBackend, project
from engine.kernels.tiles import cover
from engine.model.experts import FeedForward, Mixture
from engine.model.operations import open_operations
from engine.model.rope import RotaryTable
from engine.model.rows import StepRows
from engine.model.statistics import RawStatistics
from engine.model.weights import Weights, load_weights


class Decoder:
    """A loaded model and its key-value storage. Not thread-safe."""

    def __init__(
        self,
        header: Header,
        weights: Weights,
        storage: KvStorage,
        rotary: RotaryTable,
        *,
        backend: LinearBackend,
        threads: int,
    ) -> None:
        self.header = header
        self.info: Architecture = header.model.architecture
        self.eos_ids = frozenset(header.tokens.eos_ids)
        self.storage = storage
        self.backend = backend.name
        self.threads = threads
        self.experts = weights.experts
        self._weights = weights
        self._backend = backend
        hashed = self.info.experts.hashed if self.info.experts else 0
        blocks = [layer.block for layer in weights.layers[:hashed]]
        self._hashed = [block for block in blocks if isinstance(block, Mixture)]
        self._device = weights.embedding.device
        self._rotary = rotary
        self._operations = open_operations(
            self.info,
            storage.null_slot,
            self._device,
            triton=self._device.type == "cuda" or backend.name in TRITON_BACKENDS,
        )
        self.row_tiles = weights.row_tiles
        self.batch_invariant = self._operations.batch_invariant

    @classmethod
    def load(
        cls,
        path: Path | str,
        *,
        backend: str = "fp32",
        device: str = "cpu",
        threads: int | None = None,
        kv_tokens: int = 16384,
        rope_scaling_factor: float = 1.0,
        expert_cache_size: int = 0,
    ) -> Decoder:
        """Load a `.dfm`, its checksum verified, and set the process's torch thread count.

        `threads` defaults to one per core this process may use; `kv_tokens` is the capacity of
        the storage; positions are multiplied by `rope_scaling_factor` before they are rotated;
        `expert_cache_size` experts are kept prepared, 0 for all: see `engine.cache.experts`.
        Raises InvalidModelFile, UnsupportedModel.
        """
        count = threads or usable_cores()
        file = ModelFile.open(path)
        shape = file.header.model.architecture
        if shape.experts is not None and (device != "cpu" or backend in TRITON_BACKENDS):
            raise UnsupportedModel(
                f"{file.path} is a mixture of experts: it runs on the CPU, with backend"
                f" {BLOCK_LINEAR!r} or 'fp32'; not with {backend!r} on {device}"
            )
        opened = open_backend(backend, device, count)
        file.verify()
        # the native kernels bring their own threads, and one of torch's that waits spins
        native = isinstance(opened, BlockLinearBackend) and opened.native
        torch.set_num_threads(1 if native else count)
        with torch.inference_mode():
            weights = load_weights(file, opened, torch.device(device), expert_cache_size)
        # only now, when the tensors have borne out the sizes that it takes
        sizes = (shape.layers, kv_tokens, shape.kv_heads, shape.head_dim)
        storage = KvStorage(*sizes, device=device, dtype=opened.kept)
        with torch.inference_mode():
            rotary = RotaryTable(shape, torch.device(device), rope_scaling_factor)
            return cls(file.header, weights, storage, rotary, backend=opened, threads=count)

    @property
    def device(self) -> str:
        """Where it computes: "cpu", "cuda:0"."""
        return str(self._device)

    @property
    def instruction_set(self) -> str:
        """The vector instructions torch uses, or the GPU's; part of what a result depends on."""
        if isinstance(self._backend, BlockLinearBackend):
            return self._backend.instruction_set
        if self._device.type == "cpu":
            return torch.backends.cpu.get_cpu_capability()
        return "sm_{}{}".format(*torch.cuda.get_device_capability(self._device))

    @property
    def device_uuid(self) -> str | None:
        """Which GPU it is, as CUDA says it, without a prefix; null on a CPU, or where it says none.

        The index in `device` counts what this process may see, and names no board to another.
        """
        if self._device.type != "cuda":
            return None
        said = getattr(torch.cuda.get_device_properties(self._device), "uuid", None)
        return None if said is None else str(said).lower()

    def forward(self, step: StepRows) -> Tensor:
        """Write the rows' keys and values; return raw logits [Q, vocab] float32."""
        return self.forward_tapped(step, ())[0]

    @torch.inference_mode()
    def forward_tapped(self, step: StepRows, layers: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Do the same, and return the residual stream behind some layers, [T, rows, hidden].

        `layers` ascend. The draft layer reads what it returns.
        """
        rows = step.token_ids.shape[0]
        taps = torch.empty(len(layers), rows, self.info.hidden, device=self._device)
        tiles = cover(rows, self.row_tiles)
        padding = sum(tiles) - rows
        slots = step.slots.to(self._device)
        rotation = self._rotary.at(self._padded(step.positions, padding))
        operations = self._operations
        plan = operations.plan(step)
        for mixture in self._hashed:
            mixture.foresee(step.token_ids)
        hidden = self._weights.embedding.index_select(0, self._padded(step.token_ids, padding))
        hidden = hidden.float()
        mixed = hidden.new_zeros(rows + padding, self.info.heads * self.info.head_dim)
        for index, layer in enumerate(self._weights.layers):
            normed = operations.norm(hidden, layer.attention_norm)
            rotated = rotation.apply(project(layer.qkv, normed, tiles))
            self._attend(index, rotated, slots, plan, mixed)
            hidden.add_(project(layer.output, mixed, tiles))
            normed = operations.norm(hidden, layer.mlp_norm)
            block = layer.block
            if isinstance(block, FeedForward):
                inner = operations.gate(project(block.gate_up, normed, tiles))
                hidden.add_(project(block.down, inner, tiles))
            else:
                hidden.add_(block.compute(normed, step.token_ids, tiles, operations.gate))
            if index in layers:
                taps[layers.index(index)] = hidden[:rows]
        return self._logits(hidden, step.logit_rows.to(self._device)), taps

    def statistics(self, logits: Tensor) -> list[RawStatistics]:
        """Summarise rows of raw logits [Q, vocab] float32, on the decoder's device."""
        return self._operations.statistics(logits)

    def _attend(self, layer: int, rotated: Tensor, slots: Tensor, plan: Any, mixed: Tensor) -> None:
        """Store the rows' keys and values of `rotated` [R, H + 2G, D], then fill `mixed`."""
        heads = self.info.heads
        pairs = rotated[: slots.shape[0], heads:]
        self.storage.write(layer, slots, pairs.view(-1, 2, self.info.kv_heads, self.info.head_dim))
        queries = rotated[:, :heads].flatten(1)
        self._operations.attend(plan, self.storage.layer(layer), queries, mixed)

    def _logits(self, hidden: Tensor, wanted: Tensor) -> Tensor:
        head = self._weights.head
        count = wanted.shape[0]
        if count == 0:  # a step that only prefills
            return hidden.new_empty(0, self.info.vocab_size)
        tiles = cover(count, head.row_tiles)
        chosen = hidden.index_select(0, self._padded(wanted, sum(tiles) - count))
        normed = self._operations.norm(chosen, self._weights.final_norm)
        return project(head, normed, tiles)[:count]

    def _padded(self, values: Tensor, padding: int) -> Tensor:
        return functional.pad(values, (0, padding)).to(self._device)


def usable_cores() -> int:
    if hasattr(os, "sched_getaffinity"):  # a container may be given fewer than there are
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
