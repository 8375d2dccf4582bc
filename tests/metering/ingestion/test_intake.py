"""Outside events: each taken once whatever is sent how often, together, late or by two at once."""

from __future__ import annotations

import json
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest
from billing_world import add_tenant
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import Engine, delete, func, select, text
from sqlalchemy.exc import DBAPIError

from billing import outside
from metering import clock
from metering.database import open_database, snapshot, transaction
from metering.ingest_tables import event_ids, outside_usage, outside_waiting
from metering.ingestion import envelopes, intake
from metering.ingestion.benchmark import measure
from metering.ingestion.envelopes import OutsideEvent, Rejection
from metering.ingestion.intake import Result

NOW_US = 1_796_083_200_000_000  # 2026-12-01T00:00:00Z
TENANTS = frozenset({"ten_1", "ten_2"})


def event(number: int = 0, **fields: Any) -> bytes:
    data = {"model": "other", "input_tokens": 10, "output_tokens": 5, "energy_joules": "1.5"}
    attributes = {
        "specversion": "1.0",
        "id": f"event-{number}",
        "source": "vllm/eu",
        "type": "dev.dflash.usage.reported.v1",
        "subject": "ten_1",
        "time": "2026-11-30T12:00:00Z",
        "data": data | fields.pop("data", {}),
    }
    return json.dumps(attributes | fields).encode()


def read(raw: bytes) -> OutsideEvent | Rejection:
    return envelopes.read(raw, source="vllm/eu", tenant_ids=TENANTS, now_us=NOW_US)


def take(database: Engine, *raw: bytes) -> list[Result]:
    return [each.result for each in intake.take(database, "mkey_1", [read(one) for one in raw])]


@pytest.fixture
def house(database: Engine) -> Engine:
    with transaction(database) as connection:
        add_tenant(connection)
        add_tenant(connection, "ten_2")
    return database


def counts(database: Engine) -> list[int]:
    with snapshot(database) as connection:
        return [
            connection.scalar(select(func.count()).select_from(table)) or 0
            for table in (event_ids, outside_usage, outside_waiting)
        ]


def test_a_batch_with_stored_ids_is_answered_event_by_event(house: Engine) -> None:
    assert take(house, event(1), event(2)) == [Result.ACCEPTED] * 2
    answers = take(
        house,
        event(1),
        event(2, data={"output_tokens": 6}),
        event(3),
        event(3),
        event(3, data={"input_tokens": 0}),
        event(4, subject="ten_9"),
        b"{",
        event(1, subject="ten_2"),
    )
    assert answers == [
        Result.DUPLICATE,
        Result.CONFLICT,
        Result.ACCEPTED,
        Result.DUPLICATE,
        Result.CONFLICT,
        Result.REJECTED,
        Result.REJECTED,
        Result.ACCEPTED,  # another tenant's id is another id
    ]
    assert counts(house) == [4, 4, 4]


