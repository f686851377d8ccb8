"""Raw files of a period: no day may be missing, doubled or truncated; and a cache of summed days.

The cache lets a killed run continue where it stopped. It is a hidden folder beside the result with
one `.npz` per day, which holds the checksum of the raw file. Its name contains a hash of everything
else that the sums depend on. A day is therefore read again if its file or the step has changed.
"""

from __future__ import annotations

import datetime
import hashlib
import logging
import re
import shutil
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from data_prep.base.errors import InputError, Words, check_regular, some
from data_prep.base.files import atomic_path
from data_prep.readers.npz import read_npz
from data_prep.sets.telecom_italia.cdr import read_day, text_checksum
from data_prep.sets.telecom_italia.raw_day import AGAIN, MAX_LINE, RawDay, foreign_copy, open_raw


@dataclass(frozen=True)
class StoredDay:
    """A summed day with its values on disk; other fields as in `DaySums`."""

    raw: RawDay
    path: Path
    cells: np.ndarray
    recorded: np.ndarray
    checksum: str

    def values(self) -> np.ndarray:
        """Read the sums `(service, step, cell)` from disk."""
        return read_npz(self.path, ["values"])[0]


class DayStore:
    """Folder of summed days, of steps of `per_step` ten-minute intervals, beside a result."""

    def __init__(self, out: Path, per_step: int) -> None:
        self.folder = out.parent / f".{out.name}.days"
        self.per_step = per_step

    def day(self, raw: RawDay) -> StoredDay:
        """Return the sums of a raw day, read from its file unless they are in the folder."""
        facts = (2, raw.time_zone, self.per_step)  # The first is the version of the layout.
        key = hashlib.sha256(repr(facts).encode() + raw.cells.tobytes()).hexdigest()[:16]
        path = self.folder / f"{raw.date}-{key}.npz"
        if path.exists():
            with suppress(InputError):
                stored = _load(raw, path)
                # Size and time are not enough: an editor or a copy may keep both.
                if stored.checksum == text_checksum(raw.path):
                    return stored
        sums = read_day(raw, self.per_step)
        with atomic_path(path) as part, part.open("wb") as f:
            np.savez(
                f,
                values=sums.values,
                cells=sums.cells,
                recorded=sums.recorded,
                checksum=np.array(sums.checksum),
            )
        return _load(raw, path)

    def clear(self) -> None:
        """Remove the folder."""
        shutil.rmtree(self.folder)


def _load(raw: RawDay, path: Path) -> StoredDay:
    cells, recorded, checksum = read_npz(path, ["cells", "recorded", "checksum"])
    return StoredDay(raw, path, cells, recorded, str(checksum))


log = logging.getLogger(__name__)


def find_days(raw: Path, prefix: str, cells: np.ndarray, time_zone: str) -> list[RawDay]:
    """Return the raw days in a folder, or that of a single file, in order.

    Files of the folder that do not begin with `prefix` are ignored. A name without a day, a day
    with two files, and a path with a day's name that is not a file are refused.
    """
    if not raw.exists():
        raise InputError(
            f"{raw}: no such file or folder; give the folder of {prefix}YYYY-MM-DD.txt"
        )
    files = sorted(raw.glob(f"{prefix}*")) if raw.is_dir() else [raw]
    if not files:
        found = some(sorted(p.name for p in raw.iterdir()), 3) or "nothing"
        raise InputError(
            f"{raw}: found {found}, expected files named {prefix}YYYY-MM-DD.txt; "
            "give the folder that holds them"
        )
    days: dict[datetime.date, RawDay] = {}
    for path in files:
        check_regular(path, "file of a day", "put the day's file there, or remove this one")
        day = RawDay(path, _date_of(path, prefix), cells, time_zone)
        if other := days.get(day.date):
            raise InputError(
                f"{path}: {other.path.name} is also {day.date}, expected one file a day; remove one"
            )
        days[day.date] = day
    return sorted(days.values(), key=lambda day: day.date)


def _date_of(path: Path, prefix: str) -> datetime.date:
    match = re.fullmatch(re.escape(prefix) + r"(\d{4}-\d{2}-\d{2})\.txt(\.gz)?", path.name)
    try:
        if match:
            return datetime.date.fromisoformat(match[1])
    except ValueError:
        pass
    with open_raw(path) as f:
        foreign = foreign_copy(f.readline(MAX_LINE))
    remedy = foreign or "rename it, or move it away if it is not a day's file"
    raise InputError(f"{path}: expected a name like {prefix}2013-11-01.txt; {remedy}")


def check_dates(days: Sequence[RawDay], name: str, *, allow_gaps: bool) -> None:
    """Refuse missing days between the first and the last, or log a warning if gaps are allowed."""
    first, last = days[0].date, days[-1].date
    whole = pd.date_range(first, last).date
    missing = sorted(set(whole) - {day.date for day in days})
    if missing:
        _report_gap(
            f"{name}: {len(days)} of {len(whole)} days from {first} to {last} "
            f"(missing {some(missing)})",
            allowed=allow_gaps,
        )


def check_intervals(day: StoredDay, name: str, *, allow_gaps: bool) -> None:
    """Refuse a day that lacks intervals, or log a warning if gaps are allowed."""
    missing = np.flatnonzero(~day.recorded)
    if len(missing):
        n = len(day.recorded)
        clocks = some(map(day.raw.clock, missing.tolist()))
        _report_gap(
            f"{name}: {day.raw.date} has {n - len(missing)} of {n} intervals "
            f"(missing {clocks} local) in {day.raw.path}",
            allowed=allow_gaps,
        )


def _report_gap(message: str, *, allowed: bool) -> None:
    if not allowed:
        raise InputError(f"{message}; {AGAIN} ", Words("or pass {allow_gaps}", allow_gaps=True))
    log.warning("%s; left as NaN", message)


def occurring_cells(days: Sequence[StoredDay]) -> np.ndarray:
    """Return the cells of all days, ascending; refuse a file that is cut between two lines.

    Published files are sorted by cell, so a truncated one has all intervals of its first cells and
    lacks the last cells, which must not become "no activity". Comparison with other days shows it.
    """
    cells = np.unique(np.concatenate([day.cells for day in days]))
    for day in days:
        n_after = len(cells) - int(np.searchsorted(cells, day.cells[-1], side="right"))
        if n_after > max(10, 0.01 * len(cells)):  # A few cells may lack activity that day.
            raise InputError(
                f"{day.raw.path}: found no cell after {day.cells[-1]}, other days have {n_after} "
                f"up to {cells[-1]}: the file is cut; {AGAIN}, or ",
                Words("remove it and pass {allow_gaps}", allow_gaps=True),
            )
    return cells
