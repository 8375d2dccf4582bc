"""Whether invoices agree with themselves, with the ledger, and with all that their periods hold."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise

from sqlalchemy import Connection, Engine, exists, func, select, union_all

from billing import charged_hours, periods, waiting_usage
from billing.differences import Difference
from billing.invoices import closed_periods, drafting, issuing, taxes
from billing.invoices.closed_periods import LatePeriod
from billing.invoices.tables import (
    LINE_KINDS,
    UNBILLED_STATES,
    billing_periods,
    credit_notes,
    invoice_lines,
    invoice_numbers,
    invoices,
)
from billing.ledger.accounts import AccountKind
from billing.periods import Period
from billing.tables import accounts, rated_lines
from metering.database import snapshot
from metering.tables import tenants


def check(connection: Connection) -> Iterator[Difference]:
    """Every difference between invoices, their lines, their numbers and the receivables."""
    yield from _lines(connection)
    yield from _numbers(connection)
    yield from _receivables(connection)
    yield from _taxes(connection)
    yield from _skipped(connection)
    yield from _neighbours(connection)


def unbilled(database: Engine) -> Iterator[Difference]:
    """Every closed period that holds other than what was billed of it, though nothing was noted,
    every hour that was counted otherwise than its lines, and usage that was never rated.

    Adds up whole periods again, each in a snapshot of its own: much slower than `check`.
    """
    with snapshot(database) as connection:
        yield from charged_hours.check(connection)
        yield from waiting_usage.check(connection)
        closed = connection.execute(
            select(billing_periods)
            .where(
                billing_periods.c.closed_at_us.is_not(None),
                billing_periods.c.late == billing_periods.c.late_billed,
            )
            .order_by(billing_periods.c.tenant_id, billing_periods.c.label)
        ).all()
    for row in closed:
        period = Period(row.label, row.start_us, row.end_us, row.time_zone)
        with snapshot(database) as connection:
            late = closed_periods.late_count(connection, row.tenant_id, row.label)
            if late != row.late:
                continue  # noted meanwhile
            left = drafting.unbilled(connection, row.tenant_id, LatePeriod(period, late))
        amount = sum(line.amount_nano for line in left.lines)
        subject = f"{row.tenant_id} {row.label}"
        if any(line.amount_nano for line in left.lines):  # what costs nothing needs no invoice
            yield Difference("billed = held by the period", subject, "0", str(amount))
        if left.accrued_nano:
            found = str(left.accrued_nano)
            yield Difference("accrued usage is on an invoice", subject, "0", found)


def _lines(connection: Connection) -> Iterator[Difference]:
    sums: defaultdict[str, dict[str, int]] = defaultdict(dict)
    line = invoice_lines.c
    for invoice_id, kind, minor in connection.execute(
        select(line.invoice_id, line.kind, func.sum(line.amount_minor)).group_by(
            line.invoice_id, line.kind
        )
    ):
        sums[invoice_id][kind] = int(minor)
    for row in connection.execute(select(invoices).order_by(invoices.c.id)):
        found = sums[row.id]
        charges = sum(found.get(kind, 0) for kind in LINE_KINDS)
        for name, expected, actual in (
            ("invoice subtotal = its charges", charges, row.subtotal_minor),
            ("invoice tax = its tax lines", found.get("tax", 0), row.tax_minor),
            ("invoice credit = its credit lines", -found.get("credit", 0), row.credit_minor),
        ):
            if expected != actual:
                yield Difference(name, row.id, str(expected), str(actual))


def _numbers(connection: Connection) -> Iterator[Difference]:
    taken: defaultdict[str, list[int]] = defaultdict(list)
    invoiced = select(invoices.c.number).where(invoices.c.number.is_not(None))
    for number in connection.scalars(union_all(invoiced, select(credit_notes.c.number))):
        series, _, place = number.rpartition("-")
        taken[series].append(int(place))
    for series, places in sorted(taken.items()):
        last = connection.scalar(
            select(invoice_numbers.c.last).where(invoice_numbers.c.series == series)
        )
        if sorted(places) != list(range(1, int(last or 0) + 1)):
            yield Difference(
                "invoice numbers are without gaps", series, str(last), str(len(places))
            )


def _receivables(connection: Connection) -> Iterator[Difference]:
    """What tenants owe by their invoices, against what they owe by the ledger."""
    owed: defaultdict[str, int] = defaultdict(int)
    for row in connection.execute(select(invoices).where(invoices.c.state == "final")).mappings():
        left = issuing.remaining(connection, dict(row))
        owed[row["tenant_id"]] += left * row["minor_nano"]
    booked = _balances(connection, AccountKind.RECEIVABLE)
    for tenant in sorted(owed.keys() | booked.keys()):
        if owed[tenant] != booked.get(tenant, 0):
            yield Difference(
                "receivable = open invoices",
                tenant,
                str(owed[tenant]),
                str(booked.get(tenant, 0)),
            )


def _taxes(connection: Connection) -> Iterator[Difference]:
    """The tax of every month of service against its rate of what invoices charge of it, and what
    tax is booked of every tenant against what its invoices and credit notes say.
    """
    row, note = invoices.c, credit_notes.c
    stands = row.state.not_in(UNBILLED_STATES)
    said: defaultdict[str, int] = defaultdict(int)
    for tenant_id, minor, tax in connection.execute(
        select(row.tenant_id, row.minor_nano, func.sum(row.tax_minor))
        .where(stands)
        .group_by(row.tenant_id, row.minor_nano)
        .order_by(row.tenant_id)
    ):
        said[tenant_id] += int(tax) * minor
        for label, taxed in sorted(taxes.by_period(connection, tenant_id).items()):
            whole = taxed.tax_of(taxed.charges_nano, minor)
            if whole != taxed.tax_minor:
                yield Difference(
                    "tax of a month = its rate of its charges",
                    f"{tenant_id} {label}",
                    str(whole),
                    str(taxed.tax_minor),
                )
    for tenant_id, minor, tax in connection.execute(
        select(note.tenant_id, row.minor_nano, func.sum(note.tax_minor))
        .join(invoices, row.id == note.invoice_id)
        .group_by(note.tenant_id, row.minor_nano)
    ):
        said[tenant_id] -= int(tax) * minor
    booked: defaultdict[str, int] = defaultdict(int)
    booked |= _balances(connection, AccountKind.TAX)
    for tenant_id in sorted(said.keys() | booked.keys()):
        if said[tenant_id] != -booked[tenant_id]:
            expected, actual = str(said[tenant_id]), str(-booked[tenant_id])
            yield Difference("booked tax = tax of invoices", tenant_id, expected, actual)


def _balances(connection: Connection, kind: AccountKind) -> dict[str, int]:
    """What stands on the debit side of every tenant's account of a kind."""
    account = accounts.c
    query = select(account.tenant_id, account.debits_nano - account.credits_nano).where(
        account.kind == kind
    )
    return {tenant: int(nano) for tenant, nano in connection.execute(query)}


