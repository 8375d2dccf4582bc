"""How far each part of a step is from what the machine could do.

The bound of a part is the longer of two times: its bytes at the machine's copy bandwidth, and its
multiply-adds at the machine's 8-bit rate, both measured here and now on all threads. Bytes are
what a step must read at least once (weights as they are stored, the keys and values of the
context) plus what its rows read and write; multiply-adds are counted from the architecture.

    copy bandwidth   bytes read plus bytes written per second, copying between two large arrays
    8-bit rate       of two products of 8-bit matrices, torch's and our kernels' own, the faster:
                     the machine can do at least that

A small model's weights may stay in a large last-level cache, so a part can beat the copy
bandwidth of memory; it is measured on a working set of the model's size too, and the better of the
two counts.

Dims: R rows, C tokens of context.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import torch

from engine.dfm.blocks import GROUP, Q8_0_BYTES
from engine.dfm.header import Architecture, Header
from engine.errors import UnsupportedModel
from engine.kernels.cpu.runtime import NativeModel
from engine.kernels.cpu.weights import BlockMatrix, Runtime
from engine.model.block_decoder import BlockDecoder
from engine.model.rows import Segment, StepRows

ROWS = (1, 4, 8, 12)
CONTEXT = 300
REPEATS = 30
COPY_BYTES = 256 * 2**20
SQUARE, FEW_ROWS = 2048, 256  # of the 8-bit products
KEY_BYTES = 1 + 4 / 32  # of one stored key or value element: 8 bits, and a scale for 32
PROJECTIONS = ("qkv", "output", "gate_up", "down")
# the kernels' phase that computes each part
PHASE_OF = {"qkv": "qkv", "output": "output", "gate_up": "swiglu", "down": "down", "head": "head"}


class Machine(msgspec.Struct, frozen=True):
    """What was measured of the machine."""

    copy_gb_per_s: float  # of memory
    cached_gb_per_s: float  # of a working set as large as the weights
    int8_giga_macs_per_s: float

    @property
    def bytes_per_us(self) -> float:
        """The better bandwidth."""
        return max(self.copy_gb_per_s, self.cached_gb_per_s) * 1e3


class Part(msgspec.Struct, frozen=True):
    """One part of a step."""

    name: str
    bytes: int
    macs: int
    bound_us: float
    measured_us: float | None  # null where the kernels don't time it

    @property
    def share(self) -> float | None:
        """The bound as a share of the time taken: 1 is as fast as the machine can."""
        return self.bound_us / self.measured_us if self.measured_us else None


class StepCost(msgspec.Struct, frozen=True):
    """A decode step of so many rows."""

    rows: int
    context: int
    bytes: int
    macs: int
    bound_us: float  # the parts' bounds, one after the other
    measured_us: float  # the median step
    parts: tuple[Part, ...]
    other_us: float  # of phases that are no part above: norms, rounding, placing


class Roofline(msgspec.Struct, frozen=True):
    """The machine and steps on it."""

    machine: Machine
    steps: tuple[StepCost, ...]


def measure_machine(weight_bytes: int, runtime: Runtime) -> Machine:
    """Measure copy bandwidth and 8-bit rate, on torch's threads and the runtime's."""
    return Machine(
        copy_gb_per_s=_copied(COPY_BYTES),
        cached_gb_per_s=_copied(weight_bytes),
        int8_giga_macs_per_s=_multiplied(runtime),
    )


def counted(header: Header, rows: int, context: int) -> dict[str, tuple[int, int]]:
    """Return the bytes and multiply-adds of each part of a step, from the architecture.

    All rows belong to one request, as when a draft is verified: they share what they read.
    """
    shape = header.model.architecture
    parts: dict[str, tuple[int, int]] = {}
    for name in PROJECTIONS:
        outputs, inputs = _extent(shape, name)
        stored = sum(
            _stored_bytes(header, tensor)
            for tensor in header.tensors
            if f".{name}.weight" in tensor
        )
        moved = stored + 4 * shape.layers * rows * (outputs + inputs)
        parts[name] = (moved, shape.layers * rows * outputs * inputs)
    keys = shape.kv_heads * shape.head_dim
    parts["attend"] = (
        int(shape.layers * 2 * (context + rows) * keys * KEY_BYTES),
        shape.layers * 2 * rows * (context + rows) * shape.heads * shape.head_dim,
    )
    head = "embedding" if shape.tied_embeddings else "head"
    stored = sum(_stored_bytes(header, t) for t in header.tensors if t.startswith(f"{head}.weight"))
    parts["head"] = (
        stored + 4 * rows * (shape.hidden + shape.vocab_size),
        rows * shape.hidden * shape.vocab_size,
    )
    return parts


def measure_step(
    decoder: BlockDecoder, machine: Machine, rows: int, context: int, repeats: int
) -> StepCost:
    """Time a step of `rows` rows behind `context` tokens, part by part; overwrites the storage.

    Raises UnsupportedModel where the native kernels are not there to be timed.
    """
    if not isinstance(decoder.storage, NativeModel):
        raise UnsupportedModel("the roofline needs the native kernels: see `dflash doctor`")
    vocabulary = decoder.info.vocab_size
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(vocabulary, (context + rows,), generator=generator)
    for start in range(0, context, 32):
        stop = min(start + 32, context)
        decoder.forward(_rows(ids, start, stop, wanted=False))
    step = _rows(ids, context, context + rows, wanted=True)
    decoder.forward(step)
    decoder.storage.timed(True)
    times_us = []
    for _ in range(repeats):
        began = time.perf_counter()
        decoder.forward(step)
        times_us.append((time.perf_counter() - began) * 1e6)
    phases = {name: us / repeats for name, us in decoder.storage.timed(False).items()}
    parts = []
    for name, (moved, macs) in counted(decoder.header, rows, context).items():
        bound_us = max(moved / machine.bytes_per_us, macs / machine.int8_giga_macs_per_s / 1e3)
        parts.append(Part(name, moved, macs, bound_us, phases.pop(PHASE_OF.get(name, name))))
    return StepCost(
        rows=rows,
        context=context,
        bytes=sum(part.bytes for part in parts),
        macs=sum(part.macs for part in parts),
        bound_us=sum(part.bound_us for part in parts),
        measured_us=sorted(times_us)[repeats // 2],
        parts=tuple(parts),
        other_us=sum(phases.values()),
    )


def roofline(path: Path | str, *, threads: int) -> Roofline:
    """Measure the machine and the steps of a model in blocks. Raises UnsupportedModel."""
    decoder = BlockDecoder.load(path, threads=threads, kv_tokens=CONTEXT + max(ROWS))
    machine = measure_machine(decoder.header.data_bytes, decoder.runtime)
    steps = tuple(measure_step(decoder, machine, count, CONTEXT, REPEATS) for count in ROWS)
    return Roofline(machine, steps)


def _rows(ids: torch.Tensor, start: int, stop: int, *, wanted: bool) -> StepRows:
    positions = torch.arange(start, stop)
    lower = torch.ones(len(positions), len(positions)).tril() > 0
    return StepRows(
        token_ids=ids[start:stop],
        positions=positions,
        slots=positions,
        segments=(Segment(torch.arange(start), torch.where(lower, positions, -1)),),
        logit_rows=torch.arange(stop - start if wanted else 0),
    )


def _extent(shape: Architecture, projection: str) -> tuple[int, int]:
    """Outputs and inputs of a layer's fused projection."""
    attention = shape.heads * shape.head_dim
    return {
        "qkv": (attention + 2 * shape.kv_heads * shape.head_dim, shape.hidden),
        "output": (shape.hidden, attention),
        "gate_up": (2 * shape.intermediate, shape.hidden),
        "down": (shape.hidden, shape.intermediate),
    }[projection]


