"""Labels from before judges were named are the reviewers', and all that goes back with them."""

from __future__ import annotations

from sqlalchemy import text

from api import migrate
from metering.database import open_database, snapshot, transaction

TENANT = (
    "INSERT INTO tenants (id, name, currency, time_zone, review_opt_in, review_delivery, suspended,"
    " created_at_us) VALUES ('t', 'T', 'EUR', 'UTC', false, 'now', false, 1)"
)
REQUEST = (
    "INSERT INTO requests (id, tenant_id, key_id, model, route, tariff_version_id, status,"
    " parameters, input_tokens, max_tokens, test_mode, started_at_us)"
    " VALUES ('r', 't', 'k', 'm', 'generate', 'v', 'completed', '{}', 1, 1, false, 1)"
)
LABEL = (
    "INSERT INTO confidence_labels VALUES ('r', -1, 'm', NULL, 'request', '0.9', true, 5, true, 1)"
)
TESTS = (
    "INSERT INTO confidence_labels (request_id, unit_index, judge, model, model_checksum, kind,"
    " geo_mean, correct, inclusion_ppm, sampled, labelled_at_us, cluster)"
    " VALUES ('r', -1, 'tests', 'm', NULL, 'request', '0.9', false, 5, true, 1, 'c')"
)


def test_labels_are_kept_both_ways(blank_database_url: str) -> None:
    migrate.upgrade(blank_database_url, "redaction")
    database = open_database(blank_database_url)
    with transaction(database) as connection:
        for statement in (TENANT, REQUEST, LABEL):
            connection.execute(text(statement))
    with snapshot(database) as connection:
        before = connection.execute(text("SELECT * FROM confidence_labels")).all()
    migrate.upgrade(blank_database_url)
    with transaction(database) as connection:
        connection.execute(text(TESTS))
    with snapshot(database) as connection:
        found = connection.execute(
            text("SELECT judge, correct, cluster FROM confidence_labels ORDER BY judge")
        ).all()
    assert [tuple(row) for row in found] == [("reviewers", True, None), ("tests", False, "c")]
    migrate.downgrade(blank_database_url, "redaction")
    with snapshot(database) as connection:
        assert connection.execute(text("SELECT * FROM confidence_labels")).all() == before
    database.dispose()
