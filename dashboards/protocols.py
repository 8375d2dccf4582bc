"""What the pages need of the application that mounts them.

The pages know no keys and no audit table: whoever mounts them hands in who may come in, and where
a change is written down.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from sqlalchemy import Connection, Engine

from billing.exports.downloads import ProjectNames
from billing.payments.provider import Provider
from billing.receipts import Signer
from engine.records import EngineInfo, EngineStats
from metering.energy import Grid
from metering.energy.replicas import Figure


class Principal(Protocol):
    """Who a living key speaks for. `tenant_id` is null exactly for operators and reviewers."""

    @property
    def key_id(self) -> str:
        """The key's public id: never the secret."""

    @property
    def tenant_id(self) -> str | None:
        """The tenant that the key belongs to."""

    @property
    def role(self) -> str:
        """One of owner, finance, developer, operator, reviewer."""


class FindPrincipal(Protocol):
    """Finds who a key speaks for; null when it is wrong, expired or revoked. Changes nothing."""

    def __call__(self, connection: Connection, key: str, /) -> Principal | None:
        """Look up `key`: the whole secret, or an id, as the caller says."""


class AuditLog(Protocol):
    """Appends to the audit log, within the transaction of the change it speaks of."""

    def __call__(
        self,
        connection: Connection,
        *,
        actor: str,
        action: str,
        subject: str,
        tenant_id: str | None = None,
        **detail: Any,
    ) -> None:
        """Record that `actor` (a key id) did `action` (dotted, past tense) to `subject`."""


@dataclass(frozen=True, slots=True)
class EngineState:
    """A replica's engine, what it says of itself, and what a token takes there; null: unknown."""

    replica: str
    info: EngineInfo | None
    stats: EngineStats | None
    figure: Figure | None = None


@dataclass(frozen=True, slots=True)
class Host:
    """What the mounting application provides; every callable may be called from any thread."""

    database: Engine
    authenticate: FindPrincipal  # by the whole secret, as typed
    recall: FindPrincipal  # by the key's id
    audit: AuditLog
    project_names: ProjectNames  # of a tenant
    signer: Signer  # a verdict signs an adjustment
    engines: Callable[[], Sequence[EngineState]]  # one for each replica, at least one
    provider: Provider | None  # of payments
    grid: Grid | None = None  # by which carbon is shown; null: it isn't
