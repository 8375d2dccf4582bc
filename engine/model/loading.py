"""Which decoder a backend's name stands for."""

from __future__ import annotations

from pathlib import Path

import torch

from engine.dfm.container import ModelFile
from engine.dfm.header import read_header
from engine.errors import InvalidConfig, UnsupportedModel
from engine.kernels.cpu.library import open_library
from engine.kernels.linear import BLOCK_LINEAR
from engine.model import block_decoder
from engine.model.block_decoder import BlockDecoder
from engine.model.decoder import Decoder

AUTO = "auto"

AnyDecoder = Decoder | BlockDecoder


def load_decoder(
    path: Path | str,
    *,
    backend: str = AUTO,
    device: str = "cpu",
    threads: int | None = None,
    kv_tokens: int = 16384,
    rope_scaling_factor: float = 1.0,
    expert_cache_size: int = 0,
) -> AnyDecoder:
    """Load a `.dfm` for a backend: see the decoders' own `load`.

    `auto` is `blocks` for weights in blocks where the native kernels run, `fp32` for everything
    else on the CPU; on a GPU it is what the file's weights are: `int4`, `int8` or `bf16`. Of a
    mixture of experts the kernels compute projections: `block_linear` in the place of `blocks`.
    Raises InvalidModelFile, UnsupportedModel, InvalidConfig.
    """
    if backend in (block_decoder.BACKEND, BLOCK_LINEAR) and device != "cpu":
        raise UnsupportedModel(f"backend {backend!r} computes on the CPU, not on {device}")
    if device.startswith("cuda") and not torch.cuda.is_available():
        raise InvalidConfig(f"device {device!r}: torch finds no CUDA device here")
    if backend == AUTO:
        backend = _fastest(path, device)
    if backend != block_decoder.BACKEND:
        return Decoder.load(
            path,
            backend=backend,
            device=device,
            threads=threads,
            kv_tokens=kv_tokens,
            rope_scaling_factor=rope_scaling_factor,
            expert_cache_size=expert_cache_size,
        )
    return BlockDecoder.load(
        path, threads=threads, kv_tokens=kv_tokens, rope_scaling_factor=rope_scaling_factor
    )


def _fastest(path: Path | str, device: str) -> str:
    if device.startswith("cuda"):
        return {"q4": "int4", "q8": "int8"}.get(read_header(Path(path)).model.quantisation, "bf16")
    # without the native kernels the twin of `blocks` would compute: exact, but slower than fp32
    file = ModelFile.open(path)
    if not file.in_blocks or open_library() is None:
        return "fp32"
    dense = file.header.model.architecture.experts is None
    return block_decoder.BACKEND if dense else BLOCK_LINEAR
