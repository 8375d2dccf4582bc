"""A hold as it is stored: its state, its amounts, and how it was settled. Changes nothing."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from sqlalchemy import Connection, bindparam, select

from billing.ledger.accounts import Account, AccountKind
from billing.tables import holds
from metering.prepared import Prepared


class HoldState(StrEnum):
    """Where a hold stands; all but PENDING are final."""

    PENDING = "pending"
    POSTED = "posted"
    VOIDED = "voided"
    EXPIRED = "expired"


@dataclass(frozen=True, slots=True)
class Hold:
    """One request's reservation."""

    request_id: str
    tenant_id: str
    currency: str
    amount_nano: int
    ceiling_nano: int | None  # the request's max_cost; null: what credit affords
    posted_nano: int
    state: HoldState
    expires_at_us: int

    def account(self, kind: AccountKind) -> Account:
        """The tenant's account of this kind, in the hold's currency."""
        return Account(self.tenant_id, kind, self.currency)


@dataclass(frozen=True, slots=True)
class Settled:
    """How a charge was paid: what the tenant paid, fee included, and what nobody did."""

    posted_nano: int
    written_off_nano: int
    fee_paid: bool  # also where there was no fee


_HOLD = Prepared(
    select(
        holds.c.request_id,
        holds.c.tenant_id,
        holds.c.currency,
        holds.c.amount_nano,
        holds.c.ceiling_nano,
        holds.c.posted_nano,
        holds.c.state,
        holds.c.expires_at_us,
    ).where(holds.c.request_id == bindparam("request_id"))
)


def find(connection: Connection, request_id: str) -> Hold | None:
    """The request's hold, or null."""
    row = _HOLD.row(connection, {"request_id": request_id})
    if row is None:
        return None
    return Hold(
        row.request_id,
        row.tenant_id,
        row.currency,
        row.amount_nano,
        row.ceiling_nano,
        row.posted_nano,
        HoldState(row.state),
        row.expires_at_us,
    )
