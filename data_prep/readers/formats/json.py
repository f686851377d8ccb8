"""Objects of JSON: a list of them, one in each line, or a list within other objects."""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Container, Iterator, Mapping
from typing import IO, Any

import polars as pl

from data_prep.base.errors import InputError, Words, some
from data_prep.base.limits import check_size
from data_prep.readers.columns import CELLS, named
from data_prep.readers.formats import Format, Part, check_columns, contents
from data_prep.readers.options import TableOptions
from data_prep.readers.origin import Origin, StepLog
from data_prep.readers.table import Table

log = StepLog("decode")

AS_JSON = 4
"""Bytes of memory for a byte of JSON while it is read."""

PIECE = 2**23
"""Bytes of a list in JSON that are read at a time, as they take fourteen times their size."""


class Json(Format):
    """Objects: a list of them, one in each line, or within others.

    The fields of objects within objects are columns, whose names are joined by points; lists are
    left out. Pairs `{type, value}`, as of NGSI, are their values.
    """

    name, how = "json", "as JSON"
    suffixes = (".json", ".jsonl", ".ndjson", ".json.gz", ".jsonl.gz", ".ndjson.gz")
    beside = (".json",)

    @classmethod
    def read(cls, part: Part, options: TableOptions, keys: Container[str]) -> Table:
        """Read the objects of a file as rows; of a list within others, by its path."""
        for name, file in contents(part):
            size = file.seek(0, 2)
            check_size(AS_JSON * size, name)
            file.seek(0)
            table, unit = _read(file, name, options.records)
        return Table(table, Origin(part.path.name, unit, 1, is_file=True))


def _read(file: IO[bytes], name: str, records: str | None) -> tuple[pl.DataFrame, str]:
    """Return the rows of a file, and what one of them is."""
    begin = file.read(PIECE).removeprefix(codecs.BOM_UTF8).lstrip()
    file.seek(0)
    first, _, rest = begin.partition(b"\n")
    if records is None and begin.startswith(b"["):
        parts = [_unnested(part, name) for part in _parts_of_list(file)]
        table, unit = pl.concat(parts, how="diagonal_relaxed"), "record"
        nested = {column.rpartition(".")[0] for column in table.columns}  # In other parts.
        table = table.drop([n for n in nested & {*table.columns} if table[n].dtype == pl.Null])
    elif records is None and rest.strip() and _is_object(first):
        lines = pl.read_ndjson(file.read().removeprefix(codecs.BOM_UTF8), infer_schema_length=None)
        table, unit = _unnested(lines, name), "line"
    else:
        objects = _records(file.read().decode("utf-8-sig"), name, records)
        text = json.dumps(objects).encode()
        table, unit = _unnested(pl.read_json(text, infer_schema_length=None), name), "record"
        begin = text
    order = _first_names(begin)
    names = sorted(table.columns, key=lambda n: (order.get(n, len(order)), n))
    return _plain(table.select(names), name), unit


def _is_object(line: bytes) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except ValueError:
        return False


def _first_names(begin: bytes) -> dict[str, int]:
    """Return the places of the names of the first object; Polars mixes more than 32 of them."""
    text = begin.decode(errors="replace")
    try:
        first, _ = json.JSONDecoder().raw_decode(text, text.index("{"))
    except (ValueError, RecursionError):
        return {}
    return {name: i for i, name in enumerate(_names(first))}


def _names(found: Mapping[str, Any], above: str = "") -> Iterator[str]:
    for key, value in found.items():
        name = f"{above}{key}"
        yield name
        if isinstance(value, dict):
            yield from _names(value, f"{name}.")


def _records(text: str, name: str, path: str | None) -> list[Any]:
    """Return the objects of a text, which may follow each other, or the records within them."""
    found: list[Any] = []
    at, space = 0, re.compile(r"\s*")
    while (at := space.match(text, at).end()) < len(text):  # type: ignore[union-attr]
        one, at = json.JSONDecoder().raw_decode(text, at)
        found += one if isinstance(one, list) else [one]
    within: dict[str, list[Any]] = {}
    for one in found:
        for place, records in _lists(one) if isinstance(one, dict) else ():
            within.setdefault(place, []).extend(records)
    if path is None and not within:
        return _plain_records(found, name)
    sizes = sorted(within, key=lambda place: -len(within[place]))
    listed = some([f"{place} ({len(within[place]):,})" for place in sizes], 8) or "none"
    if path is None:
        # A list that holds the records is ten times as long as all others.
        if len(sizes) > 1 and len(within[sizes[0]]) < 10 * len(within[sizes[1]]):
            question = Words("choose the records, such as {records}", records=sizes[0])
            raise InputError(f"{name}: several lists of objects: {listed}; ", question)
        log.info(name, f"records of {sizes[0]!r}, of the lists {listed}; ",
                 Words("pass {records} for another"))  # fmt: skip
    elif path not in within:
        remedy = Words("choose another {records}")
        raise InputError(f"{name}: no list of objects {path!r}, but {listed}; ", remedy)
    return within[path or sizes[0]]


