"""Whatever is changed of what is stored about a request is refused, or found when it is compared.

The database refuses to change what a request was admitted with, what it came to, and what was made
of it. Whoever removes its guards first is found by the comparison: one fact is stored in several
places, and what was signed can't be signed again.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any

from billing_cases import ENGINE, summary, tariff, unit
from billing_world import FAR_US, add_request, add_tenant, emit, ended, settlement
from sqlalchemy import Column, Connection, Engine, Integer, select, text
from sqlalchemy.exc import DBAPIError
from unguarded import unguard

from billing import request_triggers, triggers
from billing.credit_tables import fundings
from billing.gate import HoldGate
from billing.reconciliation import reconcile
from billing.tables import holds, rated_lines, receipts, transfers
from metering.database import transaction
from metering.tables import request_summaries, requests, usage_events

TERMS = tariff(
    output={"per_million": "40"},
    energy={"per_million": {"estimated": "2"}, "cap_joules_per_token": "9"},
    information={"per_million": "5", "cap_bits_per_token": "16"},
)
TABLES = (
    *(requests, usage_events, request_summaries, rated_lines, receipts, holds, fundings),
    transfers,
)
JSON_COLUMNS = frozenset({"parameters", "engine", "body", "document"})

# What nothing that is compared says again.
SAID_ONCE = {
    # For whom and by what way: usage is divided by it, and no total depends on it.
    *(f"requests.{name}" for name in ("key_id", "project_id", "end_user", "tags", "route")),
    *("requests.replica", "fundings.source", "fundings.position"),
    # Only a replay tells (`tests/property/test_receipt_audit.py`), or nothing does.
    *("requests.prompt", "requests.max_tokens", "request_summaries.body:audit_ppm"),
    *(
        f"request_summaries.body:units.{name}"
        for name in ("index", "byte_start", "byte_end", "sum_logprob", "geo_mean", "min_prob")
    ),
    # Of the engine, what no receipt names.
    *(f"requests.engine:{name}" for name in ("model", "vocab_size", "context_length", "pid")),
    # When something was written, which decides nothing.
    *(
        f"usage_events.{name} of {kind}"
        for name in ("event_time_us", "ingested_at_us")
        for kind in ("block", "energy", "terminal")
        if (name, kind) != ("event_time_us", "terminal")
    ),
    *(f"holds.{name}_at_us" for name in ("expires", "created", "resolved")),
    # The names of bookings, and when value was reserved.
    *(
        f"transfers.{name} of {kind}"
        for name in ("id", "transaction_id", "event_time_us", "booked_at_us")
        for kind in ("hold", "charge", "release")
        if (name, kind) != ("event_time_us", "charge")
    ),
}


def settle(database: Engine, folder: Path) -> None:
    """A request that was settled, and another tenant's."""
    settler = settlement(folder)
    with transaction(database) as opened:
        settler._signer.register(opened)
        for tenant_id in ("ten_1", "ten_2"):
            add_tenant(opened, tenant_id, pays=TERMS)
            request = add_request(
                opened,
                f"req_{tenant_id}",
                tenant_id,
                parameters={"temperature": 0.5, "stop": ["END"]},
                max_cost_nano=10**12,
                end_user="eve",
                tags={"team": "red"},
                project_id="prj_1",
                engine=ENGINE,
                content_salt="ab" * 32,
                replica="main",
            )
            HoldGate().admit(opened, request, expires_at_us=FAR_US)
            final = summary(
                unit(8), unit(2, "fragment"), request_id=request.id, tenant_id=tenant_id
            )
            emit(opened, ended(opened, settler, final))
        assert reconcile(opened).is_clean


def changes(connection: Connection) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Each value that is stored about a request: its name, and the statement that changes it."""
    for table in TABLES:
        key = "id" if table.name == "requests" else "request_id"
        for row in connection.execute(select(table).where(table.c[key] == "req_ten_1")).mappings():
            own = {column.name: row[column.name] for column in table.primary_key}
            where = " AND ".join(f'"{name}" = :own_{name}' for name in own)
            kind = f" of {row['kind']}" if "kind" in row else ""
            for column in table.columns:
                for leaf, changed in changed_values(column, row[column.name]):
                    yield (
                        f"{table.name}.{column.name}{leaf}{kind}",
                        f'UPDATE "{table.name}" SET "{column.name}" = :changed WHERE {where}',
                        {"changed": changed, **{f"own_{name}": own[name] for name in own}},
                    )


def changed_values(column: Column[Any], value: Any) -> Iterator[tuple[str, Any]]:
    """Other values of a column: of JSON, with each of its leaves changed alone."""
    if column.name == "seq":
        return
    if column.name in JSON_COLUMNS and value:
        document = json.loads(value)
        for path in paths(document):
            changed = replaced(document, path, other)
            name = ".".join(str(step) for step in path if isinstance(step, str))
            yield f":{name}", json.dumps(changed, separators=(",", ":"), sort_keys=True)
    elif value is None:
        yield "", 1 if isinstance(column.type, Integer) else "x"
    else:
        yield "", other(value)


def paths(value: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    if isinstance(value, dict) and value:
        for key, part in value.items():
            yield from paths(part, (*path, key))
    elif isinstance(value, list) and value:
        yield from paths(value[0], (*path, 0))
    else:
        yield path


def replaced(value: Any, path: tuple[str | int, ...], by: Callable[[Any], Any]) -> Any:
    if not path:
        return by(value)
    copy = value.copy()
    copy[path[0]] = replaced(value[path[0]], path[1:], by)
    return copy


def other(value: Any) -> Any:
    """Another value of the same kind."""
    match value:
        case None:
            return 1
        case bool():
            return not value
        case int() | float():
            return value + 1
        case str():
            try:
                number = Decimal(value)
            except InvalidOperation:
                return f"{value}x"
            return f"{number + Decimal(1).scaleb(int(number.as_tuple().exponent))}"
        case _:
            return [*value, 1] if isinstance(value, list) else {**value, "x": 1}


def outcome(connection: Connection, statement: str, values: dict[str, Any]) -> str:
    """What comes of one change, which is taken back: "refused", "found" or "unseen"."""
    attempt = connection.begin_nested()
    try:
        connection.execute(text(statement), values)
        return "unseen" if reconcile(connection).is_clean else "found"
    except DBAPIError:
        return "refused"
    finally:
        attempt.rollback()


def test_the_database_refuses_every_change_of_what_is_settled(
    database: Engine, tmp_path: Path
) -> None:
    settle(database, tmp_path)
    with transaction(database) as connection:
        outcomes = {name: outcome(connection, *each) for name, *each in list(changes(connection))}
    assert len(outcomes) > 200
    # Refunds take from what paid, so that may be changed; it is compared with the ledger.
    assert {name: each for name, each in outcomes.items() if each != "refused"} == {
        "fundings.amount_nano": "found"
    }


def test_whoever_removes_the_guards_is_found_by_the_comparison(
    sqlite_database: Engine, tmp_path: Path
) -> None:
    settle(sqlite_database, tmp_path)
    with transaction(sqlite_database) as connection:
        unguard(connection, "usage_events", "request_summaries")
        for guards in (triggers, request_triggers):
            for statement in guards.drop(connection.dialect.name):
                connection.exec_driver_sql(statement)
        outcomes = {name: outcome(connection, *each) for name, *each in list(changes(connection))}
    assert len(outcomes) > 200
    assert {name for name, each in outcomes.items() if each == "unseen"} == SAID_ONCE
