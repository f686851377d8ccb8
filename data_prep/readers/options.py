"""Options of tables: how one is read, its columns, and the content of its cube."""

from __future__ import annotations

import dataclasses
import os
import re
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, get_args

from data_prep.base.errors import InputError, Words, choose
from data_prep.readers.columns import KeyColumns
from data_prep.readers.origin import FIRST
from data_prep.readers.resampling import Aggregate, Resampling
from data_prep.readers.times import Clock, check_time_zone

Form = Literal["auto", "long", "wide", "services", "cells-above", "services-above"]
Decimal = Literal["auto", "point", "comma"]
Duplicates = Literal["error", "sum", "mean"]
TIME, CELL = "time", "cell"

CLOCK = "hour"
"""Name of a column of times of day that were the names of columns."""

FILE, WHOLE = "file", ".+"
"""Name of the column of cells that are files, and the pattern of a whole name."""

HEAD = "head"
"""Begin of an option that names cells by a label above the names of columns."""

CHOICES = {"layout": Form, "decimal": Decimal, "clock": Clock, "duplicates": Duplicates}
"""Options with a few values."""

READ_BY = {
    "object_class": ("measurements", "ves"), "query": ("sqlite",), "records": ("json",),
    "sheet": ("excel",), "encoding": ("csv",), "no_header": ("csv", "excel"),
}  # fmt: skip
"""Options of how a file is written, and the formats that read them."""


