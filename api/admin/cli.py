"""`dflash tenant`, `dflash key` and `dflash admin`: what `/admin` does, for who has the database.

Each change leaves an audit line whose actor is `cli`. With `--json` the last line of the output is
one JSON object.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import click
import msgspec
from sqlalchemy import Connection

from api import audit, keys, tenants
from api.admin.schemas import AuditEntryView, IssuedKeyView, KeyView, TenantView
from api.cursors import PAGE_MAX
from api.keys import DAY_US, LIFETIME_DAYS_MAX, IssuedKey
from api.roles import Role
from metering import clock
from metering.cli_context import CliContext

as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


@click.group()
def tenant() -> None:
    """Create and list tenants."""


@tenant.command("create")
@click.argument("name")
@click.option("--currency", default="USD", show_default=True, help="ISO 4217; never changes.")
@click.option("--time-zone", default="UTC", show_default=True, help="IANA name.")
@click.option("--tariff", help="The tariff to put it on, from now.")
@click.option("--review/--no-review", default=False, help="It agreed to pay for reviews.")
@as_json
@click.pass_obj
def create_tenant(
    context: CliContext,
    *,
    name: str,
    currency: str,
    time_zone: str,
    tariff: str | None,
    review: bool,
    as_json: bool,
) -> None:
    """Create a tenant without credit or keys."""
    from billing import catalogue

    with context.transaction() as connection:
        created = tenants.create(
            connection, name=name, currency=currency, time_zone=time_zone, review_opt_in=review
        )
        if tariff is not None:
            catalogue.install_shipped(connection)
            catalogue.assign(connection, created.id, tariff, clock.now_us())
        audit.write(
            connection,
            actor=audit.CLI,
            action="tenant.created",
            subject=created.id,
            tenant_id=created.id,
            name=name,
            currency=currency,
            tariff=tariff,
        )
    show(TenantView.of(created), as_json)


@tenant.command("list")
@as_json
@click.pass_obj
def list_tenants(context: CliContext, as_json: bool) -> None:
    """List every tenant, newest first."""
    found: list[tenants.Tenant] = []
    with context.transaction() as connection:
        after = None
        while page := tenants.listing(connection, limit=PAGE_MAX, after=after):
            found += page
            after = (page[-1].created_at_us, page[-1].id)
    show_all(map(TenantView.of, found), as_json)


@tenant.command("suspend")
@click.argument("tenant_id")
@as_json
@click.pass_obj
def suspend_tenant(context: CliContext, tenant_id: str, as_json: bool) -> None:
    """Stop a tenant from spending; what runs already runs to its end."""
    _set_suspended(context, tenant_id, as_json, suspended=True)


@tenant.command("resume")
@click.argument("tenant_id")
@as_json
@click.pass_obj
def resume_tenant(context: CliContext, tenant_id: str, as_json: bool) -> None:
    """Let a suspended tenant spend again."""
    _set_suspended(context, tenant_id, as_json, suspended=False)


def _set_suspended(context: CliContext, tenant_id: str, as_json: bool, *, suspended: bool) -> None:
    with context.transaction() as connection:
        changed = tenants.suspend(connection, tenant_id, suspended=suspended)
        audit.write(
            connection,
            actor=audit.CLI,
            action="tenant.suspended" if suspended else "tenant.resumed",
            subject=tenant_id,
            tenant_id=tenant_id,
        )
    show(TenantView.of(changed), as_json)


@click.group()
def key() -> None:
    """Create, list, rotate and revoke keys."""


@key.command("create")
@click.option("--role", required=True, type=click.Choice([role.value for role in Role]))
@click.option("--name", required=True, help="What the key is for.")
@click.option("--tenant", "tenant_id", help="Whose key; none for operators and reviewers.")
@click.option("--test", "test_mode", is_flag=True, help="A test key: metered, never charged.")
@click.option(
    "--days",
    type=click.IntRange(1, LIFETIME_DAYS_MAX),
    help="Let it expire after so many days.",
)
@as_json
@click.pass_obj
def create_key(
    context: CliContext,
    *,
    role: str,
    name: str,
    tenant_id: str | None,
    test_mode: bool,
    days: int | None,
    as_json: bool,
) -> None:
    """Issue a key and print its secret, which is never shown again."""
    with context.transaction() as connection:
        issued = keys.create(
            connection,
            tenant_id=tenant_id,
            role=Role(role),
            name=name,
            test_mode=test_mode,
            expires_at_us=None if days is None else clock.now_us() + days * DAY_US,
        )
        _log_key(connection, "key.created", issued.key, role=role, name=name)
    _show_issued(issued, as_json)


@key.command("list")
@click.option("--tenant", "tenant_id", help="Only this tenant's keys.")
@as_json
@click.pass_obj
def list_keys(context: CliContext, tenant_id: str | None, as_json: bool) -> None:
    """List keys, dead ones too, newest first."""
    found: list[keys.Key] = []
    with context.transaction() as connection:
        after = None
        while page := keys.listing(connection, tenant_id, limit=PAGE_MAX, after=after):
            found += page
            after = (page[-1].created_at_us, page[-1].id)
    show_all(map(KeyView.of, found), as_json)


@key.command("rotate")
@click.argument("key_id")
@click.option("--overlap-s", default=86_400, show_default=True, help="How long both keys work.")
@as_json
@click.pass_obj
def rotate_key(context: CliContext, key_id: str, overlap_s: int, as_json: bool) -> None:
    """Issue a successor with the same rights and print its secret."""
    with context.transaction() as connection:
        issued = keys.rotate(connection, key_id, overlap_s=overlap_s)
        old = keys.owned(connection, None, key_id)
        _log_key(connection, "key.rotated", old, successor=issued.key.id, overlap_s=overlap_s)
    _show_issued(issued, as_json)


@key.command("revoke")
@click.argument("key_id")
@as_json
@click.pass_obj
def revoke_key(context: CliContext, key_id: str, as_json: bool) -> None:
    """End a key at once."""
    with context.transaction() as connection:
        was_dead = keys.owned(connection, None, key_id).revoked_at_us is not None
        revoked = keys.revoke(connection, key_id)
        if not was_dead:
            _log_key(connection, "key.revoked", revoked)
    show(KeyView.of(revoked), as_json)


@click.group()
def admin() -> None:
    """Bootstrap the first operator's key, and read the audit log."""


