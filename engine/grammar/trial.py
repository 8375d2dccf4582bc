"""A stranger's schema, compiled for trial in a process of its own that may be killed.

Compiling can't be interrupted, and there are short schemas that keep the library busy for minutes:
many patterns that must all hold, bounds on the number of a thousand properties. Imports little, so
that the process starts fast.
"""

from __future__ import annotations

import resource
import subprocess
import sys

from llguidance import LLTokenizer

from engine.errors import InvalidRequest
from engine.grammar.compilation import compiled, refused

CPU_S_MAX = 2
MEMORY_BYTES_MAX = 4 << 30
_WALL_S_MAX = 60.0  # on a machine that is busy with other things
_REFUSED = 3  # exit status


def try_out(schema: str) -> None:
    """Raise InvalidRequest for a schema that can't be honoured, or not compiled in time."""
    try:
        ran = subprocess.run(
            # -P: a folder called `engine` where the gateway was started is not ours.
            [sys.executable, "-P", "-m", "engine.grammar.trial"],
            input=schema.encode(errors="surrogatepass"),
            capture_output=True,
            timeout=_WALL_S_MAX,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise refused("it is too complex to compile") from None
    if ran.returncode == _REFUSED:
        raise InvalidRequest(ran.stdout.decode(errors="replace").strip(), "json_schema")
    if ran.returncode != 0:
        raise refused("it is too complex to compile")


def main() -> int:
    """Compile the schema on stdin, within bounds; returns the exit status."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_S_MAX, CPU_S_MAX))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES_MAX, MEMORY_BYTES_MAX))
    schema = sys.stdin.buffer.read().decode(errors="surrogatepass")
    try:
        # Single bytes for tokens: what a grammar costs to build depends little on the vocabulary.
        compiled(schema, LLTokenizer("byte"))
    except InvalidRequest as error:
        sys.stdout.buffer.write(str(error).encode(errors="replace"))
        return _REFUSED
    return 0


if __name__ == "__main__":
    sys.exit(main())
