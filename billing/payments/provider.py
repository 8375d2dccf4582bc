"""What payments need of a provider, in our words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

from billing.errors import ProviderFailed, ProviderRefused

Body = Mapping[str, Any]


class Unanswered(Exception):
    """Nobody knows whether it was done: no answer came. The same key may be sent again."""


class Busy(Exception):
    """It was certainly not done, and may be asked again later under the same key."""


class Faulted(Exception):
    """The provider failed while at it. It keeps this answer under the key, so that only a look
    says whether it was done, and only another key can do it.
    """


class Refused(Exception):
    """It was not done, and asking again will not help."""


@contextmanager
def asking() -> Iterator[None]:
    """Ask on behalf of somebody who waits; raises ProviderFailed or ProviderRefused."""
    try:
        yield
    except (Unanswered, Busy, Faulted) as error:
        raise ProviderFailed(str(error)) from error
    except Refused as error:
        raise ProviderRefused(str(error)) from error


@dataclass(frozen=True, slots=True)
class ProviderEvent:
    """A verified webhook: something happened to an object. What, is to be looked up."""

    id: str
    type: str
    object_kind: str
    object_id: str
    sent_at_us: int


@dataclass(frozen=True, slots=True)
class CustomerState:
    """Whom the provider knows."""

    id: str
    subject: str | None  # our id of the tenant


@dataclass(frozen=True, slots=True)
class InvoiceState:
    """How an invoice stands at the provider."""

    provider_id: str
    subject: str | None  # our id
    status: str
    total_minor: int
    paid_minor: int  # through the provider: what came in another way is told it, and not counted
    remaining_minor: int
    credited_minor: int  # by credit notes
    payment_failed: bool
    intents: tuple[str, ...]  # the payments that paid it


@dataclass(frozen=True, slots=True)
class PaymentState:
    """How a payment stands, for whatever it is."""

    id: str
    subject: str | None  # our id of the top-up that it pays
    status: str  # "open", "paid" or "failed"
    received_minor: int
    currency: str
    customer_id: str | None
    created_us: int


@dataclass(frozen=True, slots=True)
class TopUpState:
    """How the page of a top-up stands."""

    subject: str | None
    status: str  # "open", "paid" or "failed"
    received_minor: int
    intent_id: str | None


@dataclass(frozen=True, slots=True)
class DisputeState:
    """How a dispute stands, and which payment it is about."""

    id: str
    status: str  # "open", "won", "lost" or "harmless": it has taken no money, and may yet
    amount_minor: int
    intent_id: str | None
    created_us: int


@dataclass(frozen=True, slots=True)
class RefundState:
    """Money given back by the provider."""

    id: str
    subject: str | None  # our id, if we asked for it
    status: str  # "open", "paid" or "failed"
    amount_minor: int
    intent_id: str | None
    created_us: int


class Provider(Protocol):
    """One payment provider. Every call may raise the four errors above."""

    def do(self, action: str, subject: str, body: Body, key: str) -> str:
        """Do one thing of the outbox, once per key; the id of the object it made or changed."""

    def find(self, action: str, subject: str, body: Body) -> str | None:
        """The object that this action made or changed already, or null. Changes nothing."""

    def checkout(self, subject: str, body: Body, key: str) -> tuple[str, str]:
        """Open a page where a person pays a top-up: its id and its address."""

    def invoice(self, provider_id: str) -> InvoiceState:
        """How an invoice stands."""

    def session(self, provider_id: str) -> TopUpState:
        """How a top-up's page stands."""

    def intent(self, provider_id: str) -> PaymentState:
        """How a payment stands."""

    def customer(self, provider_id: str) -> CustomerState:
        """Whom a customer stands for."""

    def dispute(self, provider_id: str) -> DisputeState:
        """How a dispute stands."""

    def refund(self, provider_id: str) -> RefundState:
        """How a refund stands."""

    def invoices(self, customer_id: str) -> Sequence[InvoiceState]:
        """Every invoice that a customer has there, drafts too, whoever made it."""

    def payments(self, customer_id: str) -> Sequence[PaymentState]:
        """Every payment of a customer, for whatever it was."""

    def customers(self, subject: str | None = None) -> Sequence[CustomerState]:
        """Every customer, whoever made it; or those that bear this id of ours, but perhaps the
        newest.
        """

    def refunds(self, intent_id: str | None = None) -> Sequence[RefundState]:
        """Every refund, of whatever payment; or of this one."""

    def disputes(self, intent_id: str | None = None) -> Sequence[DisputeState]:
        """Every dispute, of whatever payment; or of this one."""

    def invoice_of(self, intent_id: str) -> str | None:
        """The provider's id of the invoice that a payment was for, or null."""

    def event(self, payload: bytes, signature: str | None) -> ProviderEvent:
        """Verify a webhook; raises InvalidWebhook."""
