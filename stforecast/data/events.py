"""Events that are known in advance, such as matches, a town's holidays and road works, as inputs.

For each target step and each kind of event, a window reads the share of the step that events of
this kind take at its cell: 0.5 of an hour in whose middle a match ends. Unlike further services
(`stforecast.data.covariates`), events are known for times that are still to come.

Shares are divided by √p, where p is the share of the training part that the kind takes at its
cells, 0.01 at least: so rare events are of about the size of z-scored readings, and a penalty of
large weights does not wipe them out.

A table of events is a CSV file with a line for each event:

- `kind`: the kind of the event, such as match; events of one kind share their effect;
- `start` and `end`, or `date`: ISO 8601 times, such as 2013-11-09 20:45. Times are local time of
  the data, unless they have an offset, such as Z for UTC. An `end` that is a day includes that day;
  a `date` is a whole day;
- `cells`: the ids of its cells, separated by semicolons; all cells where it is empty or absent.
"""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from data_prep.base.errors import InputError, Words, check_regular, choose, no_file, reading, some
from data_prep.readers.times import OFFSET

if TYPE_CHECKING:
    from stforecast.data.clock import Calendar


def read_texts(path: Path, what: str, columns: Sequence[str], remedy: str) -> pd.DataFrame:
    """Read a CSV file with some columns as texts without spaces around them, empty if missing.

    A first line with semicolons is separated by them, and numbers then have decimal commas. A cell
    in one of the columns has one line.
    """
    if not path.is_file():
        check_regular(path, what, remedy)
        raise no_file(path, what, remedy)
    with reading(path, f"as a {what}", remedy):
        separator = ";" if ";" in path.read_text("utf-8-sig").partition("\n")[0] else ","
        table = pd.read_csv(
            path, sep=separator, dtype=str, keep_default_na=False, skipinitialspace=True
        )
        table = table.rename(columns=lambda name: str(name).strip())
        table = table.apply(lambda column: column.str.strip())
        if separator == ";":
            table = table.replace(r"^(-?\d+),(\d+)$", r"\1.\2", regex=True)
    if missing := [name for name in columns if name not in table]:
        raise InputError(f"{path}: no column {missing[0]!r}, found {some(table.columns)}; {remedy}")
    if "cell" in columns and len(twice := table["cell"][table["cell"].duplicated()]):
        raise InputError(f"{path}: more than one line of cell {twice.iloc[0]}; keep one")
    return table


REMEDY = (
    "give a CSV file with the columns kind, start and end (or date) and, for events at some cells "
    "only, cells"
)


