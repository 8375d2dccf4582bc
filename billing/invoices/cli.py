"""`dflash invoice`: close periods, look at invoices, and act on them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from billing.invoices.parties_cli import set_customer, set_issuer
from billing.invoices.upkeep_cli import recount_charges, remind_customers
from metering.cli_context import CliContext
from metering.cli_types import LONG_REFERENCE, NAME

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from billing.invoices.queries import Invoice

as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
period = click.option("--period", required=True, metavar="YYYY-MM", help="Which month.")
FORMATS = ("text", "json", "html", "pdf")


@contextmanager
def _changing(context: CliContext, reference: str) -> Iterator[tuple[Connection, dict[str, Any]]]:
    """One invoice under its tenant's lock; what becomes of it is told to who collects it."""
    from billing.invoices import issuing
    from billing.payments import collection

    with context.transaction() as connection:
        row = issuing.locked(connection, reference)
        yield connection, row
        collection.tell(connection, row["id"])


@click.group()
def invoice() -> None:
    """Close periods, and list, show, void, credit and settle invoices."""


invoice.add_command(set_issuer)
invoice.add_command(set_customer)
invoice.add_command(remind_customers)
invoice.add_command(recount_charges)


@invoice.command("close")
@period
@click.option("--tenant", "tenant_id", help="Only this one.  [default: all]")
@as_json
@click.pass_context
def close_period(ctx: click.Context, period: str, tenant_id: str | None, as_json: bool) -> None:
    """Issue a month's invoices, or keep drafts of them until the grace for late events is over.

    Closing again goes on where it was, and changes nothing that was issued. A tenant's that fails
    keeps no other from being closed; exit status 1 then.
    """
    from billing.invoices import closing

    context: CliContext = ctx.obj
    counts: dict[str, int] = {}
    with context.database() as database:
        witness = _witness(context, "invoice.issued")
        for closed in closing.close(database, period, tenant_id, witness):
            counts[closed.outcome] = counts.get(closed.outcome, 0) + 1
            shown = _closed(closed)
            click.echo(json.dumps(shown) if as_json else _closed_text(shown))
    if not as_json:
        click.echo(", ".join(f"{count} {name}" for name, count in sorted(counts.items())))
    if closing.Outcome.FAILED in counts:
        ctx.exit(1)


@invoice.command("correct")
@period
@click.option("--tenant", "tenant_id", required=True, help="Whose.")
@as_json
@click.pass_obj
def correct_period(context: CliContext, period: str, tenant_id: str, as_json: bool) -> None:
    """Issue what came late into a closed month now, instead of with the next month's invoice."""
    from billing.invoices import closing

    with context.database() as database:
        witness = _witness(context, "invoice.corrected")
        closed = closing.correct(database, period, tenant_id, witness)
    shown = _closed(closed)
    click.echo(json.dumps(shown) if as_json else _closed_text(shown))


@invoice.command("preview")
@period
@click.option("--tenant", "tenant_id", required=True, help="Whose.")
@as_json
@click.pass_obj
def preview_period(context: CliContext, period: str, tenant_id: str, as_json: bool) -> None:
    """Show what closing would issue now, also for a month that still runs."""
    from billing.invoices import closing, queries

    with context.snapshot() as connection:
        found = queries.of_draft(closing.preview(connection, tenant_id, period))
    _show(found, "json" if as_json else "text", None)


@invoice.command("list")
@click.option("--tenant", "tenant_id", help="Only this one's.")
@click.option("--period", metavar="YYYY-MM", help="Only this month's.")
@click.option(
    "--state", type=click.Choice(["draft", "final", "paid", "void", "uncollectible"]), help="Only."
)
@click.option("--limit", type=click.IntRange(1, 10_000), default=200, show_default=True)
@as_json
@click.pass_obj
def list_invoices(
    context: CliContext,
    *,
    tenant_id: str | None,
    period: str | None,
    state: str | None,
    limit: int,
    as_json: bool,
) -> None:
    """List invoices, newest first."""
    from billing.invoices import queries
    from billing.invoices.minor_units import format_minor

    with context.snapshot() as connection:
        found = queries.rows(
            connection, tenant_id=tenant_id, period=period, state=state, limit=limit
        )
    rows = [
        {
            "id": row.id,
            "number": row.number,
            "tenant_id": row.tenant_id,
            "period": row.period,
            "kind": row.kind,
            "state": row.state,
            "total": format_minor(row.total_minor, row.minor_nano),
            "due": format_minor(row.due_minor, row.minor_nano),
            "currency": row.currency,
        }
        for row in found
    ]
    if as_json:
        click.echo(json.dumps(rows))
        return
    for row in rows:
        click.echo(
            f"{row['number'] or row['id']}  {row['tenant_id']}  {row['period']}  {row['kind']}  "
            f"{row['state']}  {row['total']} {row['currency']}, {row['due']} to pay"
        )


