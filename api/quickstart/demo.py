"""A tenant to try the gateway with: credit, a tariff and a key that the next run finds again."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import Connection

from api import keys, tenants
from api.roles import Role
from billing import catalogue
from billing.ledger import balances, credits
from billing.money import parse_nano
from metering.clock import now_us
from metering.database import open_database, transaction

TARIFF = "composite"
CREDIT = parse_nano("5")  # USD
CREDIT_LOW = parse_nano("1")  # below it, another CREDIT is granted


@dataclass(frozen=True, slots=True)
class Demo:
    """The demo tenant and the secret of its key."""

    tenant_id: str
    key: str

    def __repr__(self) -> str:
        return f"Demo({self.tenant_id})"


def prepare(database_url: str, key_file: Path) -> Demo:
    """Find the tenant of a former run by its key, or create one; top up its credit.

    Writes `key_file`, readable by its owner alone. The database must be migrated.
    """
    database = open_database(database_url)
    try:
        with transaction(database) as connection:
            catalogue.install_shipped(connection)
            demo = _former(connection, key_file) or _create(connection, key_file)
            available = balances.balance(connection, demo.tenant_id).available_nano
            if available < CREDIT_LOW:
                credits.grant(connection, demo.tenant_id, CREDIT, f"quickstart:{now_us()}")
            return demo
    finally:
        database.dispose()


def _former(connection: Connection, key_file: Path) -> Demo | None:
    if not key_file.exists():
        return None
    key = key_file.read_text().strip()
    principal = keys.authenticate(connection, key)
    if principal is None or principal.tenant_id is None:
        return None  # the database was replaced, or the key revoked
    return Demo(principal.tenant_id, key)


def _create(connection: Connection, key_file: Path) -> Demo:
    tenant = tenants.create(connection, name="Demo", currency="USD")
    catalogue.assign(connection, tenant.id, TARIFF, now_us())
    issued = keys.create(connection, tenant_id=tenant.id, role=Role.OWNER, name="quickstart")
    # Before the commit: a key file without its key is replaced by the next run, while a key
    # without its file would be lost.
    _write_secret(key_file, issued.secret)
    return Demo(tenant.id, issued.secret)


def _write_secret(path: Path, secret: str) -> None:
    partial = path.with_name(path.name + ".partial")
    partial.unlink(missing_ok=True)
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(secret + "\n")
    partial.replace(path)
