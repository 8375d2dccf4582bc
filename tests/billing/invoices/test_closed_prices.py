"""What takes effect in the past: prices of a closed month stay, whoever would change them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from billing_cases import tariff
from invoice_world import Month, at
from sqlalchemy import Connection

from billing import catalogue, overrides, tariffs
from billing.errors import TariffConflict
from billing.invoices import issuing
from metering.database import transaction

END_US = at("2026-12-01 00:00")
DEARER = {"period": {"base": {"model": "flat", "amount": "5"}}}


def assign(connection: Connection, from_us: int) -> None:
    other = tariff(name="other", input={"per_million": "1"}, **DEARER)
    catalogue.publish(connection, other, 0)
    catalogue.assign(connection, "ten_1", "other", from_us)


def override(connection: Connection, from_us: int) -> None:
    overrides.override(connection, "ten_1", DEARER, from_us)


def override_again(connection: Connection, from_us: int) -> None:
    overrides.override(connection, "ten_1", {"period": None}, at("2026-11-02 00:00"))
    override(connection, from_us)


def publish(connection: Connection, from_us: int) -> None:
    paid = catalogue.tariff_in_force(connection, "ten_1", from_us).document
    catalogue.publish(connection, tariffs.parse(tariffs.document(paid) | DEARER), from_us)


CHANGES = [assign, override, publish]
Change = Callable[[Connection, int], None]


@pytest.mark.parametrize("change", CHANGES)
def test_a_price_that_would_hold_in_a_closed_month_is_refused_and_the_month_is_named(
    month: Month, change: Change
) -> None:
    month.now_us = at("2026-12-04 00:00")
    month.close("2026-11")
    for from_us in (at("2026-11-15 00:00"), END_US - 1):
        refused = pytest.raises(TariffConflict, match=r"2026-11 of ten_1 .* 2026-12-01T00:00:00Z")
        with refused, transaction(month.database) as connection:
            change(connection, from_us)
        month.check()
    with transaction(month.database) as connection:
        change(connection, END_US)
    month.check()
    month.now_us = at("2027-01-04 00:00")
    assert [line.amount_minor for line in month.issued("2026-12").lines] == [500]


@pytest.mark.parametrize("change", CHANGES)
def test_a_month_that_is_not_closed_takes_a_price_of_its_past(month: Month, change: Change) -> None:
    month.now_us = at("2026-12-04 00:00")
    with transaction(month.database) as connection:
        change(connection, at("2026-11-15 00:00"))
    assert [line.amount_minor for line in month.issued("2026-11").lines] == [500]


def test_own_prices_of_before_cannot_be_replaced_within_a_closed_month(month: Month) -> None:
    with transaction(month.database) as connection:
        overrides.override(connection, "ten_1", DEARER, at("2026-11-02 00:00"))
    month.now_us = at("2026-12-04 00:00")
    month.issued("2026-11")
    with pytest.raises(TariffConflict, match="2026-11"), transaction(month.database) as connection:
        overrides.override(connection, "ten_1", {"period": None}, at("2026-11-15 00:00"))


def test_after_its_invoice_was_voided_a_month_may_be_priced_anew(month: Month) -> None:
    when = at("2026-11-10 12:00")
    charged = month.serve("req_1", ended_us=when, tokens=999_995)
    month.on_account("req_1", "ten_1", charged, at_us=when)
    month.now_us = at("2026-12-04 00:00")
    first = month.issued("2026-11")
    with transaction(month.database) as connection:
        issuing.void(connection, first.row.id)
        assign(connection, at("2026-11-15 00:00"))
    assert month.issued("2026-11").row.total_minor == first.row.total_minor + 500


def test_a_shared_tariff_is_held_by_those_alone_who_were_on_it_when_their_month_ended(
    month: Month,
) -> None:
    with transaction(month.database) as connection:
        assign(connection, at("2026-11-15 00:00"))
    month.now_us = at("2026-12-04 00:00")
    month.issued("2026-11")
    with transaction(month.database) as connection:
        paid = catalogue.in_force(connection, "test", at("2026-11-20 00:00")).document
        changed = tariffs.parse(tariffs.document(paid) | DEARER)
        catalogue.publish(connection, changed, at("2026-11-20 00:00"))
    month.check()
