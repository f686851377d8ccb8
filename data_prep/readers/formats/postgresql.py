"""A query of PostgreSQL, or of Timescale, in a file that names the database but no password.

The first line names the database, such as `-- postgresql://host/traffic`. The password comes from
`PGPASSWORD` or `~/.pgpass`, see https://www.postgresql.org/docs/current/libpq-pgpass.html.
"""

from __future__ import annotations

from collections.abc import Container
from urllib.parse import urlsplit

import polars as pl

from data_prep.base.errors import InputError, needing
from data_prep.readers.formats import Format, Part, table_of
from data_prep.readers.options import TableOptions
from data_prep.readers.table import Table


class PostgreSql(Format):
    """A query of PostgreSQL below a line with the URL of its database."""

    name, how, suffixes = "postgresql", "as a query of PostgreSQL", (".sql",)
    beside = suffixes

    @classmethod
    def read(cls, part: Part, options: TableOptions, keys: Container[str]) -> Table:
        """Read the rows of a query in a transaction that cannot write.

        Raises:
            InputError: if the first line names no database or holds a password, or the query fails.
        """
        name = part.path.name
        first, _, query = part.path.read_text(encoding="utf-8").partition("\n")
        url = first.removeprefix("--").strip()
        if not url.startswith(("postgresql://", "postgres://")):
            raise InputError(
                f"{name}: its first line names no database; write -- postgresql://HOST/DATABASE "
                "there, and the query below"
            )
        if urlsplit(url).password or "password" in urlsplit(url).query:
            raise InputError(
                f"{name}: its first line holds a password; write it into ~/.pgpass or set "
                "PGPASSWORD, and remove it there"
            )
        with needing("sql", "a query of PostgreSQL needs adbc-driver-postgresql"):
            from adbc_driver_postgresql import dbapi
        try:
            with dbapi.connect(url) as database, database.cursor() as cursor:
                cursor.execute("SET TRANSACTION READ ONLY")
                cursor.execute(query)
                found = pl.DataFrame(cursor.fetch_arrow())
        except dbapi.Error as e:
            raise InputError(f"{name}: {str(e).strip()}; correct the query or the database") from e
        exact = [c.ext.storage() for c in found if isinstance(c.dtype, pl.BaseExtension)]
        return table_of(part, found.with_columns(c.cast(pl.Float64, strict=False) for c in exact))
