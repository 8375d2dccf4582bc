"""What the database refuses to whoever asks: the code is not the only one with a connection."""

from __future__ import annotations

from pathlib import Path

import pytest
from billing_cases import summary
from billing_world import FAR_US, add_request, add_tenant, ended, settlement
from sqlalchemy import Connection, Engine, text
from sqlalchemy.exc import IntegrityError

from billing import review
from billing.gate import HoldGate
from billing.ledger import holds
from billing.receipts import Signer
from metering.database import transaction


@pytest.fixture
def booked(database: Engine, tmp_path: Path) -> Engine:
    """A database in which everything has happened once."""
    settler = settlement(tmp_path)
    signer: Signer = settler._signer
    with transaction(database) as connection:
        add_tenant(connection)
        request = add_request(connection)
        HoldGate().admit(connection, request, expires_at_us=FAR_US)
        ended(connection, settler, summary(review_reason="audit"))
        token = review.claim(connection, "rev_req_1", "key_anna")
        review.resolve(
            connection,
            "rev_req_1",
            "key_anna",
            token,
            verdict="reject",
            reasons=["unsafe"],
            signer=signer,
        )
    return database


@pytest.mark.parametrize("table", ["transfers", "rated_lines", "receipts", "adjustments"])
@pytest.mark.parametrize("change", ["DELETE FROM {}", "UPDATE {} SET tenant_id = 'ten_2'"])
def test_what_was_booked_is_neither_changed_nor_deleted(
    booked: Engine, table: str, change: str
) -> None:
    if table == "transfers":
        change = change.replace("tenant_id = 'ten_2'", "amount_nano = 1")
    with transaction(booked) as connection:
        count = connection.scalar(text(f"SELECT count(*) FROM {table}"))
    assert count
    with pytest.raises(IntegrityError, match="append-only"), transaction(booked) as connection:
        connection.execute(text(change.format(table)))
    with transaction(booked) as connection:
        assert connection.scalar(text(f"SELECT count(*) FROM {table}")) == count


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE tariff_versions SET document = '{}'",
        "UPDATE tariff_versions SET effective_from_us = 1",
        "DELETE FROM tariff_versions",
    ],
)
def test_published_terms_never_change(booked: Engine, change: str) -> None:
    with pytest.raises(IntegrityError, match="tariff version"), transaction(booked) as connection:
        connection.execute(text(change))


def test_a_version_may_still_end(booked: Engine) -> None:
    with transaction(booked) as connection:
        connection.execute(text("UPDATE tariff_versions SET effective_to_us = 5"))


def test_a_resolved_hold_never_changes(booked: Engine) -> None:
    with pytest.raises(IntegrityError, match="hold"), transaction(booked) as connection:
        connection.execute(text("UPDATE holds SET state = 'pending', resolved_at_us = NULL"))


def overdraw(connection: Connection, kind: str) -> None:
    connection.execute(
        text("UPDATE accounts SET debits_nano = credits_nano + 1 WHERE kind = :kind"),
        {"kind": kind},
    )


@pytest.mark.parametrize("kind", ["tenant_credit", "holds"])
def test_no_statement_overdraws_a_guarded_account(booked: Engine, kind: str) -> None:
    with pytest.raises(IntegrityError), transaction(booked) as connection:
        overdraw(connection, kind)


def test_a_hold_never_posts_more_than_itself(booked: Engine) -> None:
    with transaction(booked) as connection:
        add_request(connection, "req_2")
        holds.place(
            connection,
            request_id="req_2",
            tenant_id="ten_1",
            currency="USD",
            amount_nano=10,
            ceiling_nano=None,
            expires_at_us=FAR_US,
        )
    with pytest.raises(IntegrityError), transaction(booked) as connection:
        connection.execute(text("UPDATE holds SET posted_nano = 11 WHERE request_id = 'req_2'"))
