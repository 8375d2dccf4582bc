"""Reading the table of texts and their units."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path

CUT = " (cut)"


@dataclass
class GoldenCase:
    """A text, whether it was cut off at its end, and its units as (kind, is fragment, text)."""

    title: str
    is_cut: bool
    lines: list[str] = field(default_factory=list)
    units: list[tuple[str, bool, str]] = field(default_factory=list)

    @property
    def data(self) -> bytes:
        return "\n".join(self.lines).encode("utf-8", "surrogateescape")


def golden_cases(path: Path) -> list[GoldenCase]:
    """Parse the table; see its head for the format."""
    cases: list[GoldenCase] = []
    head, *rest = path.read_text().split("\n\n")
    assert head.startswith("#")
    for paragraph in rest:
        title, *lines = paragraph.rstrip("\n").split("\n")
        if title.startswith("#### ") or not title:
            continue
        title = title.removeprefix("# ")
        case = GoldenCase(title.removesuffix(CUT), title.endswith(CUT))
        for line in lines:
            if line.startswith(">> "):
                case.lines.append(json.loads(line[3:]))
            elif line.startswith(">"):
                case.lines.append(line[2:])
            else:
                kind, text = line.split(maxsplit=1)
                case.units.append((kind.rstrip("?"), kind.endswith("?"), json.loads(text)))
        cases.append(case)
    return cases
