"""The wire of `/admin`: tenants, keys, credit, tariffs and the audit log."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from api.audit import AuditEntry
from api.keys import OVERLAP_S_MAX, IssuedKey, Key
from api.roles import Role
from api.schemas import Amount, Currency, Instant, Name, TenantId, to_time, to_time_or_null
from api.tenants import Tenant
from billing import tariffs
from billing.catalogue import TariffVersion

TimeZone = Annotated[str, Meta(max_length=64, description="IANA", examples=["Europe/Berlin"])]
Delivery = Annotated[
    Literal["now", "held"],
    Meta(description="When an answer that goes to review is delivered: at once, or reviewed"),
]
TariffName = Annotated[str, Meta(pattern=r"^[a-z][a-z0-9-]{0,47}(?!\n)$", examples=["semantic"])]


class TenantRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A tenant to create. Its currency can't change later: its ledger is kept in it."""

    name: Name
    currency: Currency = "USD"
    time_zone: TimeZone = "UTC"
    review_opt_in: bool = False
    review_delivery: Delivery = "now"
    review_redaction: bool = True
    tariff: TariffName | None = None  # null: none yet; without one it can't spend


class TenantChange(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Settings to change; what is left out stays as it is."""

    name: Name | None = None
    time_zone: TimeZone | None = None
    review_opt_in: bool | None = None
    review_delivery: Delivery | None = None
    review_redaction: bool | None = None


class TenantView(msgspec.Struct, frozen=True):
    """A tenant as it stands. With `review_opt_in` it agreed to pay for human reviews; without
    `review_redaction`, to reviewers seeing its texts as they are.
    """

    id: str
    name: str
    currency: str
    time_zone: str
    review_opt_in: bool
    review_delivery: str
    review_redaction: bool
    suspended: bool
    created_at: datetime

    @classmethod
    def of(cls, tenant: Tenant) -> TenantView:
        """The wire's view of a tenant."""
        return cls(
            id=tenant.id,
            name=tenant.name,
            currency=tenant.currency,
            time_zone=tenant.time_zone,
            review_opt_in=tenant.review_opt_in,
            review_delivery=tenant.review_delivery,
            review_redaction=tenant.review_redaction,
            suspended=tenant.suspended,
            created_at=to_time(tenant.created_at_us),
        )


class TenantPage(msgspec.Struct, frozen=True):
    """Tenants, newest first; `next_cursor` is null on the last page."""

    items: list[TenantView]
    next_cursor: str | None


class KeyRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A key to issue. Owners issue keys of their own tenant; operators say whose."""

    name: Name
    role: Role
    tenant_id: TenantId | None = None
    test_mode: bool = False
    expires_at: Instant | None = None


class RotateRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How long the old key lives on beside its successor."""

    overlap_s: Annotated[int, Meta(ge=0, le=OVERLAP_S_MAX)] = 86_400


class KeyView(msgspec.Struct, frozen=True):
    """A key, without its secret. `last_used_at` is kept to the minute."""

    id: str
    tenant_id: str | None
    name: str
    role: Role
    last_four: str
    test_mode: bool
    created_at: datetime
    expires_at: datetime | None
    revoked_at: datetime | None
    last_used_at: datetime | None
    project_id: str | None

    @classmethod
    def of(cls, key: Key) -> KeyView:
        """The wire's view of a key."""
        return cls(
            id=key.id,
            tenant_id=key.tenant_id,
            name=key.name,
            role=key.role,
            last_four=key.last_four,
            test_mode=key.test_mode,
            created_at=to_time(key.created_at_us),
            expires_at=to_time_or_null(key.expires_at_us),
            revoked_at=to_time_or_null(key.revoked_at_us),
            last_used_at=to_time_or_null(key.last_used_at_us),
            project_id=key.project_id,
        )


class IssuedKeyView(msgspec.Struct, frozen=True):
    """A new key with its secret, which is never shown again."""

    key: KeyView
    secret: str

    @classmethod
    def of(cls, issued: IssuedKey) -> IssuedKeyView:
        """The wire's view of a key that was just issued."""
        return cls(KeyView.of(issued.key), issued.secret)


class KeyPage(msgspec.Struct, frozen=True):
    """Keys, newest first; `next_cursor` is null on the last page."""

    items: list[KeyView]
    next_cursor: str | None


class CreditRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Credit to grant. The same `reference` again grants nothing and answers the same."""

    amount: Amount
    reference: Annotated[
        str,
        Meta(
            pattern=r"^[A-Za-z0-9_.:-]{1,40}(?!\n)$",
            description="Yours to choose, unique for the tenant",
            examples=["invoice-2026-001"],
        ),
    ]


class CreditView(msgspec.Struct, frozen=True):
    """A tenant's balance after a grant."""

    tenant_id: str
    granted: str
    available: str
    held: str
    currency: str


class TariffRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A tariff version to publish, in the schema `dflash.tariff/1`."""

    document: dict[str, Any]
    effective_from: Instant | None = None  # null: now


class TariffVersionView(msgspec.Struct, frozen=True):
    """A published version: its terms never change. `effective_to` is exclusive."""

    id: str
    name: str
    version: int
    currency: str
    effective_from: datetime
    effective_to: datetime | None
    document: dict[str, Any]

    @classmethod
    def of(cls, version: TariffVersion) -> TariffVersionView:
        """The wire's view of a published version."""
        return cls(
            id=version.id,
            name=version.tariff,
            version=version.version,
            currency=version.currency,
            effective_from=to_time(version.effective_from_us),
            effective_to=to_time_or_null(version.effective_to_us),
            document=tariffs.document(version.document),
        )


class TariffPage(msgspec.Struct, frozen=True):
    """Every published version, by name and version."""

    items: list[TariffVersionView]


class AssignmentRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which tariff a tenant is on from some moment; requests admitted before keep theirs."""

    tariff: TariffName
    effective_from: Instant | None = None  # null: now


class AssignmentView(msgspec.Struct, frozen=True):
    """A tenant's tariff from some moment on."""

    tenant_id: str
    tariff: str
    effective_from: datetime


class OverrideRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A customer's own prices: changes (RFC 7396, null takes away) to a tariff's document.

    Without a `base` it is the tariff that the tenant is on, or that its own was made from.
    """

    changes: dict[str, Any]
    base: TariffName | None = None
    effective_from: Instant | None = None  # null: now


class AuditEntryView(msgspec.Struct, frozen=True):
    """Who did what to whom. `actor` is a key id, or `cli`."""

    seq: int
    at: datetime
    actor: str
    action: str
    tenant_id: str | None
    subject: str
    detail: dict[str, Any]

    @classmethod
    def of(cls, entry: AuditEntry) -> AuditEntryView:
        """The wire's view of a line of the log."""
        return cls(
            seq=entry.seq,
            at=to_time(entry.at_us),
            actor=entry.actor,
            action=entry.action,
            tenant_id=entry.tenant_id,
            subject=entry.subject,
            detail=entry.detail,
        )


class AuditPage(msgspec.Struct, frozen=True):
    """The log, newest first; `next_cursor` is null on the last page."""

    items: list[AuditEntryView]
    next_cursor: str | None
