"""The wire of top-ups. Amounts are decimal strings with all the currency's decimals."""

from __future__ import annotations

import datetime as dt
from typing import Annotated

import msgspec
from msgspec import Meta

from api.invoices.schemas import Reference
from api.schemas import Amount, TenantId, to_time
from billing.invoices.minor_units import format_minor
from billing.payments.top_ups import TopUp

Email = Annotated[str, Meta(pattern=r"^[^@\s\x00-\x1f]{1,100}@[^@\s\x00-\x1f]{1,99}(?!\n)$")]


class TopUpView(msgspec.Struct, frozen=True):
    """Credit bought: `open` until the money came; a person pays at `url`."""

    id: str
    tenant_id: str
    reference: str
    kind: str
    state: str
    amount: str
    currency: str
    url: str | None
    created_at: dt.datetime

    @classmethod
    def of(cls, found: TopUp) -> TopUpView:
        """The wire's view of a top-up."""
        return cls(
            id=found.id,
            tenant_id=found.tenant_id,
            reference=found.reference,
            kind=found.kind,
            state=found.state,
            amount=format_minor(found.amount_minor, found.minor_nano),
            currency=found.currency,
            url=found.url,
            created_at=to_time(found.created_at_us),
        )


class TopUpList(msgspec.Struct, frozen=True):
    """The latest top-ups, newest first."""

    items: list[TopUpView]


class TopUpRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Credit to buy. The same `reference` again gives the same page."""

    amount: Amount
    reference: Reference


class RechargeRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Buy `amount` whenever available credit falls below `below`; both null turns it off."""

    below: Amount | None
    amount: Amount | None


class RechargeView(msgspec.Struct, frozen=True):
    """The automatic recharge; `failed` ones wait until it is set again."""

    below: str | None
    amount: str | None
    failed: bool


class EnrolRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A tenant that is to pay through the provider."""

    tenant_id: TenantId
    email: Email


class Enrolled(msgspec.Struct, frozen=True):
    """Whether the tenant was enrolled now, or had been before."""

    tenant_id: str
    enrolled: bool


class RefundRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A part of a top-up to pay back, once per reference."""

    amount: Amount
    reference: Annotated[Reference, Meta(max_length=63)]  # beside the top-up's id, in one column


class WebhookTaken(msgspec.Struct, frozen=True):
    """What came of a webhook."""

    outcome: str
