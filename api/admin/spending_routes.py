"""`/admin/tenants/{id}/grants` and `/terms`: what a tenant pays from; refunds of a charge."""

from __future__ import annotations

from litestar import get, post, put
from litestar.di import NamedDependency
from litestar.params import JSONBody
from sqlalchemy import Connection
from sqlalchemy import Engine as Database

from api import tenants
from api.admin.records import record
from api.admin.spending_schemas import (
    GrantList,
    GrantRequest,
    GrantView,
    RefundRequest,
    RefundView,
    TermsChange,
    TermsView,
)
from api.auth import Principal, Scope, requires, tenant_in_scope
from api.error_reports import documented
from api.errors import Forbidden, InvalidParameter, NotFound, Unauthenticated
from api.schemas import PathId, to_us_or_null
from billing import refunds
from billing.errors import (
    InvalidAmount,
    InvalidGrant,
    NothingToReverse,
    TransferConflict,
)
from billing.ledger import grants, terms
from billing.money import format_nano, parse_nano
from billing.signing import Signer
from metering import queries as usage
from metering.database import snapshot, transaction

REFUSALS = (Unauthenticated, Forbidden, NotFound)


@post(
    "/tenants/{tenant_id:str}/grants",
    guards=[requires(Scope.ADMINISTER)],
    summary="Issue a grant",
    responses=documented(InvalidAmount, InvalidGrant, TransferConflict, *REFUSALS),
    sync_to_thread=True,
)
def issue_grant(
    data: JSONBody[GrantRequest],
    principal: NamedDependency[Principal],
    database: NamedDependency[Database],
    tenant_id: PathId,
) -> GrantView:
    """Add credit with a priority and a term; grants are spent by priority, then earliest expiry."""
    amount_nano = parse_nano(data.amount)
    with transaction(database) as connection:
        tenants.require(connection, tenant_id)
        issued = grants.issue(
            connection,
            tenant_id,
            amount_nano,
            data.reference,
            promotional=data.kind == "promotional",
            priority=data.priority,
            effective_from_us=to_us_or_null(data.effective_from, "effective_from"),
            expires_at_us=to_us_or_null(data.expires_at, "expires_at"),
        )
        if issued:
            record(
                connection,
                principal,
                "grant.issued",
                tenant_id,
                subject=data.reference,
                kind=data.kind,
                amount_nano=amount_nano,
            )
        return _grant(connection, tenant_id, data.reference)


@get(
    "/tenants/{tenant_id:str}/grants",
    guards=[requires(Scope.READ_BILLING)],
    summary="List grants",
    responses=documented(InvalidParameter, *REFUSALS),
    sync_to_thread=True,
)
def list_grants(
    principal: NamedDependency[Principal], database: NamedDependency[Database], tenant_id: PathId
) -> GrantList:
    """A tenant's grants, in the order in which they are spent; used and expired ones too."""
    with snapshot(database) as connection:
        asked = tenant_in_scope(connection, principal, tenant_id)
        return GrantList([GrantView.of(each) for each in grants.listing(connection, asked)])


@post(
    "/tenants/{tenant_id:str}/grants/{reference:str}/reverse",
    guards=[requires(Scope.ADMINISTER)],
    summary="Take back a grant",
    status_code=200,
    responses=documented(InvalidParameter, NothingToReverse, *REFUSALS),
    sync_to_thread=True,
)
def reverse_grant(
    principal: NamedDependency[Principal],
    database: NamedDependency[Database],
    tenant_id: PathId,
    reference: PathId,
) -> GrantView:
    """Reverse what is left of a grant; what requests have spent or hold of it stays theirs."""
    with transaction(database) as connection:
        tenants.require(connection, tenant_id)
        grants.reverse(connection, tenant_id, reference)
        record(connection, principal, "grant.reversed", tenant_id, subject=reference)
        return _grant(connection, tenant_id, reference)


@get(
    "/tenants/{tenant_id:str}/terms",
    guards=[requires(Scope.READ_BILLING)],
    summary="Read a tenant's terms",
    responses=documented(InvalidParameter, *REFUSALS),
    sync_to_thread=True,
)
def read_terms(
    principal: NamedDependency[Principal], database: NamedDependency[Database], tenant_id: PathId
) -> TermsView:
    """Whether a tenant is postpaid, up to which limit, and when it is warned."""
    with snapshot(database) as connection:
        asked = tenant_in_scope(connection, principal, tenant_id)
        return TermsView.of(asked, terms.terms_of(connection, asked))


@put(
    "/tenants/{tenant_id:str}/terms",
    guards=[requires(Scope.ADMINISTER)],
    summary="Change a tenant's terms",
    responses=documented(InvalidAmount, *REFUSALS),
    sync_to_thread=True,
)
def change_terms(
    data: JSONBody[TermsChange],
    principal: NamedDependency[Principal],
    database: NamedDependency[Database],
    tenant_id: PathId,
) -> TermsView:
    """Let a tenant owe up to a limit, or be prepaid again; draw the line of its low balance."""
    limit = None if data.receivable_limit is None else parse_nano(data.receivable_limit)
    below = None if not isinstance(data.alert_below, str) else parse_nano(data.alert_below)
    with transaction(database) as connection:
        tenants.require(connection, tenant_id)
        changed = terms.change(
            connection,
            tenant_id,
            receivable_limit_nano=limit,
            alert_below_nano=below,
            without_alert=data.alert_below is None,
        )
        record(
            connection,
            principal,
            "terms.changed",
            tenant_id,
            receivable_limit_nano=changed.receivable_limit_nano,
            alert_below_nano=changed.alert_below_nano,
        )
    return TermsView.of(tenant_id, changed)


@post(
    "/generations/{request_id:str}/refund",
    guards=[requires(Scope.ADMINISTER)],
    summary="Refund a charge",
    status_code=200,
    responses=documented(InvalidAmount, NothingToReverse, TransferConflict, *REFUSALS),
    sync_to_thread=True,
)
def refund_charge(
    data: JSONBody[RefundRequest],
    principal: NamedDependency[Principal],
    database: NamedDependency[Database],
    signer: NamedDependency[Signer],
    request_id: PathId,
) -> RefundView:
    """Correct a charge: the money returns to where it came from, and the adjustment is signed."""
    with transaction(database) as connection:
        found = usage.request(connection, None, request_id)
        if found is None:
            raise NotFound(f"no generation {request_id}")
        refunded = refunds.correct(
            connection,
            signer,
            tenant_id=found.tenant_id,
            request_id=request_id,
            amount_nano=None if data.amount is None else parse_nano(data.amount),
            reference=data.reference,
            reason=data.reason,
        )
        if refunded:
            record(
                connection,
                principal,
                "charge.refunded",
                found.tenant_id,
                subject=request_id,
                amount_nano=refunded,
                reference=data.reference,
                reason=data.reason,
            )
    return RefundView(request_id=request_id, refunded=format_nano(refunded))


def _grant(connection: Connection, tenant_id: str, reference: str) -> GrantView:
    listed = [GrantView.of(each) for each in grants.listing(connection, tenant_id)]
    return next(each for each in listed if each.reference == reference)


ROUTES = [issue_grant, list_grants, reverse_grant, read_terms, change_terms, refund_charge]