def test_a_crash_between_the_id_and_its_usage_leaves_neither(
    house: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    with transaction(house) as connection:
        connection.execute(text("DROP TABLE outside_waiting"))
    with pytest.raises((DBAPIError, psycopg.Error)):
        take(house, event(1))
    with snapshot(house) as connection:
        assert connection.scalar(select(func.count()).select_from(event_ids)) == 0
        assert connection.scalar(select(func.count()).select_from(outside_usage)) == 0


def test_two_senders_of_the_same_events_store_them_once(house: Engine) -> None:
    start = threading.Barrier(4)

    def send(turn: int) -> list[Result]:
        start.wait()
        numbers = range(40) if turn % 2 else reversed(range(40))
        return take(house, *(event(number) for number in numbers))

    with ThreadPoolExecutor(4) as pool:
        results = Counter(found for each in pool.map(send, range(4)) for found in each)
    assert results == {Result.ACCEPTED: 40, Result.DUPLICATE: 120}
    assert counts(house) == [40, 40, 40]


@pytest.mark.parametrize(
    ("time", "before_us"),
    [
        ("2026-11-30T23:59:59.9999999Z", 1),
        ("2026-11-30T23:59:59.99999900000000000000001Z", 1),
        ("2026-11-30T18:59:59.1234567-05:00", 876_544),
        ("2026-11-30T23:59:60Z", 1),
        ("2026-12-01T00:59:60.75+01:00", 1),
    ],
)
def test_a_time_finer_than_a_microsecond_stays_in_its_month(time: str, before_us: int) -> None:
    found = read(event(time=time))
    assert isinstance(found, OutsideEvent)
    assert found.event_time_us == NOW_US - before_us


def test_late_events_keep_both_times_and_reach_any_month(
    house: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clock, "now_us", lambda: NOW_US)
    months = ["2026-11-30T23:59:59.999999Z", "2026-12-01T00:00:00+02:00", "2025-12-31T23:00:00Z"]
    assert take(house, *(event(n, time=at) for n, at in enumerate(months))) == [Result.ACCEPTED] * 3
    with snapshot(house) as connection:
        rows = connection.execute(
            select(outside_usage.c.event_time_us, outside_usage.c.ingested_at_us)
        ).all()
        assert all(ingested > happened for happened, ingested in rows)
        if house.dialect.name == "postgresql":
            query = "SELECT count(*) FROM pg_inherits WHERE inhparent = 'outside_usage'::regclass"
            assert connection.scalar(text(query)) == 2
    with transaction(house) as connection:
        connection.execute(delete(outside_waiting))
        # SQLite drops one event, PostgreSQL its month.
        assert outside.forget_detail(connection, NOW_US + 70 * 86_400 * 10**6) == 1
        assert connection.scalar(select(func.count()).select_from(outside_usage)) == 2
    # The id outlives its detail: a replay is still a replay.
    assert take(house, event(2, time=months[2])) == [Result.DUPLICATE]


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"source": "engine"}, "source"),
        ({"subject": "ten_3"}, "tenant"),
        ({"specversion": "0.3"}, "specversion"),
        ({"type": "com.example"}, "type"),
        ({"id": ""}, "id"),
        ({"id": "a b"}, "id"),
        ({"id": "x" * 129}, "id"),
        ({"time": "2026-12-01T00:05:01Z"}, "ahead"),
        ({"time": "2025-10-01T00:00:00Z"}, "ago"),
        ({"time": "2026-11-30T12:00:00"}, "time"),
        ({"time": "2026-11-30T12:00:60Z"}, "time"),
        ({"time": "2026-11-30T12:59:60Z"}, "leap second"),
        ({"time": "9999-12-31T23:59:59-12:00"}, "time"),
        ({"time": 1_796_083_199}, "time"),
        ({"time": None}, "time"),
        ({"data": {"input_tokens": -1}}, "input_tokens"),
        ({"data": {"output_tokens": None}}, "output_tokens"),
        ({"data": {"output_tokens": 10**8 + 1}}, "output_tokens"),
        ({"data": {"energy_joules": 1.5}}, "energy_joules"),
        ({"data": {"energy_joules": "1e3"}}, "energy_joules"),
        ({"data": {"energy_joules": "10000000"}}, "energy_joules"),
        ({"data": {"colour": "red"}}, "colour"),
        ({"data": {"project_id": "p" * 65}}, "project_id"),
        ({"data": {"tags": {str(n): "x" for n in range(17)}}}, "tags"),
    ],
)
def test_what_is_wrong_with_an_event_is_said(fields: dict[str, Any], reason: str) -> None:
    found = read(event(**fields))
    assert isinstance(found, Rejection)
    assert reason in found.reason


def test_zero_is_zero_and_missing_is_missing() -> None:
    zero, missing = (
        read(event(data={"energy_joules": "0"})),
        read(event(data={"energy_joules": None})),
    )
    assert isinstance(zero, OutsideEvent)
    assert isinstance(missing, OutsideEvent)
    assert envelopes.usage_of(zero.body).energy_uj == 0
    assert envelopes.usage_of(missing.body).energy_uj is None


@given(joules=st.integers(0, 10**13 - 1), places=st.integers(0, 6))
def test_reported_joules_are_exact(joules: int, places: int) -> None:
    whole, part = divmod(joules, 10**6)
    written = f"{whole}.{part:06d}"[: len(f"{whole}.") + places].rstrip(".")
    expected = whole * 10**6 + int(f"{part:06d}"[:places].ljust(6, "0"))
    found = read(event(data={"energy_joules": written}))
    assert isinstance(found, OutsideEvent)
    assert envelopes.usage_of(found.body).energy_uj == expected


def test_the_benchmark_stores_what_it_says_it_stores(database_url: str) -> None:
    figures = measure(lambda _: None, events=40, batch=15, folder=None, url=database_url)
    assert (figures["events"], figures["batch"]) == (40, 15)
    opened = open_database(database_url)
    assert counts(opened) == [40, 40, 40]
    opened.dispose()


@pytest.mark.parametrize("character", ["\n", "\x00", "\x1f", "\x7f"])
def test_a_text_with_a_control_character_is_not_taken(character: str) -> None:
    for data in (
        {"model": f"a{character}b"},
        {"end_user": f'\\"{character}'},
        {"tags": {"team": character}},
        {"tags": {character: "team"}},
    ):
        answer = read(event(data=data))
        assert isinstance(answer, Rejection)
        assert "control characters" in answer.reason


# What ends a line, or turns it round.
TURNING = "".join(map(chr, [*range(0x2028, 0x202F), *range(0x2066, 0x206A)]))
WORDS = st.characters(exclude_categories=["Cc", "Cs"], exclude_characters=TURNING)


@pytest.mark.parametrize("turning", TURNING)
def test_a_text_that_turns_its_line_round_is_refused(turning: str) -> None:
    for data in ({"model": turning}, {"tags": {f"a{turning}": "b"}}, {"end_user": f"{turning}a"}):
        assert isinstance(read(event(data=data)), Rejection)


@given(st.text(WORDS, min_size=1, max_size=20))
def test_any_other_text_is_taken_as_it_is(text: str) -> None:
    answer = read(event(data={"model": text, "tags": {text: text}}))
    assert isinstance(answer, OutsideEvent)
    used = envelopes.usage_of(answer.body)
    assert (used.model, used.tags) == (text, {text: text})