@admin.command("bootstrap")
@click.option("--name", default="first operator", show_default=True)
@as_json
@click.pass_obj
def bootstrap(context: CliContext, name: str, as_json: bool) -> None:
    """Print the first operator's key, once.

    While an operator key lives, this refuses; when all have died, it works again.
    """
    with context.transaction() as connection:
        issued = keys.bootstrap(connection, name)
        _log_key(connection, "key.bootstrapped", issued.key, role=issued.key.role, name=name)
    _show_issued(issued, as_json)


@admin.command("audit")
@click.option("--tenant", "tenant_id", help="Only what concerns this tenant.")
@click.option("--limit", default=50, show_default=True, type=click.IntRange(1, 10_000))
@as_json
@click.pass_obj
def show_audit_log(context: CliContext, tenant_id: str | None, limit: int, as_json: bool) -> None:
    """Show the newest lines of the audit log."""
    with context.transaction() as connection:
        found = audit.entries(connection, tenant_id=tenant_id, limit=limit)
    show_all(map(AuditEntryView.of, found), as_json)


def record(
    connection: Connection,
    action: str,
    tenant_id: str,
    *,
    subject: str | None = None,
    **detail: Any,
) -> None:
    """Write the audit line of what the command line did to a tenant, or to what is its own."""
    audit.write(
        connection,
        actor=audit.CLI,
        action=action,
        subject=subject or tenant_id,
        tenant_id=tenant_id,
        **detail,
    )


def _log_key(connection: Connection, action: str, about: keys.Key, **detail: Any) -> None:
    audit.write(
        connection,
        actor=audit.CLI,
        action=action,
        subject=about.id,
        tenant_id=about.tenant_id,
        **detail,
    )


def _show_issued(issued: IssuedKey, as_json: bool) -> None:
    view = IssuedKeyView.of(issued)
    if as_json:
        show({**msgspec.to_builtins(view.key), "secret": view.secret}, as_json)
        return
    show(view.key, as_json)
    click.echo("This is the only time the secret is shown:", err=True)
    click.echo(view.secret)


def show_all(items: Iterable[Any], as_json: bool) -> None:
    """Print records, a blank line between them, or as one JSON object."""
    if as_json:
        show({"items": list(items)}, as_json)
        return
    for number, item in enumerate(items):
        if number:
            click.echo()
        show(item, as_json)


def show(item: Any, as_json: bool) -> None:
    """Print a record, a field a line, or as one JSON object."""
    if as_json:
        click.echo(msgspec.json.encode(item))
        return
    fields = msgspec.to_builtins(item)
    width = max(map(len, fields))
    for name, value in fields.items():
        shown = msgspec.json.encode(value).decode() if isinstance(value, dict) else value
        click.echo(f"{name:<{width}}  {'-' if shown is None else shown}")
