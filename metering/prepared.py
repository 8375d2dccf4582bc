"""Statements of a request's own path, built once and run on the driver's cursor.

A request runs some eighty of them, and what SQLAlchemy does around each execution takes ten times
as long as SQLite does for it. Their text still comes of SQLAlchemy's statements, and errors are
SQLAlchemy's; its events of cursors are not raised.
"""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter, methodcaller
from typing import Any, TypeAlias

from sqlalchemy import Connection, Delete, Dialect, Insert, Select, Update
from sqlalchemy.exc import ArgumentError, DBAPIError, NoResultFound
from sqlalchemy.sql.compiler import SQLCompiler

Statement: TypeAlias = Select[*tuple[Any, ...]] | Insert | Update | Delete
Values: TypeAlias = Mapping[str, Any]

_ROWS, _ROW, _CHANGED = methodcaller("fetchall"), methodcaller("fetchone"), attrgetter("rowcount")


@dataclass(frozen=True, slots=True)
class _Text:
    """A statement as one driver takes it."""

    sql: str
    fixed: dict[str, Any]  # what the statement says itself
    order: list[str] | None  # of its parameters; null where the driver takes them by name
    read: Callable[[Sequence[Any]], Any]  # a row as a named tuple

    def arguments(self, values: Values) -> dict[str, Any] | list[Any]:
        """All parameters as the driver takes them; raises KeyError for one that is missing."""
        every = {**self.fixed, **values}
        return every if self.order is None else [every[name] for name in self.order]


class Prepared:
    """One statement, or what builds it for a dialect's name. May be run from any thread.

    It runs within its caller's transaction. An INSERT or UPDATE sets the columns that its values
    name; `listed` names the parameter of an IN, whose value is a list. A value that it has no use
    for is an ArgumentError.
    """

    def __init__(
        self, statement: Statement | Callable[[str], Statement], *, listed: str | None = None
    ) -> None:
        self._statement = statement
        self._listed = listed
        self._texts: dict[tuple[str | int, ...], _Text] = {}

    def run(self, connection: Connection, values: Values) -> int:
        """Execute it; the number of rows that it changed."""
        text, values = self._text(connection, values)
        return int(_execute(connection, text, values, _CHANGED))

    def run_each(self, connection: Connection, rows: Sequence[Values]) -> int:
        """Execute it for every one of these, which is one at least; what they changed in all."""
        text, _ = self._text(connection, rows[0])
        return int(_execute(connection, text, rows, _CHANGED))

    def rows(self, connection: Connection, values: Values) -> list[Any]:
        """Every row that it finds, as named tuples."""
        text, values = self._text(connection, values)
        return [text.read(row) for row in _execute(connection, text, values, _ROWS)]

    def row(self, connection: Connection, values: Values) -> Any | None:
        """The first row that it finds, as a named tuple, or null."""
        text, values = self._text(connection, values)
        found = _execute(connection, text, values, _ROW)
        return None if found is None else text.read(found)

    def one(self, connection: Connection, values: Values) -> Any:
        """The row that there must be, as a named tuple; raises NoResultFound."""
        found = self.row(connection, values)
        if found is None:
            raise NoResultFound("no row was found when one was required")
        return found

    def value(self, connection: Connection, values: Values) -> Any | None:
        """The first column of the first row that it finds, or null."""
        found = self.row(connection, values)
        return None if found is None else found[0]

    def _text(self, connection: Connection, values: Values) -> tuple[_Text, Values]:
        count = 0
        if self._listed is not None:
            values, count = _spread(values, self._listed)
        key = (connection.dialect.name, *values)
        text = self._texts.get(key)
        if text is None:
            text = self._texts[key] = self._built(connection.dialect, list(values), count)
        return text, values

    def _built(self, dialect: Dialect, names: list[str], count: int) -> _Text:
        statement = self._statement
        if not isinstance(statement, Select | Insert | Update | Delete):
            statement = statement(dialect.name)
        if isinstance(statement, Insert):
            statement = statement.inline()  # nobody asks for the numbers that rows were given
        columns = names if isinstance(statement, Insert | Update) else None
        made = statement.compile(dialect=dialect, column_keys=columns)
        assert isinstance(made, SQLCompiler), "statements of tables are compiled to SQL"
        shaped: dict[str, Any] = dict.fromkeys(names)
        if self._listed is not None:
            shaped[self._listed] = [""] * count
        state = made.construct_expanded_state(shaped)
        if unknown := set(names) - state.parameters.keys():
            raise ArgumentError(f"no parameter or column of the statement: {sorted(unknown)}")
        fixed = {name: each for name, each in state.parameters.items() if name not in names}
        order = None if state.positiontup is None else list(state.positiontup)
        return _Text(state.statement, fixed, order, _reader(statement, dialect))


def _spread(values: Values, listed: str) -> tuple[Values, int]:
    """A list's members as values of their own, and how many.

    As many as a power of two, the last one repeated: not each length need be a text of its own.
    """
    members = values[listed] or [None]  # which nothing is equal to
    count = 1 << (len(members) - 1).bit_length()
    spread = {name: value for name, value in values.items() if name != listed}
    for place in range(count):
        spread[f"{listed}_{place + 1}"] = members[min(place, len(members) - 1)]
    return spread, count


def _reader(statement: Statement, dialect: Dialect) -> Callable[[Sequence[Any]], Any]:
    columns = list(statement.exported_columns)
    names = [str(column.key) for column in columns]
    row: Any = namedtuple("row", names, rename=True)  # type: ignore[misc]
    converted = [
        (place, convert)
        for place, column in enumerate(columns)
        if (convert := column.type.dialect_impl(dialect).result_processor(dialect, None))
    ]
    if not converted:
        make: Callable[[Sequence[Any]], Any] = row._make
        return make

    def read(stored: Sequence[Any]) -> Any:
        values = list(stored)
        for place, convert in converted:
            values[place] = convert(values[place])
        return row._make(values)

    return read


def _execute(
    connection: Connection,
    text: _Text,
    values: Values | Sequence[Values],
    result: Callable[[Any], Any],
) -> Any:
    if not connection.in_transaction():
        connection.begin()
    dbapi = connection.dialect.loaded_dbapi
    try:
        cursor: Any = connection.connection.cursor()
        try:
            if isinstance(values, Mapping):
                cursor.execute(text.sql, text.arguments(values))
            else:
                cursor.executemany(text.sql, [text.arguments(each) for each in values])
            return result(cursor)
        finally:
            cursor.close()
    except dbapi.Error as error:
        raise DBAPIError.instance(
            text.sql, None, error, dbapi.Error, hide_parameters=True, dialect=connection.dialect
        ) from error
