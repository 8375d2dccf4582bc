"""The process of one arm: `python -m engine.bench.worker`, spoken to in lines of JSON.

Each engine has a process of its own, so that its memory can be told, its threads and libraries
disturb no other, and a crash is only its own. The first line is a Setup; each further one asks for
one thing and is answered by one line. Whatever a library prints goes to stderr.
"""

from __future__ import annotations

import os
import sys
import time
from typing import BinaryIO, Protocol

import msgspec

from engine.bench.records import (
    Failed,
    Opened,
    Reply,
    Request,
    Run,
    Scored,
    Setup,
    Windows,
    Workload,
)
from engine.errors import EngineError


class Engine(Protocol):
    """What every arm can do."""

    @property
    def details(self) -> dict[str, str]:
        """What computes here."""

    def run(self, workload: Workload) -> Run:
        """Continue the prompts of a workload."""

    def score(self, windows: Windows) -> Scored:
        """Score token windows."""


def open_engine(setup: Setup) -> Engine:
    """Open the engine that a setup names. Raises EngineError."""
    if setup.kind == "dflash":
        from engine.bench.own_arm import OwnArm  # noqa: PLC0415 -- each process loads one engine

        return OwnArm(setup)
    if setup.kind == "llama.cpp":
        from engine.bench.llama_arm import LlamaArm  # noqa: PLC0415

        return LlamaArm(setup)
    if setup.kind == "transformers":
        from engine.bench.transformers_arm import TransformersArm  # noqa: PLC0415

        return TransformersArm(setup)
    raise EngineError(f"no arm of kind {setup.kind!r}")


def serve(asked: BinaryIO, answered: BinaryIO) -> None:
    """Answer until the pipe is closed."""

    def answer(reply: Reply) -> None:
        answered.write(msgspec.json.encode(reply) + b"\n")
        answered.flush()

    began = time.perf_counter()
    setup = msgspec.json.decode(asked.readline(), type=Setup)
    try:
        engine = open_engine(setup)
    except Exception as error:  # noqa: BLE001 -- whatever it is, the parent must hear of it
        answer(Failed(_reason(error)))
        return
    answer(Opened(engine.details, (time.perf_counter() - began) * 1e3))
    decoder = msgspec.json.Decoder(Request)
    for line in asked:
        request = decoder.decode(line)
        try:
            done = engine.run(request) if isinstance(request, Workload) else engine.score(request)
            answer(done)
        except Exception as error:  # noqa: BLE001
            answer(Failed(_reason(error)))


def _reason(error: Exception) -> str:
    text = str(error) or type(error).__name__
    return text if isinstance(error, EngineError) else f"{type(error).__name__}: {text}"


if __name__ == "__main__":
    pipe = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what libraries print must not end up among the answers
    serve(sys.stdin.buffer, pipe)
