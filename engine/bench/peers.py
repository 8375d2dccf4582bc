"""The engines that ours is measured against, by the names that `--peers` takes. Torch-free.

`llama.cpp` runs the model's own GGUF. `llama.cpp+lookup` is the same with its drafts from n-grams,
one prompt at a time; `llama.cpp:q4_0` and `llama.cpp:q8_0` run the GGUF requantised, which its own
kernels like better.
"""

from __future__ import annotations

import ctypes
import importlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.dfm.catalogue import CATALOGUE
from engine.dfm.header import Header
from engine.dfm.pulling import pull_gguf
from engine.errors import EngineError, ModelNotFound


@dataclass(frozen=True, slots=True)
class Peer:
    """How to run one peer."""

    kind: str  # of the worker
    variant: str = ""
    quantisation: str | None = None  # of the GGUF; null: as it is
    concurrency_max: int | None = None


PEERS: dict[str, Peer] = {
    "llama.cpp": Peer("llama.cpp"),
    "llama.cpp+lookup": Peer("llama.cpp", variant="lookup", concurrency_max=1),
    "llama.cpp:q4_0": Peer("llama.cpp", quantisation="q4_0"),
    "llama.cpp:q8_0": Peer("llama.cpp", quantisation="q8_0"),
    "transformers": Peer("transformers"),
}


def gguf_of(header: Header, home: Path, progress: Callable[[str, int, int | None], None]) -> Path:
    """Return the GGUF that a model was converted from, fetched if it is a known one.

    Raises ModelNotFound, saying what to do.
    """
    for known in CATALOGUE.values():
        if known.member_sha256 == header.model.source_sha256:
            return pull_gguf(known, home, progress)
    raise ModelNotFound(
        f"the model was converted from {header.model.source}, which is not one of the known ones: "
        "say where it is with --gguf"
    )


def requantised(source: Path, quantisation: str, folder: Path, threads: int) -> Path:
    """Return the GGUF with its weights rounded anew; it is kept in `folder`.

    Raises EngineError when llama-cpp-python is absent or refuses.
    """
    target = folder / f"{source.stem}.requantised-{quantisation}.gguf"
    if target.is_file() and target.stat().st_mtime > source.stat().st_mtime:
        return target
    try:
        llama: Any = importlib.import_module("llama_cpp")
    except ModuleNotFoundError as error:
        raise EngineError(
            "the peer llama.cpp needs llama-cpp-python: install dflash-gateway[bench]"
        ) from error
    params = llama.llama_model_quantize_default_params()
    params.ftype = getattr(llama, f"LLAMA_FTYPE_MOSTLY_{quantisation.upper()}")
    params.allow_requantize = True
    params.nthread = threads
    partial = target.with_suffix(".partial")
    names = (str(source).encode(), str(partial).encode())
    if llama.llama_model_quantize(*names, ctypes.byref(params)) != 0:
        raise EngineError(f"llama.cpp cannot requantise {source} to {quantisation}")
    return partial.replace(target)
