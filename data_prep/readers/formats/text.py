"""Read a text file of separated values, without guessing and without dropping a field.

Numbers may have a decimal comma, and separators of thousands.
"""

from __future__ import annotations

import bz2
import codecs
import csv
import gzip
import io
import lzma
import re
from collections.abc import Callable, Container, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any, BinaryIO, TextIO

import numpy as np
import polars as pl

from data_prep.base.errors import InputError, Words, counted, some
from data_prep.base.limits import CHUNK, check_size, read_expanded
from data_prep.readers.columns import has_comma
from data_prep.readers.formats import FIELD, ROW, Format, Part, check_columns, numbered
from data_prep.readers.head import (
    LINES,
    MISSING,
    SAMPLE,
    SEPARATORS,
    Head,
    check_names,
    find_encoding,
    find_head,
    find_separator,
    is_data,
    times_across,
    usual_width,
    without_empty,
)
from data_prep.readers.numbers import MIN_WHOLE, may_be_grouped
from data_prep.readers.options import TableOptions
from data_prep.readers.origin import FIRST, Origin, StepLog
from data_prep.readers.table import Table
from data_prep.readers.written_times import TIME_LIKE

log = StepLog("decode")


SEPARATED = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "bars"}
MAX_HEADER = 2**22  # characters in the line of column names
MIN_LINES = 5  # lines whose numbers show with how many decimals a file is written
INFERRED = 1000  # rows whose fields show the kinds of columns; if later ones differ, all do


TEXTS = (".csv", ".tsv", ".txt")
"""Ends of the names of text files."""

OPENERS: dict[str, Callable[[Path], Any]] = {".gz": gzip.open, ".xz": lzma.open, ".bz2": bz2.open}
"""Functions that open a packed file, by the end of its name."""


class Text(Format):
    """Values separated by commas, semicolons, tabs or bars.

    A file may be packed by gzip, xz or bzip2, and have titles above the names. Columns of keys stay
    text. Empty lines, and notes where the rows have times, are left out and named; other lines with
    too few or too many fields are refused.
    """

    name, how, typed = "csv", "as text", False
    suffixes = (*TEXTS, *(f"{text}{packed}" for packed in OPENERS for text in TEXTS))

    @classmethod
    def read(cls, part: Part, options: TableOptions, keys: Container[str]) -> Table:
        """Read a file, or the content of the part."""
        path = part.path
        content = _unpacked(path) if part.content is None else part.content
        encoding = options.encoding or find_encoding(_start(path, content), path.name)
        if not encoding.startswith("utf-8"):
            content = _recoded(path, content, encoding)
        if re.match(rb"(\xef\xbb\xbf)?#(group|datatype|default|constant)", _start(path, content)):
            # A file of InfluxDB, whose annotations and numbers of its tables are left out, see
            # https://docs.influxdata.com/influxdb/v2/reference/syntax/annotated-csv.
            text = path.read_bytes() if content is None else content
            plain = re.sub(rb"(?m)^#[^\r\n]*", b"", text.removeprefix(codecs.BOM_UTF8))
            table = _read(path, plain, keys, options)
            return table.without([c for c in ("result", "table", "_start", "_stop") if c in table])
        try:
            return _read(path, content, keys, options)
        except pl.exceptions.PolarsError as e:
            if not encoding.startswith("utf-8") or "utf" not in str(e).lower():
                raise
            found = find_encoding(path.read_bytes() if content is None else content, path.name)
            return _read(path, _recoded(path, content, found), keys, options)


def _recoded(path: Path, content: bytes | None, encoding: str) -> bytes:
    """Return a text in UTF-8."""
    if content is None:
        check_size(8 * path.stat().st_size, path.name)
        content = path.read_bytes()
    try:
        return content.decode(encoding).encode()
    except (UnicodeError, LookupError) as e:
        raise InputError(
            f"{path.name}: not {encoding} ({e}); ",
            Words("give another {encoding}, such as utf-8, cp1252 or gb18030"),
        ) from e


def _start(path: Path, content: bytes | None) -> bytes:
    """Return the beginning of a file, with the line of names and some more."""
    with _open(path, content) as file:
        start = file.read(SAMPLE)
        return start if start.count(b"\n") > MIN_LINES else start + file.read(MAX_HEADER)


