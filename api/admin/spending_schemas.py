"""The wire of grants, terms, budgets, limits, projects and refunds."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from api.limits import Limits
from api.projects import Project
from api.schemas import Amount, Instant, Name, Prose, TenantId, to_time, to_time_or_null
from billing.budgets import Standing
from billing.ledger.funding import PRIORITY_DEFAULT
from billing.ledger.grants import PRIORITY_MAX, Grant
from billing.ledger.terms import Terms
from billing.money import format_nano

Reference = Annotated[
    str,
    Meta(
        pattern=r"^[A-Za-z0-9_.:-]{1,40}(?!\n)$",
        description="Yours to choose, unique for the tenant",
        examples=["welcome-2026"],
    ),
]
Percent = Annotated[int, Meta(ge=1, le=100)]
Positive = Annotated[int, Meta(ge=1, le=10**9)]


class GrantRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Credit with an order and a term. The same `reference` again grants nothing."""

    amount: Amount
    reference: Reference
    kind: Literal["paid", "promotional"] = "paid"
    priority: Annotated[int, Meta(ge=0, le=PRIORITY_MAX)] = PRIORITY_DEFAULT
    effective_from: Instant | None = None  # null: now
    expires_at: Instant | None = None  # null: never


class GrantView(msgspec.Struct, frozen=True):
    """A grant. `remaining` is neither spent nor held by a live request."""

    reference: str
    kind: str
    priority: int
    amount: str
    remaining: str
    currency: str
    effective_from: datetime
    expires_at: datetime | None
    created_at: datetime

    @classmethod
    def of(cls, grant: Grant) -> GrantView:
        """The wire's view of a grant."""
        return cls(
            reference=grant.id.rpartition("/")[2],
            kind=grant.kind,
            priority=grant.priority,
            amount=format_nano(grant.amount_nano),
            remaining=format_nano(grant.remaining_nano),
            currency=grant.currency,
            effective_from=to_time(grant.effective_from_us),
            expires_at=to_time_or_null(grant.expires_at_us),
            created_at=to_time(grant.created_at_us),
        )


class GrantList(msgspec.Struct, frozen=True):
    """A tenant's grants, in the order in which they are spent."""

    items: list[GrantView]


class TermsChange(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Terms to change; what is left out stays. An `alert_below` of null alerts no more."""

    receivable_limit: Amount | None = None
    alert_below: Amount | msgspec.UnsetType | None = msgspec.UNSET


class TermsView(msgspec.Struct, frozen=True):
    """On what terms a tenant spends. A `receivable_limit` of 0 is prepaid.

    Since `paused_at` nothing new is had on account, because an invoice is overdue.
    """

    tenant_id: str
    receivable_limit: str
    alert_below: str | None
    paused_at: datetime | None

    @classmethod
    def of(cls, tenant_id: str, terms: Terms) -> TermsView:
        """The wire's view of terms."""
        below = terms.alert_below_nano
        return cls(
            tenant_id=tenant_id,
            receivable_limit=format_nano(terms.receivable_limit_nano),
            alert_below=None if below is None else format_nano(below),
            paused_at=to_time_or_null(terms.paused_at_us),
        )


class BudgetRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A budget. A hard one refuses what does not fit, a soft one only alerts."""

    limit: Amount
    period: Literal["day", "week", "month", "ever"]
    kind: Literal["hard", "soft"] = "hard"
    key_id: TenantId | None = None
    project_id: TenantId | None = None
    alerts: Annotated[list[Percent], Meta(max_length=10)] = msgspec.field(
        default_factory=lambda: [50, 80, 100]
    )


class BudgetView(msgspec.Struct, frozen=True):
    """A budget in its present window, in the tenant's time zone. A null end never comes."""

    id: str
    scope: str
    scope_id: str | None
    kind: str
    period: str
    limit: str
    spent: str
    held: str
    alerts: list[int]
    window_start: datetime
    window_end: datetime | None
    closed_at: datetime | None

    @classmethod
    def of(cls, standing: Standing) -> BudgetView:
        """The wire's view of a budget."""
        budget = standing.budget
        return cls(
            id=budget.id,
            scope=budget.scope,
            scope_id=budget.scope_id,
            kind=budget.kind,
            period=budget.period.value,
            limit=format_nano(budget.limit_nano),
            spent=format_nano(standing.spent_nano),
            held=format_nano(standing.reserved_nano),
            alerts=list(budget.alerts),
            window_start=to_time(standing.window.start_us),
            window_end=to_time_or_null(standing.window.end_us),
            closed_at=to_time_or_null(budget.closed_at_us),
        )


class BudgetList(msgspec.Struct, frozen=True):
    """A tenant's open budgets, oldest first."""

    items: list[BudgetView]


class LimitsRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a key, or the whole tenant, may do. What is left out is not limited."""

    key_id: TenantId | None = None  # null: all keys of the tenant together
    requests_per_minute: Positive | None = None
    tokens_per_minute: Positive | None = None
    joules_per_minute: Positive | None = None
    concurrency: Positive | None = None


class LimitsView(msgspec.Struct, frozen=True):
    """The limits of a key, or of all keys of the tenant together. Null is none."""

    key_id: str | None
    requests_per_minute: int | None
    tokens_per_minute: int | None
    joules_per_minute: int | None
    concurrency: int | None

    @classmethod
    def of(cls, limits: Limits) -> LimitsView:
        """The wire's view of limits."""
        return cls(
            key_id=None if limits.subject == "tenant" else limits.subject,
            requests_per_minute=limits.requests_per_minute,
            tokens_per_minute=limits.tokens_per_minute,
            joules_per_minute=limits.joules_per_minute,
            concurrency=limits.concurrency,
        )


class LimitsList(msgspec.Struct, frozen=True):
    """Every limit of a tenant and its keys."""

    items: list[LimitsView]


class ProjectRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A project to create."""

    name: Name


class ProjectView(msgspec.Struct, frozen=True):
    """What a tenant divides its spending by. An archived project takes no new keys."""

    id: str
    name: str
    created_at: datetime
    archived_at: datetime | None

    @classmethod
    def of(cls, project: Project) -> ProjectView:
        """The wire's view of a project."""
        return cls(
            id=project.id,
            name=project.name,
            created_at=to_time(project.created_at_us),
            archived_at=to_time_or_null(project.archived_at_us),
        )


class ProjectList(msgspec.Struct, frozen=True):
    """A tenant's projects, oldest first."""

    items: list[ProjectView]


class KeyProject(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The project that a key's requests count for from now on; null is none."""

    project_id: TenantId | None


class RefundRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A correction of a charge. The same `reference` again gives back nothing."""

    reference: Reference
    reason: Prose
    amount: Amount | None = None  # null: all that is left of the charge


class RefundView(msgspec.Struct, frozen=True):
    """What was given back; the signed adjustment is with the request's receipt."""

    request_id: str
    refunded: str
