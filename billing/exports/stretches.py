"""Which stretches of booking time each invoice of a service period billed. Changes nothing.

An invoice bills all that was booked until it was issued and stands on no other one then. What a
void one had billed is on none again, until the next that is issued takes it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from sqlalchemy import Connection, select

from billing.invoices.tables import LINE_KINDS, invoice_lines, invoices

BEFORE_US, EVER_US = -1, 2**63 - 1


@dataclass(frozen=True, slots=True)
class Booked:
    """A stretch of booking time: after_us < booked <= through_us."""

    after_us: int
    through_us: int


@dataclass(frozen=True, slots=True)
class Issue:
    """One invoice of a service period, since when it bills it and, if it was voided, until when."""

    invoice_id: str
    issued_us: int
    voided_us: int | None = None


@dataclass(frozen=True, slots=True)
class Billing:
    """What of a service period is on which invoice that stands."""

    stretches: Mapping[str, tuple[Booked, ...]]
    unbilled: tuple[Booked, ...]
    beside: Mapping[str, tuple[str, ...]]  # those that stood already when an invoice was issued


def billing(connection: Connection, tenant_id: str, label: str) -> Billing:
    """What of a tenant's service period is on which invoice."""
    line, invoice = invoice_lines.c, invoices.c
    found = connection.execute(
        select(invoice.id, invoice.finalised_at_us, invoice.state, invoice.resolved_at_us)
        .where(
            invoice.state != "draft",
            invoice.id.in_(
                select(line.invoice_id).where(
                    line.tenant_id == tenant_id, line.period == label, line.kind.in_(LINE_KINDS)
                )
            ),
        )
        .order_by(invoice.finalised_at_us, invoice.number)
    )
    return billing_of(
        Issue(row.id, row.finalised_at_us, row.resolved_at_us if row.state == "void" else None)
        for row in found
    )


def billing_of(issues: Iterable[Issue]) -> Billing:
    """Who billed what, from when invoices were issued and voided; they come in order of issue."""
    standing: dict[str, tuple[Booked, ...]] = {}
    beside: dict[str, tuple[str, ...]] = {}
    voids: list[Issue] = []
    for issue in issues:
        for gone in [each for each in voids if (each.voided_us or 0) <= issue.issued_us]:
            standing.pop(gone.invoice_id, None)
        beside[issue.invoice_id] = tuple(standing)
        standing[issue.invoice_id] = _free(standing.values(), issue.issued_us)
        if issue.voided_us is not None:
            voids.append(issue)
    for gone in voids:
        standing.pop(gone.invoice_id, None)
    return Billing(standing, _free(standing.values(), EVER_US), beside)


def _free(taken: Iterable[Sequence[Booked]], through_us: int) -> tuple[Booked, ...]:
    """What is left until a moment, in order; neighbours are one."""
    ordered = sorted(
        (each for stretches in taken for each in stretches), key=lambda each: each.after_us
    )
    edges = [Booked(BEFORE_US, BEFORE_US), *ordered, Booked(through_us, through_us)]
    return tuple(
        Booked(before.through_us, min(following.after_us, through_us))
        for before, following in pairwise(edges)
        if before.through_us < min(following.after_us, through_us)
    )
