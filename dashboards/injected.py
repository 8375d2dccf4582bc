"""What a handler may ask for, by the parameter's name; `pages` says who provides it."""

from __future__ import annotations

from typing import TypeAlias

from litestar.di import NamedDependency

from dashboards.access import TenantDesk
from dashboards.protocols import Host
from dashboards.sessions import Viewer

AHost: TypeAlias = NamedDependency[Host]  # host
AViewer: TypeAlias = NamedDependency[Viewer]  # viewer, reviewer, operator: each closed to others
ADesk: TypeAlias = NamedDependency[TenantDesk]  # desk: closed to all but the tenant's own keys
AForm: TypeAlias = NamedDependency[dict[str, str]]  # form: checked to be this session's own