@dataclass(frozen=True, eq=False)
class Events:
    """Events at the cells of a series.

    Attributes:
        name: name of the table in messages.
        kinds: names of the kinds, in the order of the inputs.
        kind: `(events,)` position of the kind of each event.
        begin: `(events,)` datetime64, on the clock of the series.
        end: `(events,)` datetime64 after `begin`, not included.
        at: `(events, cells)` bool, True at the cells of the event.
        scale: `(kinds,)` factors of the inputs; 1 if None.
    """

    name: str
    kinds: tuple[str, ...]
    kind: np.ndarray
    begin: np.ndarray
    end: np.ndarray
    at: np.ndarray
    scale: np.ndarray | None = None

    @classmethod
    def none(cls, kinds: Sequence[str], n_cells: int) -> Events:
        """Return a table of these kinds without events."""
        times = np.empty(0, dtype="datetime64[ns]")
        at = np.empty((0, n_cells), dtype=bool)
        return cls("no table", tuple(kinds), np.empty(0, dtype=int), times, times, at)

    def arrays(self) -> dict[str, np.ndarray]:
        """Return the events as numbers, to tell them apart from others."""
        times = {name: getattr(self, name).astype("int64") for name in ("begin", "end")}
        return {"kind": self.kind, "at": self.at, **times}

    def of_cells(self, position: np.ndarray) -> Events:
        """Return the events as they concern some cells."""
        return dataclasses.replace(self, at=self.at[:, position])

    def shares(self, start: pd.Timestamp, step: pd.Timedelta, n_steps: int) -> np.ndarray:
        """Return the share of each step that events of each kind take, also where they overlap.

        Its shape is `(cells, n_steps, kinds)`, float32 from 0 to 1; the first step begins at
        `start`, on the clock of the series.
        """
        found = np.zeros((self.at.shape[1], n_steps, len(self.kinds)), dtype=np.float32)
        begin, end = (
            ((times - start.to_datetime64()) / step.to_timedelta64()).clip(0, n_steps)
            for times in (self.begin, self.end)
        )
        for kind, low, high, cells in zip(self.kind, begin, end, self.at, strict=True):
            first, last = int(low), math.ceil(high)
            steps = np.arange(first, last)
            taken = np.minimum(steps + 1, high) - np.maximum(steps, low)
            found[cells, first:last, kind] += taken.astype(np.float32)
        return np.minimum(found, 1.0)

    def inputs(self, starts: np.ndarray, horizon: int, calendar: Calendar) -> np.ndarray:
        """Return the share of each target step that events of each kind take, times their scale.

        Targets are in the order of the wall clock. Its shape is `(cells, windows, horizon, kinds)`,
        float32.
        """
        first = int(starts.min()) if len(starts) else 0
        steps = starts[:, None] + np.arange(horizon) - first
        n_steps = int(steps.max(initial=-1)) + 1
        shares = self.shares(calendar.time(first), calendar.step, n_steps)
        if self.scale is not None:
            shares *= self.scale.astype(np.float32)
        return calendar.on_wall_clock(shares[:, steps], starts)

    def fit_scale(self, calendar: Calendar, learned: slice, data: str) -> np.ndarray:
        """Return `scale`, fitted on the steps of the targets of the training part.

        A kind without an event there is refused, since nothing could be learned.
        """
        start, end = (calendar.time(step).to_datetime64() for step in (learned.start, learned.stop))
        taken = (self.end.clip(start, end) - self.begin.clip(start, end)) / (end - start)
        shares = np.zeros(len(self.kinds))
        for i, kind in enumerate(self.kinds):
            own = self.kind == i
            shares[i] = (taken * self.at.sum(1))[own].sum() / self.at[own].any(0).sum()
            if not shares[i]:
                part = calendar.local_times(np.array([learned.start, learned.stop - 1]))
                known = calendar.local(
                    pd.DatetimeIndex([self.begin[own].min(), self.end[own].max()])
                )
                raise InputError(
                    f"{self.name}: no {kind!r} in the training part of {data}, {part[0]} to "
                    f"{part[1]} (its events lie from {known[0]} to {known[1]}, local time), so "
                    "its effect cannot be learned; ",
                    Words("remove it, or train on another {split}"),
                )
        return 1 / np.sqrt(shares.clip(0.01, 1.0))


def read_events(
    path: str | os.PathLike[str],
    cells: np.ndarray,
    calendar: Calendar,
    data: str,
    known: Sequence[str] | None = None,
) -> Events:
    """Read a table of events; `known` are the kinds that a model was fitted on, if any."""
    table = read_texts(Path(path), "table of events", ("kind",), REMEDY)
    if not len(table) and known is None:
        raise InputError(f"{path}: no event in it; {REMEDY}")
    if odd := [kind for kind in table["kind"] if not kind or "," in kind]:
        line = _line(path, table["kind"] == odd[0])
        raise InputError(f"{line}: the kind is {odd[0]!r}; give a name without commas")
    kinds = tuple(sorted(set(table["kind"])) if known is None else known)
    if new := sorted(set(table["kind"]) - set(kinds)):
        line = _line(path, table["kind"] == new[0])
        raise InputError(
            f"{line}: {choose('kind of event', new[0], kinds)}; the model was fitted without it, "
            "so remove its lines or fit again"
        )
    begin, end = _times(path, table, calendar)
    at = _at(path, table, cells, data)
    kind = pd.Index(kinds).get_indexer(pd.Index(table["kind"]))
    return Events(str(path), kinds, kind, begin, end, at)


