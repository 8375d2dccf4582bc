"""Computing natively: threads and memory of one library, and what is prepared on them.

Dims: N outputs, K inputs, R rows of a step, Q wanted rows, T taps, V vocabulary.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from engine.dfm.blocks import BLOCK_BYTES
from engine.errors import UnsupportedModel
from engine.kernels.cpu.library import PHASES, Library
from engine.kernels.cpu.memory import ReusedMemory
from engine.kernels.cpu.weights import STATISTICS, BlockMatrix, BlockWeights, StepInputs

PAGE_SLOTS = 16  # of native/shapes.h: a tile of keys


class NativeRuntime:
    """Threads that spin for a moment between phases, then sleep. One thread at a time may call in.

    What is prepared keeps its runtime alive. The matrices' memory is freed with the runtime, that
    of passing ones with themselves.
    """

    def __init__(self, library: Library, threads: int, instruction_set: str = "") -> None:
        """Use the best instruction set unless one is named. Raises UnsupportedModel."""
        self.library = library
        self.handle: int = self.made(library["runtime_new"](threads, instruction_set.encode()))
        self.instruction_set = str(library["runtime_isa"](self.handle).decode())
        weakref.finalize(self, library["runtime_free"], self.handle)

    def matrix(self, weights: BlockMatrix, *, passing: bool = False) -> NativeMatrix:
        """Prepare one matrix; its blocks are copied."""
        return NativeMatrix(self, weights, passing=passing)

    def model(self, weights: BlockWeights, kv_tokens: int) -> NativeModel:
        """Prepare a model with storage for at least `kv_tokens` tokens."""
        return NativeModel(self, weights, kv_tokens)

    def statistics(self, logits: Tensor) -> Tensor:
        """Summarise each row of logits [Q, V] float32: `STATISTICS`, [Q, 4] float64."""
        logits = logits.contiguous()
        result = torch.empty(len(logits), len(STATISTICS), dtype=torch.float64)
        self.done(
            self.library["statistics"](
                self.handle, *logits.shape, logits.data_ptr(), result.data_ptr()
            )
        )
        return result

    def made(self, handle: int | None) -> int:
        """Return a handle, or raise UnsupportedModel with the library's reason."""
        if handle is None:
            raise UnsupportedModel(f"the native kernels refuse: {self.library.reason()}")
        return handle

    def done(self, status: int) -> None:
        """Raise ValueError with the library's reason unless a call succeeded."""
        if status != 0:
            raise ValueError(self.library.reason())


class NativeMatrix:
    """A matrix repacked for the vector units."""

    def __init__(
        self, runtime: NativeRuntime, weights: BlockMatrix, *, passing: bool = False
    ) -> None:
        self.outputs, self.inputs = weights.outputs, weights.inputs
        self._runtime = runtime
        blocks = np.ascontiguousarray(weights.blocks)
        bias = None if weights.bias is None else weights.bias.contiguous()
        self.handle: int = runtime.made(
            runtime.library["matrix_new"](
                None if passing else runtime.handle,
                BLOCK_BYTES.index(blocks.shape[2]),
                self.outputs,
                self.inputs,
                blocks.ctypes.data,
                None if bias is None else bias.data_ptr(),
            )
        )
        if passing:
            weakref.finalize(self, runtime.library["matrix_free"], self.handle)

    def project(self, rows: Tensor) -> Tensor:
        """Return rows [m, K] float32 times the weights, plus the bias: [m, N]."""
        assert rows.shape[1] == self.inputs, rows.shape
        rows = rows.contiguous()
        result = torch.empty(len(rows), self.outputs)
        self._runtime.done(
            self._runtime.library["project"](
                self._runtime.handle, self.handle, len(rows), rows.data_ptr(), result.data_ptr()
            )
        )
        return result


