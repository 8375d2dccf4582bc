"""What a handler may ask for, by the parameter's name; `pages` says who provides it."""

from __future__ import annotations

from typing import Annotated, TypeAlias

from litestar.di import NamedDependency
from litestar.params import PathParameter

from dashboards.access import TenantDesk
from dashboards.protocols import Host
from dashboards.sessions import Viewer

RECORD_ID = r"^[A-Za-z0-9_.:-]{1,128}(?!\n)$"

PathId: TypeAlias = Annotated[str, PathParameter(pattern=RECORD_ID)]  # of a request or an item
AHost: TypeAlias = NamedDependency[Host]  # host
AViewer: TypeAlias = NamedDependency[Viewer]  # viewer, reviewer, operator: each closed to others
ADesk: TypeAlias = NamedDependency[TenantDesk]  # desk: closed to all but the tenant's own keys
AForm: TypeAlias = NamedDependency[dict[str, str]]  # form: checked to be this session's own
