"""How figures are said on every page."""

from __future__ import annotations

import re
from decimal import Decimal
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markupsafe import Markup

from billing.money import parse_nano
from dashboards import rendering


def text_of(markup: str) -> str:
    return re.sub(r"<[^>]+>", "", markup)


CURRENCIES = st.sampled_from(["JPY", "EUR", "KWD", "CLF"])


@pytest.mark.parametrize(
    ("nano", "currency", "coarse", "fine"),
    [
        (0, "USD", "0.00", ""),
        (12_500_000_000, "USD", "12.50", ""),
        (1_251_822_796, "USD", "1.25", "1822796"),
        (1_963_700, "USD", "0.0019637", ""),  # less than a cent: all of it counts
        (-250_000_000, "EUR", "−0.25", ""),
        (0, "JPY", "0", ""),
        (12_000_000_000, "JPY", "12", ""),
        (12_500_000_000, "JPY", "12", ".5"),
        (-990_000_000, "JPY", "−0.99", ""),
        (12_500_000_000, "KWD", "12.500", ""),
        (1_251_822_796, "KWD", "1.251", "822796"),
        (999_999, "KWD", "0.000999999", ""),
    ],
)
def test_an_amount_has_its_currencys_decimals_and_what_is_finer_set_lighter(
    nano: int, currency: str, coarse: str, fine: str
) -> None:
    said = rendering.amount(nano, currency)
    assert f'"amount">{coarse}<span class="fine">{fine}</span> ' in said
    assert text_of(said) == f"{coarse}{fine} {currency}"


@given(st.integers(-(2**62), 2**62), CURRENCIES)
def test_an_amount_reads_back_to_the_same_number_of_nanos(nano: int, currency: str) -> None:
    said = text_of(rendering.amount(nano, currency)).replace("\N{MINUS SIGN}", "-")
    assert Decimal(said.removesuffix(f" {currency}")).scaleb(9) == nano


@given(st.integers(0, 10**15), CURRENCIES)
def test_amounts_of_a_column_are_padded_to_nine_decimals(nano: int, currency: str) -> None:
    column = str(rendering.column(nano, currency))
    padding = int(column.partition("pad-")[2].partition('"')[0])
    assert len(text_of(column).partition(".")[2]) + padding == 9
    assert ("." in text_of(column)) != ("pad-point" in column)
    assert f".pad-{padding} " in (rendering.STATIC / "style.css").read_text() or not padding


@pytest.mark.parametrize(
    "said",
    [
        rendering.amount(None, "USD"),
        rendering.column(None, "USD"),
        rendering.joules(None),
        rendering.joules_exact(None),
        rendering.percent(None),
        rendering.number(None),
        rendering.score(None),
        rendering.instant(None),
        rendering.span(None),
    ],
)
def test_what_does_not_exist_is_unavailable_and_never_zero(said: str) -> None:
    assert text_of(said) == "unavailable"


def test_joules_are_rounded_down_to_the_tenth_that_is_billed() -> None:
    assert rendering.joules(1_299_999) == "1.2 J"
    assert rendering.joules(0) == "0.0 J"
    assert rendering.joules_exact(1_299_999) == "1.299999 J"


def test_a_moment_is_said_with_its_time_zone_and_marked_up_in_utc() -> None:
    said = rendering.instant(1_767_225_600_000_000, ZoneInfo("Asia/Tokyo"))
    assert text_of(said) == "2026-01-01 09:00:00 JST"
    assert 'datetime="2026-01-01T00:00:00Z"' in said


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(0, "0 s"), (59, "59 s"), (61, "1 min 1 s"), (7_200, "2 h 0 min"), (-90, "−1 min 30 s")],
)
def test_a_span_is_said_in_its_two_largest_units(seconds: int, said: str) -> None:
    assert rendering.span(seconds * 1_000_000) == said


def test_short_ids_keep_what_tells_them_apart() -> None:
    assert rendering.shortened("req_0190a1b2c3d4e5f60718293a4b5c6d7e") == "req_…3a4b5c6d7e"
    assert rendering.shortened("req_1") == "req_1"


def test_templates_escape_what_they_print() -> None:
    template = rendering.environment().from_string("{{ text }}{{ nano | amount('<b>') }}")
    made = template.render(text="<script>", nano=0)
    assert "<script>" not in made
    assert "<b>" not in made
    assert isinstance(rendering.amount(parse_nano("1"), "USD"), Markup)


def test_an_assets_address_changes_with_its_content() -> None:
    assert re.fullmatch(
        r"/dashboard/static/style\.css\?v=[0-9a-f]{12}", rendering.asset("style.css")
    )
