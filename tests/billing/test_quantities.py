"""Quantities in whole millionths: exact on both databases, or refused."""

from __future__ import annotations

from decimal import ROUND_HALF_UP, Decimal

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from sqlalchemy import Column, Engine, MetaData, String, Table, func, insert, select
from sqlalchemy.exc import DBAPIError

from billing.money import plain
from billing.quantities import WHOLE_MAX, millionths
from metering.database import transaction

table = Table("quantities", MetaData(), Column("quantity", String(40)))
quantities = st.decimals(-WHOLE_MAX, WHOLE_MAX, places=9) | st.integers(-(10**6), 10**6).map(
    Decimal
)


@pytest.mark.parametrize("shared_database", ["sqlite", "postgresql"], indirect=True)
@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.lists(quantities, min_size=1, max_size=4))
@example([Decimal("-0.5"), Decimal("0.0000005"), Decimal("9007199254.740993")])
def test_a_sum_is_that_of_the_decimals(shared_database: Engine, wanted: list[Decimal]) -> None:
    each = [(q * 10**6).to_integral_value(ROUND_HALF_UP) for q in wanted]
    if abs(sum(map(abs, each))) < 2**63:
        assert summed(shared_database, wanted) == sum(each)


@pytest.mark.parametrize("too_much", ["9" * 13, "9" * 30, "-" + "9" * 20, "9" * 13 + ".5"])
def test_what_no_int64_holds_is_refused_by_sqlite(sqlite_database: Engine, too_much: str) -> None:
    with pytest.raises(DBAPIError):
        summed(sqlite_database, [Decimal(1), Decimal(too_much), Decimal(1)])


def summed(database: Engine, wanted: list[Decimal]) -> int:
    with transaction(database) as connection:
        table.create(connection, checkfirst=True)
        connection.execute(table.delete())
        connection.execute(insert(table), [{"quantity": plain(each)} for each in wanted])
        total = connection.scalar(select(func.sum(millionths(connection, table.c.quantity))))
        assert total is not None
        return int(total)
