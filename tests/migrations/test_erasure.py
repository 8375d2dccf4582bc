"""What was erased before erasure reached it all is erased as a whole; keys go on answering."""

from __future__ import annotations

import hashlib
import json

from sqlalchemy import text

from api import migrate
from metering import content_hash
from metering.database import open_database, snapshot, transaction

TENANT = "INSERT INTO tenants VALUES ('t', 'T', 'EUR', 'UTC', false, 'now', false, 1)"
REQUEST = text(
    "INSERT INTO requests (id, tenant_id, key_id, model, route, tariff_version_id, status,"
    " parameters, prompt, content_salt, input_tokens, max_tokens, test_mode, started_at_us)"
    " VALUES (:id, 't', 'k', 'm', 'generate', 'v', 'completed', :parameters, :prompt, :salt,"
    " 1, 1, false, 1)"
)
KEY = text("INSERT INTO idempotency_keys VALUES ('t', 'generate', :id, :hash, :id, 1)")
PARAMETERS = {"seed": 1, "stop": ["x"], "json_schema": None, "green": {"engine": 0}}


def test_what_was_erased_keeps_no_content_and_what_was_not_is_as_before(
    blank_database_url: str,
) -> None:
    migrate.upgrade(blank_database_url, "overdue")
    database = open_database(blank_database_url)
    plain = hashlib.sha256(b"body").hexdigest()
    kept = {"prompt": "p", "salt": content_hash.new_salt()}
    with transaction(database) as connection:
        connection.execute(text(TENANT))
        for name, content in (("kept", kept), ("erased", {"prompt": None, "salt": None})):
            written = {"id": name, "parameters": json.dumps(PARAMETERS)}
            connection.execute(REQUEST, written | content)
            connection.execute(KEY, {"id": name, "hash": plain})
    migrate.upgrade(blank_database_url)
    with snapshot(database) as connection:
        rows = connection.execute(text("SELECT id, parameters FROM requests")).all()
        hashes = connection.execute(text("SELECT key, salted_sha256 FROM idempotency_keys")).all()
    assert {row.id: json.loads(row.parameters) for row in rows} == {
        "kept": PARAMETERS,
        "erased": {"seed": 1, "json_schema": None, "green": {"engine": 0}},
    }
    found = {row.key: row.salted_sha256 for row in hashes}
    assert found["kept"] == content_hash.of_text(kept["salt"], plain)
    assert found["erased"] != plain
    database.dispose()
