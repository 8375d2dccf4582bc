"""Quantities of rated lines, which are stored as decimal text, added up exactly in SQL."""

from __future__ import annotations

from typing import Any

from sqlalchemy import BigInteger, Column, ColumnElement, Connection, Numeric, case, cast, func

MILLION = 1_000_000
INT64_MIN = -(2**63)
WHOLE_MAX = (2**63 - 1) // MILLION - 1  # so many units are an int64 of millionths


def millionths(connection: Connection, quantity: Column[str]) -> ColumnElement[Any]:
    """A decimal column in whole millionths, ties away from zero: the same on both databases.

    Where it comes to no int64, the statement fails: SQLite would go on in floats, whose sums it
    rounds, and cut off at the largest int64.
    """
    if connection.dialect.name == "postgresql":
        return func.round(cast(quantity, Numeric) * MILLION)
    whole = cast(quantity, BigInteger)  # of what stands before the point; beyond an int64, its end
    point = func.instr(quantity, ".")
    places = func.substr(quantity, point + 1).op("||")("0000000")
    is_more = case((func.substr(places, 7, 1) >= "5", 1), else_=0)
    fraction = cast(func.substr(places, 1, 6), BigInteger) + is_more
    return case(
        (~whole.between(-WHOLE_MAX, WHOLE_MAX), func.abs(whole * 0 + INT64_MIN)),  # has none
        (point == 0, whole * MILLION),
        (func.substr(quantity, 1, 1) == "-", whole * MILLION - fraction),
        else_=whole * MILLION + fraction,
    )
