"""The wire of usage, charges, balance and receipts. Amounts, scores and joules are strings."""

from __future__ import annotations

import datetime as dt

import msgspec

from api.schemas import to_time
from billing.ledger.balances import Balance
from billing.money import format_nano
from billing.queries import DailyCharge, ReceiptRow
from billing.receipt_documents import millionths
from metering.energy import Grid
from metering.queries import Bucket, UsageBucket


class ClassEnergyView(msgspec.Struct, frozen=True):
    """Energy of one class: classes are never added up. `joules` is null where unavailable.

    `carbon_g`, grams of CO2 equivalent, is null there too, and where no grid is configured.
    """

    energy_class: str
    requests: int
    joules: str | None
    carbon_g: str | None


class CarbonView(msgspec.Struct, frozen=True):
    """By what joules are seen as carbon."""

    grid_gco2e_per_kwh: str
    basis: str = "joules as metered, times a configured grid intensity; not a measurement"


class UsageBucketView(msgspec.Struct, frozen=True):
    """What the requests used that ended in one bucket. `unscored` have no score, or no output."""

    start: dt.datetime
    requests: int
    input_tokens: int
    output_tokens: int
    complete_units: int
    fragment_units: int
    information_bits: str  # of those with a score
    unscored: int
    energy: list[ClassEnergyView]

    @classmethod
    def of(cls, bucket: UsageBucket, grid: Grid | None) -> UsageBucketView:
        """The wire's view of a bucket."""
        return cls(
            start=to_time(bucket.start_us),
            requests=bucket.requests,
            input_tokens=bucket.input_tokens,
            output_tokens=bucket.output_tokens,
            complete_units=bucket.complete_units,
            fragment_units=bucket.fragment_units,
            information_bits=format_nano(bucket.information_ubits * 1000),
            unscored=bucket.unscored,
            energy=[
                ClassEnergyView(
                    found.energy_class,
                    found.requests,
                    millionths(found.shown_uj),
                    None if grid is None else grid.grams(found.shown_uj),
                )
                for found in bucket.energy
            ],
        )


class UsageView(msgspec.Struct, frozen=True):
    """Usage of requests that ended in [start, end), by buckets of the tenant's time zone; buckets
    without any are absent. A null tenant is all of them, in UTC: the operator's view.
    """

    tenant_id: str | None
    start: dt.datetime
    end: dt.datetime
    bucket: Bucket
    time_zone: str
    carbon: CarbonView | None  # null where no grid is configured
    items: list[UsageBucketView]


class BalanceView(msgspec.Struct, frozen=True):
    """What is free to spend, and what live requests have reserved. `available` includes
    `promotional` credit and what is left of a postpaid tenant's `receivable_limit`; `receivable` is
    what it owes.
    """

    tenant_id: str
    available: str
    held: str
    currency: str
    promotional: str
    receivable: str
    receivable_limit: str

    @classmethod
    def of(cls, tenant_id: str, balance: Balance) -> BalanceView:
        """The wire's view of a balance."""
        return cls(
            tenant_id=tenant_id,
            available=format_nano(balance.available_nano),
            held=format_nano(balance.held_nano),
            currency=balance.currency,
            promotional=format_nano(balance.promotional_nano),
            receivable=format_nano(balance.receivable_nano),
            receivable_limit=format_nano(balance.receivable_limit_nano),
        )


class ChargeView(msgspec.Struct, frozen=True):
    """What one component came to on one day. Of the component `adjustment` are refunds, and fees
    given back: negative.
    """

    day: dt.date
    component: str
    amount: str
    currency: str

    @classmethod
    def of(cls, charge: DailyCharge) -> ChargeView:
        """The wire's view of a day's charge."""
        return cls(charge.day, charge.component, format_nano(charge.amount_nano), charge.currency)


class ChargesView(msgspec.Struct, frozen=True):
    """Charges of requests that ended in [start, end), by day of the tenant's time zone."""

    tenant_id: str
    start: dt.datetime
    end: dt.datetime
    time_zone: str
    currency: str
    total: str
    items: list[ChargeView]


class ReceiptRowView(msgspec.Struct, frozen=True):
    """One receipt of the list; whole and signed, it is at `/receipts/{request_id}`."""

    request_id: str
    ended_at: dt.datetime
    model: str
    status: str
    finish_reason: str | None
    test_mode: bool
    input_tokens: int
    output_tokens: int
    complete_units: int
    fragment_units: int
    tier: str | None
    geo_mean: str | None
    energy_class: str
    joules: str | None
    total: str
    adjusted: str  # the sum of its adjustments; negative was given back
    currency: str

    @classmethod
    def of(cls, row: ReceiptRow) -> ReceiptRowView:
        """The wire's view of a row."""
        return cls(
            request_id=row.request_id,
            ended_at=to_time(row.ended_at_us),
            model=row.model,
            status=row.status,
            finish_reason=row.finish_reason,
            test_mode=row.test_mode,
            input_tokens=row.input_tokens,
            output_tokens=row.output_tokens,
            complete_units=row.complete_units,
            fragment_units=row.fragment_units,
            tier=row.tier,
            geo_mean=row.geo_mean,
            energy_class=row.energy_class,
            joules=millionths(row.shown_uj),
            total=format_nano(row.total_nano),
            adjusted=format_nano(row.adjusted_nano),
            currency=row.currency,
        )


class ReceiptPage(msgspec.Struct, frozen=True):
    """Receipts, newest first; `next_cursor` is null on the last page."""

    items: list[ReceiptRowView]
    next_cursor: str | None
