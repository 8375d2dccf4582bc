"""Who may do what. A key has one role; a role is a set of scopes; a route asks for one scope."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from api.errors import Forbidden


class Scope(StrEnum):
    """One thing that a route may ask for."""

    GENERATE = "generate"  # spends credit
    READ_CONTENT = "content:read"  # prompts and outputs
    READ_USAGE = "usage:read"  # quantities, scores, joules
    READ_BILLING = "billing:read"  # charges, balance, receipts
    MANAGE_KEYS = "keys:manage"
    MANAGE_TENANT = "tenant:manage"  # its own settings
    ADMINISTER = "admin"  # tenants, credit, tariffs, audit log
    REVIEW = "review"


class Role(StrEnum):
    """What a key is for. The first three belong to a tenant, the last two to the operator."""

    OWNER = "owner"
    FINANCE = "finance"
    DEVELOPER = "developer"
    OPERATOR = "operator"
    REVIEWER = "reviewer"

    @property
    def of_tenant(self) -> bool:
        """Whether keys of this role belong to a tenant."""
        return self not in OPERATOR_ROLES


OPERATOR_ROLES = frozenset({Role.OPERATOR, Role.REVIEWER})

_READS = frozenset({Scope.READ_USAGE, Scope.READ_BILLING})

SCOPES: dict[Role, frozenset[Scope]] = {
    Role.OWNER: _READS
    | {Scope.GENERATE, Scope.READ_CONTENT, Scope.MANAGE_KEYS, Scope.MANAGE_TENANT},
    Role.FINANCE: _READS,
    Role.DEVELOPER: _READS | {Scope.GENERATE, Scope.READ_CONTENT},
    Role.OPERATOR: _READS
    | {
        Scope.READ_CONTENT,
        Scope.MANAGE_KEYS,
        Scope.MANAGE_TENANT,
        Scope.ADMINISTER,
        Scope.REVIEW,
    },
    Role.REVIEWER: frozenset({Scope.REVIEW}),
}

# What no test key may do, whatever its role: the tenant's settings and payments are all live.
_LIVE_ONLY = frozenset({Scope.MANAGE_TENANT})


@dataclass(frozen=True, slots=True)
class Principal:
    """Who is asking: a living key. `tenant_id` is null for the operator's keys."""

    key_id: str
    tenant_id: str | None
    role: Role
    test_mode: bool

    @property
    def required_tenant_id(self) -> str:
        """The tenant the key speaks for. Raises Forbidden for an operator's key."""
        if self.tenant_id is None:
            raise Forbidden("this takes a tenant's key, not an operator's", Scope.GENERATE)
        return self.tenant_id

    def may(self, scope: Scope) -> bool:
        """Whether the key's role reaches this far, and a test key may go there."""
        return scope in SCOPES[self.role] and not (self.test_mode and scope in _LIVE_ONLY)
