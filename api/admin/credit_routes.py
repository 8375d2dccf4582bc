"""`/admin/tenants/{id}/credit`: credit that was paid for, on the books."""

from __future__ import annotations

from litestar import post
from litestar.di import NamedDependency
from litestar.params import JSONBody
from sqlalchemy import Engine as Database

from api import audit, tenants
from api.admin.schemas import CreditRequest, CreditView
from api.auth import Principal, Scope, requires
from api.error_reports import documented
from api.errors import Forbidden, NotFound, Unauthenticated
from api.schemas import PathId
from billing.errors import InvalidAmount, TransferConflict
from billing.ledger import balances, credits
from billing.money import format_nano, parse_nano
from metering.database import transaction


@post(
    "/tenants/{tenant_id:str}/credit",
    guards=[requires(Scope.ADMINISTER)],
    summary="Grant credit",
    responses=documented(InvalidAmount, TransferConflict, Unauthenticated, Forbidden, NotFound),
    sync_to_thread=True,
)
def grant_credit(
    data: JSONBody[CreditRequest],
    principal: NamedDependency[Principal],
    database: NamedDependency[Database],
    tenant_id: PathId,
) -> CreditView:
    """Add prepaid credit, once per `reference`; the same again only answers the balance."""
    amount_nano = parse_nano(data.amount)
    with transaction(database) as connection:
        tenants.require(connection, tenant_id)
        granted = credits.grant(connection, tenant_id, amount_nano, data.reference)
        if granted:
            audit.write(
                connection,
                actor=principal.key_id,
                action="credit.granted",
                subject=data.reference,
                tenant_id=tenant_id,
                amount_nano=amount_nano,
            )
        balance = balances.balance(connection, tenant_id)
    return CreditView(
        tenant_id=tenant_id,
        granted=format_nano(amount_nano if granted else 0),
        available=format_nano(balance.available_nano),
        held=format_nano(balance.held_nano),
        currency=balance.currency,
    )
