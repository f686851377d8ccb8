"""Tables and queries of SQLite, which are read by a connection that cannot write."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Container, Sequence
from contextlib import closing
from pathlib import Path
from urllib.parse import quote

import polars as pl

from data_prep.base.errors import InputError, Words, some
from data_prep.base.limits import check_size
from data_prep.readers.formats import FIELD, ROW, Format, Part, check_columns, table_of
from data_prep.readers.options import TableOptions
from data_prep.readers.table import Table

ROWS = 2**16
"""Rows that are fetched at a time."""

READING = {
    sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION, sqlite3.SQLITE_RECURSIVE,
}  # fmt: skip
"""Actions that a query may take; others, such as to attach a file, are refused."""


class Sqlite(Format):
    """A database of SQLite: its only table, or the result of `--query`."""

    name, how = "sqlite", "as a database of SQLite"
    suffixes = beside = (".db", ".sqlite", ".sqlite3")
    begins = re.compile(rb"\ASQLite format 3\0")

    @classmethod
    def read(cls, part: Part, options: TableOptions, keys: Container[str]) -> Table:
        """Read the rows of the query.

        Raises:
            InputError: if no query is given and there are several tables, or the query fails.
        """
        url = f"file:{quote(str(part.path.absolute()))}?mode=ro"
        with closing(sqlite3.connect(url, uri=True)) as database:
            query = options.query or _only_table(database, part.path)
            database.set_authorizer(
                lambda action, *_: sqlite3.SQLITE_OK if action in READING else sqlite3.SQLITE_DENY
            )
            try:
                return table_of(part, _result(database.execute(query), part.path))
            except sqlite3.Error as e:
                remedy = Words("give a {query} that selects rows")
                raise InputError(f"{part.path.name}: the query fails ({e}); ", remedy) from e


def _only_table(database: sqlite3.Connection, path: Path) -> str:
    """Return the query of all rows of the only table or view."""
    of_users = "type IN ('table', 'view') AND name NOT LIKE 'sqlite\\_%' ESCAPE '\\'"
    found = database.execute(f"SELECT name FROM sqlite_master WHERE {of_users} ORDER BY name")
    queries = ['SELECT * FROM "{}"'.format(name.replace('"', '""')) for (name,) in found]
    if len(queries) != 1:
        names = some([query.removeprefix("SELECT * FROM ") for query in queries], 8)
        raise InputError(
            f"{path.name}: {len(queries)} tables: {names or 'none'}; ",
            Words("say what to read, such as {query}", query=(queries or ["SELECT …"])[0]),
        )
    return queries[0]


def _result(cursor: sqlite3.Cursor, path: Path) -> pl.DataFrame:
    """Return all rows of a query; a column of several types is text."""
    names = [str(name) for name, *_ in cursor.description or ()]
    check_columns(len(names), path.name)
    if len({*names}) < len(names):
        raise InputError(f"{path.name}: two columns have one name; name them apart by AS")
    rows: list[Sequence[object]] = []
    while some_rows := cursor.fetchmany(ROWS):
        rows += some_rows
        check_size(len(rows) * (ROW + 4 * FIELD * len(names)), f"{path.name}: the query's rows")
    return pl.DataFrame(rows, names, orient="row", infer_schema_length=None, strict=False)
