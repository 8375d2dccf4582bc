"""One stored value that can't be read doesn't end the comparison: it is named, and all else is
compared as before.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from billing_cases import ENGINE, summary, tariff, unit
from billing_world import FAR_US, add_request, add_tenant, emit, ended, settlement
from click.testing import CliRunner
from sqlalchemy import Connection, Engine, String, Text, select, text
from sqlalchemy.exc import IntegrityError
from unguarded import unguard

from billing import receipt_audit, refunds, request_triggers, triggers
from billing.errors import CannotAudit
from billing.gate import HoldGate
from billing.periods import containing, preceding
from billing.reconciliation import Scope, reconcile
from billing.reconciliation_cli import reconcile as command
from billing.request_evidence import of_request
from billing.tables import adjustments, rated_lines, receipts, tariff_versions
from metering.cli_context import CliContext
from metering.database import transaction
from metering.tables import request_summaries, requests, usage_events

TENANTS = ("ten_1", "ten_2")
# What is read as something else than text, by its table.
READ = {
    requests: ("parameters", "engine", "status", "ended_at_us"),
    usage_events: ("body", "kind"),
    request_summaries: ("body", "ended_at_us", "energy_class"),
    rated_lines: ("component", "quantity", "unit_price", "amount_nano"),
    receipts: ("document", "signature", "kid", "total_nano"),
    adjustments: ("document", "amount_nano"),
}
VALUES = ("{", "[]", "null", "7", '{"x": NaN}', "", "\U0001f4a5")
HUGE = (2**62, -(2**62))


@pytest.fixture
def settled(database: Engine, tmp_path: Path) -> Engine:
    """A request of each of two tenants, settled and partly refunded; nothing guards them."""
    settler = settlement(tmp_path)
    with transaction(database) as opened:
        settler._signer.register(opened)
        for tenant_id in TENANTS:
            pays = tariff(name=tenant_id.replace("_", "-"), output={"per_million": "40"})
            add_tenant(opened, tenant_id, pays=pays)
            request = add_request(opened, f"req_{tenant_id}", tenant_id, engine=ENGINE)
            HoldGate().admit(opened, request, expires_at_us=FAR_US)
            final = summary(
                unit(8), unit(2, "fragment"), request_id=request.id, tenant_id=tenant_id
            )
            emit(opened, ended(opened, settler, final))
            refunds.correct(
                opened,
                settler._signer,
                tenant_id=tenant_id,
                request_id=request.id,
                amount_nano=1000,
                reference="ticket",
                reason="slow",
            )
        assert reconcile(opened).is_clean
        unguard(opened, "usage_events", "request_summaries")
        for guards in (triggers, request_triggers):
            for statement in guards.drop(opened.dialect.name):
                opened.exec_driver_sql(statement)
    return database


def broken(connection: Connection) -> Iterator[str]:
    """Break one value of `ten_1`'s request after the other; the name of each while it is broken."""
    for table, names in READ.items():
        key = "id" if table is requests else "request_id"
        for row in connection.execute(select(table).where(table.c[key] == "req_ten_1")).mappings():
            own = {column.name: row[column.name] for column in table.primary_key}
            where = " AND ".join(f'"{name}" = :own_{name}' for name in own)
            for name in names:
                is_text = isinstance(table.c[name].type, (String, Text))
                for value in VALUES if is_text else HUGE:
                    given = {"value": value, **{f"own_{each}": own[each] for each in own}}
                    attempt = connection.begin_nested()
                    statement = f'UPDATE "{table.name}" SET "{name}" = :value WHERE {where}'
                    try:
                        connection.execute(text(statement), given)
                    except IntegrityError:
                        attempt.rollback()  # it can't be stored at all
                        continue
                    yield f"{table.name}.{name} = {value!r}"
                    attempt.rollback()


def test_whatever_cannot_be_read_is_named_and_all_else_is_compared(settled: Engine) -> None:
    with transaction(settled) as connection:
        count = 0
        for name in broken(connection):
            count += 1
            found = reconcile(connection)
            subjects = {each.subject for each in found.differences}
            assert "req_ten_1" in subjects, name
            assert "req_ten_2" not in subjects, name
            assert reconcile(connection, Scope("ten_2")).is_clean, name
            assert not reconcile(connection, Scope("ten_1")).is_clean, name
    assert count > 50


def test_a_period_names_what_cannot_be_read_of_it(settled: Engine) -> None:
    with transaction(settled) as connection:
        ended_at_us = connection.scalar(
            select(requests.c.ended_at_us).where(requests.c.id == "req_ten_1")
        )
        assert ended_at_us is not None
        label = containing(ended_at_us, "UTC").label
        for table in (usage_events, request_summaries):
            attempt = connection.begin_nested()
            where = table.c.request_id == "req_ten_1"
            connection.execute(table.update().where(where).values(body="{"))
            named = reconcile(connection, Scope(period=label)).differences
            assert {each.subject for each in named} == {"req_ten_1"}, table.name
            assert {each.check for each in named} == {"what is stored can be read"}, table.name
            assert reconcile(connection, Scope(period=preceding(label))).is_clean, table.name
            attempt.rollback()


def test_a_tariff_that_cannot_be_read_is_named_by_who_paid_it(settled: Engine) -> None:
    with transaction(settled) as connection:
        own = tariff_versions.c.tariff == "ten-1"
        connection.execute(tariff_versions.update().where(own).values(document="{"))
        assert {each.subject for each in reconcile(connection).differences} == {"req_ten_1"}


def test_the_command_names_it_and_says_that_not_all_is_well(
    settled: Engine, tmp_path: Path
) -> None:
    with transaction(settled) as connection:
        where = receipts.c.request_id == "req_ten_1"
        connection.execute(receipts.update().where(where).values(document="{"))
    context = CliContext(tmp_path, settled.url.render_as_string(hide_password=False))
    done = CliRunner().invoke(command, ["--offline"], obj=context)
    assert done.exit_code == 1
    assert "req_ten_1: what is stored can be read" in done.output


def test_what_cannot_be_read_cannot_be_audited(settled: Engine) -> None:
    with transaction(settled) as connection:
        where = request_summaries.c.request_id == "req_ten_1"
        connection.execute(request_summaries.update().where(where).values(body="{"))
        evidence = of_request(connection, "req_ten_1")
    assert evidence is not None
    with pytest.raises(CannotAudit, match="can't be read: summary"):
        receipt_audit.stated(evidence)