def may_have_times(path: Path, content: bytes | None) -> bool:
    """Return whether a file may hold rows with a time: not if it is a text without one."""
    if content is None and not (path.suffix.lower() in TEXTS and path.is_file()):
        return True
    start = _start(path, content)
    text = start.decode("utf-16" if b"\0" in start[:40] else "utf-8-sig", errors="replace")
    lines = [line for line in text.splitlines()[:LINES] if line.strip()]
    try:
        rows = list(csv.reader(lines, delimiter=find_separator(lines))) if lines else []
    except csv.Error:  # The reader says what is wrong.
        return True
    width, _ = usual_width(rows)
    return any(is_data(row, width) or times_across(row) for row in rows)


def _read(path: Path, content: bytes | None, keys: Container[str], options: TableOptions) -> Table:
    start = _start(path, content)
    text = start.decode("utf-8-sig", errors="replace")
    if len(text.partition("\n")[0]) >= MAX_HEADER:
        raise InputError(
            f"{path.name}, line 1: longer than {MAX_HEADER:,} characters, expected column names"
        )
    lines = text.splitlines(keepends=True)[:LINES]
    if len(start) >= SAMPLE and len(lines) < LINES:
        lines = lines[:-1] or lines
    separator = find_separator([line for line in lines if line.strip()])
    log.note(path.name, f"fields are separated by {SEPARATED.get(separator, separator)}")
    reader = csv.reader(lines, delimiter=separator)
    read = [(row, reader.line_num) for row in reader]
    rows, ends = [row for row, _ in read], [end for _, end in read]
    if not options.no_header:
        head = find_head(rows, path.name, "line")
        closed = _are_closed(rows[head.rows :], len(head.names))
        names = check_names([*head.names, *closed], head.before, path.name, "line")
        skip = ends[head.rows - 1] if rows else 0
    else:
        width, _ = usual_width(rows)
        head, names, skip = Head(0, 0, []), numbered(width), 0
    check_columns(len(names), path.name)
    body = _Body(
        path, content, separator, names, skip, len("".join(lines[:skip]).encode()), head.timed
    )
    lacking, content = body.without_notes()
    commas = "comma" in (options.decimal, FIRST.get({}).get("decimal"))
    as_text = commas or any(has_comma(f) for row in rows for f in row)
    table = body.parse(content, keys, as_text)
    if not as_text and options.decimal == "auto":
        # Where commas separate fields, points rarely separate thousands.
        least = MIN_WHOLE if separator == "," else 0.0
        if any(may_be_grouped(c, least) for c in table.iter_columns() if c.name not in keys):
            as_text, table = True, body.parse(content, keys, as_text=True)
    kept = None
    if lacking:
        kept = np.setdiff1d(np.arange(len(table) + len(lacking)), np.array(sorted(lacking)) - skip)

    def texts(column: str, rows: np.ndarray | None) -> pl.Series:
        places = rows if kept is None or rows is None else np.searchsorted(kept, rows)
        n_rows = None if places is None else int(places.max(initial=0)) + 1
        found = body.column(content, column, n_rows)
        return found if places is None else found[places]

    return Table(
        without_empty(table, 0 if options.no_header else len(names)),
        Origin(path.name, "line", skip + 1, is_file=True, rows=kept, texts=texts),
        units=head.units,
        levels=head.levels,
        labels=head.labels,
        timed=head.timed,
        as_text=as_text,
        separator=separator,
    )


def _are_closed(rows: Sequence[Sequence[str]], n_names: int) -> list[str]:
    """Return a column without a name if a separator that the names lack ends each row.

    >>> _are_closed([["08:00", "5", ""], ["09:00", "7", ""]], 2), _are_closed([["x", "1", "5"]], 2)
    ([''], [])
    """
    filled = [row for row in rows if len(row) > 1]
    closed = all(len(row) == n_names + 1 and not row[-1].strip() for row in filled)
    return [""] if filled and closed else []


