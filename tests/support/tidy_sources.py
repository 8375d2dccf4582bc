"""The project's own files, as the structure tests see them."""

from __future__ import annotations

import subprocess
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("engine", "metering", "billing", "dashboards", "api", "dflash")


@cache
def tracked() -> tuple[Path, ...]:
    """Every file that is committed or about to be, ignored ones left out, relative to the root."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    paths = (Path(name) for name in listed.split("\0") if name)
    return tuple(sorted(path for path in paths if (ROOT / path).is_file()))


def modules(*roots: str) -> list[Path]:
    """The Python files under these folders, the product's packages if none is named."""
    wanted = roots or PACKAGES
    return [path for path in tracked() if path.suffix == ".py" and path.parts[0] in wanted]


def text(path: Path) -> str:
    """A tracked file's text; what is not text reads as empty."""
    try:
        return (ROOT / path).read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return ""
