"""Where Triton's kernels can run, and in which precision they multiply there."""

from __future__ import annotations

from typing import Any

import torch

from engine.errors import UnsupportedModel


def interpreted() -> bool:
    """Tell whether Triton is installed and interprets kernels on the CPU: TRITON_INTERPRET=1."""
    try:
        from triton import knobs  # noqa: PLC0415 -- absent where there is no GPU
    except ImportError:
        return False
    return bool(knobs.runtime.interpret)


def check_device(device: torch.device, what: str) -> None:
    """Raise UnsupportedModel, saying `what` can't be had, where no Triton kernel runs."""
    if device.type != "cuda" and not interpreted():
        raise UnsupportedModel(f"{what} computes on CUDA devices, not on {device}")


def dot_type(dtype: torch.dtype) -> Any:
    """Return the type that tiles kept as `dtype` are multiplied in."""
    from triton import language  # noqa: PLC0415

    exact = dtype == torch.float32 or interpreted()
    return language.float32 if exact else language.bfloat16
