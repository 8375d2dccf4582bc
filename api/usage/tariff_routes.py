"""`GET /tariff` and `POST /tariffs/preview`: what a tenant pays, and would have paid otherwise."""

from __future__ import annotations

from typing import Any

import msgspec
from litestar import get, post
from litestar.di import NamedDependency
from litestar.params import JSONBody
from sqlalchemy import Connection
from sqlalchemy import Engine as Database

from api.admin.schemas import TariffVersionView
from api.auth import Principal, Scope, requires, tenant_in_scope
from api.bodies import StrictBody
from api.error_reports import documented
from api.errors import Forbidden, InvalidParameter, NotFound, Unauthenticated
from api.invoices.schemas import PeriodLabel
from api.schemas import TenantQuery
from billing import catalogue, tariffs
from billing.errors import InvalidPeriod, InvalidTariff, NoTariff, TariffConflict, UsageGone
from billing.invoices.lines import InvoiceLine
from billing.money import format_nano, plain
from billing.preview import Preview, preview
from billing.tariffs import Tariff
from metering import clock
from metering.database import snapshot


class PreviewRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A month to rate again: under a draft's document, or under a published version by its id."""

    period: PeriodLabel
    document: dict[str, Any] | None = None
    version: str | None = None


class PreviewLineView(msgspec.Struct, frozen=True):
    """One line of the month before tax; `unit_price` is null where requests' prices differ."""

    kind: str
    component: str
    detail: str
    quantity: str
    unit: str
    unit_price: str | None
    amount: str

    @classmethod
    def of(cls, line: InvoiceLine) -> PreviewLineView:
        """The wire's view of a line."""
        return cls(
            kind=line.kind,
            component=line.component,
            detail=line.detail,
            quantity=plain(line.quantity),
            unit=line.unit,
            unit_price=line.unit_price,
            amount=format_nano(line.amount_nano),
        )


class PreviewView(msgspec.Struct, frozen=True):
    """What the month would have cost, beside what it did. All amounts are before tax."""

    tenant_id: str
    period: str
    tariff: str
    currency: str
    requests: int
    total: str
    booked_total: str
    difference: str
    lines: list[PreviewLineView]
    booked: list[PreviewLineView]

    @classmethod
    def of(cls, found: Preview, draft: Tariff) -> PreviewView:
        """The wire's view of a preview."""
        return cls(
            tenant_id=found.tenant_id,
            period=found.period.label,
            tariff=draft.name,
            currency=found.currency,
            requests=found.requests,
            total=format_nano(found.total_nano),
            booked_total=format_nano(found.booked_nano),
            difference=format_nano(found.total_nano - found.booked_nano),
            lines=[PreviewLineView.of(line) for line in found.lines],
            booked=[PreviewLineView.of(line) for line in found.booked],
        )


@get(
    "/tariff",
    guards=[requires(Scope.READ_BILLING)],
    summary="Read the tariff in force",
    responses=documented(InvalidParameter, NoTariff, Unauthenticated, Forbidden, NotFound),
    sync_to_thread=True,
)
def read_tariff(
    principal: NamedDependency[Principal],
    database: NamedDependency[Database],
    tenant_id: TenantQuery = None,
) -> TariffVersionView:
    """The version, with its document, that a request admitted now would be pinned to."""
    with snapshot(database) as connection:
        asked = tenant_in_scope(connection, principal, tenant_id)
        return TariffVersionView.of(catalogue.tariff_in_force(connection, asked, clock.now_us()))


@post(
    "/tariffs/preview",
    guards=[requires(Scope.READ_BILLING)],
    summary="Price past usage under another tariff",
    status_code=200,
    responses=documented(
        InvalidParameter,
        InvalidTariff,
        InvalidPeriod,
        TariffConflict,
        UsageGone,
        Unauthenticated,
        Forbidden,
        NotFound,
    ),
    dto=StrictBody,
    return_dto=None,
    sync_to_thread=True,
)
def preview_tariff(
    data: JSONBody[PreviewRequest],
    principal: NamedDependency[Principal],
    database: NamedDependency[Database],
    tenant_id: TenantQuery = None,
) -> PreviewView:
    """Rate every request of a month again, exactly. Nothing is published, booked or kept."""
    with snapshot(database) as connection:
        asked = tenant_in_scope(connection, principal, tenant_id)
        draft = _draft(connection, principal, asked, data)
        return PreviewView.of(preview(connection, asked, data.period, draft), draft)


def _draft(
    connection: Connection, principal: Principal, tenant_id: str, data: PreviewRequest
) -> Tariff:
    """The tariff to price by. A tenant may name only the version that it pays now."""
    if (data.document is None) == (data.version is None):
        raise InvalidParameter("give either a document or a version", "document")
    if data.document is not None:
        return tariffs.parse(data.document)
    assert data.version is not None
    if principal.tenant_id is not None:
        now = catalogue.tariff_in_force(connection, tenant_id, clock.now_us())
        if now.id != data.version:
            raise NotFound(f"no tariff version {data.version}")
        return now.document
    return catalogue.version(connection, data.version).document
