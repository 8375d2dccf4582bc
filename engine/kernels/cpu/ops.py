"""The kernels as torch operators, on whatever was prepared: natively or by the twin.

    dflash::block_linear(Tensor rows, int matrix) -> Tensor
    dflash::block_step(int model, ...) -> (Tensor logits, Tensor taps)
    dflash::row_statistics(int runtime, Tensor logits) -> (top, largest, log_sum_exp, entropy)

The integers name what `handle` was given; it lives as long as its owner holds it.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from engine.errors import UnsupportedModel
from engine.kernels.cpu.library import open_library
from engine.kernels.cpu.runtime import NativeRuntime
from engine.kernels.cpu.twin import TwinRuntime
from engine.kernels.cpu.weights import Runtime, StepInputs

_prepared: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
_handles = itertools.count(1)


def open_runtime(threads: int, instruction_set: str | None = None) -> Runtime:
    """Return what computes on this machine: natively, or the twin where that can't be.

    The twin uses torch's threads, whatever `threads` says. Naming an instruction set, or "twin",
    insists on it. Raises UnsupportedModel when it can't be had.
    """
    library = None if instruction_set == "twin" else open_library()
    if library is None:
        if instruction_set not in (None, "twin"):
            raise UnsupportedModel(f"no native kernels here, and so no {instruction_set}")
        return TwinRuntime()
    return NativeRuntime(library, threads, instruction_set or "")


def handle(prepared: object) -> int:
    """Return the number that the operators know a runtime, matrix or model by."""
    number = next(_handles)
    _prepared[number] = prepared
    return number


def _block_linear(rows: Tensor, matrix: int) -> Tensor:
    result: Tensor = _prepared[matrix].project(rows)
    return result


def _block_step(  # noqa: PLR0917 -- the operator's arguments
    model: int,
    token_ids: Tensor,
    positions: Tensor,
    slots: Tensor,
    committed: list[Tensor],
    tails: list[Tensor],
    logit_rows: Tensor,
    tap_layers: list[int],
) -> tuple[Tensor, Tensor]:
    segments = list(zip(committed, tails, strict=True))
    step = StepInputs(token_ids, positions, slots, segments, logit_rows)
    result: tuple[Tensor, Tensor] = _prepared[model].forward(step, tap_layers)
    return result


def _row_statistics(runtime: int, logits: Tensor) -> tuple[Tensor, ...]:
    statistics: Tensor = _prepared[runtime].statistics(logits)
    top, largest, log_sum_exp, entropy = statistics.unbind(1)
    return top.long(), largest.float(), log_sum_exp.clone(), entropy.clone()


_OPERATORS: dict[str, Callable[..., object]] = {
    "block_linear(Tensor rows, int matrix) -> Tensor": _block_linear,
    "block_step(int model, Tensor token_ids, Tensor positions, Tensor slots, Tensor[] committed,"
    " Tensor[] tails, Tensor logit_rows, int[] tap_layers) -> (Tensor, Tensor)": _block_step,
    "row_statistics(int runtime, Tensor logits) -> (Tensor, Tensor, Tensor, Tensor)": (
        _row_statistics
    ),
}
_library = torch.library.Library("dflash", "FRAGMENT")  # type: ignore[no-untyped-call]
for _schema, _function in _OPERATORS.items():
    _library.define(_schema)  # type: ignore[no-untyped-call]
    _library.impl(_schema.partition("(")[0], _function, "CPU")  # type: ignore[no-untyped-call]
