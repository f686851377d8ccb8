"""Tables of columns with types: Parquet and Arrow, whose unpacked size their headers declare.

The headers of Parquet's pages (parquet.apache.org) use Thrift's compact encoding; each buffer of
Arrow (arrow.apache.org) declares its size. A table may be far larger than its unpacked pages,
because repeated values are stored once; so readers count its rows, too.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable, Container
from pathlib import Path
from typing import Any

import polars as pl

from data_prep.base.errors import InputError
from data_prep.base.limits import check_expansion
from data_prep.readers.formats import FIELD, ROW, Format, Part, check_columns
from data_prep.readers.options import TableOptions
from data_prep.readers.origin import Origin
from data_prep.readers.table import Table


class Parquet(Format):
    """A file of Parquet."""

    name, how, suffixes = "parquet", "as Parquet", (".parquet",)

    @classmethod
    def read(cls, part: Part, options: TableOptions, keys: Container[str]) -> Table:
        """Read a file whose pages unpack to no more than a valid file of its size."""
        return _read(pl.scan_parquet(part.path, glob=False), part.path, parquet_size)


class Arrow(Format):
    """A file of Arrow, or of Feather in version 2."""

    name, how, suffixes = "arrow", "as Arrow", (".feather", ".arrow", ".ipc")

    @classmethod
    def read(cls, part: Part, options: TableOptions, keys: Container[str]) -> Table:
        """Read a file whose buffers unpack to no more than a valid file of its size."""
        return _read(pl.scan_ipc(part.path, glob=False), part.path, arrow_size)


def _read(table: pl.LazyFrame, path: Path, size_of: Callable[[Path], int]) -> Table:
    """Read columns; categories become text."""
    schema = table.collect_schema()
    check_columns(len(schema), path.name)
    if nested := [name for name, dtype in schema.items() if dtype.is_nested()]:
        raise InputError(
            f"{path.name}: column {nested[0]!r} holds {schema[nested[0]]}, expected numbers, text "
            "or times; unnest it or leave it out"
        )
    n_rows = int(table.select(pl.len()).collect().item())
    check_expansion(n_rows * (ROW + FIELD * len(schema)), path, f"{path.name}: {n_rows} rows")
    check_expansion(size_of(path), path, f"{path.name}: unpacked, it")
    as_text = pl.col(pl.Categorical).cast(pl.String), pl.col(pl.Enum).cast(pl.String)
    as_numbers = pl.col(pl.Decimal).cast(pl.Float64)
    plain = table.with_columns(as_text).with_columns(as_numbers)
    return Table(plain.collect(), Origin(path.name, "row", 1, is_file=True))


TRUE, FALSE, BYTE, DOUBLE, BINARY, LIST, SET, MAP, STRUCT = 1, 2, 3, 7, 8, 9, 10, 11, 12
"""Types of Thrift's compact encoding; those in between are integers."""

# Numbers that the format gives to the fields used here.
ROW_GROUPS, COLUMNS, META = 4, 1, 3
PACKED_SIZE, DATA_PAGES, DICTIONARY_PAGE = 7, 9, 11
PAGE_UNPACKED, PAGE_PACKED = 2, 3


def parquet_size(path: Path) -> int:
    """Return the unpacked bytes of all pages, as declared by their headers."""
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        length = int.from_bytes(data[-8:-4], "little")
        if data[-4:] != b"PAR1" or not 0 < length <= len(data) - 12:
            raise ValueError("no footer of a Parquet file")
        about = _Reader(data, len(data) - 8 - length).struct()
        chunks = [chunk[META] for group in about.get(ROW_GROUPS, []) for chunk in group[COLUMNS]]
        return sum(_unpacked_chunk(data, meta) for meta in chunks)


def arrow_size(path: Path) -> int:
    """Return the unpacked bytes of all buffers of an Arrow file; each declares them before itself.

    A buffer that would be longer than it declares is damaged, and cannot be read.
    """
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        size = len(data)
        for begin in (b"\x28\xb5\x2f\xfd", b"\x04\x22\x4d\x18"):  # of Zstandard and LZ4
            at = data.find(begin, 8)
            while at >= 0:
                if at % 8 == 0:
                    declared = int.from_bytes(data[at - 8 : at], "little", signed=True)
                    size += max(0, declared)
                at = data.find(begin, at + 4)
        return size


def _unpacked_chunk(data: mmap.mmap, meta: dict[int, Any]) -> int:
    """Return the unpacked bytes of a column's pages within a row group."""
    at = min(meta[DATA_PAGES], meta.get(DICTIONARY_PAGE) or meta[DATA_PAGES])
    end, size = at + meta[PACKED_SIZE], 0
    while 0 <= at < end:
        reader = _Reader(data, at)
        page = reader.struct()
        size += page[PAGE_UNPACKED]
        at = reader.at + max(0, page[PAGE_PACKED])
    return size


class _Reader:
    """Reader of Thrift's compact encoding; a structure is a dictionary of fields by number."""

    def __init__(self, data: mmap.mmap, at: int) -> None:
        self.data, self.at = data, at

    def struct(self) -> dict[int, Any]:
        fields: dict[int, Any] = {}
        number = 0
        while head := self.byte():
            number = number + (head >> 4) if head >> 4 else self.whole()
            fields[number] = self.value(head & 15)
        return fields

    def byte(self) -> int:
        self.at += 1
        return self.data[self.at - 1]

    def count(self) -> int:
        number, shift = 0, 0
        while True:
            byte = self.byte()
            number |= (byte & 127) << shift
            if byte < 128:
                return number
            shift += 7

    def whole(self) -> int:
        number = self.count()
        return (number >> 1) ^ -(number & 1)

    def value(self, kind: int, *, inside: bool = False) -> Any:
        if kind in (TRUE, FALSE):  # a field's type is its value; in a list it is a byte
            return self.byte() == TRUE if inside else kind == TRUE
        if kind == BYTE:
            return self.byte()
        if kind in (DOUBLE, BINARY):
            length = self.count() if kind == BINARY else 8
            self.at += length
            return None
        if kind in (LIST, SET):
            head = self.byte()
            n = self.count() if head >> 4 == 15 else head >> 4
            return [self.value(head & 15, inside=True) for _ in range(n)]
        if kind == STRUCT:
            return self.struct()
        if kind == MAP:
            raise ValueError("a map in the footer, which no version of the format has")
        return self.whole()
