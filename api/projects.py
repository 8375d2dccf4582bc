"""Projects: what a tenant divides its spending by. A key may belong to one."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import uuid_utils
from sqlalchemy import Connection, insert, select, update

from api import tenants
from api.errors import Conflict, NotFound
from api.limit_tables import projects
from api.tables import api_keys
from metering import clock


@dataclass(frozen=True, slots=True)
class Project:
    """A project; an archived one takes no new keys, and keeps what it counted."""

    id: str
    tenant_id: str
    name: str
    created_at_us: int
    archived_at_us: int | None


def create(connection: Connection, tenant_id: str, name: str) -> Project:
    """Add a project. Raises NotFound, InvalidParameter, or Conflict for a name that is taken."""
    tenants.require(connection, tenant_id)
    tenants.check_name(name)
    taken = select(projects.c.id).where(projects.c.tenant_id == tenant_id, projects.c.name == name)
    if connection.scalar(taken) is not None:
        raise Conflict(f"there is a project {name!r} already")
    project = Project(f"prj_{uuid_utils.uuid7().hex}", tenant_id, name, clock.now_us(), None)
    connection.execute(
        insert(projects).values(
            id=project.id, tenant_id=tenant_id, name=name, created_at_us=project.created_at_us
        )
    )
    return project


def archive(connection: Connection, tenant_id: str, project_id: str) -> Project:
    """Take no new keys for a project. A second time changes nothing. Raises NotFound."""
    require(connection, tenant_id, project_id)
    connection.execute(
        update(projects)
        .where(projects.c.id == project_id, projects.c.archived_at_us.is_(None))
        .values(archived_at_us=clock.now_us())
    )
    return require(connection, tenant_id, project_id)


def require(connection: Connection, tenant_id: str, project_id: str) -> Project:
    """A tenant's project by its id. Raises NotFound."""
    row = connection.execute(
        select(projects).where(projects.c.id == project_id, projects.c.tenant_id == tenant_id)
    ).one_or_none()
    if row is None:
        raise NotFound(f"no project {project_id}")
    return Project(**row._mapping)


def listing(connection: Connection, tenant_id: str) -> list[Project]:
    """A tenant's projects, oldest first, archived ones too."""
    rows = connection.execute(
        select(projects)
        .where(projects.c.tenant_id == tenant_id)
        .order_by(projects.c.created_at_us, projects.c.id)
    )
    return [Project(**row._mapping) for row in rows]


def names(connection: Connection, tenant_id: str | None) -> dict[str, str]:
    """The names of a tenant's projects, or of everybody's, by id."""
    query = select(projects.c.id, projects.c.name)
    if tenant_id is not None:
        query = query.where(projects.c.tenant_id == tenant_id)
    return {row.id: row.name for row in connection.execute(query)}


def known(connection: Connection, tenant_ids: Iterable[str]) -> frozenset[tuple[str, str]]:
    """The projects of these tenants as (tenant, project), archived ones too: usage may be late."""
    query = select(projects.c.tenant_id, projects.c.id)
    rows = connection.execute(query.where(projects.c.tenant_id.in_(tenant_ids)))
    return frozenset((tenant_id, project_id) for tenant_id, project_id in rows)


def put_key(connection: Connection, tenant_id: str, project_id: str | None, key_id: str) -> None:
    """Count a key's requests for a project from now on, or for none.

    Raises NotFound, or Conflict for an archived project.
    """
    project = None if project_id is None else require(connection, tenant_id, project_id)
    if project is not None and project.archived_at_us is not None:
        raise Conflict("this project is archived")
    changed = connection.execute(
        update(api_keys)
        .where(api_keys.c.id == key_id, api_keys.c.tenant_id == tenant_id)
        .values(project_id=project_id)
    )
    if not changed.rowcount:
        raise NotFound(f"no key {key_id}")
