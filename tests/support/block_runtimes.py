"""Every way of computing in blocks that this machine has."""

from __future__ import annotations

from engine.kernels.cpu.library import open_library
from engine.kernels.cpu.ops import open_runtime
from engine.kernels.cpu.weights import Runtime

_library = open_library()
NATIVE: tuple[str, ...] = _library.instruction_sets if _library else ()
# as different thread counts as instruction sets: neither may show
RUNTIMES: dict[str, Runtime] = {
    name: open_runtime(1 + index % 3, name) for index, name in enumerate((*NATIVE, "twin"))
}
