"""Which decoder a backend's name stands for."""

from __future__ import annotations

from pathlib import Path

from engine.dfm.container import ModelFile
from engine.errors import UnsupportedModel
from engine.kernels.cpu.library import open_library
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
) -> AnyDecoder:
    """Load a `.dfm` for a backend: see the decoders' own `load`.

    `auto` is `blocks` for weights in blocks where the native kernels run, `fp32` for everything
    else. Raises InvalidModelFile, UnsupportedModel.
    """
    if backend == AUTO:
        backend = _fastest(path, device)
    if backend != block_decoder.BACKEND:
        return Decoder.load(
            path, backend=backend, device=device, threads=threads, kv_tokens=kv_tokens
        )
    if device != "cpu":
        raise UnsupportedModel(f"backend {backend!r} computes on the CPU, not on {device}")
    return BlockDecoder.load(path, threads=threads, kv_tokens=kv_tokens)


def _fastest(path: Path | str, device: str) -> str:
    # without the native kernels the twin of `blocks` would compute: exact, but slower than fp32
    native = device == "cpu" and ModelFile.open(path).in_blocks and open_library() is not None
    return block_decoder.BACKEND if native else "fp32"