@dataclass(frozen=True)
class _Body:
    """The lines of data of a file.

    Args:
        path: the file.
        content: its text if it was unpacked or recoded.
        separator: what separates its fields.
        names: names of its columns.
        skip: lines above the data.
        offset: characters above the data.
        timed: whether its rows begin with times, so that notes can be told from them.
    """

    path: Path
    content: bytes | None
    separator: str
    names: list[str]
    skip: int
    offset: int
    timed: bool

    def without_notes(self) -> tuple[dict[int, list[str]], bytes | None]:
        """Return the lines to leave out by number from 0, and the text without them."""
        _check_end(self.path, self.content, self.separator)
        odd = self._odd_lines() if self._is_short() else {}
        if not odd:
            return {}, self.content
        n_empty = sum(not any(row) for row in odd.values())
        if n_empty:
            log.info(self.path.name, f"{counted(n_empty, 'empty line')} left out")
        notes = [
            f"line {i + 1}: {' '.join(row)!r:.60}"
            for i, row in odd.items()
            if any(row) and odd.get(i - 1) is not row
        ]
        if notes:
            log.warning(self.path.name, f"left out as notes: {some(notes, 5)}")
        text = self.path.read_bytes() if self.content is None else self.content
        lines = text.splitlines(keepends=True)
        return odd, b"".join(line for i, line in enumerate(lines) if i not in odd)

    def _odd_lines(self) -> dict[int, list[str]]:
        """Return lines that are empty or notes, by number from 0; refuse others of odd length.

        Where rows have no times, a note is a single field at the end of the file.
        """
        found: dict[int, list[str]] = {}
        last = n_rows = 0  # the end and the number of the rows so far
        with _open_text(self.path, self.content) as file:
            reader = csv.reader(file, delimiter=self.separator)
            begin = 0
            for row in reader:
                number, begin = begin, reader.line_num
                if number < self.skip:
                    continue
                if len(found) > n_rows + 100_000:
                    raise InputError(
                        f"{self.path.name}, line {begin}: {len(found):,} lines so far are empty or "
                        f"notes, and {n_rows:,} are rows; remove them"
                    )
                if len(row) == len(self.names):
                    last, n_rows = begin, n_rows + 1
                elif not any(field.strip() for field in row):
                    found[number] = row
                elif is_note(row) and (self.timed or len(row) == 1):
                    found.update(dict.fromkeys(range(number, begin), row))
                else:
                    raise self._odd_line(begin, len(row))
        early = [i for i, row in found.items() if i < last and len(row) == 1 and row[0].strip()]
        if early and not self.timed:
            raise self._odd_line(early[0] + 1, 1)
        return found

    def _odd_line(self, line: int, n: int) -> InputError:
        return InputError(
            f"{self.path.name}, line {line}: {counted(n, 'field')}, expected {len(self.names)} as "
            f"in line {self.skip or 1}; complete or remove the line"
        )

    def parse(self, content: bytes | None, keys: Container[str], as_text: bool) -> pl.DataFrame:
        """Return the table; columns of `keys`, or all with `as_text`, are text."""
        read = partial(
            self._parse,
            content,
            new_columns=self.names,
            infer_schema=not as_text,
            raise_if_empty=False,
            schema_overrides={} if as_text else {n: pl.String for n in self.names if n in keys},
        )
        table = None  # Marks of missing values are rare, and make Polars three times as slow.
        with suppress(pl.exceptions.PolarsError):
            table = read(infer_schema_length=INFERRED)
        if table is None or any(
            column.is_in(MISSING).any() if column.dtype == pl.String
            else column.dtype.is_float() and column.is_nan().any()
            for column in table.iter_columns()
        ):  # fmt: skip
            try:
                table = read(infer_schema_length=INFERRED, null_values=MISSING)
            except pl.exceptions.PolarsError:
                self._odd_lines()
                try:
                    table = read(infer_schema_length=None, null_values=MISSING)
                except pl.exceptions.ComputeError:
                    # It takes digits of other scripts for numbers, and cannot read them.
                    table = read(infer_schema=False, null_values=MISSING)
        if not len(table.columns):
            table = pl.DataFrame(
                {name: [] for name in self.names}, dict.fromkeys(self.names, pl.String)
            )
        if table[table.columns[-1]].null_count():
            with _open(self.path, content) as file:
                has_quotes = any(b'"' in part for part in iter(lambda: file.read(CHUNK), b""))
            if has_quotes:
                # Polars fills a short row with nulls, so the last field of such a row is null.
                self._odd_lines()
        return table

    def column(self, content: bytes | None, name: str, n_rows: int | None) -> pl.Series:
        """Return the first rows of a column, or all, as they are written, `(rows,)`."""
        return self._parse(
            content,
            columns=[self.names.index(name)],
            infer_schema=False,
            null_values=MISSING,
            n_rows=n_rows,
        ).to_series()

    def _parse(self, content: bytes | None, **options: Any) -> pl.DataFrame:
        return pl.read_csv(
            self.path if content is None else content,
            glob=False,
            separator=self.separator,
            has_header=False,
            skip_lines=self.skip,
            **options,
        )

    def _is_short(self) -> bool:
        """Return whether some line lacks fields; a one-byte line would become a row of nulls."""
        n_separators = n_lines = 0
        last = b""
        with _open(self.path, self.content) as file:
            file.seek(self.offset)
            while part := file.read(CHUNK):
                if b'"' in part:  # a quoted field may contain separators or newlines
                    return False
                n_separators += part.count(self.separator.encode())
                n_lines += part.count(b"\n")
                last = part[-1:]
        n_lines += last not in (b"\n", b"")
        return n_separators < (len(self.names) - 1) * n_lines


