"""Requests of before keep the calibration that their summaries name, or that was in force."""

from __future__ import annotations

import json

import pytest
from sqlalchemy import Connection, Engine, text
from sqlalchemy.exc import DatabaseError

from api import migrate
from metering.database import open_database, snapshot, transaction

TENANT = (
    "INSERT INTO tenants (id, name, currency, time_zone, review_opt_in, review_delivery, suspended,"
    " created_at_us) VALUES ('t', 'T', 'EUR', 'UTC', false, 'now', false, 1)"
)
REQUEST = (
    "INSERT INTO requests (id, tenant_id, key_id, model, route, tariff_version_id, status,"
    " parameters, input_tokens, max_tokens, test_mode, started_at_us, ended_at_us, engine)"
    " VALUES (:id, 't', 'k', 'm', 'generate', 'v', :status, '{}', 1, 1, false, :at, :ended,"
    " :engine)"
)
SUMMARY = (
    "INSERT INTO request_summaries (request_id, tenant_id, status, input_tokens, output_tokens,"
    " blocks, complete_units, fragment_units, energy_class, accepted_tokens, drafted_depth,"
    " ended_at_us, body) VALUES (:id, 't', 'completed', 1, 1, 1, 0, 0, 'unavailable', 0, 0, 9,"
    " :body)"
)
CALIBRATION = (
    "INSERT INTO calibrations (id, model, model_checksum, document, created_at_us)"
    " VALUES (:id, :model, 'c', '{}', :at)"
)
ENGINE = json.dumps({"model": "m", "checksum": "c"})


def add(connection: Connection, name: str, at_us: int, said: str | None = None) -> None:
    """Add a request, with a final summary that names a calibration, or "none"; or a live one."""
    ended = None if said is None else 9
    status = "admitted" if said is None else "completed"
    row = {"id": name, "status": status, "at": at_us, "ended": ended, "engine": ENGINE}
    connection.execute(text(REQUEST), row)
    if said is not None:
        body = json.dumps({"calibration": None if said == "none" else said}, separators=(",", ":"))
        connection.execute(text(SUMMARY), {"id": name, "body": body})


def pinned(database: Engine) -> dict[str, str | None]:
    with snapshot(database) as connection:
        rows = connection.execute(text("SELECT id, calibration FROM requests"))
        return {row.id: row.calibration for row in rows}


def test_requests_of_before_keep_the_calibration_that_scored_them(blank_database_url: str) -> None:
    migrate.upgrade(blank_database_url, "taxed_from")
    database = open_database(blank_database_url)
    with transaction(database) as connection:
        connection.execute(text(TENANT))
        for name, model, at in (("one", "m", 10), ("two", "m", 20), ("other", "n", 11)):
            connection.execute(text(CALIBRATION), {"id": name, "model": model, "at": at})
        add(connection, "scored", 30, "one")
        add(connection, "unscored", 30, "none")
        add(connection, "live_before", 5)
        add(connection, "live_first", 15)
        add(connection, "live_second", 25)
    database.dispose()  # whoever has it open is stopped for a migration
    migrate.upgrade(blank_database_url, "pinned_calibrations")
    assert pinned(database) == {
        "scored": "one",
        "unscored": None,
        "live_before": None,
        "live_first": "one",
        "live_second": "two",
    }
    with pytest.raises(DatabaseError, match="never changes"), transaction(database) as connection:
        connection.execute(text("UPDATE requests SET calibration = 'two' WHERE id = 'scored'"))
    database.dispose()
