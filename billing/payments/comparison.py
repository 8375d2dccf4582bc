"""What the payment provider has of our invoices and top-ups, beside what it was told of them.

Our side is read before and after the provider is asked: what changed meanwhile is compared another
time. What still waits in the outbox is on its way, and counted; what was refused is a difference.
The provider is asked for all customers that bear our mark, or that of the one tenant that is meant,
not only for those that are known here: a restored backup has forgotten what was done after it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from sqlalchemy import Connection, Engine, select

from billing.differences import Difference
from billing.invoices import issuing
from billing.invoices.tables import invoice_payments, invoices
from billing.payments import collection, outbox, payment_checks
from billing.payments.payment_checks import Reversals, Source
from billing.payments.provider import InvoiceState, PaymentState, Provider, asking
from billing.payments.tables import payment_accounts, payment_objects, payment_outbox, top_ups
from billing.payments.webhooks import METHOD
from billing.periods import containing
from metering.database import snapshot
from metering.tables import tenants


@dataclass(slots=True)
class Counts:
    """How much was compared, and what could not be yet."""

    invoices: int = 0
    top_ups: int = 0
    reversals: int = 0  # refunds and disputes
    waiting: int = 0  # rows of the outbox that were not sent yet
    changed: int = 0  # invoices and top-ups that changed while the provider was asked


@dataclass(slots=True)
class Comparison:
    """What was compared with the provider, and every difference found."""

    differences: list[Difference] = field(default_factory=list)
    counts: Counts = field(default_factory=Counts)
    # Due by our invoices, and by the provider's, in minor units, by tenant and period.
    sums: dict[tuple[str, str], tuple[int, int]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Invoice:
    """An invoice of ours that the provider should have."""

    id: str
    name: str
    period: str
    state: str
    due_minor: int
    paid_minor: int  # through the provider's own invoice
    collectible_minor: int  # what the provider has still to collect
    credited_minor: int  # what the provider was told of credit notes
    provider_id: str | None
    is_queued: bool
    is_told: bool  # all of it was sent


@dataclass(frozen=True, slots=True)
class _TopUp:
    id: str
    state: str
    amount_minor: int
    intent_id: str | None
    created_us: int


@dataclass(frozen=True, slots=True)
class _Ours:
    """One tenant's side."""

    customer_id: str | None
    zone: str
    invoices: Mapping[str, _Invoice]
    top_ups: Mapping[str, _TopUp]  # every one
    known: frozenset[str]  # every invoice
    waiting: int
    refused: tuple[tuple[str, str], ...]  # what, and why


def compare(
    database: Engine, provider: Provider, tenant_id: str | None = None, period: str | None = None
) -> Comparison:
    """Compare every tenant that pays through the provider, or one; changes nothing.

    Raises ProviderFailed when it cannot be asked, ProviderRefused when it will not answer.
    """
    with snapshot(database) as connection:
        query = select(payment_accounts.c.tenant_id).order_by(payment_accounts.c.tenant_id)
        chosen = list(connection.scalars(query))
    customers = payment_checks.customers(provider, tenant_id)
    taken = payment_checks.reversals(provider) if tenant_id is None else None
    chosen += sorted(customers.keys() - set(chosen))
    found = Comparison()
    for each in chosen:
        if tenant_id in (None, each):
            theirs = customers.get(each, ())
            _compare(database, provider, each, found, period=period, customers=theirs, taken=taken)
    return found


