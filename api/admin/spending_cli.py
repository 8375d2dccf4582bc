"""`dflash grant`, `terms` and `refund`: what a tenant pays from, and what goes back to it."""

from __future__ import annotations

from datetime import datetime

import click

from api.admin.cli import as_json, record, show, show_all
from metering.cli_context import CliContext
from metering.cli_types import REFERENCE, Prose

WHEN = click.DateTime(["%Y-%m-%dT%H:%M:%S%z", "%Y-%m-%dT%H:%M:%SZ"])


@click.group()
def grant() -> None:
    """Issue, list and reverse grants of credit."""


@grant.command("issue")
@click.argument("tenant_id")
@click.argument("amount")
@click.option(
    "--reference", type=REFERENCE, required=True, help="Yours; the same again grants nothing."
)
@click.option("--promotional", is_flag=True, help="A discount given in advance; nobody paid it.")
@click.option("--priority", default=100, show_default=True, help="The lowest is spent first.")
@click.option("--expires", type=WHEN, help="RFC 3339.  [default: never]")
@as_json
@click.pass_obj
def issue_grant(
    context: CliContext,
    *,
    tenant_id: str,
    amount: str,
    reference: str,
    promotional: bool,
    priority: int,
    expires: datetime | None,
    as_json: bool,
) -> None:
    """Add credit with a priority and a term, in the tenant's currency."""
    from api.admin.spending_schemas import GrantView
    from api.schemas import to_us
    from billing.ledger import grants
    from billing.money import parse_nano

    nano = parse_nano(amount)
    with context.transaction() as connection:
        issued = grants.issue(
            connection,
            tenant_id,
            nano,
            reference,
            promotional=promotional,
            priority=priority,
            expires_at_us=None if expires is None else to_us(_in_utc(expires), "expires"),
        )
        if issued:
            kind = "promotional" if promotional else "paid"
            record(
                connection,
                "grant.issued",
                tenant_id,
                subject=reference,
                kind=kind,
                amount_nano=nano,
            )
        listed = [GrantView.of(each) for each in grants.listing(connection, tenant_id)]
    show(next(each for each in listed if each.reference == reference), as_json)


@grant.command("list")
@click.argument("tenant_id")
@as_json
@click.pass_obj
def list_grants(context: CliContext, tenant_id: str, as_json: bool) -> None:
    """List a tenant's grants, in the order in which they are spent."""
    from api import tenants
    from api.admin.spending_schemas import GrantView
    from billing.ledger import grants

    with context.transaction() as connection:
        tenants.require(connection, tenant_id)
        found = grants.listing(connection, tenant_id)
    show_all(map(GrantView.of, found), as_json)


@grant.command("reverse")
@click.argument("tenant_id")
@click.argument("reference")
@as_json
@click.pass_obj
def reverse_grant(context: CliContext, tenant_id: str, reference: str, as_json: bool) -> None:
    """Take back what is left of a grant."""
    from api.admin.spending_schemas import GrantView
    from billing.ledger import grants

    with context.transaction() as connection:
        reversed_grant = grants.reverse(connection, tenant_id, reference)
        record(connection, "grant.reversed", tenant_id, subject=reference)
    show(GrantView.of(reversed_grant), as_json)


@click.group()
def terms() -> None:
    """Show and change on what terms a tenant spends."""


@terms.command("set")
@click.argument("tenant_id")
@click.option("--receivable-limit", help="What it may owe; 0 is prepaid.")
@click.option("--alert-below", help="Announce a balance below this.")
@as_json
@click.pass_obj
def set_terms(
    context: CliContext,
    *,
    tenant_id: str,
    receivable_limit: str | None,
    alert_below: str | None,
    as_json: bool,
) -> None:
    """Change what is given, and leave the rest."""
    from api.admin.spending_schemas import TermsView
    from billing.ledger import terms
    from billing.money import parse_nano

    limit = None if receivable_limit is None else parse_nano(receivable_limit)
    below = None if alert_below is None else parse_nano(alert_below)
    with context.transaction() as connection:
        changed = terms.change(
            connection, tenant_id, receivable_limit_nano=limit, alert_below_nano=below
        )
        record(
            connection,
            "terms.changed",
            tenant_id,
            receivable_limit_nano=changed.receivable_limit_nano,
            alert_below_nano=changed.alert_below_nano,
        )
    show(TermsView.of(tenant_id, changed), as_json)


@terms.command("show")
@click.argument("tenant_id")
@as_json
@click.pass_obj
def show_terms(context: CliContext, tenant_id: str, as_json: bool) -> None:
    """Show a tenant's terms."""
    from api import tenants
    from api.admin.spending_schemas import TermsView
    from billing.ledger import terms

    with context.transaction() as connection:
        tenants.require(connection, tenant_id)
        found = terms.terms_of(connection, tenant_id)
    show(TermsView.of(tenant_id, found), as_json)


@click.command()
@click.argument("request_id")
@click.option("--amount", help="[default: all that is left of the charge]")
@click.option(
    "--reference", type=REFERENCE, required=True, help="Yours; the same again gives back nothing."
)
@click.option(
    "--reason",
    type=Prose(10_000, in_lines=True),
    required=True,
    help="Stands on the signed adjustment.",
)
@as_json
@click.pass_obj
def refund(
    context: CliContext,
    *,
    request_id: str,
    amount: str | None,
    reference: str,
    reason: str,
    as_json: bool,
) -> None:
    """Correct a charge: the money returns to where it came from, and the adjustment is signed."""
    from api.admin.spending_schemas import RefundView
    from billing import refunds
    from billing.money import format_nano, parse_nano
    from billing.signing import Signer
    from metering.queries import request

    signer = Signer.open(context.home / "keys" / "receipt_ed25519.pem")
    with context.transaction() as connection:
        found = request(connection, None, request_id)
        if found is None:
            raise click.ClickException(f"no request {request_id}")
        signer.register(connection)
        refunded = refunds.correct(
            connection,
            signer,
            tenant_id=found.tenant_id,
            request_id=request_id,
            amount_nano=None if amount is None else parse_nano(amount),
            reference=reference,
            reason=reason,
        )
        if refunded:
            record(
                connection,
                "charge.refunded",
                found.tenant_id,
                subject=request_id,
                amount_nano=refunded,
                reference=reference,
                reason=reason,
            )
    show(RefundView(request_id=request_id, refunded=format_nano(refunded)), as_json)


def _in_utc(at: datetime) -> datetime:
    from datetime import UTC

    return at if at.tzinfo else at.replace(tzinfo=UTC)
