"""Workbooks, read in one pass over their XML, in memory bounded by the file's size.

openpyxl reads the description of a workbook: names, formats and where its parts are. Its own reader
of cells takes several times as long, and pads a sheet up to the last cell that has a format.
"""

from __future__ import annotations

import datetime
import zipfile
from collections.abc import Callable, Container, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import polars as pl

from data_prep.base.errors import InputError, Words, close_to, needing, reading, some
from data_prep.base.limits import allowed_memory, check_expansion, check_size, most_from
from data_prep.readers.formats import FIELD, ROW, Format, Part, check_columns, numbered
from data_prep.readers.head import LINES, MISSING, check_names, find_head, without_empty
from data_prep.readers.options import TableOptions
from data_prep.readers.origin import Origin
from data_prep.readers.table import Table
from data_prep.readers.xml import Handlers, parse

DESCRIPTION = 2**24
"""Most bytes of a part that describes a workbook, such as its styles."""

CELL, LINE = 48, 64
"""Bytes of memory of a cell and of a row."""

Area = tuple[int, int, int, int]
"""First column, first row, last column and last row, from 1."""


class Book:
    """An open workbook.

    Attributes:
        sheets: the part of each sheet with cells, by name.
    """

    def __init__(self, path: Path, reader: Any) -> None:
        self._path, self._reader, self._room = path, reader, 0
        found = reader.parser.find_sheets()
        found = [(sheet, rel) for sheet, rel in found if "chartsheet" not in rel.Type]
        parts = {sheet.name: rel.target for sheet, rel in found}
        self.visible = [sheet.name for sheet, _ in found if sheet.state == "visible"]
        self.sheets = {n: part for n, part in parts.items() if part in reader.valid_files}

    def rows(self, name: str) -> tuple[list[tuple[Any, ...]], list[Area]]:
        """Return the rows of a sheet up to its last value, and its merged areas.

        Formulas give the values that were stored with them. A row ends with its last value.

        Raises:
            InputError: if the cells take far more memory than the file's size.
        """
        from openpyxl.xml.constants import SHARED_STRINGS

        self._room = min(most_from(self._path), allowed_memory() // 2)
        texts, shared = _Texts(self._take), self._reader.package.find(SHARED_STRINGS)
        cells = _Cells(self._reader.wb, texts.found, self._take)
        parts = [] if shared is None else [(str(shared.PartName)[1:], texts)]
        for part, handlers in (*parts, (self.sheets[name], cells)):
            with self._reader.archive.open(part) as file:
                parse(file, handlers)
        return cells.rows, cells.merged

    def _take(self, n_bytes: int) -> None:
        """Count memory that is taken."""
        self._room -= n_bytes
        if self._room < 0:
            most = most_from(self._path)
            check_expansion(most - self._room, self._path, f"{self._path.name}: its cells")


@contextmanager
def open_book(path: Path) -> Iterator[Book]:
    """Open a workbook whose parts unpack to no more than a valid file of its size."""
    what = f"{path.name}: Excel files need openpyxl"
    with needing("excel", what, ", or save the table as .csv"):
        from openpyxl.reader.excel import ExcelReader
        from openpyxl.styles.stylesheet import apply_stylesheet
    with zipfile.ZipFile(path) as parts:
        sizes = {part.filename: part.file_size for part in parts.infolist()}
    check_expansion(sum(sizes.values()), path, f"{path.name}: unpacked, it")
    for name, size in sizes.items():
        of_cells = name.startswith("xl/worksheets/") or name.endswith("sharedStrings.xml")
        if size > DESCRIPTION and name.endswith((".xml", ".rels")) and not of_cells:
            raise InputError(
                f"{path.name}: {name} has {size / 1e6:.0f} MB, expected less than "
                f"{DESCRIPTION / 1e6:.0f}; save the sheet as .csv"
            )
    reader = ExcelReader(path, read_only=True, data_only=True, keep_links=False)
    with reader.archive:
        reader.read_manifest()
        reader.read_workbook()
        apply_stylesheet(reader.archive, reader.wb)
        yield Book(path, reader)


class _Parts(Handlers):
    """Texts between tags; of a phonetic guide, none."""

    def __init__(self, take: Callable[[int], None]) -> None:
        super().__init__()
        self.take = take
        self.parts: list[str] = []
        self.at_start = {"rPh": lambda about: True}
        self.at_stop = {"t": self._end_text}

    def _end_text(self) -> None:
        self.parts += self.texts


class _Texts(_Parts):
    """The texts that cells share, `found`."""

    def __init__(self, take: Callable[[int], None]) -> None:
        super().__init__(take)
        self.found: list[str] = []
        self.at_stop["si"] = self._end_item

    def _end_item(self) -> None:
        text = "".join(self.parts).replace("x005F_", "")
        self.parts.clear()
        self.take(CELL + len(text))
        self.found.append(text)


class _Cells(_Parts):
    """The values of a sheet's cells, `rows`, and its areas `merged`."""

    def __init__(self, book: Any, texts: list[str], take: Callable[[int], None]) -> None:
        super().__init__(take)
        from openpyxl.utils import range_boundaries
        from openpyxl.utils.datetime import from_excel, from_ISO8601

        self.book, self.shared = book, texts
        self._area, self._from_serial, self._from_iso = range_boundaries, from_excel, from_ISO8601
        self.rows: list[tuple[Any, ...]] = []
        self.merged: list[Area] = []
        self._row: list[Any] = []
        self._about: dict[str, str] = {}
        self._at = self._column = 0
        self._columns: dict[str, int] = {}
        self._times: dict[tuple[str, str], Any] = {}
        self.at_start |= {"c": self._cell, "row": self._begin_row, "mergeCell": self._merge}
        self.at_stop |= {"v": self._end_text, "c": self._end_cell, "row": self._end_row}

    def _cell(self, about: dict[str, str]) -> None:
        self._about = about

    def _begin_row(self, about: dict[str, str]) -> None:
        self._at = int(float(about.get("r", self._at + 1)))
        self._row, self._column = [], 0

    def _merge(self, about: dict[str, str]) -> None:
        self.merged.append(self._area(about["ref"]))
        self.take(CELL)

    def _end_cell(self) -> None:
        about, place = self._about, self._about.get("r")
        self._column += 1
        if place is not None:
            letters = place.rstrip("0123456789")
            if letters not in self._columns:
                self._columns[letters] = self._area(f"{letters}1")[0]
            self._column = self._columns[letters]
        if not self.parts:
            return
        text = "".join(self.parts)
        self.parts.clear()
        gap = self._column - 1 - len(self._row)
        if gap < 0:
            raise InputError(f"cell {place} comes after a later one of its row; save it again")
        self._row += [None] * gap
        self._row.append(self._value(text, about.get("t", "n"), about.get("s", "0")))

    def _end_row(self) -> None:
        if not self._row:  # A format alone is nothing that has to be read.
            return
        gap = self._at - 1 - len(self.rows)
        if gap < 0:
            raise InputError(f"row {self._at} comes after a later one; save it again")
        self.take(LINE + CELL * len(self._row) + 8 * gap)
        self.rows += [()] * gap
        self.rows.append(tuple(self._row))

    def _value(self, text: str, kind: str, style: str) -> Any:
        if kind == "n":
            if int(style) in self.book._date_formats:
                return self._time(text, style)
            return float(text) if "." in text or "e" in text.lower() else int(text)
        if kind == "s":
            return self.shared[int(text)]
        if kind == "b":
            return bool(int(text))
        return self._from_iso(text) if kind == "d" else text

    def _time(self, text: str, style: str) -> Any:
        """Return the time that a number of days is, which many cells share."""
        if (text, style) not in self._times:
            span = int(style) in self.book._timedelta_formats
            try:
                time = self._from_serial(float(text), self.book.epoch, timedelta=span)
            except (OverflowError, ValueError):
                time = "#VALUE!"
            self.take(2 * CELL)
            self._times[text, style] = time
        return self._times[text, style]


class Excel(Format):
    """A workbook, whose formulas give their stored values."""

    name, how, suffixes, typed = "excel", "as an Excel workbook", (".xlsx",), False

    @classmethod
    def parts(cls, path: Path, options: TableOptions) -> list[Part]:
        """Return the sheets, or the chosen one."""
        names: list[str] = []
        if options.sheet is None and path.is_file():
            with reading(path.name, cls.how, "save it again"), open_book(path) as book:
                names = book.visible
        if len(names) > 1:
            return [Part(name, path, sheet=name) for name in names]
        return super().parts(path, options)

    @classmethod
    def read(cls, part: Part, options: TableOptions, keys: Container[str]) -> Table:
        """Read a sheet.

        Whole numbers in columns of `keys`, of ids and times, become text without a point. Merged
        cells all have the value of the first of them.
        """
        path = part.path
        with open_book(path) as book:
            wanted = part.sheet or options.sheet
            wanted = _choose_sheet(list(book.sheets) if wanted else book.visible, wanted, path.name)
            found, merged = book.rows(wanted)
        rows = _filled(found, merged, path)
        if not rows:
            remedy = Words("choose another {sheet}")
            raise InputError(f"{path.name}, row 1: empty, expected column names; ", remedy)
        # A time of a whole day is a date.
        begin = [
            ["" if v is None else str(v).removesuffix(" 00:00:00") for v in r] for r in rows[:LINES]
        ]
        head = find_head(begin, path.name, "row")
        names, skip = numbered(len(rows[0])), 0
        if not options.no_header:
            names, skip = check_names(head.names, head.before, path.name, "row"), head.rows
        columns = [
            _column(name, [row[i] for row in rows[skip:]], is_key=name in keys)
            for i, name in enumerate(names)
        ]
        return Table(
            without_empty(pl.DataFrame(columns), 0 if options.no_header else len(head.names)),
            Origin(path.name, "row", skip + 1, is_file=True),
            units=head.units,
            levels=head.levels,
            labels=head.labels,
            timed=head.timed,
            as_text=True,  # Numbers are numbers in a sheet.
        )


def _filled(rows: list[tuple[Any, ...]], merged: list[Area], path: Path) -> list[list[Any]]:
    """Return rows equally long, where merged cells of a column all have the value of the first.

    Of cells that are merged across columns, as names are, the first alone has it.
    """
    width = max(map(len, rows), default=0)
    check_columns(width, path.name)
    check_size((ROW + FIELD * width) * len(rows), f"{path.name}: its cells")
    table = [[*row, *[None] * (width - len(row))] for row in rows]
    room = width * len(rows)
    for first, top, last, bottom in merged:
        last, bottom = min(last, width), min(bottom, len(rows))
        room -= max(0, last + 1 - first) * max(0, bottom + 1 - top)
        if room < 0:
            raise InputError(f"{path.name}: its merged cells overlap; save it again")
        cells = table[top - 1 : bottom]
        value = cells[0][first - 1] if cells and first <= last else None
        for row in cells:
            row[first - 1 : last] = [value, *[None] * (last - first)][: last + 1 - first]
            value = value if first == last else None
    return table


def _choose_sheet(names: list[str], wanted: str | None, file: str) -> str:
    if wanted is None and len(names) == 1:
        return names[0]
    if wanted in names:
        return str(wanted)
    listed = f"its sheets are {some(map(repr, names), 12)}"
    if wanted is None:
        raise InputError(f"{file}: {listed}; ", Words("choose one with {sheet}"))
    raise InputError(f"{file}: no sheet {wanted!r}{close_to(wanted, names)}; {listed}")


def _column(name: str, values: list[Any], *, is_key: bool) -> pl.Series:
    """Return a column as numbers, times or text, depending on what all its filled cells hold."""
    values = [None if isinstance(v, str) and v in MISSING else v for v in values]
    kinds = {type(value) for value in values if value is not None}
    if kinds and kinds <= {datetime.datetime, datetime.date}:
        midnight = datetime.time()
        whole = [
            datetime.datetime.combine(v, midnight) if type(v) is datetime.date else v
            for v in values
        ]
        return pl.Series(name, whole, dtype=pl.Datetime("us"))
    if kinds <= {int, float} and not is_key:
        return pl.Series(name, values, dtype=pl.Float64)
    if is_key and kinds <= {int, float}:
        values = [int(v) if isinstance(v, float) and v.is_integer() else v for v in values]
    texts = [None if v is None else str(v) for v in values]
    return pl.Series(name, texts, dtype=pl.String)
