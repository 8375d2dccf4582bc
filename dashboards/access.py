"""Who may see what: a handler that names one of these as a parameter is closed to everyone else.

Another tenant's things are not refused but not found, so that nobody learns what exists.
"""

from __future__ import annotations

from dataclasses import dataclass
from zoneinfo import ZoneInfo

from litestar.di import NamedDependency
from litestar.exceptions import PermissionDeniedException

from dashboards.protocols import Host
from dashboards.sessions import PageRequest, Viewer, current_viewer
from metering.database import snapshot
from metering.queries import tenant

CONTENT_ROLES = frozenset({"owner", "developer"})  # finance sees money, not what was said
REVIEW_ROLES = frozenset({"operator", "reviewer"})
OPERATOR_ROLES = frozenset({"operator"})


@dataclass(frozen=True, slots=True)
class TenantDesk:
    """One tenant's records, as somebody of that tenant may see them."""

    viewer: Viewer
    tenant_id: str
    name: str
    currency: str
    zone: ZoneInfo

    @property
    def sees_content(self) -> bool:
        """Whether prompts and outputs may be shown."""
        return self.viewer.role in CONTENT_ROLES


def provide_viewer(request: PageRequest, host: NamedDependency[Host]) -> Viewer:
    """Anybody signed in."""
    return current_viewer(request, host)


def provide_desk(viewer: NamedDependency[Viewer], host: NamedDependency[Host]) -> TenantDesk:
    """Somebody of a tenant, with that tenant; PermissionDenied for the operator's own people."""
    if viewer.tenant_id is None:
        raise PermissionDeniedException("This page belongs to a tenant; sign in with its key.")
    with snapshot(host.database) as connection:
        record = tenant(connection, viewer.tenant_id)
    if record is None:
        raise PermissionDeniedException("The tenant of this key does not exist.")
    return TenantDesk(viewer, record.id, record.name, record.currency, ZoneInfo(record.time_zone))


def provide_reviewer(viewer: NamedDependency[Viewer]) -> Viewer:
    """Somebody who may decide reviews."""
    return _require(viewer, REVIEW_ROLES)


def provide_operator(viewer: NamedDependency[Viewer]) -> Viewer:
    """Somebody who runs the gateway."""
    return _require(viewer, OPERATOR_ROLES)


def home(viewer: Viewer) -> str:
    """The first page of a role, below the prefix."""
    return navigation(viewer)[0][0]


def navigation(viewer: Viewer) -> tuple[tuple[str, str], ...]:
    """The pages open to a role, as (path below the prefix, label)."""
    if viewer.tenant_id is not None:
        return (
            ("/overview", "Overview"),
            ("/receipts", "Receipts"),
            ("/statement", "Statement"),
            ("/invoices", "Invoices"),
        )
    reviews = ("/reviews", "Reviews")
    if viewer.role not in OPERATOR_ROLES:
        return (reviews,)
    return (
        ("/engine", "Engine"),
        reviews,
        ("/economics", "Economics"),
        ("/reviewers", "Reviewers"),
        ("/calibrations", "Calibrations"),
        ("/reconciliation", "Reconciliation"),
        ("/unrated", "Unrated usage"),
    )


def _require(viewer: Viewer, roles: frozenset[str]) -> Viewer:
    if viewer.role not in roles:
        raise PermissionDeniedException("Your key's role does not reach this page.")
    return viewer
