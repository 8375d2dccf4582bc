"""What a block model is made of, before anything is prepared to compute with it.

Dims: N outputs, K inputs, B bytes of a block, C positions of the context, D head dim.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from torch import Tensor

from engine.dfm.blocks import GROUP, Bytes
from engine.errors import UnsupportedModel

HIDDEN_MAX = 16384  # of native/shapes.h


@dataclass(frozen=True, slots=True)
class BlockMatrix:
    """Weights in blocks; `engine.dfm.blocks` has the formats."""

    blocks: Bytes  # [N, K / 32, B]
    bias: Tensor | None = None  # [N] float32

    @property
    def outputs(self) -> int:
        """N."""
        return int(self.blocks.shape[0])

    @property
    def inputs(self) -> int:
        """K."""
        return int(self.blocks.shape[1]) * GROUP


@dataclass(frozen=True, slots=True)
class BlockLayer:
    """One layer, projections fused: queries, keys and values; gate over up."""

    attention_norm: Tensor  # [hidden] float32
    qkv: BlockMatrix
    output: BlockMatrix
    mlp_norm: Tensor  # [hidden] float32
    gate_up: BlockMatrix
    down: BlockMatrix


@dataclass(frozen=True, slots=True)
class BlockWeights:
    """A whole Llama-family model. Head and embedding may be the same matrix."""

    layers: tuple[BlockLayer, ...]
    final_norm: Tensor  # [hidden] float32
    head: BlockMatrix
    embedding: BlockMatrix
    heads: int
    kv_heads: int
    head_dim: int
    norm_epsilon: float
    cosines: Tensor  # [C, D / 2] float32
    sines: Tensor  # [C, D / 2] float32

    def __post_init__(self) -> None:
        """Raise UnsupportedModel for shapes that the kernels do not take."""
        inner = self.heads * self.head_dim
        if self.head_dim % 8 or inner % GROUP or self.hidden > HIDDEN_MAX:
            raise UnsupportedModel(
                f"the block kernels take head dims in eights, {GROUP} inputs to a group and"
                f" {HIDDEN_MAX} hidden values at most; this model has {self.heads} heads of"
                f" {self.head_dim} and {self.hidden} hidden values"
            )

    @property
    def hidden(self) -> int:
        """Width of the residual stream."""
        return self.embedding.inputs

    @property
    def key_group(self) -> int:
        """Head dims that share one scale in queries, keys and values."""
        return next(width for width in (32, 16, 8) if self.head_dim % width == 0)


class Matrix(Protocol):
    """A prepared matrix: [m, K] to [m, N], row by row."""

    def project(self, rows: Tensor) -> Tensor:
        """Return rows [m, K] float32 times the weights, plus the bias: [m, N]."""


class StepInputs(NamedTuple):
    """One step's rows, all int64 on the CPU; `engine.model.rows.StepRows` says what they mean."""

    token_ids: Tensor  # [R]
    positions: Tensor  # [R]
    slots: Tensor  # [R]
    segments: Sequence[tuple[Tensor, Tensor]]  # of each request: committed [P], tails [n, T]
    logit_rows: Tensor  # [Q]


class Model(Protocol):
    """A prepared model with its key-value storage."""

    slots: int

    def forward(self, step: StepInputs, tap_layers: Sequence[int] = ()) -> tuple[Tensor, Tensor]:
        """Write the rows' keys and values; return logits [Q, V] and taps [T, R, hidden].

        A tap is the residual stream behind a layer; `tap_layers` ascend. Raises ValueError for
        indices out of range.
        """

    def move(self, src_slots: Tensor, dst_slots: Tensor) -> None:
        """Copy slots in every layer; everything is read before anything is written."""


# Of each row of logits: the largest one's index, the first of equals; the largest; log-sum-exp;
# entropy in nats.
STATISTICS = ("top", "largest", "log_sum_exp", "entropy")


class Runtime(Protocol):
    """Prepares and computes. Implemented natively and by the twin, to the same bits."""

    instruction_set: str

    def matrix(self, weights: BlockMatrix, *, passing: bool = False) -> Matrix:
        """Prepare one matrix: for good or, if `passing`, in memory freed with it."""

    def model(self, weights: BlockWeights, kv_tokens: int) -> Model:
        """Prepare a model with storage for at least `kv_tokens` tokens."""

    def statistics(self, logits: Tensor) -> Tensor:
        """Summarise each row of logits [Q, V] float32: `STATISTICS`, [Q, 4] float64."""
