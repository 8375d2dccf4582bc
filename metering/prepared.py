"""Statements of a request's own path, built once and run on the driver's cursor.

A request runs some eighty of them, and what SQLAlchemy does around each execution takes ten times
as long as SQLite does for it. Their text still comes of SQLAlchemy's statements, and errors are
SQLAlchemy's; its events of cursors are not raised.
"""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from operator import attrgetter, itemgetter, methodcaller
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
    picked: Callable[[Values], Any]  # parameters as the driver takes them, by name or in order
    read: Callable[[Sequence[Any]], Any]  # a row as a named tuple

    def arguments(self, values: Values) -> Any:
        """All parameters as the driver takes them; raises KeyError for one that is missing."""
        return self.picked({**self.fixed, **values} if self.fixed else values)


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
        return int(_execute(connection, text.sql, text.arguments(values), _CHANGED))

    def run_each(self, connection: Connection, rows: Sequence[Values]) -> int:
        """Execute it for every one of these, which is one at least; what they changed in all."""
        text, _ = self._text(connection, rows[0])
        arguments = [text.arguments(row) for row in rows]
        return int(_execute(connection, text.sql, arguments, _CHANGED, is_each=True))

    def rows(self, connection: Connection, values: Values) -> list[Any]:
        """Every row that it finds, as named tuples."""
        text, values = self._text(connection, values)
        found = _execute(connection, text.sql, text.arguments(values), _ROWS)
        return [text.read(row) for row in found]

    def row(self, connection: Connection, values: Values) -> Any | None:
        """The first row that it finds, as a named tuple, or null."""
        text, values = self._text(connection, values)
        found = _execute(connection, text.sql, text.arguments(values), _ROW)
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
        picked = _picking(state.positiontup)
        return _Text(state.statement, fixed, picked, _reader(statement, dialect))


def _picking(order: Sequence[str] | None) -> Callable[[Values], Any]:
    """What puts parameters in order; as they are where the driver takes them by name."""
    if order is None:
        return dict
    if len(order) > 1:
        return itemgetter(*order)
    return lambda values: tuple([values[name] for name in order])


def _spread(values: Values, listed: str) -> tuple[Values, int]:
    """A list's members as values of their own, and how many.

    As many as a power of two, the last one repeated: not each length need be a text of its own.
    """
    spread = dict(values)
    members = spread.pop(listed) or [None]  # which nothing is equal to
    count = 1 << (len(members) - 1).bit_length()
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
    make: Callable[[Sequence[Any]], Any] = partial(tuple.__new__, row)  # `_make`, without a check
    if not converted:
        return make

    def read(stored: Sequence[Any]) -> Any:
        values = list(stored)
        for place, convert in converted:
            values[place] = convert(values[place])
        return make(values)

    return read


def _execute(
    connection: Connection,
    sql: str,
    arguments: Any,
    result: Callable[[Any], Any],
    *,
    is_each: bool = False,
) -> Any:
    if not connection.in_transaction():
        connection.begin()
    try:
        driver: Any = connection.connection.dbapi_connection
        cursor = driver.cursor()
        try:
            if is_each:
                cursor.executemany(sql, arguments)
            else:
                cursor.execute(sql, arguments)
            return result(cursor)
        finally:
            cursor.close()
    except connection.dialect.loaded_dbapi.Error as error:
        dialect = connection.dialect
        known = dialect.loaded_dbapi.Error
        raise DBAPIError.instance(
            sql, None, error, known, hide_parameters=True, dialect=dialect
        ) from error