@dataclass(frozen=True, kw_only=True)
class TableOptions:
    """Facts that a table lacks, or that its reader shall not find out.

    Args:
        layout: long, wide (a column for each cell), services (a column for each service of one
            cell), cells-above or services-above (two rows of names), or auto, which decides by the
            names and numbers of columns and fails if two readings fit.
        time: Name of the column of times, or of those of their parts, such as Date,Time or
            Year,Month,Day,Hour.
        cell: Name of the column of cell ids in a long table, or of several, such as site,sector;
            file if each file is a cell, whose columns are its values, or file: and a pattern of
            its name's part, such as 'file:([0-9]+)_'; or head: and the label above the names of
            its columns, such as 'head:Site'.
        values: Comma-separated value columns to take, by default every column that holds numbers.
        cells: Cells to keep, such as 5,11-20, or to leave out, such as not:5.
        time_format: Format of the times: dayfirst, monthfirst, excel (days since 1899-12-30) or of
            strptime, such as '%d.%m.%Y %H:%M'; by default ISO 8601, or the only order of day and
            month that fits.
        start: First time of a table without times, which needs --step, too.
        step: Time from row to row of a table without times, such as 10min.
        no_header: The first row holds values; columns are named 1, 2 and so on.
        decimal: Decimal mark of a text file; auto takes a comma where nothing else fits.
        object_class: Class of the managed objects to read from measurements of network elements,
            such as NRCellDU; by default the only one.
        names: Table that names columns such as counters: codes in its first column, names in the
            second, and perhaps a column `unit`.
        query: Query of a database, such as 'SELECT * FROM counts'; by default its only table.
        records: Path of the list of objects in JSON, such as data.rows; by default the only one.
        sheet: Sheet of an Excel file; by default all that have times.
        encoding: Encoding of a text file, such as cp1252; by default recognised.
        sites: Table of sites, whose columns describe the cells: positions, vendor, capacity; or
            their polygons or points, a .geojson or .gpkg file.
        crs: Projected system of the sites' positions, such as EPSG:25832; by default degrees.
        resample: Longer step into which records at uneven times are merged, such as 10min; needs
            --agg. 1D means days of the time zone.
        agg: How to merge the records of a step and cell: sum, for counts, which is missing if a
            record is missing; mean, for levels, over the records that are present; count, the
            number of events such as trips, or total, the sum of their values, both 0 without any;
            or increase, what counters that run on rise by.
        name: Name of the variable that a wide table holds.
        units: Unit to which values are converted, or that they have if none is written.
        time_zone: IANA name of the place's time zone, by default the table's own or UTC.
        clock: Whether times without an offset are "utc" or the "local" wall clock of the zone,
            which observes daylight saving time.
        zero_is_missing: Treat 0 as missing.
        allow_gaps: Leave NaN where a row is missing instead of refusing the table.
        duplicates: Treatment of several rows for one time and cell, before --resample: "error",
            "sum" or "mean".

    Raises:
        InputError: if an option has no such value, or needs another one.
    """

    layout: Form = "auto"
    time: str = TIME
    cell: str = CELL
    values: str | None = None
    cells: str | None = None
    time_format: str = ""
    start: str | None = None
    step: str | None = None
    no_header: bool = False
    decimal: Decimal = "auto"
    object_class: str | None = None
    names: str | None = None
    query: str | None = None
    records: str | None = None
    sheet: str | None = None
    encoding: str | None = None
    sites: str | None = None
    crs: str | None = None
    resample: str | None = None
    agg: Aggregate | None = None
    name: str = "value"
    units: str | None = None
    time_zone: str | None = None
    clock: Clock = "utc"
    zero_is_missing: bool = False
    allow_gaps: bool = False
    duplicates: Duplicates = "error"

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            given = getattr(self, field.name)
            if isinstance(given, os.PathLike):
                object.__setattr__(self, field.name, given := os.fspath(given))
            if str(field.type).startswith("str") and not isinstance(given, str | None):
                raise InputError(f"{field.name} is {given!r}, expected text; write it in quotes")
        for option, choices in CHOICES.items():
            if (given := getattr(self, option)) not in get_args(choices):
                words = {"decimal": "decimal mark", "duplicates": "choice for duplicates"}
                raise choose(words.get(option, option), given, get_args(choices))
        if self.time_zone is not None:
            check_time_zone(self.time_zone)
        if (self.start is None) != (self.step is None):
            raise InputError(
                "start and step belong together: the time of the first row and the time from row "
                "to row; give both"
            )
        self._refuse_unread()
        kind, pattern = self.named_by
        try:
            re.compile(pattern if kind == FILE else "")
        except re.error as e:
            raise InputError(f"cell {self.cell!r}: {e}; give a valid pattern") from e

    @property
    def named_by(self) -> tuple[str, str]:
        """Whether a `FILE` or a `HEAD` names the cell of a table, and by what pattern or label."""
        kind, _, given = self.cell.partition(":")
        if given and kind in (FILE, HEAD):
            return kind, given
        return (FILE, WHOLE) if FILE in self.cell.split(",") else ("", "")

    @property
    def of_joined(self) -> TableOptions:
        """The options of the table in which the cells of files have a column."""
        named_so = self.named_by[1] in ("", WHOLE)
        return self if named_so else dataclasses.replace(self, cell=FILE)

    def _refuse_unread(self) -> None:
        """Refuse options that nothing reads beside, or without, others."""
        if FIRST.get(None) is not None:  # Earlier versions noted options that they did not read.
            return
        of_events = self.of_events
        if self.crs is not None and self.sites is None:
            remedy = Words("only {sites} reads it; give the table of sites, or leave out {crs}")
            raise InputError(f"no use for crs {self.crs!r}: ", remedy)
        if self.agg == "count" and self.values is not None:
            remedy = Words("leave out {values}, or give {agg:total}", values=self.values)
            raise InputError("agg count reads no values; ", remedy)
        if self.duplicates != "error" and (of_events or self.of_counters):
            what = "each event" if of_events else "one reading for each time and cell"
            remedy = Words("leave out {duplicates}", duplicates=self.duplicates)
            raise InputError(f"agg {self.agg} takes {what}; ", remedy)

    @cached_property
    def resampling(self) -> Resampling | None:
        """Longer even steps to put the records into."""
        return Resampling.of(self.resample, self.agg)

    @property
    def of_events(self) -> bool:
        """Whether each row is an event."""
        return self.resampling is not None and self.resampling.of_events

    @property
    def of_counters(self) -> bool:
        """Whether values are readings of counters that run on."""
        return self.agg == "increase"

    @property
    def gaps(self) -> bool:
        """Whether missing rows are left as NaN; resampled tables report the missing values."""
        return self.allow_gaps or self.resampling is not None

    @property
    def chosen(self) -> list[str] | None:
        """The columns of values to take; None for all."""
        return None if self.values is None else [name.strip() for name in self.values.split(",")]

    @property
    def keys(self) -> KeyColumns:
        """The columns to keep as text."""
        return KeyColumns(self.time, self.cell)
