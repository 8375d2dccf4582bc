"""What each tenant's periods come to in every book, and whether the invoices billed just that."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from sqlalchemy import Connection, Row, func, select

from billing import periods
from billing.differences import UNREADABLE, Difference
from billing.invoices.tables import UNBILLED_STATES, billing_periods, invoice_lines, invoices
from billing.request_evidence import Evidence
from metering.tables import tenants

# An invoice's lines that stand for requests; period prices and tax have no request.
OF_REQUESTS = ("usage", "adjustment")


@dataclass(slots=True)
class PeriodTotals:
    """One period of one tenant, as each book has it: the requests that ended in it."""

    tenant_id: str
    period: str
    currency: str
    requests: int = 0
    event_tokens: int = 0
    summary_tokens: int = 0
    rated_nano: int = 0
    receipts_nano: int = 0
    ledger_nano: int = 0
    adjusted_nano: int = 0
    billed_nano: int = 0  # of these requests, on invoices that stand
    is_billed: bool = False  # closed, and nothing came since
    due_minor: int | None = None  # on invoices that the payment provider was told of; null: none
    provider_minor: int | None = None  # what it says of them

    def add(self, evidence: Evidence) -> None:
        """Count one request's evidence, as far as it can be read."""
        self.requests += 1
        self.event_tokens += evidence.stated_blocks()[1]
        if evidence.summary is not None:
            self.summary_tokens += evidence.summary.output_tokens
        self.rated_nano += sum(line.amount_nano for line in evidence.lines)
        self.receipts_nano += 0 if evidence.receipt is None else evidence.receipt.total_nano
        self.ledger_nano += evidence.paid_nano
        self.adjusted_nano += sum(each.amount_nano for each in evidence.adjustments)


class Calendar:
    """Which period of its tenant an instant lies in: as it was closed, else as the tenant lives."""

    def __init__(self, connection: Connection) -> None:
        query = select(tenants.c.id, tenants.c.time_zone)
        self._zones: dict[str, str] = dict(connection.execute(query).all())
        self._closed: dict[tuple[str, str], Row[tuple[object, ...]]] = {
            (row.tenant_id, row.label): row for row in connection.execute(select(billing_periods))
        }
        self._last: dict[str, periods.Period] = {}  # requests come in order of time, mostly

    def label(self, tenant_id: str, at_us: int) -> str:
        """The label of the period; a closed month that began in another zone keeps its bounds."""
        month = self._last.get(tenant_id)
        if month is None or at_us not in month:
            month = periods.containing(at_us, self._zones[tenant_id])
            self._last[tenant_id] = month
        for label in (month.label, periods.preceding(month.label), periods.following(month.label)):
            closed = self._closed.get((tenant_id, label))
            if closed is not None and closed.start_us <= at_us < closed.end_us:
                return label
        closed = self._closed.get((tenant_id, month.label))
        if closed is None:
            return month.label
        after = at_us >= closed.end_us
        return periods.following(month.label) if after else periods.preceding(month.label)

    def is_billed(self, tenant_id: str, label: str) -> bool:
        """Whether the period is closed and all that came since was looked at."""
        row = self._closed.get((tenant_id, label))
        return row is not None and row.closed_at_us is not None and row.late == row.late_billed


class Ladder:
    """The totals of every period, filled request by request; each rung must equal the next."""

    def __init__(self, connection: Connection, tenant_id: str | None, period: str | None) -> None:
        self._connection = connection
        self._calendar = Calendar(connection)
        self._tenant_id, self._period = tenant_id, period
        query = select(tenants.c.id, tenants.c.currency)
        self._currencies: dict[str, str] = dict(connection.execute(query).all())
        self._found: dict[tuple[str, str], PeriodTotals] = {}

    def add(self, evidence: Evidence) -> bool:
        """Count a request where it ended; false where it lies in another period than the asked.

        One that ended nobody can tell when is compared whatever was asked for.
        """
        if evidence.summary is None and not evidence.unreadable:
            return self._period is None
        tenant_id = evidence.request.tenant_id
        ended = evidence.request if evidence.summary is None else evidence.summary
        try:
            label = self._calendar.label(tenant_id, ended.ended_at_us)
        except UNREADABLE:
            return True
        if self._period not in (None, label):
            return False
        self._of(tenant_id, label).add(evidence)
        return True

    def finish(self) -> tuple[PeriodTotals, ...]:
        """All periods, with what was billed of them."""
        line = invoice_lines.c
        query = (
            select(line.tenant_id, line.period, func.sum(line.amount_nano))
            .join(invoices, invoices.c.id == line.invoice_id)
            .where(line.kind.in_(OF_REQUESTS), invoices.c.state.not_in(UNBILLED_STATES))
            .group_by(line.tenant_id, line.period)
        )
        if self._tenant_id is not None:
            query = query.where(line.tenant_id == self._tenant_id)
        if self._period is not None:
            query = query.where(line.period == self._period)
        for tenant_id, label, nano in self._connection.execute(query):
            self._of(tenant_id, label).billed_nano = int(nano)
        return tuple(self._found[key] for key in sorted(self._found))

    def _of(self, tenant_id: str, label: str) -> PeriodTotals:
        found = self._found.get((tenant_id, label))
        if found is None:
            found = PeriodTotals(tenant_id, label, self._currencies[tenant_id])
            found.is_billed = self._calendar.is_billed(tenant_id, label)
            self._found[tenant_id, label] = found
        return found


def check(totals: tuple[PeriodTotals, ...]) -> Iterator[Difference]:
    """Every closed period of which something else was billed than its requests come to."""
    for each in totals:
        charged = each.rated_nano + each.adjusted_nano
        if each.is_billed and charged != each.billed_nano:
            yield Difference(
                "billed = rated and adjusted",
                f"{each.tenant_id} {each.period}",
                str(charged),
                str(each.billed_nano),
            )
