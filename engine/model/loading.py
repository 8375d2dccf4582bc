"""Which decoder a backend's name stands for."""

from __future__ import annotations

from pathlib import Path

from engine.errors import UnsupportedModel
from engine.model import block_decoder
from engine.model.block_decoder import BlockDecoder
from engine.model.decoder import Decoder

AnyDecoder = Decoder | BlockDecoder


def load_decoder(
    path: Path | str,
    *,
    backend: str = "fp32",
    device: str = "cpu",
    threads: int | None = None,
    kv_tokens: int = 16384,
    rope_scaling_factor: float = 1.0,
) -> AnyDecoder:
    """Load a `.dfm` for a backend: see the decoders' own `load`.

    Raises InvalidModelFile, UnsupportedModel.
    """
    if backend != block_decoder.BACKEND:
        return Decoder.load(
            path,
            backend=backend,
            device=device,
            threads=threads,
            kv_tokens=kv_tokens,
            rope_scaling_factor=rope_scaling_factor,
        )
    if device != "cpu":
        raise UnsupportedModel(f"backend {backend!r} computes on the CPU, not on {device}")
    return BlockDecoder.load(
        path, threads=threads, kv_tokens=kv_tokens, rope_scaling_factor=rope_scaling_factor
    )
