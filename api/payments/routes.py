"""`/top-ups` for tenants, `/admin/payments` for the operator, `/webhooks/stripe` for Stripe."""

from __future__ import annotations

import asyncio
from typing import Any

from litestar import Request, Router, get, post, put
from litestar.di import NamedDependency
from litestar.params import JSONBody
from sqlalchemy import Engine as Database

from api import audit, tenants
from api.auth import Principal, Scope, requires, tenant_in_scope
from api.bodies import StrictBody
from api.error_reports import documented
from api.errors import Forbidden, InvalidParameter, NotFound, Unauthenticated
from api.payments.cashier import Cashier
from api.payments.schemas import (
    Enrolled,
    EnrolRequest,
    RechargeRequest,
    RechargeView,
    RefundRequest,
    TopUpList,
    TopUpRequest,
    TopUpView,
    WebhookTaken,
)
from api.schemas import PathId, TenantQuery
from billing.errors import (
    InvalidAmount,
    InvalidWebhook,
    PaymentConflict,
    PaymentsDisabled,
    ProviderFailed,
    ProviderRefused,
)
from billing.invoices.minor_units import format_minor, minor_nano, parse_minor
from billing.ledger.balances import currency_of
from billing.money import format_nano, parse_nano
from billing.payments import collection, recharging, top_ups, webhooks
from metering.database import snapshot, transaction

REFUSALS = (Unauthenticated, Forbidden, NotFound)


@get(
    "/",
    guards=[requires(Scope.READ_BILLING)],
    summary="List top-ups",
    responses=documented(InvalidParameter, *REFUSALS),
    sync_to_thread=True,
)
def list_top_ups(
    principal: NamedDependency[Principal],
    database: NamedDependency[Database],
    tenant_id: TenantQuery = None,
) -> TopUpList:
    """The latest purchases of credit, paid or not."""
    with snapshot(database) as connection:
        asked = tenant_in_scope(connection, principal, tenant_id)
        return TopUpList([TopUpView.of(found) for found in top_ups.of_tenant(connection, asked)])


@post(
    "/",
    guards=[requires(Scope.MANAGE_TENANT)],
    summary="Buy credit",
    responses=documented(
        InvalidAmount, PaymentConflict, PaymentsDisabled, ProviderFailed, ProviderRefused, *REFUSALS
    ),
    sync_to_thread=True,
)
def buy_credit(
    data: JSONBody[TopUpRequest],
    principal: NamedDependency[Principal],
    database: NamedDependency[Database],
    cashier: NamedDependency[Cashier],
) -> TopUpView:
    """Open the page where a person pays; credit is there once the money came."""
    provider = cashier.required_provider
    with snapshot(database) as connection:
        asked = tenant_in_scope(connection, principal, None)
        minor = parse_minor(data.amount, minor_nano(currency_of(connection, asked)))
    found = top_ups.begin(
        database,
        provider,
        tenant_id=asked,
        amount_minor=minor,
        reference=data.reference,
        return_url=f"{cashier.public_url}/dashboard/statement",
    )
    return TopUpView.of(found)


@put(
    "/recharge",
    guards=[requires(Scope.MANAGE_TENANT)],
    summary="Set the automatic recharge",
    responses=documented(InvalidAmount, PaymentsDisabled, *REFUSALS),
    sync_to_thread=True,
)
def set_recharge(
    data: JSONBody[RechargeRequest],
    principal: NamedDependency[Principal],
    database: NamedDependency[Database],
) -> RechargeView:
    """Buy credit with the card of the last top-up whenever credit runs low."""
    with transaction(database) as connection:
        asked = tenant_in_scope(connection, principal, None)
        minor = minor_nano(currency_of(connection, asked))
        recharging.order(
            connection,
            asked,
            below_nano=None if data.below is None else parse_nano(data.below),
            amount_minor=None if data.amount is None else parse_minor(data.amount, minor),
        )
        audit.write(
            connection,
            actor=principal.key_id,
            action="recharge.set",
            subject=asked,
            tenant_id=asked,
            below=data.below,
            amount=data.amount,
        )
        found = collection.account(connection, asked)
    assert found is not None
    below, bought = found.recharge_below_nano, found.recharge_minor
    return RechargeView(
        below=None if below is None else format_nano(below),
        amount=None if bought is None else format_minor(bought, minor),
        failed=found.recharge_failed,
    )


@post(
    "/enrol",
    guards=[requires(Scope.ADMINISTER)],
    summary="Let a tenant pay through the provider",
    responses=documented(InvalidParameter, PaymentConflict, PaymentsDisabled, *REFUSALS),
    status_code=200,
    sync_to_thread=True,
)
def enrol_tenant(
    data: JSONBody[EnrolRequest],
    principal: NamedDependency[Principal],
    database: NamedDependency[Database],
    cashier: NamedDependency[Cashier],
) -> Enrolled:
    """From now on its final invoices are pushed, and it may buy credit."""
    assert cashier.required_provider
    with transaction(database) as connection:
        tenant = tenants.require(connection, data.tenant_id)
        enrolled = collection.enrol(connection, tenant.id, data.email, tenant.currency)
        if enrolled:
            audit.write(
                connection,
                actor=principal.key_id,
                action="payments.enrolled",
                subject=tenant.id,
                tenant_id=tenant.id,
            )
    return Enrolled(data.tenant_id, enrolled)


@post(
    "/top-ups/{top_up_id:str}/refund",
    guards=[requires(Scope.ADMINISTER)],
    summary="Refund a top-up",
    responses=documented(InvalidAmount, PaymentConflict, *REFUSALS),
    status_code=200,
    sync_to_thread=True,
)
def refund_top_up(
    data: JSONBody[RefundRequest],
    principal: NamedDependency[Principal],
    database: NamedDependency[Database],
    top_up_id: PathId,
) -> TopUpView:
    """Take credit that was not spent back, and pay it to where it came from. The same reference
    again changes nothing.
    """
    with transaction(database) as connection:
        found = top_ups.require(connection, top_up_id)
        minor = parse_minor(data.amount, found.minor_nano)
        if top_ups.refund(connection, found.id, minor, data.reference):
            audit.write(
                connection,
                actor=principal.key_id,
                action="top_up.refunded",
                subject=found.id,
                tenant_id=found.tenant_id,
                amount=data.amount,
                reference=data.reference,
            )
    return TopUpView.of(found)


@post(
    "/webhooks/stripe",
    summary="Take a webhook of Stripe",
    responses=documented(InvalidWebhook, PaymentsDisabled, ProviderFailed, ProviderRefused),
    status_code=200,
    tags=["payments"],
)
async def stripe_webhook(
    request: Request[Any, Any, Any],
    database: NamedDependency[Database],
    cashier: NamedDependency[Cashier],
) -> WebhookTaken:
    """Signed by Stripe; answered once it is stored with its effect."""
    provider = cashier.required_provider
    payload = await request.body()
    signature = request.headers.get("stripe-signature")
    outcome = await asyncio.to_thread(webhooks.receive, database, provider, payload, signature)
    return WebhookTaken(outcome)


top_ups_router = Router(
    "/top-ups",
    route_handlers=[list_top_ups, buy_credit, set_recharge],
    dto=StrictBody,
    return_dto=None,
    tags=["payments"],
)
payment_desk_router = Router(
    "/admin/payments",
    route_handlers=[enrol_tenant, refund_top_up],
    dto=StrictBody,
    return_dto=None,
    tags=["administration"],
)
