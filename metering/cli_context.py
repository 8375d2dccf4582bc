"""What the `dflash` command hands to its chapters, so that none of them reads the environment."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class CliContext:
    """Where this installation keeps its state; click carries it as `ctx.obj`."""

    home: Path
    database_url: str