class NativeModel:
    """A model and its key-value storage, in pages of 16 slots with 8-bit keys and values."""

    def __init__(self, runtime: NativeRuntime, weights: BlockWeights, kv_tokens: int) -> None:
        self.slots = -(-kv_tokens // PAGE_SLOTS) * PAGE_SLOTS
        self.runtime = runtime
        self._step, self._move = runtime.library["step"], runtime.library["move"]
        self._logits, self._taps = ReusedMemory(), ReusedMemory()
        self._hidden, self._vocabulary = weights.hidden, weights.head.outputs
        first, positions = weights.layers[0], len(weights.cosines)
        shape = np.array(
            [
                *(len(weights.layers), weights.hidden, first.down.inputs),
                *(weights.heads, weights.kv_heads, weights.head_dim),
                *(self._vocabulary, positions, weights.key_group),
            ],
            dtype=np.int32,
        )
        norms = [
            norm for layer in weights.layers for norm in (layer.attention_norm, layer.mlp_norm)
        ]
        norms.append(weights.final_norm)
        # the library keeps pointers to these
        self._kept = [weights.cosines.contiguous(), weights.sines.contiguous()]
        self._kept += [norm.contiguous() for norm in norms]
        prepared = [
            runtime.matrix(matrix).handle
            for layer in weights.layers
            for matrix in (layer.qkv, layer.output, layer.gate_up, layer.down)
        ]
        head = runtime.matrix(weights.head).handle
        tied = weights.embedding is weights.head
        prepared += [head, head if tied else runtime.matrix(weights.embedding).handle]
        cosines, sines, *pointers = (table.data_ptr() for table in self._kept)
        self.handle: int = runtime.made(
            runtime.library["model_new"](
                runtime.handle,
                shape.ctypes.data,
                weights.norm_epsilon,
                weights.head_dim**-0.5,
                self.slots // PAGE_SLOTS,
                cosines,
                sines,
                (ctypes.c_void_p * len(pointers))(*pointers),
                (ctypes.c_void_p * len(prepared))(*prepared),
            )
        )
        # the runtime's finalizer must not come first: this one holds it
        weakref.finalize(self, _free, runtime, self.handle)

    def forward(self, step: StepInputs, tap_layers: Sequence[int] = ()) -> tuple[Tensor, Tensor]:
        """Write the rows' keys and values; return logits [Q, V] and taps [T, R, hidden].

        A tap is the residual stream behind a layer; `tap_layers` ascend. Raises ValueError for
        indices out of range.
        """
        rows, wanted = step.token_ids.shape[0], step.logit_rows.shape[0]
        logits = self._logits.tensor(wanted, self._vocabulary)
        taps = self._taps.tensor(len(tap_layers), rows, self._hidden)
        named = [
            values.contiguous()
            for values in (step.token_ids, step.positions, step.slots, step.logit_rows)
        ]
        keys = [part.contiguous() for segment in step.segments for part in segment]
        sizes = [
            size
            for committed, tails in step.segments
            for size in (tails.shape[0], committed.shape[0], tails.shape[1])
        ]
        # arrays of ctypes: to ask numpy for a pointer takes longer than to fill one of these
        self.runtime.done(
            self._step(
                *(self.handle, rows, named[0].data_ptr(), named[1].data_ptr(), named[2].data_ptr()),
                len(step.segments),
                (ctypes.c_int32 * len(sizes))(*sizes),
                (ctypes.c_void_p * len(keys))(*[part.data_ptr() for part in keys]),
                *(wanted, named[3].data_ptr(), logits.data_ptr()),
                *(len(tap_layers), (ctypes.c_int32 * len(tap_layers))(*tap_layers)),
                taps.data_ptr(),
            )
        )
        return logits, taps

    def move(self, src_slots: Tensor, dst_slots: Tensor) -> None:
        """Copy slots in every layer; everything is read before anything is written."""
        src, dst = src_slots.contiguous(), dst_slots.contiguous()
        self.runtime.done(self._move(self.handle, len(src), src.data_ptr(), dst.data_ptr()))

    def timed(self, on: bool) -> dict[str, float]:
        """Start or stop timing; return the microseconds per kind of phase since it was started."""
        spent = (ctypes.c_double * len(PHASES))()
        self.runtime.library["time"](self.handle, int(on), spent)
        return dict(zip(PHASES, spent, strict=True))


def _free(runtime: NativeRuntime, handle: int) -> None:
    runtime.library["model_free"](handle)