@invoice.command("show")
@click.argument("reference")
@click.option("--format", "form", type=click.Choice(FORMATS), default="text", show_default=True)
@click.option(
    "--output", type=click.Path(dir_okay=False, path_type=Path), help="File.  [default: stdout]"
)
@click.pass_obj
def show_invoice(context: CliContext, reference: str, form: str, output: Path | None) -> None:
    """Show an invoice by its number or id."""
    from billing.invoices import queries

    with context.snapshot() as connection:
        found = queries.invoice(connection, reference)
    _show(found, form, output)


@invoice.command("void")
@click.argument("reference")
@click.pass_obj
def void_invoice(context: CliContext, reference: str) -> None:
    """Take back an invoice that nobody paid; its month may then be closed again."""
    from billing.invoices import issuing

    with _changing(context, reference) as (connection, row):
        if issuing.void(connection, row["id"]):
            _record_one(context, connection, row, "invoice.voided")
    click.echo(f"{row['number']} is void")


@invoice.command("give-up")
@click.argument("reference")
@click.pass_obj
def give_up_invoice(context: CliContext, reference: str) -> None:
    """Mark an invoice uncollectible, and write off what is left of it."""
    from billing.invoices import issuing

    with _changing(context, reference) as (connection, row):
        if issuing.give_up(connection, row["id"]):
            _record_one(context, connection, row, "invoice.given_up")
    click.echo(f"{row['number']} is uncollectible")


@invoice.command("credit")
@click.argument("reference")
@click.argument("amount")
@click.option("--reason", type=NAME, required=True, help="What the credit note says.")
@click.option(
    "--reference",
    "cause",
    type=LONG_REFERENCE,
    help="Yours; the same again credits nothing.  [default: new]",
)
@click.pass_obj
def credit_invoice(
    context: CliContext, *, reference: str, amount: str, reason: str, cause: str | None
) -> None:
    """Issue a credit note over a part of an invoice, tax included."""
    import uuid_utils

    from billing.invoices import credit_notes
    from billing.invoices.minor_units import parse_minor

    with _changing(context, reference) as (connection, row):
        minor = parse_minor(amount, row["minor_nano"])
        number = credit_notes.credit(
            connection,
            row["id"],
            minor,
            reason=reason,
            reference=cause or f"cli-{uuid_utils.uuid7().hex}",
        )
        _record_one(context, connection, row, "invoice.credited", number=number, amount=amount)
    click.echo(f"{number} credits {amount} {row['currency']} of {row['number']}")


@invoice.command("pay")
@click.argument("reference")
@click.argument("amount")
@click.option(
    "--cause", type=LONG_REFERENCE, required=True, help="Such as the transfer's id: taken once."
)
@click.pass_obj
def pay_invoice(context: CliContext, reference: str, amount: str, cause: str) -> None:
    """Take in a payment that came outside a payment provider."""
    from billing.invoices import issuing, paying
    from billing.invoices.minor_units import parse_minor

    with _changing(context, reference) as (connection, row):
        minor = parse_minor(amount, row["minor_nano"])
        if paying.pay(connection, row["id"], minor, method=paying.MANUAL, cause_id=cause):
            _record_one(context, connection, row, "invoice.paid", cause=cause, amount=amount)
        state = issuing.locked(connection, row["id"])["state"]
    click.echo(f"{row['number']} is {state}")


