"""Numbers of payment cards in a text, in the groups they are written in and beside other digits.

Luhn's check passes one number in ten by chance. It decides alone where digits stand for themselves;
for a part of more digits (a code or a date behind it, something counted before it) the part has to
begin and be as long as an issuer's numbers, and to be grouped as cards are. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import accumulate

DIGITS_MIN, DIGITS_MAX = 13, 19
GROUP_DIGITS_MIN = 4  # of the first in a part of more digits

_ALONE = re.compile(r"(?<![\w.])(?<!\d[ -])\d(?:[ -]?\d){12,18}(?![ -]?\d)(?![\w.]\d)")
_RUN = re.compile(r"\d(?:[ .\u00a0\u2009\u202f\u2010-\u2015-]{0,3}\d)*")
_GROUP = re.compile(r"\d+")
_ISSUED = re.compile(
    r"4(?:\d{3}){4,6}|(?:5[1-5]|2[2-7])\d{14}|3[47]\d{13}"
    r"|3[0689]\d{12,17}|35\d{14,17}|(?:5[06-9]|6\d)\d{11,17}"
)
_WITH_CODE = re.compile(r"(?:(?:4\d|5[1-5]|2[2-7]|6\d)\d{14}|3[47]\d{13})(?=\d{3,7}$)")
_UNEVEN_GROUPS = ((4, 6, 5), (4, 6, 4), (6, 13))


def cards(text: str) -> Iterator[tuple[int, int]]:
    """Where card numbers are, as (start, end); they may overlap."""
    for match in _ALONE.finditer(text):
        digits = _digits(match[0])
        if _passes(_weights(digits), 0, len(digits)):
            yield match.span()
    for run in _RUN.finditer(text):
        if len(run[0]) >= DIGITS_MIN:
            yield from _in_run(text, run)


def _in_run(text: str, run: re.Match[str]) -> Iterator[tuple[int, int]]:
    """Every card that some groups of these digits are, the longest from each group on."""
    groups = [(at.start(), at.end()) for at in _GROUP.finditer(text, *run.span())]
    digits = _digits(run[0])
    sums = _weights(digits)
    ends = list(accumulate(end - start for start, end in groups))
    for first, (start, stop) in enumerate(groups):
        size = stop - start
        at = ends[first] - size
        if size < GROUP_DIGITS_MIN or (size >= DIGITS_MIN and _is_fraction(text, start)):
            continue
        found = None
        for last in range(first, len(groups)):
            until = ends[last]
            if until - at > DIGITS_MAX:
                break
            if until - at < DIGITS_MIN or not _passes(sums, at, until):
                continue
            chosen = groups[first : last + 1]
            alone = first == last and not _is_glued(text, start, stop)
            if alone or (_ISSUED.fullmatch(digits, at, until) and _is_grouped(text, chosen)):
                found = groups[last][1]
        coded = _WITH_CODE.match(digits, at, ends[first])
        if coded and _passes(sums, at, coded.end()):
            found = max(found or 0, stop)
        if found:
            yield start, found


def _is_grouped(text: str, groups: Sequence[tuple[int, int]]) -> bool:
    sizes = tuple(end - start for start, end in groups)
    if len(sizes) == 1 or sizes in _UNEVEN_GROUPS:
        return True
    even = len(set(sizes[:-1])) == 1 and sizes[-1] <= sizes[0]
    # Two groups with a point between them are a decimal fraction.
    return even and (len(sizes) > 2 or "." not in text[groups[0][1] : groups[1][0]])


def _is_fraction(text: str, start: int) -> bool:
    return start >= 2 and text[start - 1] == "." and text[start - 2].isdigit()


def _is_glued(text: str, start: int, end: int) -> bool:
    around = text[max(0, start - 1) : start] + text[end : end + 1]
    return any(each.isalnum() or each == "_" for each in around)


def _digits(text: str) -> str:
    """Its digits, of whatever script, as ASCII has them."""
    return "".join(str(int(each)) for each in text if each.isdecimal())


def _weights(digits: str) -> tuple[list[int], list[int]]:
    """Luhn's sums of the first so many digits: every other doubled, from the first or not."""
    return _sums(digits, 0), _sums(digits, 1)


def _sums(digits: str, doubled: int) -> list[int]:
    weights = (
        sum(divmod(2 * int(digit), 10)) if index % 2 == doubled else int(digit)
        for index, digit in enumerate(digits)
    )
    return [0, *accumulate(weights)]


def _passes(sums: tuple[list[int], list[int]], start: int, end: int) -> bool:
    """Luhn's check of a part: its last digit counts once, the one before it twice, and so on."""
    chosen = sums[end % 2]
    return (chosen[end] - chosen[start]) % 10 == 0
