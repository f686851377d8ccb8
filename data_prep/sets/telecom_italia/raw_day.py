"""Rules for a raw day of Telecom Italia, and messages for lines that violate them.

`cdr` checks a good file one block at a time. This module implements the same rules for a single
line in plain Python; it is slow and used only to find the bad line of a refused file.
"""

from __future__ import annotations

import datetime
import gzip
import math
import re
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, cast

import numpy as np
import pandas as pd

from data_prep.base.errors import InputError, reading

ACTIVITIES = ("SMS in", "SMS out", "calls in", "calls out", "internet")
FIELDS = ("square id", "interval start", "country code", *ACTIVITIES)
"""The fields of a row as published."""

INTERVAL = pd.Timedelta("10min")
INTERVAL_MS = 600_000
AGAIN = "download it again"
MAX_LINE = 2**16
"""Maximum bytes of a line; published lines have less than 200."""


@dataclass(frozen=True)
class RawDay:
    """Raw file of one local day, and the values that it may hold.

    Args:
        path: the file, plain or gzip.
        date: local day of its rows.
        cells: `(cell,)` ids that may occur, ascending.
        time_zone: IANA name of the zone of the local day.
    """

    path: Path
    date: datetime.date
    cells: np.ndarray
    time_zone: str = "Europe/Rome"

    @property
    def start(self) -> pd.Timestamp:
        """Local midnight at the start of the day."""
        return pd.Timestamp(self.date).tz_localize(self.time_zone)

    @property
    def start_ms(self) -> int:
        """`start` in epoch milliseconds, the unit of the file."""
        return int(self.start.timestamp()) * 1000

    @property
    def n_intervals(self) -> int:
        """Number of ten-minute intervals: 144, or 138 and 150 on days of a clock change."""
        tomorrow = pd.Timestamp(self.date + datetime.timedelta(days=1)).tz_localize(self.time_zone)
        return int((tomorrow - self.start) // INTERVAL)

    def n_steps(self, per_step: int) -> int:
        """Return the number of steps of `per_step` intervals in the day."""
        if self.n_intervals % per_step:
            raise InputError(
                f"{self.path}: {self.date} has {self.n_intervals} ten-minute intervals, which do "
                f"not make whole steps of {per_step}; choose a step that divides every day"
            )
        return self.n_intervals // per_step

    def clock(self, interval: int) -> str:
        """Return the local wall clock at the start of the day's interval with this index."""
        return f"{self.start + interval * INTERVAL:%H:%M}"

    def fault(self, line: bytes) -> str | None:
        """Return a message on the first error in a line; None if the line is valid."""
        text = line.removesuffix(b"\n").removesuffix(b"\r").decode("utf-8", "replace")
        fields = [field.lstrip(" ") for field in text.split("\t")]  # as Polars does
        if len(fields) != len(FIELDS):
            return (
                f"found {len(fields)} tab-separated {'field' if len(fields) == 1 else 'fields'}, "
                f"expected {len(FIELDS)}; {foreign_copy(line) or AGAIN}"
            )
        for name, text, n_bits in zip(FIELDS, fields, (31, 63, 31), strict=False):
            number = re.fullmatch(r"(?:\+?0*|-0+)([0-9]{0,20})", text) if text.strip("+-") else None
            if not number or (number[1] and text[0] == "-") or int(number[1] or 0) >> n_bits:
                return f"{name} is {text!r}, expected a whole number of {n_bits} bits; {AGAIN}"
        for name, text in zip(ACTIVITIES, fields[3:], strict=True):
            if not _is_activity(text):
                return f"{name} is {text!r}, expected a number of at least 0 or nothing; {AGAIN}"
        if (cell := int(fields[0])) not in self.cells:
            return (
                f"square id {cell} is not one of the {len(self.cells)} ids "
                f"{self.cells[0]}–{self.cells[-1]} of this data set or its grid; {AGAIN} or "
                "give the grid that belongs to it"
            )
        return self._interval_fault(int(fields[1]))

    def _interval_fault(self, time_ms: int) -> str | None:
        interval, rest = divmod(time_ms - self.start_ms, INTERVAL_MS)
        if rest:
            return f"interval start {time_ms} is not on the ten-minute grid; {AGAIN}"
        if 0 <= interval < self.n_intervals:
            return None
        try:
            found = f"{pd.Timestamp(time_ms, unit='ms', tz=self.time_zone):%Y-%m-%d %H:%M} local"
        except (OverflowError, ValueError, NotImplementedError):  # the last from the year 10000 on
            found = "no date"
        return (
            f"interval start {time_ms} is {found}, outside {self.date}, the day in the file name; "
            "rename the file to its own day"
        )


def _is_activity(text: str) -> bool:
    if not text:
        return True
    try:
        return re.fullmatch(r"[!-^`-~]+", text) is not None and 0 <= float(text) < math.inf
    except ValueError:
        return False


def foreign_copy(line: bytes) -> str | None:
    """Return advice if a line comes from a known foreign copy of the data, else None."""
    if b"\t" in line:
        return None
    if b"," in line:
        return "the fields are separated by commas; download the raw files"
    if len(line.split()) > 1:
        return "white space between fields hides the empty ones; download the raw files"
    return None


@contextmanager
def open_raw(path: Path) -> Iterator[BinaryIO]:
    """Open a raw file for reading bytes, unpacking gzip whatever the file's name."""
    with reading(path, "as text", AGAIN), path.open("rb") as f:
        magic = f.read(4)
    if magic == b"PK\x03\x04":
        raise InputError(f"{path}: this is a zip archive, expected text or gzip; unpack it first")
    packed = magic.startswith(b"\x1f\x8b")
    try:
        with gzip.open(path) if packed else path.open("rb") as f:
            yield cast(BinaryIO, f)
    except (EOFError, zlib.error, gzip.BadGzipFile) as e:
        raise InputError(f"{path}: damaged gzip file ({e}); {AGAIN}") from e
    except OSError as e:
        raise InputError(f"{path}: cannot be read ({e.strerror or e}); {AGAIN}") from e


def block_error(day: RawDay, block: bytes, n_before: int, reason: object) -> InputError:
    """Return an error that names the first bad line of a block of whole lines.

    The parser's `reason` is given if every single line is valid.
    """
    lines = block.removesuffix(b"\n").split(b"\n")
    for number, line in enumerate(lines, n_before + 1):
        if fault := day.fault(line):
            return InputError(f"{day.path}: line {number}: {fault}")
    detail = str(reason).partition("\n")[0]
    span = f"lines {n_before + 1}–{n_before + len(lines)}"
    return InputError(f"{day.path}: {span} cannot be parsed ({detail}); {AGAIN}")


def repeat_error(day: RawDay, cell: int, interval: int, country: int) -> InputError:
    """Return an error that names the lines with the same (cell, interval, country)."""
    key = (cell, day.start_ms + interval * INTERVAL_MS, country)
    with open_raw(day.path) as f:
        numbers = [
            str(n) for n, line in enumerate(f, 1) if tuple(map(int, line.split(b"\t")[:3])) == key
        ]
    return InputError(
        f"{day.path}: lines {' and '.join(numbers)} are the same square {cell}, interval "
        f"{day.clock(interval)} local and country {country}, expected one row; "
        f"the file is damaged or concatenated from copies, {AGAIN}"
    )
