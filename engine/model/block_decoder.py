"""The Llama-family decoder on weights in blocks: a whole step in one call of the kernels.

Activations are rounded to 8 bits in groups of 32 before every projection, keys and values when
they are stored. Every row is computed by itself, in a fixed order, so that its logits do not
depend on what else is in the step, on threads, or on the instruction set: see
`engine.kernels.cpu`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from engine.dfm.container import ModelFile
from engine.dfm.header import Architecture, Header
from engine.errors import UnsupportedModel
from engine.kernels.cpu.ops import open_runtime
from engine.kernels.cpu.weights import (
    BlockLayer,
    BlockMatrix,
    BlockWeights,
    Model,
    Runtime,
    StepInputs,
)
from engine.kernels.linear import BLOCK_LINEAR
from engine.model.decoder import usable_cores
from engine.model.rope import rotary_angles
from engine.model.rows import StepRows
from engine.model.statistics import RawStatistics

BACKEND = "blocks"
TWIN = "twin"


class BlockDecoder:
    """A loaded model in blocks, with its key-value storage. Not thread-safe."""

    def __init__(
        self, header: Header, weights: BlockWeights, runtime: Runtime, kv_tokens: int, threads: int
    ) -> None:
        self.header = header
        self.info: Architecture = header.model.architecture
        self.eos_ids = frozenset(header.tokens.eos_ids)
        self.storage: Model = runtime.model(weights, kv_tokens)
        self.backend = BACKEND
        self.batch_invariant = True
        self.device = "cpu"
        self.device_uuid = None
        self.instruction_set = runtime.instruction_set
        self.threads = threads
        self.runtime = runtime
        self.experts = None

    @classmethod
    def load(
        cls,
        path: Path | str,
        *,
        threads: int | None = None,
        kv_tokens: int = 16384,
        rope_scaling_factor: float = 1.0,
        instruction_set: str | None = None,
    ) -> BlockDecoder:
        """Load a `.dfm`, its checksum verified, and set the process's torch thread count.

        `threads` defaults to one per core this process may use; `kv_tokens` is the least capacity
        of the storage; positions are multiplied by `rope_scaling_factor` before they are rotated;
        `instruction_set` is for tests: see `open_runtime`. Raises InvalidModelFile,
        UnsupportedModel.
        """
        file = ModelFile.open(path)
        file.verify()
        weights = _block_weights(file, rope_scaling_factor)
        count = threads or usable_cores()
        runtime = open_runtime(count, instruction_set)
        # The kernels bring their own threads. One of torch's that waits for its next bit of work
        # spins, and takes a core from them for milliseconds.
        torch.set_num_threads(count if runtime.instruction_set == TWIN else 1)
        return cls(file.header, weights, runtime, kv_tokens, count)

    def forward(self, step: StepRows) -> Tensor:
        """Write the rows' keys and values; return raw logits [Q, vocab] float32."""
        return self.forward_tapped(step, ())[0]

    @torch.inference_mode()
    def forward_tapped(self, step: StepRows, layers: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Do the same, and return the residual stream behind some layers, [T, R, hidden].

        `layers` ascend. The draft layer reads what it returns.
        """
        inputs = StepInputs(
            step.token_ids,
            step.positions,
            step.slots,
            [(segment.committed, segment.tail) for segment in step.segments],
            step.logit_rows,
        )
        # not through the operator: its dispatch costs a fiftieth of a small model's step
        return self.storage.forward(inputs, layers)

    def statistics(self, logits: Tensor) -> list[RawStatistics]:
        """Summarise rows of raw logits [Q, vocab] float32, in one pass over them."""
        return [
            # rounding may leave a certain token an entropy of -1e-17; NaN stays NaN
            RawStatistics(int(top), log_sum_exp, max(entropy, 0.0))
            for top, _, log_sum_exp, entropy in self.runtime.statistics(logits).tolist()
        ]


def _block_weights(file: ModelFile, rope_scaling_factor: float) -> BlockWeights:
    shape = file.header.model.architecture
    if not file.in_blocks:
        raise UnsupportedModel(
            f"{file.path} holds {file.header.model.quantisation} weights; convert the model with"
            " --quant-type q4 or q8 for this backend"
        )

    if shape.experts is not None:
        raise UnsupportedModel(
            f"{file.path} is a mixture of experts: the kernels compute its projections, not whole"
            f" steps; take backend {BLOCK_LINEAR!r}"
        )

    def tensor(name: str) -> Tensor:
        return torch.from_numpy(file.tensor(name))

    def matrix(name: str) -> BlockMatrix:
        bias = f"{name}.bias"
        return BlockMatrix(
            file.blocks(f"{name}.weight"), tensor(bias) if bias in file.header.tensors else None
        )

    embedding = matrix("embedding")
    angles = rotary_angles(shape, rope_scaling_factor)
    return BlockWeights(
        layers=tuple(
            BlockLayer(
                attention_norm=tensor(f"layers.{layer}.attention_norm.weight"),
                qkv=matrix(f"layers.{layer}.attention.qkv"),
                output=matrix(f"layers.{layer}.attention.output"),
                mlp_norm=tensor(f"layers.{layer}.mlp_norm.weight"),
                gate_up=matrix(f"layers.{layer}.mlp.gate_up"),
                down=matrix(f"layers.{layer}.mlp.down"),
            )
            for layer in range(shape.layers)
        ),
        final_norm=tensor("final_norm.weight"),
        head=embedding if shape.tied_embeddings else matrix("head"),
        embedding=embedding,
        heads=shape.heads,
        kv_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        norm_epsilon=shape.norm_epsilon,
        cosines=angles.cos().float(),
        sines=angles.sin().float(),
    )
