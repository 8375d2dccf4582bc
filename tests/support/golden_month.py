"""The golden month of `docs/golden-month.md`: two tenants, all components,
late events, and what is given back and given up.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from billing_cases import energy, tariff, unit
from billing_world import add_tenant, settlement
from invoice_world import Month, at
from sqlalchemy import Engine, select, update

from billing import review
from billing.invoices import closing, issuing, paying
from billing.tables import review_items
from metering.database import transaction
from metering.tables import tenants

TERMS = tariff(
    input={"per_million": "1"},
    output={
        "per_million": "10",
        "units": {"complete": "0.9", "fragment": "1.2"},
        "tiers": {"reduced": "0.5"},
    },
    review={"fee": "0.25"},
    energy={"per_million": {"estimated": "100"}, "cap_joules_per_token": "20"},
    information={"per_million": "2", "cap_bits_per_token": "8"},
    blocks={"per_million": "50"},
    request={"fee": "0.001", "minimum": "0.002", "maximum": "2"},
    period={
        "base": {"model": "flat", "amount": "5"},
        "free": {"model": "allowance", "component": "output", "free": "10000"},
    },
)
BARE = {"information_ubits": None, "energy": energy("unavailable", None), "verified_blocks": 0}
BERLIN, NEW_YORK = "Europe/Berlin", "America/New_York"


def golden_month(database: Engine, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Month:
    """Both tenants, and their October as it stood when it was closed."""
    month = Month(database, settlement(folder), monkeypatch)
    with transaction(database) as connection:
        month.settlement._signer.register(connection)
        for tenant_id, zone, opted_in in (
            ("ten_berlin", BERLIN, True),
            ("ten_york", NEW_YORK, False),
        ):
            add_tenant(connection, tenant_id, credit="100", opt_in=opted_in, pays=TERMS)
            connection.execute(
                update(tenants).where(tenants.c.id == tenant_id).values(time_zone=zone)
            )
    month.terms("ten_berlin", name="Berlin GmbH", tax_percent=19)
    october(month)
    return month


def bill(month: Month) -> None:
    """Close October, let usage come late to both, and bill that in both ways."""
    month.now_us = at("2026-11-04 00:00")
    month.close("2026-10")
    month.now_us += 10**6
    late(month, "req_b4", "ten_berlin", at("2026-10-20 00:00"))
    when = at("2026-10-15 00:00")
    charged = late(month, "req_y2", "ten_york", when)
    month.on_account("req_y2", "ten_york", charged, at_us=when)
    closing.correct(month.database, "2026-10", "ten_york")
    month.now_us = at("2026-12-04 00:00")
    month.close("2026-11", "ten_berlin")
    give_up(month, "INV-000002", paid_minor=500)


def give_up(month: Month, number: str, *, paid_minor: int) -> None:
    """A part of an invoice comes by transfer, and nobody pays the rest."""
    with transaction(month.database) as connection:
        paying.pay(connection, number, paid_minor, method=paying.MANUAL, cause_id="transfer-1")
        issuing.give_up(connection, number)


def october(month: Month) -> None:
    month.now_us = at("2026-10-10 12:00", BERLIN)
    full: dict[str, Any] = {
        "information_ubits": 5000 * 10**6,
        "energy": energy("estimated", 300_049_999),
        "verified_blocks": 600,
        "review_reason": "request_confidence",
    }
    month.serve(
        "req_b1",
        "ten_berlin",
        ended_us=month.now_us,
        tokens=2500,
        input_tokens=1000,
        units=(unit(2000), unit(500, "fragment", "reduced")),
        **full,
    )
    reject(month)
    small = {"tokens": 10, "input_tokens": 100, **BARE}
    month.serve("req_b2", "ten_berlin", ended_us=at("2026-10-31 23:30", BERLIN), **small)
    month.serve("req_b3", "ten_berlin", ended_us=at("2026-11-01 00:30", BERLIN), **small)
    when = at("2026-10-12 12:00", NEW_YORK)
    charged = month.serve(
        "req_y0",
        "ten_york",
        ended_us=when,
        tokens=1000,
        input_tokens=500,
        **{**BARE, "energy": energy("estimated", 40_000 * 10**6)},
    )
    month.on_account("req_y0", "ten_york", charged, at_us=when)
    last = at("2026-11-01 00:00", NEW_YORK) - 1
    charged = month.serve(
        "req_y1",
        "ten_york",
        ended_us=last,
        tokens=3000,
        input_tokens=10_000,
        **{**BARE, "energy": energy("estimated", 1000 * 10**6)},
    )
    month.on_account("req_y1", "ten_york", charged, at_us=last)


def reject(month: Month) -> None:
    with transaction(month.database) as connection:
        item_id = connection.scalars(select(review_items.c.id)).one()
        token = review.claim(connection, item_id, "key_anna")
        review.resolve(
            connection,
            item_id,
            "key_anna",
            token,
            verdict="reject",
            reasons=["incorrect"],
            signer=month.settlement._signer,
        )


def late(month: Month, request_id: str, tenant_id: str, ended_us: int) -> int:
    return month.serve(request_id, tenant_id, ended_us=ended_us, tokens=200_000, **BARE)
