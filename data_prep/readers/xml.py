"""XML from strangers, read element by element in constant memory; entities are refused."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from functools import lru_cache, partial
from sys import intern
from typing import IO, Any
from xml.parsers import expat

import polars as pl

from data_prep.base.errors import InputError
from data_prep.readers.formats import Part, contents, table_of
from data_prep.readers.table import Table

DEEPEST = 64
"""Most elements within each other."""

CHUNK = 2**16
"""Bytes that are parsed at a time."""


class Handlers:
    """What is done at the begin and the end of elements, whose names have no prefix.

    Attributes:
        texts: text since the last begin of an element.
        at_start: functions of attributes for frequent elements, instead of `start`; what is within
            an element for which one returns True is skipped.
        at_stop: functions for their ends, instead of `stop`.
    """

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.at_start: dict[str, Callable[[dict[str, str]], bool | None]] = {}
        self.at_stop: dict[str, Callable[[], None]] = {}

    @property
    def text(self) -> str:
        """The text of an element that holds no others, at its end."""
        return "".join(self.texts).strip()

    def start(self, tag: str, attributes: dict[str, str]) -> None:
        """Handle the begin of an element."""

    def stop(self, tag: str) -> None:
        """Handle the end of an element."""


class _ByTag(dict[str, Callable[..., Any]]):
    """Functions by the tags of a file, with their prefixes."""

    def __init__(self, known: Mapping[str, Callable[..., Any]], other: Callable[..., Any]) -> None:
        super().__init__()
        self.known, self.other = known, other

    def __missing__(self, tag: str) -> Callable[..., Any]:
        name = tag.rpartition(":")[2]
        self[tag] = found = self.known.get(name) or partial(self.other, name)
        return found


def parse(file: IO[bytes], handlers: Handlers) -> None:
    """Parse a file of XML.

    Raises:
        ValueError: if it is not valid XML, declares entities, is nested too deep, or lacks an
            attribute that a handler looks up.
    """
    parser, depth, skipped, clear = expat.ParserCreate(), 0, "", handlers.texts.clear
    parser.buffer_text = True
    starts = _ByTag(handlers.at_start, handlers.start)
    stops = _ByTag(handlers.at_stop, handlers.stop)

    def start(tag: str, attributes: dict[str, str]) -> None:
        nonlocal depth, skipped
        depth += 1
        if depth > DEEPEST:
            raise ValueError(f"elements are nested more than {DEEPEST} deep")
        clear()
        if starts[tag](attributes):
            skipped = tag
            parser.StartElementHandler = parser.CharacterDataHandler = None
            parser.EndElementHandler = skip

    def stop(tag: str) -> None:
        nonlocal depth
        depth -= 1
        stops[tag]()

    def skip(tag: str) -> None:
        if tag == skipped:
            listen()
            stop(tag)

    def listen() -> None:
        parser.StartElementHandler, parser.EndElementHandler = start, stop
        parser.CharacterDataHandler = handlers.texts.append

    def refuse(*declared: Any) -> None:
        raise ValueError(f"it declares the entity {declared[0]!r:.40}, which is not read")

    listen()
    parser.EntityDeclHandler = refuse
    try:
        while chunk := file.read(CHUNK):
            parser.Parse(chunk, False)
        parser.Parse(b"", True)
    except expat.ExpatError as e:
        raise ValueError(f"not valid XML: {e}") from e
    except KeyError as e:
        raise ValueError(f"line {parser.CurrentLineNumber}: no attribute {e}") from e


time_of = lru_cache(maxsize=2**12)(datetime.fromisoformat)
"""Read a time that many values share."""


class Values(Handlers):
    """Collects values of cells in columns, which take a quarter of the memory of rows."""

    def __init__(self) -> None:
        super().__init__()
        self.times: list[datetime] = []
        self.cells: list[str] = []
        self.quantities: list[str] = []
        self.values: list[float | None] = []

    def take(self, time: datetime, cell: str, quantity: str, value: float | None) -> None:
        """Add a value; None is a missing one."""
        self.times.append(time)
        self.cells.append(intern(cell))
        self.quantities.append(quantity)
        self.values.append(value)

    def table(self) -> pl.DataFrame:
        """Return `time`, `cell`, `quantity` and `value`; the same row twice counts once."""
        columns = {"time": self.times, "cell": self.cells, "quantity": self.quantities}
        values = pl.Series(self.values, dtype=pl.Float64)
        return pl.DataFrame({**columns, "value": values}).unique(maintain_order=True)


def read_values(part: Part, values: Values, expected: str) -> Table:
    """Read all files of a part with handlers that collect values.

    Returns:
        `time`, `cell` and a column for each quantity.

    Raises:
        InputError: if a file cannot be read, or none holds a value.
    """
    read_all(part, lambda file: parse(file, values))
    if not values.values:
        raise InputError(f"{part.name}: no measured value; give {expected}")
    wide = values.table().pivot("quantity", index=["time", "cell"], values="value")
    return table_of(part, wide.sort("time", "cell"))


class Rows(Handlers):
    """Collects rows of texts by the names of their columns."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[dict[str, str]] = []


def read_rows(part: Part, rows: Rows, expected: str) -> pl.DataFrame:
    """Read all files of a part with handlers that collect rows.

    Raises:
        InputError: if a file cannot be read, or none holds a row.
    """
    read_all(part, lambda file: parse(file, rows))
    if not rows.rows:
        raise InputError(f"{part.name}: no site, expected {expected}")
    return pl.from_dicts(rows.rows, infer_schema_length=None)


def read_all(part: Part, read: Callable[[IO[bytes]], None]) -> None:
    """Read all files of a part; errors name the file."""
    for name, file in contents(part):
        try:
            read(file)
        except ValueError as e:
            raise InputError(f"{name}: {e}") from e
