"""Prices of the month on its invoice: over all usage, exact, allowances among them."""

from __future__ import annotations

from decimal import Decimal

import msgspec
from billing_cases import tariff
from billing_world import add_tenant
from invoice_world import Month, at, per_service_period, priced

from billing import catalogue, refunds, tariffs
from billing.invoices import closing
from billing.ledger.balances import balance
from billing.money import parse_nano
from metering.database import snapshot, transaction
from metering.events import EndedBy, RequestStatus

LAST_MOMENT = at("2026-12-01 00:00") - 1


def after_grace(month: Month) -> None:
    month.now_us = at("2026-12-04 00:00")


def test_period_prices_are_rated_over_all_usage_however_late_it_came(month: Month) -> None:
    tiers = [{"up_to": "10000", "per_million": "100"}, {"per_million": "50"}]
    with transaction(month.database) as connection:
        volume = {"model": "graduated", "measure": "output_tokens", "tiers": tiers}
        catalogue.publish(
            connection,
            priced(volume=volume, base={"model": "flat", "amount": "20"}),
            at("2026-11-01 00:00") + 1,
        )
    month.now_us = at("2026-11-02 00:00")
    used = month.serve("req_1", ended_us=at("2026-11-10 12:00"), tokens=8000)
    after_grace(month)
    november = month.issued("2026-11")
    prices = parse_nano("20") + parse_nano("0.8")
    assert per_service_period([november]) == {"2026-11": used + prices}
    assert november.row.due_minor == 2080
    late = month.serve("req_late", ended_us=LAST_MOMENT, tokens=4000)
    closed = closing.correct(month.database, "2026-11", "ten_1")
    month.check()
    # Of the late tokens 2,000 still fall into the first tier.
    more = parse_nano("0.2") + parse_nano("0.1")
    assert per_service_period([month.invoice(closed.invoice_id)]) == {"2026-11": late + more}


def test_a_published_price_of_blocks_stays_and_one_of_all_blocks_counts_the_same(
    month: Month,
) -> None:
    """Three blocks, of which in one drafted tokens were accepted."""
    package = {"model": "package", "size": "1", "amount": "1"}
    new = priced(every=package | {"measure": "all_blocks"})
    old = tariffs.parse(
        tariffs.document(new)
        | {"name": "old", "period": {"every": package | {"measure": "blocks"}}},
        is_published=True,
    )
    with transaction(month.database) as connection:
        for tenant_id, terms in (
            ("ten_2", msgspec.structs.replace(new, name="new")),
            ("ten_3", old),
        ):
            add_tenant(connection, tenant_id, credit="100", pays=terms)
    for tenant_id in ("ten_2", "ten_3"):
        when = at("2026-11-10 12:00")
        month.serve(f"req_{tenant_id}", tenant_id, ended_us=when, blocks=3, verified_blocks=1)
    after_grace(month)
    for tenant_id in ("ten_2", "ten_3"):
        lines = month.issued("2026-11", tenant_id).lines
        assert [line.amount_nano for line in lines if line.kind == "period"] == [3 * 10**9]


def test_quantities_with_decimals_are_added_up_exactly(month: Month) -> None:
    information = {"per_million": "1", "cap_bits_per_token": "16000"}
    bits = msgspec.structs.replace(tariff(information=information), name="bits")
    with transaction(month.database) as connection:
        add_tenant(connection, "ten_2", credit="100", pays=bits)
    parts = [1, 333_333, 7_000_001, 999_999, 12_345_678_901]
    for number, ubits in enumerate(parts):
        when = at("2026-11-10 12:00")
        month.serve(f"req_{number}", "ten_2", ended_us=when, information_ubits=ubits)
    after_grace(month)
    line = month.issued("2026-11", "ten_2").lines[0]
    assert line.component == "information"
    assert Decimal(line.quantity) == Decimal(sum(parts)) / 10**6


def test_what_an_allowance_gives_back_goes_into_credit(month: Month) -> None:
    with transaction(month.database) as connection:
        catalogue.publish(
            connection,
            priced(free={"model": "allowance", "component": "output", "free": "1000"}),
            at("2026-11-02 00:00"),
        )
    month.now_us = at("2026-11-03 00:00")
    month.serve("req_1", ended_us=at("2026-11-10 12:00"), tokens=2000)
    with snapshot(month.database) as connection:
        before = balance(connection, "ten_1").available_nano
    after_grace(month)
    invoice = month.issued("2026-11")
    with snapshot(month.database) as connection:
        assert balance(connection, "ten_1").available_nano - before == parse_nano("0.004")
    assert invoice.row.returned_nano == parse_nano("0.004")
    assert invoice.row.due_minor == 0


def test_an_allowance_gives_no_more_back_than_requests_paid(month: Month) -> None:
    free = {
        f"free-{component}": {"model": "allowance", "component": component, "free": "1000"}
        for component in ("input", "output")
    }
    with transaction(month.database) as connection:
        catalogue.publish(connection, priced(**free), at("2026-11-02 00:00"))
    month.now_us = at("2026-11-03 00:00")
    charged = month.serve("req_1", ended_us=at("2026-11-10 12:00"), tokens=1000)
    with transaction(month.database) as connection:
        refunds.correct(
            connection,
            month.settlement._signer,
            tenant_id="ten_1",
            request_id="req_1",
            amount_nano=charged - 1000,
            reference="r",
            reason="goodwill",
        )
    after_grace(month)
    invoice = month.issued("2026-11")
    assert invoice.row.returned_nano == 1000
    assert sum(line.amount_nano for line in invoice.lines if line.kind != "credit") == 0


def test_what_is_waived_costs_nothing_in_the_prices_of_the_month_either(month: Month) -> None:
    counted = {"model": "package", "measure": "requests", "size": "1", "amount": "1"}
    read = {"model": "package", "measure": "input_tokens", "size": "1", "amount": "1"}
    with transaction(month.database) as connection:
        catalogue.publish(connection, priced(counted=counted, read=read), at("2026-11-02 00:00"))
    month.now_us = at("2026-11-03 00:00")
    ours = {"units": (), "unattached_tokens": 0, "ended_by": EndedBy.OPERATOR}
    when = at("2026-11-10 12:00")
    assert month.serve("req_1", ended_us=when, status=RequestStatus.FAILED, **ours) == 0
    # One that its tenant cancelled before its first token pays for its input.
    assert month.serve("req_2", ended_us=when, units=(), unattached_tokens=0) > 0
    after_grace(month)
    lines = month.issued("2026-11").lines
    assert [line.quantity for line in lines if line.kind == "period"] == ["1", "20"]