def _stored_bytes(header: Header, tensor: str) -> int:
    begin, end = header.tensors[tensor].data_offsets
    return end - begin


def _copied(size: int) -> float:
    source = torch.zeros(size // 8, dtype=torch.float64)
    target = torch.ones_like(source)
    return 2 * source.nbytes / _fastest(lambda: target.copy_(source)) / 1e9


def _multiplied(runtime: Runtime) -> float:
    few = torch.ones(FEW_ROWS, SQUARE, dtype=torch.int8)
    square = torch.ones(SQUARE, SQUARE, dtype=torch.int8)
    blocks = np.zeros((SQUARE, SQUARE // GROUP, Q8_0_BYTES), np.uint8)
    matrix, rows = runtime.matrix(BlockMatrix(blocks)), torch.zeros(FEW_ROWS, SQUARE)
    seconds = min(
        _fastest(lambda: torch._int_mm(few, square)), _fastest(lambda: matrix.project(rows))
    )
    return FEW_ROWS * SQUARE**2 / seconds / 1e9


def _fastest(work: Callable[[], object], attempts: int = 5) -> float:
    """Return the seconds of the fastest of some attempts, after one that doesn't count."""
    work()
    seconds = []
    for _ in range(attempts):
        began = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - began)
    return min(seconds)