def _compare(
    database: Engine,
    provider: Provider,
    tenant_id: str,
    found: Comparison,
    *,
    period: str | None,
    customers: Iterable[str],
    taken: Reversals | None,
) -> None:
    """`taken` is what was taken back of everybody's payments; null: ask for this tenant's."""
    with snapshot(database) as connection:
        before = _ours(connection, tenant_id, period)
    known = () if before.customer_id is None else (before.customer_id,)
    their_invoices, their_payments = _theirs(provider, {*customers, *known})
    if taken is None:
        intents_there = {each.id for each in their_payments}
        intents_there.update(intent for each in their_invoices for intent in each.intents)
        taken = payment_checks.reversals(provider, intents_there)
    with snapshot(database) as connection:
        after = _ours(connection, tenant_id, period)
    found.counts.waiting += before.waiting
    for what, why in before.refused:
        found.differences.append(
            Difference("the provider takes what it is told", f"{tenant_id} {what}", "sent", why)
        )
    _name_forgotten(tenant_id, after, their_invoices, taken, found)
    for invoice in before.invoices.values():
        if after.invoices.get(invoice.id) == invoice:
            theirs = [each for each in their_invoices if each.subject == invoice.id]
            _compare_invoice(tenant_id, invoice, theirs, found)
        else:
            found.counts.changed += 1

    def within(moment_us: int) -> bool:
        return period is None or containing(moment_us, before.zone).label == period

    intents = {each.id: each.intent_id for each in after.top_ups.values()}
    assigned = payment_checks.assigned(intents, their_payments)
    for top_up in before.top_ups.values():
        if not within(top_up.created_us):
            continue
        if after.top_ups.get(top_up.id) == top_up:
            _compare_top_up(tenant_id, top_up, assigned.received.get(top_up.id), found)
        else:
            found.counts.changed += 1
    strays = [each for each in assigned.strays if within(each.created_us)]
    found.differences += payment_checks.check_strays(tenant_id, intents, strays, taken)
    sources = {each.id: Source(top_up, None) for top_up, each in assigned.received.items()}
    for state in their_invoices:
        if state.subject in after.known:
            sources |= dict.fromkeys(state.intents, Source(None, state.subject))
    reversals = payment_checks.reversals_of(sources, taken, within)
    found.counts.reversals += len(reversals)
    found.differences += payment_checks.check_reversals(database, provider, tenant_id, reversals)


def _name_forgotten(
    tenant_id: str,
    ours: _Ours,
    theirs: Sequence[InvoiceState],
    taken: Reversals,
    found: Comparison,
) -> None:
    """Name every invoice of our mark that is none here and asks for money, or keeps some."""
    for state in theirs:
        if state.subject is None or state.subject in ours.known:
            continue
        is_settled = state.status in ("paid", "void")
        if not is_settled or payment_checks.kept(state.paid_minor, state.intents, taken):
            subject = f"{tenant_id} {state.subject}"
            found.differences.append(
                Difference("the provider's invoice is ours", subject, state.provider_id, "none")
            )


def _theirs(
    provider: Provider, customers: Iterable[str]
) -> tuple[Sequence[InvoiceState], Sequence[PaymentState]]:
    """What the provider has of a tenant's customers: one, unless a backup was restored."""
    found_invoices: list[InvoiceState] = []
    found_payments: list[PaymentState] = []
    with asking():
        for each in sorted(customers):
            found_invoices += provider.invoices(each)
            found_payments += provider.payments(each)
    return found_invoices, found_payments


def _compare_invoice(
    tenant_id: str, ours: _Invoice, theirs: Sequence[InvoiceState], found: Comparison
) -> None:
    found.counts.invoices += 1
    found.differences += _check_invoice(tenant_id, ours, theirs)
    if ours.state != "void":
        due, there = found.sums.get((tenant_id, ours.period), (0, 0))
        there += sum(each.total_minor for each in theirs if each.status != "void")
        found.sums[tenant_id, ours.period] = (due + ours.due_minor, there)


def _compare_top_up(
    tenant_id: str, ours: _TopUp, theirs: PaymentState | None, found: Comparison
) -> None:
    found.counts.top_ups += 1
    here = ours.amount_minor if ours.state == "paid" else 0
    there = 0 if theirs is None else theirs.received_minor
    if here != there:
        subject = f"{tenant_id} {ours.id}" + ("" if theirs is None else f" {theirs.id}")
        check = "credit bought = provider's payment"
        found.differences.append(Difference(check, subject, str(there), str(here)))


