"""Receipts made under load, with drafting on, say to the last digit what a replay alone says.

And whatever is changed afterwards, in the database or in a receipt's copy, a replay finds it.
"""

from __future__ import annotations

import json
import random
import sqlite3
from pathlib import Path

import pytest
from block_models import write_block_dfm
from gateway_process import GatewayHome
from metered_engine import metered_engine, models_home
from tiny_models import TinyShape

from api.auditor import Auditor
from billing import receipts
from engine.config import EngineConfig
from engine.requests import SamplingParams
from metering.database import open_database, snapshot

COUNT = 1000
PROMPTS = ("the and the", "def f(x):", "Hello. And then", '{"a": [1, 2', "SELECT a FROM")


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> GatewayHome:
    """A gateway's state after a thousand requests that ran together, some of them cancelled."""
    chance = random.Random(5)
    folder = tmp_path_factory.mktemp("audited")
    model = write_block_dfm(folder / "tiny.dfm", TinyShape(hidden=64, intermediate=96, heads=4))
    made = models_home(folder / "home", model)
    config = EngineConfig(
        threads=1,
        max_running=24,
        max_waiting=COUNT,
        kv_tokens=4096,
        degrade_policy="never",  # or time would decide how much is drafted
    )
    with metered_engine(made, config) as gateway:
        started = []
        for _ in range(COUNT):
            sampling = SamplingParams(
                temperature=chance.choice((0.0, 0.0, 0.7, 1.3)),
                top_p=chance.choice((1.0, 0.9)),
                seed=chance.randrange(3),
            )
            stop = chance.choice(((), (), ("e",), ("th", "\n")))
            prompt = chance.choice(PROMPTS)
            started.append(gateway.start(prompt, chance.randrange(1, 14), sampling, stop))
            if chance.random() < 0.05:
                gateway.recorder.cancel(started[-1])
        for request_id in started:
            gateway.sink.wait_for(request_id, 60)
        counters = gateway.engine.stats().counters
    assert 100 < counters.accepted_tokens < counters.drafted_nodes
    return made


@pytest.fixture
def copied(home: GatewayHome, tmp_path: Path) -> GatewayHome:
    """The same state, to be tampered with."""
    copy = models_home(tmp_path / "copy", home.model)
    with (
        sqlite3.connect(home.path / "gateway.db") as source,
        sqlite3.connect(copy.path / "gateway.db") as target,
    ):
        source.backup(target)
    return copy


def test_a_thousand_receipts_equal_their_solo_replays_without_drafts(home: GatewayHome) -> None:
    database = open_database(home.resolved_database_url)
    with snapshot(database) as connection:
        auditor = Auditor(connection, home.path)
        ids = list(connection.exec_driver_sql("SELECT id FROM requests").scalars())
        audits = [auditor.audit(request_id) for request_id in ids]
        (tokens,) = connection.exec_driver_sql(
            "SELECT sum(output_tokens) FROM request_summaries"
        ).one()
    database.dispose()
    assert len(audits) == COUNT
    assert [audit.differences for audit in audits if audit.differences] == []
    assert all(audit.exact for audit in audits)
    assert sum(audit.tokens for audit in audits) == tokens > COUNT


TAMPERED = {
    "the text": "UPDATE requests SET output = output || '!' WHERE id = :id",
    "the prompt": 'UPDATE requests SET prompt = \'{"prompt":"the and"}\' WHERE id = :id',
    "the seed": "UPDATE requests SET parameters = json_set(parameters, '$.seed', 77)"
    " WHERE id = :id",
    "a token": "UPDATE usage_events SET body = json_set(body, '$.blocks[0].token_ids[0]', 5)"
    " WHERE request_id = :id AND kind = 'block' AND \"index\" = 0",
    "a score": "UPDATE usage_events SET body = json_set(body, '$.blocks[0].logprobs_unats[0]', -1)"
    " WHERE request_id = :id AND kind = 'block' AND \"index\" = 0",
    "the confidence": "UPDATE request_summaries SET body ="
    " json_set(body, '$.information_ubits', 1) WHERE request_id = :id",
    "a price": "UPDATE receipts SET document ="
    " json_set(document, '$.lines[0].unit_price', '0.01') WHERE request_id = :id",
    "the tariff": "UPDATE tariff_versions SET document = replace(document, '0.05', '0.06')",
}


@pytest.mark.parametrize("what", TAMPERED)
def test_whatever_is_changed_is_found(copied: GatewayHome, what: str) -> None:
    with sqlite3.connect(copied.path / "gateway.db") as raw:
        (request_id,) = raw.execute(
            "SELECT s.request_id FROM request_summaries s JOIN requests r ON r.id = s.request_id"
            " WHERE s.output_tokens > 5 AND s.status = 'completed'"
            " AND json_extract(r.parameters, '$.temperature') > 1 ORDER BY s.request_id"
        ).fetchone()
        for (trigger,) in raw.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'"):
            raw.execute(f"DROP TRIGGER {trigger}")  # no guard but the replay
    database = open_database(copied.resolved_database_url)
    with snapshot(database) as connection:
        assert Auditor(connection, copied.path).audit(request_id).differences == ()
    with sqlite3.connect(copied.path / "gateway.db") as raw:
        statement = TAMPERED[what]
        assert raw.execute(statement, {"id": request_id} if ":id" in statement else {}).rowcount
    with snapshot(database) as connection:
        differences = Auditor(connection, copied.path).audit(request_id).differences
    database.dispose()
    assert any(difference.check.startswith("replayed ") for difference in differences)


