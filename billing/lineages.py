"""Lineages of keys: whoever rotates a key goes on under the same rights, bounds and accounts.

A lineage has the id of its first key. What is the holder's rather than the secret's, such as a
reviewer's fees, a budget or a limit, is kept under any key of a lineage and counts for all.
"""

from __future__ import annotations

from sqlalchemy import ColumnElement, Connection, Select, bindparam, func, literal, select

from billing.credit_tables import key_lineages
from billing.rows import insert_once
from metering.prepared import Prepared

_OF_KEY = Prepared(
    select(key_lineages.c.lineage_id).where(key_lineages.c.key_id == bindparam("key_id"))
)


def of_key(connection: Connection, key_id: str) -> str:
    """The lineage of a key: itself, unless it succeeded another."""
    return _OF_KEY.value(connection, {"key_id": key_id}) or key_id


def succeed(connection: Connection, key_id: str, successor_id: str) -> None:
    """Let a key that was issued in another's place belong to the same lineage."""
    lineage_id = of_key(connection, key_id)
    last = connection.scalar(
        select(func.max(key_lineages.c.position)).where(key_lineages.c.lineage_id == lineage_id)
    )
    insert_once(
        connection,
        key_lineages,
        {"key_id": successor_id, "lineage_id": lineage_id, "position": (last or 0) + 1},
    )


def newest(connection: Connection, key_id: str) -> str:
    """The key of the same lineage that was issued last: the one to show."""
    lineage_id = of_key(connection, key_id)
    found = connection.scalar(
        select(key_lineages.c.key_id)
        .where(key_lineages.c.lineage_id == lineage_id)
        .order_by(key_lineages.c.position.desc(), key_lineages.c.key_id.desc())
        .limit(1)
    )
    return found or lineage_id


def lineage_of(key_id: ColumnElement[str]) -> ColumnElement[str]:
    """The lineage of a key, within a statement that names the key."""
    succeeded = select(key_lineages.c.lineage_id).where(key_lineages.c.key_id == key_id)
    return func.coalesce(succeeded.scalar_subquery(), key_id)


def members(lineage_id: str) -> Select[tuple[str]]:
    """Every key of a lineage, for a statement's IN."""
    successors = select(key_lineages.c.key_id).where(key_lineages.c.lineage_id == lineage_id)
    either = select(literal(lineage_id).label("key_id")).union_all(successors).subquery()
    return select(either.c.key_id)