def _lists(
    found: Mapping[str, Any], above: str = "", ids: Mapping[str, Any] | None = None
) -> Iterator[tuple[str, list[Any]]]:
    """Yield the lists of objects within an object, by their paths, such as `data.rows`.

    Records get the ids of the objects that they are in, such as `station`.
    """
    own = {k: v for k, v in found.items() if isinstance(v, str | int) and named([k], CELLS)}
    ids = {**(ids or {}), **own}
    for key, value in found.items():
        if isinstance(value, dict):
            yield from _lists(value, f"{above}{key}.", ids)
        elif isinstance(value, list) and value and all(isinstance(v, dict) for v in value):
            yield f"{above}{key}", [{**ids, **record} for record in value]


def _plain_records(found: list[Any], name: str) -> list[Any]:
    """Return objects that are records themselves; refuse a table that is laid out in one object."""
    first = found[0] if found else None
    if isinstance(first, dict) and any(isinstance(v, str | int | float) for v in first.values()):
        return found
    begin = next(iter(first), "") if isinstance(first, dict) else ""
    raise InputError(
        f"{name}: one object that begins with {begin!r}, expected a list of objects, or an "
        "object in each line; if pandas wrote it, write it by "
        "df.reset_index().to_json('rows.json', orient='records')"
    )


def _parts_of_list(file: IO[bytes]) -> Iterator[pl.DataFrame]:
    """Yield the tables of parts of a list of objects.

    A part ends between two objects. If that was within a text or a nested list, it is no valid
    JSON, and is read together with twice as much of what follows.
    """
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


def _unnested(table: pl.DataFrame, name: str) -> pl.DataFrame:
    """Return a table with the fields of objects as columns, also of objects that are texts."""
    filled = [c for c in table.iter_columns() if c.dtype == pl.String and c.null_count() < len(c)]
    texts = [c for c in filled if c.str.contains(r"^\s*\{.*\}\s*$").all()]
    table = table.with_columns(c.str.json_decode(infer_schema_length=None) for c in texts)
    while objects := [c for c, dtype in table.schema.items() if dtype == pl.Struct]:
        empty = [c for c in objects if not table[c].struct.fields]
        table = table.drop(empty).unnest([c for c in objects if c not in empty], separator=".")
        check_columns(table.width, name)
    return table


def _plain(table: pl.DataFrame, name: str) -> pl.DataFrame:
    """Return columns of numbers and texts: the values of NGSI's pairs, and degrees of a point."""
    for kind in [n for n in table.columns if n.endswith(".type")]:
        pair = kind.removesuffix(".type")
        parts = [n for n in table.columns if n.startswith(f"{pair}.")]
        new = {
            n: (pair + n.removeprefix(f"{pair}.value")).removesuffix(".@value")
            for n in parts
            if re.match(r"value(\.(?!@type)|$)", n.removeprefix(f"{pair}."))
        }
        if new and kind in table.columns:
            table = table.drop([n for n in parts if n not in new]).rename(new)
    lists = [c for c in table.iter_columns() if c.dtype.is_nested()]
    for column in lists:
        point = column.dtype == pl.List(pl.Float64) and (column.list.len().drop_nulls() == 2).all()
        if point and column.name.endswith("coordinates") and not {"lon", "lat"} & {*table.columns}:
            degrees = (column.list.get(i).alias(n) for i, n in enumerate(("lon", "lat")))
            table = table.with_columns(degrees)
    of_queue = {"partition", "offset"}  # Where a message of Kafka stood.
    left = [n for n in table.columns if n.lower() in of_queue] if of_queue <= {
        n.lower() for n in table.columns} else []  # fmt: skip
    left += [column.name for column in lists]
    if left:
        log.warning(name, f"left out, as lists or places in a queue: {some(left, 5)}")
    return table.drop(left)