def _skipped(connection: Connection) -> Iterator[Difference]:
    """Months before a tenant's last closed one that hold charges and were never closed.

    Nothing bills them until somebody does: backdated usage comes into them without being late.
    """
    closed: defaultdict[str, set[str]] = defaultdict(set)
    for tenant_id, label in connection.execute(
        select(billing_periods.c.tenant_id, billing_periods.c.label)
    ):
        closed[tenant_id].add(label)
    line = rated_lines.c
    for tenant_id, labels in sorted(closed.items()):
        first_us = connection.scalar(
            select(func.min(line.event_time_us)).where(line.tenant_id == tenant_id)
        )
        if first_us is None:
            continue
        time_zone = str(
            connection.scalar(select(tenants.c.time_zone).where(tenants.c.id == tenant_id))
        )
        label = periods.containing(first_us, time_zone).label
        while label < max(labels):
            month = closed_periods.span(connection, tenant_id, label, time_zone)
            charged = exists().where(
                line.tenant_id == tenant_id,
                line.event_time_us >= month.start_us,
                line.event_time_us < month.end_us,
                line.amount_nano != 0,
            )
            if label not in labels and connection.scalar(select(charged)):
                subject = f"{tenant_id} {label}"
                yield Difference("months are closed in their order", subject, "closed", "never")
            label = periods.following(label)


def _neighbours(connection: Connection) -> Iterator[Difference]:
    """Closed months that follow each other: one begins where the other ends, so that no hour is in
    two of them or in none.
    """
    row = billing_periods.c
    closed = connection.execute(
        select(row.tenant_id, row.label, row.start_us, row.end_us).order_by(
            row.tenant_id, row.label
        )
    ).all()
    for before, after in pairwise(closed):
        follows = periods.following(before.label) == after.label
        if before.tenant_id != after.tenant_id or not follows or before.end_us == after.start_us:
            continue
        subject = f"{before.tenant_id} {before.label} and {after.label}"
        start, end = str(after.start_us), str(before.end_us)
        yield Difference("neighbouring months meet", subject, end, start)
