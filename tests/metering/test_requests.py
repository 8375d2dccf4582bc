"""The row of a request, from admission to its one final state, on both databases."""

from __future__ import annotations

import msgspec
import pytest
from metering_cases import add_tenant, admitted_request
from sqlalchemy import Engine, select

from engine.records import FinishReason
from metering import requests
from metering.database import snapshot, transaction
from metering.errors import UnknownRequest
from metering.events import EndedBy, RequestStatus, RequestSummary
from metering.request_meter import RequestMeter
from metering.review_rule import ReviewRule
from metering.tables import requests as requests_table


def summary_of(request_id: str, status: RequestStatus) -> RequestSummary:
    meter = RequestMeter(admitted_request(request_id), ReviewRule(0.0))
    end = meter.terminal(status, FinishReason.ERROR, EndedBy.OPERATOR)
    return meter.summary(end, 9)


@pytest.fixture
def admitted(database: Engine) -> Engine:
    with transaction(database) as connection:
        add_tenant(connection)
        for name in ("req_1", "req_2"):
            requests.admit(connection, admitted_request(name))
    return database


def statuses(database: Engine) -> dict[str, str]:
    with snapshot(database) as connection:
        rows = connection.execute(select(requests_table.c.id, requests_table.c.status))
        return {row.id: row.status for row in rows}


def test_what_was_admitted_is_read_back(admitted: Engine) -> None:
    with snapshot(admitted) as connection:
        live = requests.live(connection)
    assert live == [admitted_request("req_1"), admitted_request("req_2")]


def test_a_nul_in_a_prompt_is_stored(database: Engine) -> None:
    request = msgspec.structs.replace(admitted_request(), prompt=["a\0b"], tags=None)
    with transaction(database) as connection:
        add_tenant(connection)
        requests.admit(connection, request)
    with snapshot(database) as connection:
        assert requests.live(connection) == [request]


def test_running_follows_admitted_only(admitted: Engine) -> None:
    with transaction(admitted) as connection:
        requests.finalise(connection, summary_of("req_1", RequestStatus.FAILED), "")
        requests.mark_running(connection, ["req_1", "req_2"])
    assert statuses(admitted) == {"req_1": "failed", "req_2": "running"}


def test_a_final_request_is_no_longer_live_and_ends_once(admitted: Engine) -> None:
    with transaction(admitted) as connection:
        requests.finalise(connection, summary_of("req_1", RequestStatus.REFUSED), "")
    with snapshot(admitted) as connection:
        assert [each.id for each in requests.live(connection)] == ["req_2"]
    for request_id in ("req_1", "never admitted"):
        with pytest.raises(UnknownRequest), transaction(admitted) as connection:
            requests.finalise(connection, summary_of(request_id, RequestStatus.FAILED), "")


def test_only_a_final_status_is_final(admitted: Engine) -> None:
    with pytest.raises(ValueError, match="not a final status"), transaction(admitted) as connection:
        requests.finalise(connection, summary_of("req_1", RequestStatus.RUNNING), "")
