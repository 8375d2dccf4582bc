"""Two scanners side by side: one passes over what it may, the other reads every character."""

from __future__ import annotations

from typing import Any

from metering.semantic.markdown import Markdown
from metering.semantic.scanner import Scanner, width
from metering.semantic.tiling import Tiling


def assert_passing_is_reading(data: bytes) -> None:
    """Fail where a scanner that passed over characters isn't as if it had read them."""
    text = data.decode("utf-8", "surrogateescape")
    tiling, tiling_read = Tiling(), Tiling()
    scanner: Scanner = Markdown(at_start=True)
    read: Scanner = Markdown(at_start=True)
    at = place = 0
    while place < len(text):
        end = scanner.pass_over(tiling, text, place)
        for char in text[place:end]:
            assert width(char) == 1
            read = read.step(tiling_read, char, at)
            at += 1
        assert state_of(scanner) == state_of(read)
        assert state_of(tiling) == state_of(tiling_read)
        for char in text[end : end + 1]:
            scanner = scanner.step(tiling, char, at)
            read = read.step(tiling_read, char, at)
            at += width(char)
        place = end + 1


def state_of(part: Any) -> Any:
    """All that a scanner or tiling remembers, and what its parts do."""
    names = getattr(part, "__slots__", None)
    if names is None or isinstance(part, tuple):
        return part
    return type(part), {name: state_of(getattr(part, name)) for name in names}
