"""The output of a request cut along its semantic units, for the eye."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from metering.events import UnitSummary


@dataclass(frozen=True, slots=True)
class Piece:
    """A stretch of text: inside one unit, or between units (`unit` is null)."""

    text: str
    unit: UnitSummary | None


def cut(output: str, units: Sequence[UnitSummary]) -> tuple[Piece, ...]:
    """Cut the text at the units' byte bounds; the pieces' texts join to the output again.

    Units arrive in order and do not overlap. A bound inside a code point (a token may end there)
    moves to the code point's end, so that no character is split or lost.
    """
    raw = output.encode("utf-8", "surrogatepass")
    pieces: list[Piece] = []
    position = 0
    for unit in units:
        start = max(_boundary(raw, unit.byte_start), position)
        end = max(_boundary(raw, unit.byte_end), start)
        pieces += _piece(raw[position:start], None)
        pieces += _piece(raw[start:end], unit)
        position = end
    pieces += _piece(raw[position:], None)
    return tuple(pieces)


def _boundary(raw: bytes, at: int) -> int:
    at = min(at, len(raw))
    while at < len(raw) and raw[at] & 0xC0 == 0x80:
        at += 1
    return at


def _piece(raw: bytes, unit: UnitSummary | None) -> list[Piece]:
    return [Piece(raw.decode("utf-8", "surrogatepass"), unit)] if raw else []