def _line(path: str | os.PathLike[str], rows: pd.Series | np.ndarray) -> str:
    """Name the first line of a table that a condition holds for."""
    return f"{path}, line {int(np.argmax(rows)) + 2}"


def _times(
    path: str | os.PathLike[str], table: pd.DataFrame, calendar: Calendar
) -> tuple[np.ndarray, np.ndarray]:
    """Return begin and end of each event on the clock of the series, each `(events,)`."""
    if "date" in table and (hours := [name for name in ("start", "end") if name in table]):
        raise InputError(
            f"{path}: columns 'date' and {hours[0]!r}; write times with their day as start and "
            "end, such as 2013-11-09 20:45, and remove the column date, or keep date alone"
        )
    names = ("date", "date") if "date" in table else ("start", "end")
    if absent := [name for name in names if name not in table]:
        raise InputError(f"{path}: no column {absent[0]!r}, found {some(table)}; {REMEDY}")
    days = [table[name].str.fullmatch(r"\d{4}(-?)\d{2}\1\d{2}") for name in names]
    if "date" in table and not days[0].all():
        line, day = _line(path, ~days[0]), table["date"][~days[0]].iloc[0]
        raise InputError(
            f"{line}: the date is {day!r}, expected a day such as 2013-11-09; write events of "
            "hours with start and end"
        )
    begin = _on_clock(path, table[names[0]], calendar)
    end = _on_clock(path, table[names[1]], calendar, whole_days=days[1])
    if (odd := end <= begin).any():
        ends, starts = table["end"][odd].iloc[0], table["start"][odd].iloc[0]
        raise InputError(
            f"{_line(path, odd)}: the event ends at {ends}, not after its start at {starts}; "
            "correct it"
        )
    return begin, end


def _on_clock(
    path: str | os.PathLike[str],
    texts: pd.Series,
    calendar: Calendar,
    whole_days: pd.Series | None = None,
) -> np.ndarray:
    """Return ISO 8601 times on the clock of the series; `whole_days` end with that day."""
    aware = texts.str.contains(OFFSET, regex=True).to_numpy(dtype=bool)
    local = pd.to_datetime(texts.mask(aware), format="ISO8601", errors="coerce")
    exact = pd.to_datetime(texts.where(aware), format="ISO8601", errors="coerce", utc=True)
    if (wrong := (local.isna() & exact.isna()).to_numpy()).any():
        raise InputError(
            f"{_line(path, wrong)}: cannot read time {texts[wrong].iloc[0]!r}, expected ISO 8601 "
            "such as 2013-11-09 20:45 or 2013-11-09; correct it"
        )
    if aware.any() and calendar.time_zone is None:
        raise InputError(
            f"{_line(path, aware)}: time {texts[aware].iloc[0]!r} has an offset, but the times of "
            "the data are local without one; write local times"
        )
    if whole_days is not None:
        local = local + pd.to_timedelta(whole_days.astype(int), unit="D")
    if calendar.time_zone is None:
        return local.to_numpy()
    # An hour that occurs twice, when clocks go back, is within an event that names it.
    twice = np.full(len(local), whole_days is None)
    zoned = local.dt.tz_localize(calendar.time_zone, ambiguous=twice, nonexistent="shift_forward")
    return exact.fillna(zoned.dt.tz_convert("UTC")).dt.tz_localize(None).to_numpy()


def _at(
    path: str | os.PathLike[str], table: pd.DataFrame, cells: np.ndarray, data: str
) -> np.ndarray:
    """Return the cells of each event, `(events, cells)` bool."""
    if "cells" not in table:
        return np.ones((len(table), len(cells)), dtype=bool)
    position = {str(cell): i for i, cell in enumerate(cells.tolist())}
    at = np.zeros((len(table), len(cells)), dtype=bool)
    for row, text in enumerate(table["cells"]):
        named = [name.strip() for name in text.split(";") if name.strip()]
        if unknown := [name for name in named if name not in position]:
            raise InputError(
                f"{path}, line {row + 2}: cell {unknown[0]}, which {data} does not have; its cells "
                f"are {some(position)}; separate several by semicolons"
            )
        at[row, [position[name] for name in named] if named else slice(None)] = True
    return at