def _check_invoice(
    tenant_id: str, ours: _Invoice, theirs: Sequence[InvoiceState]
) -> Iterator[Difference]:
    """Every difference of one invoice; what was not told yet is not looked for."""
    subject = f"{tenant_id} {ours.period} {ours.name}"
    if not ours.is_queued:
        yield Difference("the provider is told of the invoice", subject, "queued", "never")
        return
    if not ours.is_told:
        return
    known = [each for each in theirs if each.provider_id == ours.provider_id]
    if len(theirs) != 1 or not known:
        listed = ", ".join(each.provider_id for each in theirs) or "none"
        yield Difference(
            "the provider has the invoice once", subject, str(ours.provider_id), listed
        )
    for there in known:
        still_open = there.remaining_minor if there.status == "open" else 0
        for check, expected, actual in (
            ("invoice due = provider's total", ours.due_minor, there.total_minor),
            ("invoice's payment = provider's", there.paid_minor, ours.paid_minor),
            ("invoice to collect = provider's", ours.collectible_minor, still_open),
            ("invoice's credit notes = provider's", ours.credited_minor, there.credited_minor),
        ):
            if expected != actual:
                yield Difference(check, subject, str(expected), str(actual))


def _ours(connection: Connection, tenant_id: str, period: str | None) -> _Ours:
    """What this tenant's invoices, top-ups and outbox say now."""
    rows = connection.execute(
        select(payment_outbox).where(payment_outbox.c.tenant_id == tenant_id)
    ).all()
    enrolled = [row.created_at_us for row in rows if row.action == "customer"]
    queued = {row.subject for row in rows if row.action == "invoice"}
    open_rows = [row for row in rows if row.state != "sent" and row.dropped_at_us is None]
    unsent = {row.subject.partition("/")[0] for row in open_rows}
    known = connection.scalars(select(invoices.c.id).where(invoices.c.tenant_id == tenant_id))
    query = select(invoices).where(invoices.c.tenant_id == tenant_id, invoices.c.state != "draft")
    if period is not None:
        query = query.where(invoices.c.period == period)
    found: dict[str, _Invoice] = {}
    for row in connection.execute(query.order_by(invoices.c.id)).mappings():
        is_since = bool(enrolled) and (row["finalised_at_us"] or 0) >= min(enrolled)
        owed_since = row["state"] != "void" and is_since
        if row["id"] not in queued and not (owed_since and row["due_minor"]):
            continue
        provider_id = outbox.object_id(connection, "invoice", row["id"])
        paid, given_back = _payments(connection, row["id"], provider_id)
        left = issuing.remaining(connection, dict(row)) if row["state"] == "final" else 0
        found[row["id"]] = _Invoice(
            row["id"],
            row["number"],
            row["period"],
            row["state"],
            row["due_minor"],
            paid,
            max(0, left - given_back),
            collection.told_credit(connection, row["id"]),
            provider_id,
            row["id"] in queued,
            row["id"] not in unsent,
        )
    zone = connection.scalar(select(tenants.c.time_zone).where(tenants.c.id == tenant_id))
    return _Ours(
        outbox.object_id(connection, "customer", tenant_id),
        zone or "UTC",
        found,
        _top_ups(connection, tenant_id),
        frozenset(known),
        sum(row.state == "waiting" for row in rows),
        tuple(
            (f"{row.action} {row.subject}", row.error or "")
            for row in open_rows
            if row.state == "refused"
        ),
    )


def _payments(connection: Connection, invoice_id: str, provider_id: str | None) -> tuple[int, int]:
    """What the provider's invoice brought, and what of that it took back again."""
    paid = given_back = 0
    for row in connection.execute(
        select(invoice_payments).where(
            invoice_payments.c.invoice_id == invoice_id, invoice_payments.c.method == METHOD
        )
    ):
        if row.id == f"payment/{invoice_id}/{provider_id}":
            paid += row.amount_minor
        else:
            given_back -= row.amount_minor
    return paid, given_back


def _top_ups(connection: Connection, tenant_id: str) -> dict[str, _TopUp]:
    stands_for = (payment_objects.c.subject == top_ups.c.id) & (payment_objects.c.kind == "intent")
    top_up = top_ups.c
    query = (
        select(
            top_up.id,
            top_up.state,
            top_up.amount_minor,
            payment_objects.c.provider_id,
            top_up.created_at_us,
        )
        .outerjoin(payment_objects, stands_for)
        .where(top_up.tenant_id == tenant_id)
        .order_by(top_up.id)
    )
    return {row.id: _TopUp(*row) for row in connection.execute(query)}
