"""The end of a request, in money: rated, posted, receipted and, if it must be, queued for review.

All of it happens in the transaction that makes the request's terminal event durable, so that a
request is settled exactly when it is final.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from decimal import Decimal

import msgspec
from sqlalchemy import Connection, bindparam, insert, select

from billing import catalogue, charged_hours, rating, receipts, review, review_caps, review_orders
from billing.catalogue import TariffVersion
from billing.invoices import closed_periods
from billing.ledger import alerts, holds, receivables
from billing.ledger.accounts import lock_tenant
from billing.ledger.holds import Settled
from billing.money import plain
from billing.rating import Charge, Component, Line
from billing.signing import Signer
from billing.tables import rated_lines
from billing.tables import receipts as receipts_table
from engine.records import EngineInfo
from metering.events import EnergySummary, RequestSummary
from metering.prepared import Prepared
from metering.tables import requests, tenants

TEST_MODE = "test mode"


class Settlement:
    """Implements `metering.protocols.Settler`.

    `engine_info` is what receipts say of the engine where the request's row doesn't; whoever starts
    or replaces it sets it.
    """

    def __init__(
        self,
        signer: Signer,
        engine_info: EngineInfo | None = None,
        *,
        review_sla_us: int = review.SLA_US,
        second_opinion_rate: float = 0.0,
    ) -> None:
        self.engine_info = engine_info
        self._signer = signer
        self._review_sla_us = review_sla_us
        self._second_opinion_rate = second_opinion_rate

    def settle(self, connection: Connection, summary: RequestSummary) -> None:
        """Price a final request, pay it from its hold, and sign its receipt.

        Works within the caller's transaction. Settling a request again changes nothing.
        """
        self._settle(connection, summary, holds.settle, self.engine_info)

    def settle_outside(self, connection: Connection, summary: RequestSummary) -> None:
        """Price what an engine that is not ours reported; the tenant owes it, hold or not.

        Works within the caller's transaction. Settling it again changes nothing.
        """
        self._settle(connection, summary, receivables.charge, None)

    def settle_late(self, connection: Connection, request_id: str, energy: EnergySummary) -> None:
        """Sign an adjustment that states what a settled request took. It costs nothing.

        Its receipt said `unavailable`, and was priced so: what we learn late is at our expense.
        """
        receipts.adjust(
            connection,
            self._signer,
            adjustment_id=f"{request_id}/late_energy",
            request_id=request_id,
            reason="late_energy",
            amount_nano=0,
            energy=energy,
        )

    def _settle(
        self,
        connection: Connection,
        summary: RequestSummary,
        pay: Callable[..., Settled],
        engine: EngineInfo | None,
    ) -> None:
        request = _REQUEST.one(connection, {"request_id": summary.request_id})
        lock_tenant(connection, summary.tenant_id, request.currency)
        if _has_receipt(connection, summary.request_id):
            return
        tariff = catalogue.version(connection, summary.tariff_version_id)
        parameters = json.loads(request.parameters)
        if request.engine is not None:
            engine = msgspec.json.decode(request.engine, type=EngineInfo)
        order = None
        if not request.test_mode:
            order = review_orders.order(
                summary,
                tariff.document,
                opts_in=lambda: review_caps.opts_in(connection, summary.tenant_id),
                held=bool(parameters.get("held")),
                cap_admits=lambda fee: review_caps.admits(
                    connection, summary.tenant_id, fee, tariff.currency
                ),
            )
        by_tenant = order is not None and order.by_tenant
        charge = (
            rating.waive(TEST_MODE)
            if request.test_mode
            else rating.rate(summary, tariff.document, review_fee=by_tenant)
        )
        fee = charge.of(Component.REVIEW)
        settled = pay(
            connection,
            summary.request_id,
            charge_nano=charge.total_nano - fee,
            fee_nano=fee,
            event_time_us=summary.ended_at_us,
        )
        if order is not None and not settled.fee_paid:
            order = order.at_our_cost()
        lines = _paid_lines(charge, settled)
        _store(connection, summary, tariff, lines)
        charged_hours.touch(connection, summary.tenant_id, summary.ended_at_us)
        closed_periods.note(connection, summary.tenant_id, summary.ended_at_us)
        receipts.issue(
            connection,
            self._signer,
            summary,
            tariff,
            lines,
            engine=engine,
            review=None if order is None else order.terms,
            parameters=parameters,
            salt=request.content_salt,
            test_mode=request.test_mode,
        )
        alerts.balance(connection, summary.tenant_id)
        if order is not None:
            review.queue(
                connection,
                order,
                summary,
                currency=tariff.currency,
                sla_us=self._review_sla_us,
                second_opinion_rate=self._second_opinion_rate,
            )


_REQUEST = Prepared(
    select(
        requests.c.test_mode,
        requests.c.parameters,
        requests.c.engine,
        requests.c.content_salt,
        tenants.c.currency,
    )
    .join(tenants, tenants.c.id == requests.c.tenant_id)
    .where(requests.c.id == bindparam("request_id"))
)


_RECEIPT = Prepared(
    select(receipts_table.c.request_id).where(
        receipts_table.c.request_id == bindparam("request_id")
    )
)


def _has_receipt(connection: Connection, request_id: str) -> bool:
    return _RECEIPT.value(connection, {"request_id": request_id}) is not None


def _paid_lines(charge: Charge, settled: Settled) -> tuple[Line, ...]:
    """The lines as they were paid: they add up to what the tenant was charged."""
    lines = charge.lines
    if not settled.fee_paid:
        lines = tuple(line for line in lines if line.component is not Component.REVIEW)
    if settled.written_off_nano:
        amount = Decimal(-settled.written_off_nano).scaleb(-9)
        lines += (
            rating.priced(Component.WRITE_OFF, "not covered", rating.ONE, "requests", amount),
        )
    return lines


_RATED = Prepared(insert(rated_lines))


def _store(
    connection: Connection,
    summary: RequestSummary,
    tariff: TariffVersion,
    lines: tuple[Line, ...],
) -> None:
    _RATED.run_each(
        connection,
        [
            {
                "request_id": summary.request_id,
                "line": number,
                "tenant_id": summary.tenant_id,
                "tariff_version_id": tariff.id,
                "component": line.component.value,
                "detail": line.detail,
                "quantity": plain(line.quantity),
                "unit": line.unit,
                "unit_price": plain(line.unit_price),
                "amount_nano": line.amount_nano,
                "currency": tariff.currency,
                "event_time_us": summary.ended_at_us,
            }
            for number, line in enumerate(lines)
        ],
    )
