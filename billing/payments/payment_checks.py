"""Payments, refunds and disputes at the provider, beside what is booked of them here."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import Connection, Engine, func, select

from billing.differences import Difference
from billing.invoices.tables import invoice_payments
from billing.payments import top_ups, webhooks
from billing.payments.provider import (
    DisputeState,
    PaymentState,
    Provider,
    RefundState,
    asking,
)
from metering.database import snapshot

Reversal = RefundState | DisputeState
Reversals = Mapping[str, Sequence[Reversal]]  # by the provider's id of the payment
Within = Callable[[int], bool]  # whether a moment is in the months that are compared


@dataclass(frozen=True, slots=True)
class Source:
    """What of ours a payment was for."""

    top_up: str | None
    invoice: str | None


@dataclass(frozen=True, slots=True)
class Assigned:
    """A tenant's payments, by what they were for."""

    received: Mapping[str, PaymentState]  # by our id of the top-up
    strays: Sequence[PaymentState]  # they bear our mark, and have paid no top-up of ours


def customers(provider: Provider, tenant_id: str | None = None) -> dict[str, list[str]]:
    """Ask for the customers of every tenant, or of one: the provider's ids, by ours of the tenant.

    Raises ProviderFailed or ProviderRefused.
    """
    found: dict[str, list[str]] = {}
    with asking():
        for customer in provider.customers(tenant_id):
            if customer.subject is not None:
                found.setdefault(customer.subject, []).append(customer.id)
    return found


def reversals(provider: Provider, intents: Iterable[str] | None = None) -> Reversals:
    """Ask what was taken back of everybody's payments, or of these one by one: the provider lists
    nobody's alone. Raises ProviderFailed or ProviderRefused.
    """
    found: dict[str, list[Reversal]] = {}
    with asking():
        for intent in (None,) if intents is None else sorted(set(intents)):
            every: list[Reversal] = [*provider.refunds(intent), *provider.disputes(intent)]
            for each in every:
                if each.intent_id is not None:
                    found.setdefault(each.intent_id, []).append(each)
    return found


def assigned(intents: Mapping[str, str | None], theirs: Iterable[PaymentState]) -> Assigned:
    """Which payment is whose. `intents` has the provider's id of the payment, where it is known, of
    every top-up of the tenant. The first one pays a top-up; any other is one too many.
    """
    unpaid = {top_up for top_up, intent in intents.items() if intent is None}
    owners = {intent: top_up for top_up, intent in intents.items() if intent is not None}
    received: dict[str, PaymentState] = {}
    strays: list[PaymentState] = []
    for each in sorted(theirs, key=lambda payment: (payment.created_us, payment.id)):
        if each.status != "paid":
            continue
        if (owner := owners.get(each.id)) is not None:
            received[owner] = each
        elif each.subject in unpaid:
            unpaid.remove(each.subject)
            received[each.subject] = each
        elif each.subject is not None:
            strays.append(each)
    return Assigned(received, strays)


def kept(received_minor: int, intents: Iterable[str], taken: Reversals) -> int:
    """What is left of payments, less what refunds and disputes took of them."""
    backs = (back for intent in intents for back in taken.get(intent, ()))
    return received_minor - sum(_taken(back) or 0 for back in backs)


def check_strays(
    tenant_id: str,
    intents: Mapping[str, str | None],
    strays: Iterable[PaymentState],
    taken: Reversals,
) -> Iterator[Difference]:
    """Every payment that nothing here stands for, unless all of it was given back."""
    for each in strays:
        if left := kept(each.received_minor, [each.id], taken):
            is_second = each.subject in intents
            check = "a top-up is paid once" if is_second else "the provider's payment is ours"
            yield Difference(check, f"{tenant_id} {each.subject} {each.id}", str(left), "0")


def check_reversals(
    database: Engine,
    provider: Provider,
    tenant_id: str,
    found: Sequence[tuple[Reversal, Source]],
) -> Iterator[Difference]:
    """Every refund and dispute that is not booked as it stands. Asks again for what differs: it may
    have changed since it was listed.
    """
    with snapshot(database) as connection:
        differing = [each for each in found if _booked(connection, *each) not in _fair(each[0])]
    for reversal, source in differing:
        with asking():
            if isinstance(reversal, RefundState):
                now: Reversal = provider.refund(reversal.id)
            else:
                now = provider.dispute(reversal.id)
        with snapshot(database) as connection:
            here = _booked(connection, now, source)
        if here not in _fair(now):
            kind = "refund" if isinstance(now, RefundState) else "dispute"
            check, subject = f"{kind} booked = provider's", f"{tenant_id} {now.id}"
            yield Difference(check, subject, str(_taken(now)), str(here))


def reversals_of(
    sources: Mapping[str, Source], taken: Reversals, within: Within
) -> list[tuple[Reversal, Source]]:
    """The refunds and disputes of payments, by the provider's id of the payment."""
    return [
        (each, source)
        for intent, source in sources.items()
        for each in taken.get(intent, ())
        if within(each.created_us)
    ]


def _taken(found: Reversal) -> int | None:
    """What it took back; null while that is open."""
    if isinstance(found, RefundState):
        return {"paid": found.amount_minor, "failed": 0}.get(found.status)
    return {"open": found.amount_minor, "lost": found.amount_minor, "won": 0}.get(found.status)


def _fair(found: Reversal) -> tuple[int, ...]:
    """What may be booked of it: of one that is open, nothing yet, or all of it."""
    taken = _taken(found)
    return (0, found.amount_minor) if taken is None else (taken,)


def _booked(connection: Connection, found: Reversal, source: Source) -> int:
    """What is booked as taken back by it, in minor units, less what it gave back again."""
    if isinstance(found, RefundState):
        cause = webhooks.refund_cause(connection, found)
        restored = f"{cause}/failed"
    else:
        cause = webhooks.dispute_cause(found)
        restored = f"{cause}/won"
    if source.top_up is not None:
        taken = sum(top_ups.moved(connection, cause).values())
        taken -= sum(top_ups.moved(connection, restored).values())
        return taken // top_ups.require(connection, source.top_up).minor_nano
    of_invoice = invoice_payments.c.invoice_id == source.invoice
    ids = [f"payment/{source.invoice}/{each}" for each in (cause, restored)]
    total = func.coalesce(func.sum(invoice_payments.c.amount_minor), 0)
    query = select(total).where(of_invoice, invoice_payments.c.id.in_(ids))
    return -int(connection.scalar(query) or 0)
