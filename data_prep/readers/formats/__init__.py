"""Formats of files that hold tables: a new one is a class in a module of this package, or of yours.

A format is recognised by the ends of names and, if several share one, by how a file begins.
"""

from __future__ import annotations

import gzip
import io
import re
from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, ClassVar, cast

import polars as pl

from data_prep.base.errors import InputError
from data_prep.base.limits import read_expanded
from data_prep.base.registry import Registry, is_named
from data_prep.readers.options import TableOptions
from data_prep.readers.origin import Origin
from data_prep.readers.table import Table

BEGIN = 2**14
"""Bytes at the begin of a file by which it is recognised; a month has thousands of files."""

MAX_COLUMNS = 20_000  # twice the cells of Milan; the parser needs kilobytes for each
ROW, FIELD = 32, 16  # minimum bytes of memory for each while a table is read


@dataclass(frozen=True)
class Part:
    """What holds one table: a file, a member of a zip, or a sheet of a workbook.

    Attributes:
        name: name of the part.
        path: the file.
        content: what is read instead of the file's own content.
        sheet: name of the sheet.
        files: all files, if the path is their folder or pattern; see `Format.together`.
        members: names and contents of several members of a zip that are one part.
        format: format of the content, if the file has another, such as a zip.
    """

    name: str
    path: Path
    content: bytes | None = None
    sheet: str | None = None
    files: tuple[Path, ...] = ()
    members: tuple[tuple[str, bytes], ...] = ()
    format: type[Format] | None = None


class Format:
    """A format of files that hold tables.

    Attributes:
        name: its name, such as `"parquet"`.
        how: what a file is read as, in errors.
        suffixes: ends of the names of its files, in lower case.
        begins: pattern in the first bytes of its files, if other formats have the same suffixes.
        beside: those of `suffixes` that in a folder often describe the tables beside them.
        typed: whether columns have types, as texts have not.
        together: whether many files are one part, as where each is of a few minutes.
        sign: name of the file that shows that a folder or a zip is one part of this format.
    """

    name: ClassVar[str] = ""
    how: ClassVar[str] = "as a table"
    suffixes: ClassVar[tuple[str, ...]] = ()
    begins: ClassVar[re.Pattern[bytes] | None] = None
    beside: ClassVar[tuple[str, ...]] = ()
    typed: ClassVar[bool] = True
    together: ClassVar[bool] = False
    sign: ClassVar[str] = ""

    @classmethod
    def recognises(cls, begin: bytes) -> bool:
        """Return whether a file with one of the suffixes is of this format, by its first bytes.

        Formats that say so by the file's content come before those that take any.
        """
        return cls.begins is None or cls.begins.search(begin) is not None

    @classmethod
    def parts(cls, path: Path, options: TableOptions) -> list[Part]:
        """Return the parts of a file that hold a table each."""
        return [Part(path.name, path, sheet=options.sheet)]

    @classmethod
    def read(cls, part: Part, options: TableOptions, keys: Container[str]) -> Table:
        """Return the table of a part, as it stands: numbers with commas are text.

        Args:
            part: the part.
            options: how it is written.
            keys: columns of times and ids, which stay text where they are.

        Raises:
            InputError: if it cannot be read; other errors say that the file is damaged.
        """
        raise NotImplementedError


def contents(part: Part) -> Iterator[tuple[str, IO[bytes]]]:
    """Yield the name and the unpacked content of each file of a part."""
    own = () if part.content is None else ((part.name, part.content),)
    if own or part.members:
        yield from ((name, io.BytesIO(content)) for name, content in own or part.members)
        return
    for path in part.files or (part.path,):
        if path.suffix.lower() == ".gz":
            with gzip.open(path) as packed:
                content = read_expanded(cast("IO[bytes]", packed), path)
            yield path.name, io.BytesIO(content)
        else:
            with path.open("rb") as file:
                yield path.name, file


def table_of(part: Part, columns: pl.DataFrame) -> Table:
    """Return the table of a part, whose rows its files do not number."""
    return Table(columns, Origin(part.path.name, "row", 1, is_file=not part.files))


FORMATS: Registry[type[Format]] = Registry(
    "format of tables",
    "data_prep.readers.formats",
    is_entry=is_named(Format),
    group="stforecast.formats",
    sort_by=lambda found: (found.typed, found.name),
)
"""Classes by name, e.g. `parquet`."""


def suffixes() -> tuple[str, ...]:
    """Return the ends of the names of files that hold tables."""
    formats = [found.entry for found in FORMATS.found().values()]
    return tuple(dict.fromkeys(end for found in formats for end in found.suffixes))


def tables_among(files: Iterable[Path]) -> list[Path]:
    """Return the tables among files; if there are none, the files that often describe tables."""
    found = [p for p in files if p.name.lower().endswith(suffixes())]
    describe = tuple(end for f in FORMATS.found().values() for end in f.entry.beside)
    return [p for p in found if not p.name.lower().endswith(describe)] or found


def names_table(path: str) -> bool:
    """Return whether a file is a table by the end of its name, in letters of any case."""
    return path.lower().endswith(suffixes())


def without_suffix(path: str) -> str:
    """Return a file's name without the end that names its format; points within it stay.

    >>> without_suffix("A4.km12.csv.gz"), without_suffix("Sheet 1")
    ('A4.km12', 'Sheet 1')
    """
    ends = [end for end in suffixes() if path.lower().endswith(end)]
    return path[: len(path) - max(map(len, ends), default=0)]


def format_of(path: Path, content: bytes | None = None) -> type[Format] | None:
    """Return the format of a file, or of the content that is read instead of it."""
    formats = [found.entry for found in FORMATS.found().values()]
    found = [f for f in formats if path.name.lower().endswith(f.suffixes)]
    looking = [f for f in found if f.begins or "recognises" in vars(f)]
    if content is None and looking:
        with gzip.open(path) if path.suffix.lower() == ".gz" else path.open("rb") as file:
            content = file.read(BEGIN)
    found.sort(key=lambda f: f not in looking)
    return next((f for f in found if f.recognises((content or b"")[:BEGIN])), None)


def format_of_all(names: Iterable[str]) -> type[Format] | None:
    """Return the format whose files together are a table, if one of them has it."""
    found = (f.entry for f in FORMATS.found().values())
    return next((f for f in found if f.sign and f.sign in {*names}), None)


def numbered(n: int) -> list[str]:
    """Return the names of the columns of a file without a header: 1, 2, and so on."""
    return [str(i) for i in range(1, n + 1)]


def check_columns(n: int, name: str) -> None:
    """Refuse a table with too many columns."""
    if n > MAX_COLUMNS:
        raise InputError(
            f"{name}: {n} columns, expected at most {MAX_COLUMNS}; write a long table, with a row "
            "for each time and cell"
        )
