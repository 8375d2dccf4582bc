"""The right to serve a database outlives the connection that it was taken with."""

from __future__ import annotations

import pytest
from sqlalchemy import Engine, text
from sqlalchemy.exc import DBAPIError

from api.errors import AlreadyServed
from api.tenure import Tenure

OTHERS = text(
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
    " WHERE datname = current_database() AND pid <> pg_backend_pid()"
)


def break_connections(database: Engine) -> None:
    with database.connect() as connection:
        connection.execute(OTHERS)


def test_one_gateway_serves_a_database_until_it_gives_it_back(database: Engine) -> None:
    first, second = Tenure(database), Tenure(database)
    first.take()
    first.keep()
    with pytest.raises(AlreadyServed):
        second.take()
    first.release()
    first.keep()
    second.take()
    second.release()


def test_a_gateway_whose_connection_broke_takes_its_right_anew(postgres_database: Engine) -> None:
    first, second = Tenure(postgres_database), Tenure(postgres_database)
    first.take()
    break_connections(postgres_database)
    first.keep()
    with pytest.raises(AlreadyServed):
        second.take()
    first.release()
    second.take()
    second.release()


def test_a_gateway_that_was_too_late_goes_on_trying(
    postgres_database: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = Tenure(postgres_database), Tenure(postgres_database)
    first.take()
    break_connections(postgres_database)
    second.take()
    with pytest.raises(AlreadyServed):
        first.keep()
    second.release()
    with monkeypatch.context() as away:
        refused = DBAPIError("connect", {}, Exception("refused"))
        away.setattr(Tenure, "_take_session_lock", lambda _self: (_ for _ in ()).throw(refused))
        with pytest.raises(DBAPIError):
            first.keep()
    first.keep()
    with pytest.raises(AlreadyServed):
        second.take()
    first.release()
