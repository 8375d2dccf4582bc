"""Linear backends by name."""

from __future__ import annotations

import torch

from engine.errors import UnsupportedModel
from engine.kernels.cpu.linear import BlockLinearBackend
from engine.kernels.linear import BLOCK_LINEAR, Fp32Backend, LinearBackend
from engine.kernels.triton.running import check_device

TRITON_BACKENDS = ("bf16", "int8", "int4")
BACKENDS = ("fp32", BLOCK_LINEAR, *TRITON_BACKENDS)


def open_backend(name: str, device: str = "cpu", threads: int = 1) -> LinearBackend:
    """Return a linear backend by name; `threads` are the native kernels'.

    Raises UnsupportedModel for an unknown one, and for one that does not compute on `device`.
    """
    if name not in BACKENDS:
        raise UnsupportedModel(f"no linear backend {name!r}; there is: {', '.join(BACKENDS)}")
    if name == "fp32":
        return Fp32Backend()
    if name == BLOCK_LINEAR:
        return BlockLinearBackend(threads)
    check_device(torch.device(device), f"backend {name!r}")
    return _of_triton(name)


def _of_triton(name: str) -> LinearBackend:
    # only here, so that nothing else imports Triton
    from engine.kernels.triton.backends import Bf16Backend, BlockBackend  # noqa: PLC0415

    return Bf16Backend() if name == "bf16" else BlockBackend(int(name.removeprefix("int")))
