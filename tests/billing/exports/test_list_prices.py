"""List prices: what a tariff lists is what it charges, for every tariff and every line."""

from __future__ import annotations

from decimal import Decimal

from billing_cases import summaries, tariff, tariffs
from hypothesis import given
from hypothesis import strategies as st

from billing.exports.list_prices import period_price, unit_price
from billing.invoices.period_models import Charged, price_all
from billing.rating import Component, rate
from billing.tariffs import Tariff
from metering.events import RequestSummary

# Bounds, and what credit did not cover, have no price of one.
UNPRICED = {Component.MINIMUM, Component.MAXIMUM, Component.WRITE_OFF, Component.WAIVED}
TIERS = [{"up_to": "700", "per_million": "30", "flat": "2"}, {"per_million": "11", "flat": "1"}]
MONTHLY = tariff(
    output={"per_million": "4"},
    period={
        "allowance": {"model": "allowance", "component": "output", "free": "150"},
        "base": {"model": "flat", "amount": "20"},
        "cut": {"model": "volume", "measure": "output_tokens", "tiers": TIERS},
        "packs": {"model": "package", "measure": "bits", "size": "7", "amount": "5", "free": "3"},
        "share": {"model": "percentage", "percent": "3", "minimum": "1"},
        "part": {"model": "percentage", "percent": "2", "component": "output", "maximum": "1"},
        "steps": {"model": "graduated", "measure": "output_tokens", "tiers": TIERS},
    },
)


@given(summaries(), tariffs(), st.booleans())
def test_a_tariff_lists_what_it_charges_for_every_line_of_a_request(
    request: RequestSummary, listed: Tariff, fee: bool
) -> None:
    for line in rate(request, listed, review_fee=fee).lines:
        if line.component not in UNPRICED and line.quantity:
            assert unit_price(listed, line.component, line.detail) == line.unit_price


@given(st.integers(0, 5000), st.integers(0, 5000), st.integers(0, 10**12))
def test_a_tariff_lists_what_it_charges_for_the_month(tokens: int, bits: int, nano: int) -> None:
    assert MONTHLY.period is not None
    measured = {"output_tokens": Decimal(tokens), "bits": Decimal(bits)}
    lines = price_all(MONTHLY.period, measured, {"output": Charged(Decimal(tokens), nano)}, nano)
    for name, line in lines:
        found = period_price(MONTHLY, MONTHLY, name, line.detail)
        no_price = line.unit_price is None or line.detail in {"minimum", "maximum"}
        assert found == (None if no_price else line.unit_price)
