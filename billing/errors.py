"""Billing's errors. Amounts in them are nano; the gateway maps the classes to HTTP."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum


class BillingError(Exception):
    """Anything that billing refuses."""


class InvalidAmount(BillingError):
    """Text that is no amount, or an amount out of range."""


class InvalidTariff(BillingError):
    """A tariff document that can't be published; `errors` names every fault and its place."""

    def __init__(self, errors: Sequence[str]) -> None:
        super().__init__("; ".join(errors))
        self.errors = tuple(errors)


class TariffConflict(BillingError):
    """A publication or assignment that would rewrite the past, or mix currencies."""


class NoTariff(BillingError):
    """No tariff of this name, or none in force for this tenant at this time."""


class UnknownTenant(BillingError):
    """No tenant of this id."""


class UnknownRequest(BillingError):
    """No request of this id, or not of this tenant."""


class UnratableSummary(BillingError):
    """A request summary that contradicts itself; nothing is charged for it."""


class TransferConflict(BillingError):
    """A transfer id that was booked before with another body."""


class Overdraft(BillingError):
    """A posting that would take an account below zero; nothing was changed."""

    def __init__(self, account_id: str, needed_nano: int, available_nano: int) -> None:
        super().__init__(f"{account_id} holds {available_nano} nano, {needed_nano} are needed")
        self.account_id = account_id
        self.needed_nano = needed_nano
        self.available_nano = available_nano


class InsufficientCredit(BillingError):
    """The tenant's credit does not cover the hold; nothing was changed."""

    def __init__(self, needed_nano: int, available_nano: int, currency: str) -> None:
        super().__init__(
            f"the hold needs {needed_nano} nano {currency}, {available_nano} are available"
        )
        self.needed_nano = needed_nano
        self.available_nano = available_nano
        self.currency = currency


class PaymentOverdue(InsufficientCredit):
    """Credit does not cover the hold, and nothing more is had on account: an invoice is overdue."""


class BudgetExhausted(BillingError):
    """A hard budget does not let this through; nothing was changed.

    What is spent, held and allowed is said, so that a client can tell a full window from one that
    waits for other requests to settle. A null reset never comes.
    """

    def __init__(
        self,
        budget_id: str,
        *,
        needed_nano: int,
        limit_nano: int,
        spent_nano: int,
        held_nano: int,
        resets_at_us: int | None,
    ) -> None:
        super().__init__(
            f"budget {budget_id} allows {limit_nano} nano: {spent_nano} are spent, {held_nano} are "
            f"held, {needed_nano} are needed"
        )
        self.budget_id = budget_id
        self.needed_nano = needed_nano
        self.limit_nano = limit_nano
        self.spent_nano = spent_nano
        self.held_nano = held_nano
        self.resets_at_us = resets_at_us


class InvalidBudget(BillingError):
    """A budget whose terms contradict themselves."""


class UnknownBudget(BillingError):
    """No budget of this id, or another tenant's."""


class InvalidGrant(BillingError):
    """A grant whose terms contradict themselves."""


class UnknownGrant(BillingError):
    """No grant of this id, or another tenant's."""


class InvalidRetention(BillingError):
    """Content can't be kept for that long."""


class NothingToReverse(BillingError):
    """What should be reversed is spent, reversed or refunded already."""


class CostCeilingTooLow(BillingError):
    """The request's `max_cost` does not even cover its input and one token of output."""

    def __init__(self, needed_nano: int, ceiling_nano: int, currency: str) -> None:
        super().__init__(
            f"max_cost is {ceiling_nano} nano {currency}; the input and one token can cost up to "
            f"{needed_nano}"
        )
        self.needed_nano = needed_nano
        self.ceiling_nano = ceiling_nano
        self.currency = currency


class HoldConflict(BillingError):
    """A hold that does not exist, is resolved already, or was placed with another body."""


class ReviewItemNotFound(BillingError):
    """No review item of this id."""


class ReviewConflict(BillingError):
    """The review item is not this reviewer's to claim or resolve now."""


class InvalidVerdict(BillingError):
    """A verdict that is unknown, or without what belongs to it: reasons, an edited output."""


class InvalidPayout(BillingError):
    """More than the reviewer is due, or nothing; nothing was changed."""


class ReceiptFault(StrEnum):
    """What is wrong with a receipt."""

    MALFORMED = "malformed"
    UNSUPPORTED_ALGORITHM = "unsupported_algorithm"
    UNKNOWN_KEY = "unknown_key"
    RETIRED_KEY = "retired_key"
    WRONG_HASH = "wrong_hash"
    BAD_SIGNATURE = "bad_signature"
    LINES_DO_NOT_SUM = "lines_do_not_sum"
    ANSWER_DIFFERS = "answer_differs"


class InvalidReceipt(BillingError):
    """A receipt that does not prove what it says; `reason` is stable, the message explains."""

    def __init__(self, reason: ReceiptFault, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class InvalidSigningKey(BillingError):
    """A key file that is no Ed25519 private key, or that others may read."""


class InvalidPeriod(BillingError):
    """Text that names no period, or a period that is not over yet."""


class InvoiceNotFound(BillingError):
    """No invoice of this id or number."""


class InvoiceConflict(BillingError):
    """What an invoice, as it stands, does not allow; nothing was changed."""


class PaymentsDisabled(BillingError):
    """No payment provider is configured here, or none for this tenant."""


class PaymentConflict(BillingError):
    """What a payment, as it stands, does not allow; nothing was changed."""


class InvalidWebhook(BillingError):
    """A webhook that the provider did not sign, or signed too long ago."""


class ProviderFailed(BillingError):
    """The payment provider did not answer as it should; what it did is unknown."""


class ProviderRefused(BillingError):
    """The payment provider answered that it will not do this, and did nothing."""


class CannotAudit(BillingError):
    """The work can't be done again: content erased, another model, a request still running."""


class InvalidEconomics(BillingError):
    """Figures that can't be reckoned with; `errors` names every fault and its place."""

    def __init__(self, errors: Sequence[str]) -> None:
        super().__init__("; ".join(errors))
        self.errors = tuple(errors)


class UsageGone(BillingError):
    """Past usage that can't be rated again, because its request summaries are not there."""


class ExportUnavailable(BillingError):
    """A file format whose library is not installed."""
