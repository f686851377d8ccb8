"""Objects of JSON: a list of them, or one in each line."""

from __future__ import annotations

import codecs
import json
import re
import shlex
from collections.abc import Container, Iterator
from pathlib import Path

import polars as pl

from data_prep.base.errors import InputError
from data_prep.base.limits import check_size
from data_prep.readers.formats import Format, Part, check_columns
from data_prep.readers.formats.columnar import check_schema
from data_prep.readers.options import TableOptions
from data_prep.readers.origin import Origin
from data_prep.readers.table import Table

AS_JSON = 4
"""Bytes of memory for a byte of JSON while it is read."""

PIECE = 2**23
"""Bytes of a list in JSON that are read at a time, as they take fourteen times their size."""


class Json(Format):
    """Objects: a list of them, or one in each line.

    The fields of objects within objects are columns, whose names are joined by points.
    """

    name, how = "json", "as JSON"
    suffixes, beside = (".json", ".jsonl", ".ndjson"), (".json",)

    @classmethod
    def read(cls, part: Part, options: TableOptions, keys: Container[str]) -> Table:
        """Read the objects of a file as rows."""
        path = part.path
        check_size(AS_JSON * path.stat().st_size, path.name)
        with path.open("rb") as file:
            begin = file.read(PIECE).lstrip(codecs.BOM_UTF8).lstrip()
        if is_list := begin.startswith(b"["):
            parts = [_unnested(part, path) for part in _parts_of_list(path)]
            table = pl.concat(parts, how="diagonal_relaxed")
            nested = {name.rpartition(".")[0] for name in table.columns}  # In other parts.
            table = table.drop([n for n in nested & {*table.columns} if table[n].dtype == pl.Null])
        else:
            _refuse_one_object(begin, path)
            table = _unnested(pl.read_ndjson(path, infer_schema_length=None), path)
        check_schema(table.schema, path)
        origin = Origin(path.name, "record" if is_list else "line", 1, is_file=True)
        return Table(table, origin)


def _refuse_one_object(begin: bytes, path: Path) -> None:
    """Refuse a file of one object that holds a table, which as one record has endless columns."""
    found = re.match(rb'{\s*"([^"\\]*)"\s*:\s*([\[{])', begin)
    if found is None or re.search(rb"}\s*\n\s*{", begin):
        return
    name = found[1].decode(errors="replace")
    saved = shlex.quote(f"{path.stem}-rows.json")
    if found[2] == b"[" and re.match(rb"\s*{", begin[found.end() :]):
        way = f"jq {shlex.quote(f'.{json.dumps(name)}')} {shlex.quote(path.name)} > {saved}"
        raise InputError(f"{path.name}: one object with a list of rows under {name!r}, expected "
                         f"the list alone; write it, such as by: {way}")  # fmt: skip
    raise InputError(
        f"{path.name}: one object that begins with {name!r}, expected a list of objects, or an "
        "object in each line; if pandas wrote it, write it by "
        "df.reset_index().to_json('rows.json', orient='records')"
    )


def _parts_of_list(path: Path) -> Iterator[pl.DataFrame]:
    """Yield the tables of parts of a list of objects.

    A part ends between two objects. If that was within a text or a nested list, it is no valid
    JSON, and is read together with twice as much of what follows.
    """
    with path.open("rb") as file:
        begin, rest, size = b"", b"", PIECE
        while more := file.read(size):
            rest += more
            ends = [m.end() for m in re.finditer(rb"}\s*(?=,\s*{)", rest)]
            if ends and len(rest) >= PIECE:
                try:
                    found = pl.read_json(begin + rest[: ends[-1]] + b"]", infer_schema_length=None)
                except pl.exceptions.PolarsError:
                    size *= 2
                    continue
                yield found
                begin, rest, size = b"[", rest[ends[-1] :].lstrip().removeprefix(b","), PIECE
        yield pl.read_json(begin + rest, infer_schema_length=None)


def _unnested(table: pl.DataFrame, path: Path) -> pl.DataFrame:
    """Return a table with the fields of objects as columns."""
    while objects := [name for name, dtype in table.schema.items() if dtype == pl.Struct]:
        table = table.unnest(objects, separator=".")
        check_columns(table.width, path.name)
    return table
