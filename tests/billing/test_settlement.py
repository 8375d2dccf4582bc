"""Settlement: rated, posted, receipted and queued, once, in one transaction."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest
from billing_cases import ENGINE, energy, nothing_emitted, summary, tariff, unit
from billing_sweeps import expire_holds
from billing_world import (
    FAR_US,
    add_request,
    add_tenant,
    balances,
    books_balance,
    ended,
    hold_state,
    mark,
    moved,
    settlement,
)
from sqlalchemy import Connection, Engine, select

from billing import queries, receipts, review
from billing.gate import HoldGate
from billing.money import NANO, format_nano
from billing.receipts import verify
from billing.settlement import Settlement
from billing.tables import review_items
from metering.database import transaction
from metering.events import EndedBy, RequestStatus, RequestSummary
from metering.tables import tenants

TERMS = tariff(
    input={"per_million": "0.1"},
    output={"per_million": "0.4", "units": {"complete": "0.9", "fragment": "1.25"}},
    review={"fee": "0.01"},
)
FEE = 10_000_000
CHARGE = 20 * 100 + 10 * 360  # of the factory's summary: 20 tokens in, one complete unit of 10


@pytest.fixture
def connection(database: Engine) -> Iterator[Connection]:
    with transaction(database) as opened:
        yield opened
        books_balance(opened)


@pytest.fixture
def settler(tmp_path: Path, connection: Connection) -> Settlement:
    made = settlement(tmp_path)
    made._signer.register(connection)
    return made


def run(
    connection: Connection,
    settler: Settlement,
    final: RequestSummary,
    *,
    credit: str = "1",
    opt_in: bool = False,
    **fields: Any,
) -> dict[str, Any]:
    """One request from admission to its receipt, which is returned."""
    add_tenant(connection, credit=credit, opt_in=opt_in, pays=TERMS)
    request = add_request(connection, **fields)
    HoldGate().admit(connection, request, expires_at_us=FAR_US)
    ended(connection, settler, final)
    envelope = receipts.receipt(connection, "ten_1", "req_1")
    assert envelope is not None
    verify(envelope, receipts.public_keys(connection))
    document: dict[str, Any] = envelope["receipt"]
    return document


def test_a_request_pays_its_lines_from_its_hold(
    connection: Connection, settler: Settlement
) -> None:
    receipt = run(connection, settler, summary())
    assert receipt["total"] == format_nano(CHARGE)
    assert hold_state(connection) == "posted"
    assert balances(connection) == {"tenant_credit": NANO - CHARGE, "earnings": CHARGE}
    lines = queries.lines(connection, "req_1")
    assert [(line.component, line.amount_nano) for line in lines] == [
        ("input", 2_000),
        ("output", 3_600),
    ]


def test_settling_again_changes_nothing(connection: Connection, settler: Settlement) -> None:
    receipt = run(connection, settler, summary(review_reason="audit"))
    before = balances(connection), moved(connection, "req_1")
    final = summary(tariff_version_id=receipt["tariff"]["id"], review_reason="audit")
    settler.settle(connection, final)
    assert (balances(connection), moved(connection, "req_1")) == before
    again = receipts.receipt(connection, "ten_1", "req_1")
    assert again is not None
    assert again["receipt"] == receipt


def test_a_settlement_whose_transaction_fails_never_happened(
    database: Engine, tmp_path: Path
) -> None:
    settler = settlement(tmp_path)
    with transaction(database) as connection:
        add_tenant(connection, pays=TERMS)
        request = add_request(connection)
        HoldGate().admit(connection, request, expires_at_us=FAR_US)
    with suppress(RuntimeError), transaction(database) as connection:
        ended(connection, settler, summary(review_reason="audit"))
        raise RuntimeError
    with transaction(database) as connection:
        assert hold_state(connection) == "pending"
        assert receipts.receipt(connection, None, "req_1") is None
        assert "earnings" not in balances(connection)
        ended(connection, settler, summary(review_reason="audit"))
        assert balances(connection)["earnings"] == CHARGE - FEE
        books_balance(connection)


def test_a_client_that_leaves_pays_for_exactly_the_blocks_committed_before(
    connection: Connection, settler: Settlement
) -> None:
    final = summary(
        unit(4),
        unit(2, "fragment"),
        status=RequestStatus.CANCELLED,
        finish_reason="cancelled",
        ended_by=EndedBy.TENANT,
    )
    receipt = run(connection, settler, final)
    assert receipt["total"] == format_nano(2_000 + 4 * 360 + 2 * 500)
    assert hold_state(connection) == "posted"


def test_a_client_that_leaves_after_the_last_token_is_a_success(
    connection: Connection, settler: Settlement
) -> None:
    receipt = run(connection, settler, summary())
    assert (receipt["status"], receipt["ended_by"]) == ("completed", "model")


def test_a_request_that_was_refused_costs_nothing_and_says_why(
    connection: Connection, settler: Settlement
) -> None:
    refused = nothing_emitted(status=RequestStatus.REFUSED, ended_by=EndedBy.OPERATOR)
    receipt = run(connection, settler, refused)
    assert receipt["total"] == "0"
    assert receipt["lines"][0]["detail"] == "refused before it ran"
    assert hold_state(connection) == "voided"
    assert balances(connection) == {"tenant_credit": NANO}


def test_a_crash_of_ours_takes_no_premium_for_what_it_cut(
    connection: Connection, settler: Settlement
) -> None:
    final = summary(unit(10, "fragment"), status=RequestStatus.FAILED, ended_by=EndedBy.OPERATOR)
    assert run(connection, settler, final)["total"] == format_nano(2_000 + 10 * 400)


def test_test_mode_bills_nothing_and_says_so(connection: Connection, settler: Settlement) -> None:
    final = summary(review_reason="request_confidence")
    receipt = run(connection, settler, final, credit="0", opt_in=True, test_mode=True)
    assert receipt["test_mode"] is True
    assert receipt["total"] == "0"
    assert [line["detail"] for line in receipt["lines"]] == ["test mode"]
    assert balances(connection) == {}
    assert connection.execute(select(review_items)).all() == []


@pytest.mark.parametrize("reason", ["request_confidence", "unit_confidence"])
def test_a_doubtful_output_is_reviewed_at_the_tenants_cost_if_it_opted_in(
    connection: Connection, settler: Settlement, reason: str
) -> None:
    receipt = run(connection, settler, summary(review_reason=reason), opt_in=True)
    assert receipt["review"] == {
        "reason": reason,
        "fee": "0.01",
        "paid_by": "tenant",
        "delivery": "now",
    }
    assert receipt["total"] == format_nano(CHARGE + FEE)
    assert balances(connection)["review_pool"] == FEE
    item = review.item(connection, "rev_req_1")
    assert (item.reason, item.fee_nano, item.geo_mean) == (reason, FEE, "0.9600")


def test_a_doubtful_output_is_not_reviewed_unless_the_tenant_opted_in(
    connection: Connection, settler: Settlement
) -> None:
    receipt = run(connection, settler, summary(review_reason="request_confidence"))
    assert receipt["review"] is None
    assert connection.execute(select(review_items)).all() == []


@pytest.mark.parametrize("opt_in", [True, False])
@pytest.mark.parametrize("reason", ["audit", "missing_score"])
def test_audits_and_missing_scores_are_the_operators_cost(
    connection: Connection, settler: Settlement, reason: str, opt_in: bool
) -> None:
    receipt = run(connection, settler, summary(review_reason=reason), opt_in=opt_in)
    assert receipt["review"] == {
        "reason": reason,
        "fee": "0.01",
        "paid_by": "operator",
        "delivery": "now",
    }
    assert receipt["total"] == format_nano(CHARGE)
    kinds = balances(connection)
    assert kinds["review_pool"] == FEE
    assert kinds["earnings"] == CHARGE - FEE


def test_a_review_that_the_hold_cannot_pay_is_at_the_operators_cost(
    connection: Connection, settler: Settlement
) -> None:
    add_tenant(connection, pays=TERMS)
    ceiling = 20 * 100 + 64 * 500
    request = add_request(connection, max_cost_nano=ceiling)
    HoldGate().admit(connection, request, expires_at_us=FAR_US)
    connection.execute(tenants.update().values(review_opt_in=True))
    ended(connection, settler, summary(review_reason="request_confidence"))
    envelope = receipts.receipt(connection, None, "req_1")
    assert envelope is not None
    assert envelope["receipt"]["review"]["paid_by"] == "operator"
    assert envelope["receipt"]["total"] == format_nano(CHARGE)
    assert balances(connection)["review_pool"] == FEE


def test_what_nothing_covers_is_written_off_on_the_receipt(
    connection: Connection, settler: Settlement
) -> None:
    add_tenant(connection, credit="0.000040", pays=TERMS)
    request = add_request(connection)
    HoldGate().admit(connection, request, expires_at_us=FAR_US)
    ended(connection, settler, summary(unit(200)))
    envelope = receipts.receipt(connection, None, "req_1")
    assert envelope is not None
    charge = 2_000 + 200 * 360
    assert envelope["receipt"]["total"] == "0.00004"
    assert envelope["receipt"]["lines"][-1] == {
        "component": "write_off",
        "detail": "not covered",
        "quantity": "1",
        "unit": "requests",
        "unit_price": format_nano(40_000 - charge),
        "amount": format_nano(40_000 - charge),
    }
    assert balances(connection) == {"earnings": charge, "write_off": 40_000 - charge}


def test_a_request_whose_hold_expired_still_settles(
    connection: Connection, settler: Settlement
) -> None:
    add_tenant(connection, pays=TERMS)
    request = add_request(connection)
    HoldGate().admit(connection, request, expires_at_us=5)
    expire_holds(connection, 5)
    ended(connection, settler, summary())
    assert balances(connection) == {"tenant_credit": NANO - CHARGE, "earnings": CHARGE}


def test_a_cancel_storm_leaves_nothing_held(connection: Connection, settler: Settlement) -> None:
    add_tenant(connection, pays=TERMS)
    gate = HoldGate()
    for number in range(30):
        request = add_request(connection, f"req_{number}")
        gate.admit(connection, request, expires_at_us=FAR_US)
    for number in range(30):
        emitted = [unit(number)] if number % 3 else []
        cancelled = summary(
            *emitted,
            unattached_tokens=0,
            request_id=f"req_{number}",
            status=RequestStatus.CANCELLED,
            ended_by=EndedBy.TENANT,
        )
        ended(connection, settler, cancelled)
    assert "holds" not in balances(connection)
    assert {hold_state(connection, f"req_{number}") for number in range(30)} == {"posted"}


def test_reading_a_receipt_never_bills(connection: Connection, settler: Settlement) -> None:
    run(connection, settler, summary())
    before = balances(connection)
    for _ in range(3):
        receipts.receipt(connection, "ten_1", "req_1")
        receipts.adjustments(connection, "req_1")
        queries.lines(connection, "req_1")
    assert balances(connection) == before


def test_energy_is_billed_only_as_far_as_it_was_shown(
    connection: Connection, settler: Settlement
) -> None:
    terms = tariff(
        name="joules", energy={"per_million": {"estimated": "1"}, "cap_joules_per_token": "9"}
    )
    add_tenant(connection, pays=terms)
    request = add_request(connection)
    HoldGate().admit(connection, request, expires_at_us=FAR_US)
    ended(connection, settler, summary(energy=energy("estimated", 12_399_999)))
    envelope = receipts.receipt(connection, None, "req_1")
    assert envelope is not None
    assert envelope["receipt"]["energy"]["joules"] == "12.3"
    assert balances(connection)["earnings"] == 12_300


def test_a_receipt_names_the_engine_or_that_there_was_none(
    connection: Connection, tmp_path: Path
) -> None:
    settler = settlement(tmp_path)
    settler._signer.register(connection)
    settler.engine_info = None
    add_tenant(connection, pays=TERMS)
    for number in (1, 2):
        request = add_request(connection, f"req_{number}")
        HoldGate().admit(connection, request, expires_at_us=FAR_US)
        ended(connection, settler, summary(request_id=request.id))
        settler.engine_info = ENGINE
    before, after = (receipts.receipt(connection, None, f"req_{number}") for number in (1, 2))
    assert before is not None
    assert before["receipt"]["engine"] is None
    assert after is not None
    assert after["receipt"]["engine"]["backend"] == "fp32"
    assert after["receipt"]["model"]["checksum"] == ENGINE.checksum


def test_a_receipt_names_the_engine_that_the_request_was_admitted_for(
    connection: Connection, settler: Settlement
) -> None:
    """Given a restart with another model file and other threads before it was settled."""
    first = msgspec.structs.replace(ENGINE, checksum="sha256:" + "cd" * 32, thread_count=7)
    add_tenant(connection, pays=TERMS)
    request = add_request(connection, engine=first)
    HoldGate().admit(connection, request, expires_at_us=FAR_US)
    ended(connection, settler, summary())
    envelope = receipts.receipt(connection, None, "req_1")
    assert envelope is not None
    assert envelope["receipt"]["model"]["checksum"] == first.checksum
    assert envelope["receipt"]["engine"]["thread_count"] == 7


def test_the_sweep_after_a_settlement_finds_nothing(
    connection: Connection, settler: Settlement
) -> None:
    run(connection, settler, summary())
    mark(connection, "req_1", RequestStatus.COMPLETED)
    assert expire_holds(connection, FAR_US) == 0


def test_energy_that_settles_late_is_a_signed_adjustment_that_costs_nothing(
    connection: Connection, settler: Settlement
) -> None:
    receipt = run(connection, settler, summary(energy=energy("unavailable", None)))
    before = balances(connection)
    late = energy("measured", 4_560_000)
    for _ in range(2):
        settler.settle_late(connection, "req_1", late)
    [envelope] = receipts.adjustments(connection, "req_1")
    verified = receipts.verify_adjustment(envelope, receipts.public_keys(connection))
    assert (verified.reason, verified.amount_nano) == ("late_energy", 0)
    stated = envelope["adjustment"]["energy"]
    assert (stated["class"], stated["joules"]) == ("measured", "4.5")
    assert receipt["energy"]["joules"] is None
    assert balances(connection) == before
