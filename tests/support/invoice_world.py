"""Months of settled requests, and their invoices, in a database."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

import msgspec
import pytest
from billing_cases import summary, tariff, unit
from billing_world import FAR_US, add_request, ended
from sqlalchemy import Engine, select

from billing.gate import HoldGate
from billing.invoices import checks, closing, parties, queries
from billing.invoices.queries import Invoice
from billing.ledger.accounts import Account, AccountKind
from billing.ledger.posting import Transfer, TransferKind, post
from billing.settlement import Settlement
from billing.tables import receipts
from billing.tariffs import Tariff
from metering import clock
from metering.database import snapshot, transaction

HOUR_US = 3600 * 10**6
DAY_US = 24 * HOUR_US


def at(text: str, zone: str = "UTC") -> int:
    """A local time such as "2026-11-30 23:59" as epoch microseconds."""
    local = datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone))
    return round(local.timestamp() * 10**6)


def priced(**period: Any) -> Tariff:
    """A tariff of 1 a million input tokens and 4 a million output tokens, with period prices."""
    return tariff(
        input={"per_million": "1"},
        output={"per_million": "4"},
        **({"period": period} if period else {}),
    )


class Month:
    """Requests of a database, settled one by one, and the months closed over them."""

    def __init__(
        self, database: Engine, settlement: Settlement, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self.database = database
        self.settlement = settlement
        self.now_us = at("2026-11-01 00:00")
        monkeypatch.setattr(clock, "now_us", lambda: self.now_us)

    def serve(
        self,
        request_id: str,
        tenant_id: str = "ten_1",
        *,
        ended_us: int,
        tokens: int = 1000,
        input_tokens: int = 20,
        carries: dict[str, Any] | None = None,
        **more: Any,
    ) -> int:
        """Settle a request that ended then and `carries` fields; what it was charged."""
        with transaction(self.database) as connection:
            admitted = add_request(
                connection,
                request_id,
                tenant_id,
                max_tokens=tokens,
                input_tokens=input_tokens,
                started_at_us=ended_us,
                **(carries or {}),
            )
            HoldGate().admit(connection, admitted, expires_at_us=FAR_US)
            fields = {"started_at_us": ended_us, "ended_at_us": ended_us, **more}
            units = fields.pop("units", (unit(tokens),))
            final = summary(*units, request_id=request_id, tenant_id=tenant_id, **fields)
            ended(connection, self.settlement, final)
            return connection.execute(
                select(receipts.c.total_nano).where(receipts.c.request_id == request_id)
            ).scalar_one()

    def settle_again(self, request_id: str, *, ended_us: int, tokens: int = 1000) -> None:
        """The same terminal event once more, as a replay brings it."""
        with transaction(self.database) as connection:
            version, tenant_id = connection.execute(
                select(receipts.c.document, receipts.c.tenant_id).where(
                    receipts.c.request_id == request_id
                )
            ).one()
            document = msgspec.json.decode(version)
            self.settlement.settle(
                connection,
                summary(
                    unit(tokens),
                    request_id=request_id,
                    tenant_id=tenant_id,
                    tariff_version_id=document["tariff"]["id"],
                    started_at_us=ended_us,
                    ended_at_us=ended_us,
                ),
            )

    def on_account(self, request_id: str, tenant_id: str, nano: int, *, at_us: int) -> None:
        """Let a request be paid later: its charge is accrued instead of taken from credit."""
        with transaction(self.database) as connection:
            cause = f"{request_id}/accrual"
            credit = Account(tenant_id, AccountKind.TENANT_CREDIT, "USD")
            accrued = Account(tenant_id, AccountKind.ACCRUED, "USD")
            move = Transfer(cause, TransferKind.CHARGE, accrued, credit, nano, at_us, request_id)
            post(connection, cause, [move])

    def close(self, label: str, tenant_id: str | None = None) -> list[closing.Closed]:
        """Close a month, and check that all invoices agree with the books."""
        closed = list(closing.close(self.database, label, tenant_id))
        self.check()
        return closed

    def check(self) -> None:
        with snapshot(self.database) as connection:
            assert list(checks.check(connection)) == []
        assert list(checks.unbilled(self.database)) == []

    def invoice(self, reference: str | None) -> Invoice:
        assert reference is not None
        with snapshot(self.database) as connection:
            return queries.invoice(connection, reference)

    def issued(self, label: str, tenant_id: str = "ten_1") -> Invoice:
        """Close a month for one tenant and return its invoice."""
        (closed,) = self.close(label, tenant_id)
        assert closed.outcome is closing.Outcome.ISSUED
        return self.invoice(closed.invoice_id)

    def standing(self, tenant_id: str = "ten_1") -> list[Invoice]:
        """Every invoice of a tenant that is neither a draft nor void."""
        with snapshot(self.database) as connection:
            rows = queries.rows(connection, tenant_id=tenant_id, limit=1000)
            return [
                queries.invoice(connection, row.id)
                for row in reversed(rows)
                if row.id and row.state not in ("draft", "void")
            ]

    def terms(self, tenant_id: str | None = None, **fields: Any) -> None:
        """Set the issuer's terms, or a tenant's."""
        with transaction(self.database) as connection:
            if tenant_id is None:
                parties.set_issuer(connection, parties.Issuer(**fields))
            else:
                parties.set_customer(connection, tenant_id, parties.Customer(**fields))


def per_service_period(invoices: Iterable[Invoice]) -> dict[str, int]:
    """What these invoices charge for each month of service, exact, tax left out."""
    totals: dict[str, int] = {}
    for each in invoices:
        for line in each.lines:
            if line.kind not in ("tax", "credit"):
                totals[line.period] = totals.get(line.period, 0) + line.amount_nano
    return {label: nano for label, nano in sorted(totals.items()) if nano}
