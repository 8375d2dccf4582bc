"""Usage told to Stripe's meters: every hour once, at its own time, whatever breaks on the way."""

from __future__ import annotations

import pytest
from invoice_world import Month, at
from sqlalchemy import select
from stripe_process import StripeProcess

from billing.errors import PaymentConflict
from billing.payments import meters, outbox
from billing.payments.provider import Refused
from billing.payments.tables import payment_outbox
from metering import rollups
from metering.database import snapshot, transaction
from metering.events import EndedBy, RequestStatus

HOUR_US = 3600 * 10**6
EVENT = "dflash_output_tokens"
NOON = at("2026-11-10 12:00")


@pytest.fixture
def metered(month: Month, stripe: StripeProcess) -> Month:
    """Five thousand tokens in the hour from noon, which is over."""
    stripe.act("meter", event_name=EVENT)
    month.now_us = NOON
    with transaction(month.database) as connection:
        assert meters.begin(connection, "ten_1", "output_tokens", EVENT) is True
        assert meters.begin(connection, "ten_1", "output_tokens", EVENT) is False
    month.serve("req_1", ended_us=NOON + HOUR_US // 2, tokens=4_000)
    month.serve("req_2", ended_us=NOON + HOUR_US - 1, tokens=1_000)
    pass_to(month, stripe, NOON + 2 * HOUR_US)
    return month


def pass_to(month: Month, stripe: StripeProcess, now_us: int) -> None:
    """Let time go by, and roll up what happened."""
    month.now_us = now_us
    stripe.act("clock", at_s=now_us / 10**6)
    with transaction(month.database) as connection:
        rollups.refresh(connection, "ten_1")


def told(stripe: StripeProcess) -> list[tuple[int, str]]:
    """(hours after noon, value) of every event that Stripe has."""
    return [
        ((each["timestamp"] * 10**6 - NOON) // HOUR_US, each["payload"]["value"])
        for each in stripe.objects("billing.meter_event")
    ]


def test_an_hour_is_told_once_and_what_came_late_as_a_difference(
    metered: Month, stripe: StripeProcess
) -> None:
    assert (meters.queue(metered.database), meters.queue(metered.database)) == (1, 0)
    outbox.push(metered.database, stripe.provider)
    assert told(stripe) == [(0, "5000")]
    metered.serve("req_3", ended_us=NOON + 1, tokens=7)  # late
    metered.serve("req_4", ended_us=NOON + 3 * HOUR_US - 1, tokens=100)  # of an hour that runs
    pass_to(metered, stripe, NOON + 3 * HOUR_US)
    assert meters.queue(metered.database) == 1
    pass_to(metered, stripe, NOON + 4 * HOUR_US)
    assert (meters.queue(metered.database), meters.queue(metered.database)) == (1, 0)
    outbox.push(metered.database, stripe.provider)
    assert told(stripe) == [(0, "5000"), (0, "7"), (2, "100")]


@pytest.mark.parametrize("fault", ["429", "500", "500 after", "drop", "drop after"])
def test_a_fault_counts_nothing_twice_nor_never(
    metered: Month, stripe: StripeProcess, fault: str
) -> None:
    meters.queue(metered.database)
    stripe.act("faults", faults=["", fault])
    for _ in range(3):
        outbox.push(metered.database, stripe.provider)
        pass_to(metered, stripe, metered.now_us + HOUR_US)
    assert told(stripe) == [(0, "5000")]


@pytest.mark.parametrize("fault", ["drop", "drop after"])
def test_an_answer_lost_for_a_day_and_a_half_is_looked_up_in_what_it_added_up_to(
    metered: Month, stripe: StripeProcess, fault: str
) -> None:
    meters.queue(metered.database)
    stripe.act("faults", faults=["", fault])
    outbox.push(metered.database, stripe.provider)
    pass_to(metered, stripe, metered.now_us + 36 * HOUR_US)
    outbox.push(metered.database, stripe.provider)
    assert told(stripe) == [(0, "5000")]


def test_an_hour_too_old_for_stripe_is_not_told_under_another_time(
    metered: Month, stripe: StripeProcess
) -> None:
    pass_to(metered, stripe, NOON + 36 * 24 * HOUR_US)
    assert meters.queue(metered.database) == 0
    body = {"customer": "cus_x", "event": EVENT, "value": 1, "told": 0, "at_s": NOON // 10**6}
    with pytest.raises(Refused, match="35 days"):
        stripe.provider.do("meter", "x", body, "key")
    ahead = {**body, "at_s": metered.now_us // 10**6 + 301}
    with pytest.raises(Refused, match="5 minutes"):
        stripe.provider.do("meter", "x", ahead, "another key")


def test_what_stripe_refuses_of_a_meter_holds_up_no_invoice(
    metered: Month, stripe: StripeProcess
) -> None:
    with transaction(metered.database) as connection:
        meters.begin(connection, "ten_1", "requests", "no_such_meter")
    metered.serve("req_5", ended_us=metered.now_us + 1, tokens=1)
    pass_to(metered, stripe, metered.now_us + 2 * HOUR_US)
    assert meters.queue(metered.database) == 3
    outbox.push(metered.database, stripe.provider)
    with snapshot(metered.database) as connection:
        states = connection.execute(
            select(payment_outbox.c.state).where(payment_outbox.c.action == "meter")
        ).scalars()
        assert sorted(states) == ["refused", "sent", "sent"]


def test_requests_that_no_invoice_counts_are_told_of_no_meter(
    metered: Month, stripe: StripeProcess
) -> None:
    """In test mode, refused, or ended by us without output; what comes late beside them is told."""
    stripe.act("meter", event_name="requests")
    with transaction(metered.database) as connection:
        meters.begin(connection, "ten_1", "requests", "requests")
    running = metered.now_us
    nothing = {"units": (), "unattached_tokens": 0}
    metered.serve("req_3", ended_us=running, tokens=4_000, carries={"test_mode": True})
    metered.serve("req_4", ended_us=running, status=RequestStatus.REFUSED, **nothing)
    metered.serve("req_5", ended_us=running, ended_by=EndedBy.OPERATOR, **nothing)
    pass_to(metered, stripe, running + 2 * HOUR_US)
    assert [meters.queue(metered.database) for _ in range(2)] == [1, 0]
    outbox.push(metered.database, stripe.provider)
    assert told(stripe) == [(0, "5000")]
    metered.serve("req_6", ended_us=running + 1, tokens=7)
    pass_to(metered, stripe, metered.now_us)
    assert [meters.queue(metered.database) for _ in range(2)] == [2, 0]
    outbox.push(metered.database, stripe.provider)
    assert sorted(told(stripe)) == [(0, "5000"), (2, "1"), (2, "7")]


def test_only_what_can_be_told_is(month: Month) -> None:
    with transaction(month.database) as connection:
        for tenant_id, measure in (("ten_1", "joules"), ("ten_2", "requests")):
            with pytest.raises(PaymentConflict):
                meters.begin(connection, tenant_id, measure, EVENT)