def some_request(home: GatewayHome) -> str:
    with sqlite3.connect(home.path / "gateway.db") as raw:
        for (trigger,) in raw.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'"):
            raw.execute(f"DROP TRIGGER {trigger}")
        (request_id,) = raw.execute(
            "SELECT request_id FROM request_summaries WHERE output_tokens > 5"
            " AND status = 'completed' ORDER BY request_id"
        ).fetchone()
        return str(request_id)


@pytest.mark.parametrize("off_unats", [0, 900, 1100])
def test_other_arithmetic_is_held_to_a_tolerance_and_the_rest_is_named(
    copied: GatewayHome, off_unats: int
) -> None:
    """As from an engine that rounds otherwise: the receipt says so, the scores are off by that."""
    request_id = some_request(copied)
    score = "'$.blocks[0].logprobs_unats[0]'"
    with sqlite3.connect(copied.path / "gateway.db") as raw:
        raw.execute(
            "UPDATE receipts SET document = json_set(document, '$.engine.batch_invariant',"
            " json('false')) WHERE request_id = ?",
            (request_id,),
        )
        raw.execute(
            f"UPDATE usage_events SET body = json_set(body, {score},"
            f" json_extract(body, {score}) - {off_unats})"
            " WHERE request_id = ? AND kind = 'block' AND \"index\" = 0",
            (request_id,),
        )
    database = open_database(copied.resolved_database_url)
    with snapshot(database) as connection:
        audit = Auditor(connection, copied.path).audit(request_id)
    database.dispose()
    assert (audit.exact, audit.tolerance_unats) == (False, 1_000)
    named = "replayed log-probability of token 0, in micronats"
    assert (named in {each.check for each in audit.differences}) == (off_unats > 1_000)


def test_a_receipt_of_a_backend_that_is_not_here_is_audited_on_the_one_that_is(
    copied: GatewayHome,
) -> None:
    request_id = some_request(copied)
    with sqlite3.connect(copied.path / "gateway.db") as raw:
        raw.execute(
            "UPDATE receipts SET document = json_set(document, '$.engine.backend', 'npu4')"
            " WHERE request_id = ?",
            (request_id,),
        )
    database = open_database(copied.resolved_database_url)
    with snapshot(database) as connection:
        audit = Auditor(connection, copied.path).audit(request_id)
    database.dispose()
    assert not audit.exact
    assert [each for each in audit.differences if "log-probability" in each.check] == []


def test_what_cannot_be_audited_is_named_and_the_others_are_audited(copied: GatewayHome) -> None:
    damaged = some_request(copied)
    with sqlite3.connect(copied.path / "gateway.db") as raw:
        (whole, headless) = raw.execute(
            "SELECT request_id FROM request_summaries WHERE request_id != ?"
            " AND status = 'completed' ORDER BY request_id LIMIT 2",
            (damaged,),
        ).fetchall()
        raw.execute("UPDATE requests SET parameters = '{' WHERE id = ?", (damaged,))
        raw.execute("DELETE FROM usage_events WHERE kind = 'terminal' AND request_id = ?", headless)
    found = copied.dflash("receipt", "audit", damaged, *whole, *headless, check=False)
    assert found.returncode == 1
    assert f"{damaged}: not audited: what is stored of {damaged} can't be read" in found.stderr
    assert f"{whole[0]}: 0 differences" in found.stdout
    assert f"{headless[0]}: a final request has one terminal event" in found.stdout


def test_a_receipt_that_was_not_issued_here_is_refused(copied: GatewayHome, tmp_path: Path) -> None:
    database = open_database(copied.resolved_database_url)
    with snapshot(database) as connection:
        (request_id,) = connection.exec_driver_sql(
            "SELECT request_id FROM receipts ORDER BY request_id LIMIT 1"
        ).one()
        genuine = receipts.receipt(connection, None, request_id)
    assert genuine is not None
    file = tmp_path / "receipt.json"
    file.write_text(json.dumps(genuine))
    assert "0 differences" in copied.dflash("receipt", "audit", str(file)).stdout
    genuine["receipt"]["total"] = "0"
    file.write_text(json.dumps(genuine))
    refused = copied.dflash("receipt", "audit", str(file), check=False)
    assert refused.returncode == 1
    assert "wrong_hash" in refused.stderr
    with sqlite3.connect(copied.path / "gateway.db") as raw:
        with pytest.raises(sqlite3.IntegrityError, match="never changes"):
            raw.execute("UPDATE requests SET output = 'no' WHERE id = ?", (request_id,))
        raw.execute("DROP TRIGGER requests_final_once")
        raw.execute("UPDATE requests SET output = 'no' WHERE id = ?", (request_id,))
    with snapshot(database) as connection:
        assert Auditor(connection, copied.path).audit(request_id).differences
    database.dispose()