@invoice.command("check")
@click.option("--whole", is_flag=True, help="Also add up every closed period again.")
@click.pass_context
def check_invoices(ctx: click.Context, whole: bool) -> None:
    """Compare invoices with their lines, numbers and receivables; exit status 1 if any differ."""
    from billing.invoices import checks
    from metering.wording import counted

    with ctx.obj.snapshot() as connection:
        found = list(checks.check(connection))
    if whole:
        with ctx.obj.database() as database:
            found += checks.unbilled(database)
    for difference in found:
        click.echo(
            f"{difference.subject}: {difference.check}: expected {difference.expected}, "
            f"found {difference.actual}"
        )
    click.echo(counted(len(found), "differences"))
    if found:
        ctx.exit(1)


@invoice.command("bench")
@click.option("--requests", type=click.IntRange(100), default=100_000, show_default=True)
@click.option("--tenants", type=click.IntRange(1), default=100, show_default=True)
@click.option("--lines", type=click.IntRange(1, 8), default=6, show_default=True, help="A request.")
@click.option(
    "--database-url",
    help="An empty database, or one whose month was made and not closed.  [default: SQLite]",
)
@as_json
def bench_closing(
    *, requests: int, tenants: int, lines: int, database_url: str | None, as_json: bool
) -> None:
    """Measure the closing of a month beside what the same database takes to read the same rows."""
    from billing.invoices.benchmark import measure

    measured = measure(requests=requests, tenants=tenants, lines=lines, database_url=database_url)
    if as_json:
        click.echo(json.dumps(measured))
        return
    for name, value in measured.items():
        click.echo(f"{name:<28} {value}")


def _closed(closed: Any) -> dict[str, Any]:
    from billing.invoices.minor_units import format_minor

    draft = closed.draft
    return {
        "tenant_id": closed.tenant_id,
        "outcome": closed.outcome.value,
        "invoice_id": closed.invoice_id,
        "total": None if draft is None else format_minor(draft.total_minor, draft.minor_nano),
        "due": None if draft is None else format_minor(draft.due_minor, draft.minor_nano),
        "currency": None if draft is None else draft.currency,
        "fault": closed.fault,
    }


def _closed_text(shown: dict[str, Any]) -> str:
    text = f"{shown['tenant_id']}: {shown['outcome']}"
    if shown["invoice_id"] is not None:
        text += f" {shown['invoice_id']}: {shown['total']} {shown['currency']}"
        text += f", {shown['due']} to pay"
    return text if shown["fault"] is None else f"{text}: {shown['fault']}"


def _show(found: Invoice, form: str, output: Path | None) -> None:
    from billing.invoices import documents, pdf

    if form == "pdf":
        written = pdf.to_pdf(found)
    elif form == "html":
        written = documents.to_html(found).encode()
    elif form == "json":
        text = json.dumps(documents.to_json(found), indent=2, ensure_ascii=False)
        written = text.encode() + b"\n"
    else:
        written = _text(found).encode()
    if output is None:
        click.echo(written, nl=False)
    else:
        output.write_bytes(written)


def _text(found: Invoice) -> str:
    from billing.invoices import wording
    from metering.wording import unit_of

    row = found.row
    out = [f"{wording.title(found)}: {found.customer.name}, {wording.period(found)}"]
    if row.number is not None:  # else the title says how it stands
        out[0] += f", {row.state}"
    out += [
        f"  {wording.description(line, found):<52} {line.quantity:>16} "
        f"{unit_of(line.quantity, line.unit):<14} {wording.amount(found, line.amount_minor):>12}"
        for line in found.lines
    ]
    for name, minor in (
        ("total", row.total_minor),
        ("to pay", row.due_minor),
        ("remaining", found.remaining_minor),
    ):
        out.append(f"  {name:<84} {wording.amount(found, minor):>12} {row.currency}")
    return "\n".join(out) + "\n"


def _witness(context: CliContext, action: str) -> Callable[[Connection, str], None]:
    from billing.invoices import issuing
    from billing.payments import collection

    def witness(connection: Connection, invoice_id: str) -> None:
        collection.collect(connection, invoice_id)
        _record_one(context, connection, issuing.locked(connection, invoice_id), action)

    return witness


def _record_one(
    context: CliContext, connection: Connection, row: dict[str, Any], action: str, **detail: Any
) -> None:
    context.record(
        connection,
        action=action,
        subject=row["number"],
        tenant_id=row["tenant_id"],
        **detail,
    )
