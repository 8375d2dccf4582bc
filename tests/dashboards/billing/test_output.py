"""Cutting an output along its units."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dashboards.billing.output import Piece, cut
from metering.events import ConfidenceTier, UnitState, UnitSummary


def unit(index: int, start: int, end: int) -> UnitSummary:
    return UnitSummary(
        index=index,
        kind="sentence",
        state=UnitState.COMPLETE,
        byte_start=start,
        byte_end=end,
        tokens=1,
        sum_logprob="-0.100000",
        geo_mean="0.9048",
        min_prob="0.9048",
        tier=ConfidenceTier.REDUCED,
    )


def test_text_between_units_belongs_to_none() -> None:
    first, second = unit(0, 0, 3), unit(1, 4, 7)
    assert cut("Hi. Yo. ", [first, second]) == (
        Piece("Hi.", first),
        Piece(" ", None),
        Piece("Yo.", second),
        Piece(" ", None),
    )


def test_bounds_are_bytes_and_never_split_a_character() -> None:
    only = unit(0, 0, 2)  # inside the two bytes of the second character
    assert cut("aé!", [only]) == (Piece("aé", only), Piece("!", None))


@given(st.text(max_size=40), st.lists(st.integers(0, 200), max_size=8))
def test_the_pieces_join_to_the_output_again(output: str, bounds: list[int]) -> None:
    ordered = sorted(bounds)
    units = [
        unit(index, start, end)
        for index, (start, end) in enumerate(zip(ordered[::2], ordered[1::2], strict=False))
    ]
    assert "".join(piece.text for piece in cut(output, units)) == output