def is_note(row: Sequence[str]) -> bool:
    """Return whether a short row is a note or a total: it begins with words, not with a time.

    >>> is_note(["Total rows: 24"]), is_note(["2024-01-01 00:00", "7"]), is_note(["2024-01"])
    (True, False, False)
    """
    first = next((field for field in row if field.strip()), "")
    return re.match(TIME_LIKE, first) is None and re.search(r"[^\W\d_]{3}", first) is not None


def _unpacked(path: Path) -> bytes | None:
    """Check a table's size; return its text if the file is packed, else None."""
    if path.suffix.lower() not in OPENERS:
        check_size(4 * path.stat().st_size, path.name)
        with path.open("rb") as file:
            _check_lines(file, path)
        return None

    def cost(text: bytes) -> int:
        n_lines = text.count(b"\n")
        n_fields = max(text.count(separator.encode()) for separator in SEPARATORS) + n_lines
        return len(text) + FIELD * n_fields + ROW * n_lines

    with OPENERS[path.suffix.lower()](path) as packed:
        content = read_expanded(packed, path, cost)
    _check_lines(io.BytesIO(content), path)
    return content


def _check_lines(file: IO[bytes], path: Path) -> None:
    """Refuse a line longer than any of a table, which takes five times its size to parse."""
    file.read(MAX_HEADER)  # Names are looked at as such.
    while len(part := file.read(MAX_HEADER)) == MAX_HEADER:
        if b"\n" not in part and b"\r" not in part:
            raise InputError(
                f"{path.name}: a line is longer than {MAX_HEADER:,} bytes, expected a row of a "
                "table in each; save it again"
            )


def _check_end(path: Path, content: bytes | None, separator: str) -> None:
    """Refuse a last number with fewer decimals than all others; warn of one that may have been cut.

    Many programs end the last line with nothing, so this is not refused. A packed file has its own
    checksum.
    """
    if path.suffix.lower() in (*OPENERS, ".zip"):
        return
    with _open(path, content) as file:
        size = file.seek(0, io.SEEK_END)
        file.seek(max(0, size - CHUNK))
        tail = file.read()
    if tail.endswith((b"\n", b"\r")):
        return
    lines = tail.decode(errors="replace").split("\n")
    *others, last = (line.rpartition(separator)[2].strip('"\r ') for line in lines)
    if re.search(r"[^\W\d_]{3}", lines[-1]) and separator not in lines[-1]:
        return  # a note
    with _open_text(path, content) as lines_of_file:
        number = sum(1 for _ in lines_of_file)
    counts = {_decimals(field) for field in others[1:]}  # The first may be names, or a part.
    if len(others) > MIN_LINES and len(counts) == 1 and _decimals(last) < min(counts):
        raise InputError(
            f"{path.name}, line {number}: {last!r} has fewer decimals than all before and no line "
            "end follows it, so the file was cut; get it again, or remove the line"
        )
    end = f"no line end after {last!r}; if the file was cut there, get it again"
    log.warning(f"{path.name}, line {number}", end)


def _decimals(field: str) -> int:
    """Count the digits after the decimal point or comma."""
    found = re.search(r"[.,](\d*)$", field)
    return len(found[1]) if found else 0


def _open(path: Path, content: bytes | None) -> BinaryIO:
    """Open a file, or the content that is read instead of it."""
    return path.open("rb") if content is None else io.BytesIO(content)


def _open_text(path: Path, content: bytes | None) -> TextIO:
    return io.TextIOWrapper(_open(path, content), "utf-8-sig", "replace", newline="")
