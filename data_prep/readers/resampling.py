"""Longer even steps for records of uneven times, and rows that a table lacks.

A sum over some of a step's records only would be too low, so it is missing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, get_args

import numpy as np
import pandas as pd

from data_prep.base.errors import InputError, Words, choose, in_minutes
from data_prep.base.limits import check_size
from data_prep.readers.columns import frequency
from data_prep.readers.origin import Origin, StepLog
from data_prep.readers.times import longer_step, regular_steps, usual_step

if TYPE_CHECKING:
    from data_prep.readers.time_axis import TimeAxis


Records = tuple[np.ndarray, np.ndarray]
"""Times in ns and positions of the longer steps of one cell's records, each `(records,)`."""


def count_records(
    cells: Iterable[Records], times: np.ndarray, lengths: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return the numbers of recorded and of expected times in each longer step, `(steps, cells)`.

    The expected distance of a cell's records is that of most of them. If it does not fit all of
    them, it is that of most records of the table. If those are uneven, too, the expected number is
    unknown, and 0. Times `(rows,)` and the lengths of the longer steps `(steps,)` are in ns.
    """
    usual = even_step(np.unique(times))
    found, expected = [], []
    for cell_times, at in cells:
        unique, first = np.unique(cell_times, return_index=True)
        found.append(np.bincount(at[first], minlength=len(lengths)))
        step = even_step(unique) or usual
        expected.append(lengths // step if step else np.zeros_like(lengths))
    return np.stack(found, axis=1), np.stack(expected, axis=1)


def even_step(times: np.ndarray) -> int | None:
    """Return the difference of most neighbouring times if all others are its multiples.

    Times of single events may all be multiples of a second, but few are a second apart.
    """
    if len(times) < 2:
        return None
    gaps, counts = np.unique(np.diff(times), return_counts=True)
    usual = int(gaps[counts.argmax()])
    even = 2 * counts.max() >= len(times) - 1 and not (gaps % usual).any()
    return usual if even else None


Aggregate = Literal["sum", "mean", "count", "total", "increase"]
AGGREGATES = get_args(Aggregate)
DAY = pd.Timedelta("1D")

log = StepLog("steps")


@dataclass(frozen=True)
class Resampling:
    """Even steps into which records are put; records of one step and cell are merged.

    The aggregate is `"sum"` for counts or `"mean"` for levels. A sum over a step with missing
    records is missing: a day with 14 of 24 hours would seem quiet. A mean is over the recorded
    values. Both cases are logged. `"count"` is the number of events, such as trips, and `"total"`
    the sum of their values; both are 0 for a step without any. `"increase"` is what a running
    counter rises by, see `readers.counters`.
    """

    step: pd.Timedelta
    agg: str

    def __post_init__(self) -> None:
        if self.agg not in AGGREGATES:
            raise choose("aggregate", self.agg, AGGREGATES)

    @classmethod
    def of(cls, step: str | None, agg: str | None) -> Resampling | None:
        """Read the options `--resample` and `--agg`."""
        if step is None and agg is None:
            return None
        if step is None:
            raise InputError(
                f"agg is {agg!r} without a step; ", Words("give {resample} too, such as 10min")
            )
        if agg is None:
            raise InputError(
                f"resample is {step!r}; say how to merge the records of a step: ",
                Words(
                    "{agg:sum} for counts, {agg:mean} for levels such as a speed, {agg:count} for "
                    "the number of events, {agg:total} for their sum, {agg:increase} for counters "
                    "that run on"
                ),
            )
        return cls(step_length(step, "resample"), agg)

    @property
    def of_events(self) -> bool:
        """Whether rows are events, of which a step may have none."""
        return self.agg in ("count", "total")

    def place(self, times: pd.DatetimeIndex, name: str) -> tuple[pd.DatetimeIndex, np.ndarray]:
        """Return the time axis `(steps,)` and the position of each row on it, `(rows,)`."""
        unique = times.unique().sort_values()
        if not self.of_events and len(unique) > 1 and (usual := usual_step(unique)) > self.step:
            raise InputError(
                f"{name}: its records are {in_minutes(usual)} apart, more than the steps of "
                f"{in_minutes(self.step)}; ",
                Words("give at least that as {resample}"),
            )
        # Times count from a Thursday; weeks begin on Mondays.
        first = pd.Timedelta(days=0 if self.step % pd.Timedelta(days=7) else 4)
        return regular_steps((times - first).floor(self.step) + first, name, self.step)

    def merge_cells(
        self,
        merged: np.ndarray,
        records: Iterable[Records],
        axis: TimeAxis,
        cells: np.ndarray,
        name: str,
    ) -> np.ndarray:
        """Return merged values `(steps, cells)`, without sums of steps that lack records."""
        found, expected = count_records(records, axis.times, axis.lengths)
        if not expected.any():
            log.warning(
                name,
                "its records are at uneven times, so steps that lack some are not noticed, "
                "the first and last included",
            )
        partial = (found > 0) & (found < expected)
        if not partial.any():
            return merged
        step, cell = divmod(int(partial.argmax()), len(cells))
        is_sum = self.agg == "sum"
        message = (
            f"{partial.sum()} of {merged.size} {self.agg}s over {in_minutes(self.step)} "
            f"lack records and are {'left missing' if is_sum else 'of those that there are'}; the "
            f"first is that of {axis.shown[step]}, cell {cells[cell]}, with {found[step, cell]} of "
            f"{expected[step, cell]} records"
        )
        merged = np.where(partial & is_sum, np.nan, merged)
        if np.isnan(merged).all():
            raise InputError(
                f"{name}: {message}; none is complete: write a 0 where nothing happened, or ",
                Words("choose a shorter {resample} or {agg:mean}"),
            )
        log.warning(name, f"{message}")
        return merged

    def fill(
        self,
        values: np.ndarray,
        n_events: np.ndarray,
        axis: TimeAxis,
        origin: Origin,
        allow_gaps: bool,
    ) -> np.ndarray:
        """Return the numbers or sums of events, `(steps, cells)`, 0 where there are none.

        A span of a day or more without an event of any cell, in which 20 would be usual, is no
        span of zeros: it is refused, or missing if gaps are allowed.
        """
        empty = ~n_events.any(axis=1)
        edges = np.flatnonzero(np.diff(np.concatenate([[0], empty, [0]])))
        usual = float(n_events.sum()) / len(n_events)
        missing = np.zeros(len(n_events), dtype=bool)
        for first, end in edges.reshape(-1, 2):
            if axis.lengths[first:end].sum() < DAY.value or usual * (end - first) < 20:
                continue
            refuse_gap(
                f"no cell has a record from {axis.shown[first]} to {axis.shown[end - 1]}, where "
                f"{usual * (end - first):.0f} would be usual",
                origin,
                allow_gaps,
            )
            missing[first:end] = True
        filled = np.where(n_events == 0, 0.0, values)
        return np.where(missing[:, None], np.nan, filled)

    def report(self, values: Mapping[str, np.ndarray], name: str) -> None:
        """Log the share of missing values of each variable."""
        if self.of_events:
            log.info(
                name,
                f"{('counted' if self.agg == 'count' else 'added up')} events; a step of a "
                "cell without any is 0, from the first event of the table to the last (also "
                "before the first of the cell)",
            )
        shares = [f"{100 * float(np.isnan(v).mean()):.1f} % of {n}" for n, v in values.items()]
        log.info(
            name,
            f"records put into steps of {in_minutes(self.step)} by their {self.agg}; "
            f"missing: {', '.join(shares)}",
        )


def step_length(text: str, option: str) -> pd.Timedelta:
    """Read the length of a step: a part of a day, or whole days.

    >>> step_length("10min", "step"), step_length("h", "step")
    (Timedelta('0 days 00:10:00'), Timedelta('0 days 01:00:00'))
    """
    length = _length_of_time(text)
    if not length or (DAY % length and length % DAY):
        raise InputError(
            f"{option} is {text!r}; give a length of time that divides a day, or whole days, such "
            "as 10min, 1h or 1D"
        )
    return length


def step_of_multiple(step: str, base: pd.Timedelta) -> pd.Timedelta:
    """Read the length of a step: a multiple of the published one, `base`, that divides a day.

    >>> step_of_multiple("1h", pd.Timedelta("5min"))
    Timedelta('0 days 01:00:00')
    """
    length = _length_of_time(step)
    if not length or length % base or DAY % length:
        raise InputError(
            f"step {step!r} does not fit, expected a multiple of {in_minutes(base)} that divides "
            "a day; choose one such as 30min, 1h or 1D"
        )
    return length


def _length_of_time(text: str) -> pd.Timedelta | None:
    """Return a length; None if it is none, or a number without a unit, which may mean anything."""
    with suppress(ValueError):
        if not re.search("[a-zA-Z:]", text):
            return None
        length = pd.Timedelta(re.sub(r"^(?=[a-zA-Z])", "1", text))
        return length if length > pd.Timedelta(0) else None
    return None


def refuse_gap(message: str, origin: Origin, allow_gaps: bool, reason: str | Words = "") -> None:
    """Raise for missing rows, for which there may be a reason, or log them if gaps are allowed."""
    if not allow_gaps:
        allow = Words("pass {allow_gaps}", allow_gaps=True)
        advice = origin.either(allow, "cube = open_cube(df, allow_gaps=True)")
        raise InputError(
            f"{origin.name}: {message}; ",
            reason,
            "add what is missing or ",
            advice,
            " to leave NaN there",
        )
    log.warning(origin, f"{message}; left as NaN")


def check_steps(axis: pd.DatetimeIndex, at: np.ndarray, origin: Origin, allow_gaps: bool) -> None:
    """Refuse or log steps without a row; `at` is the position of each row on the axis."""
    present = np.zeros(len(axis), dtype=bool)
    present[at] = True
    _refuse_steps(~present, axis, at, origin, allow_gaps)


def _refuse_steps(
    absent: np.ndarray, axis: pd.DatetimeIndex, at: np.ndarray, origin: Origin, gaps: bool
) -> None:
    """Refuse or log absent steps, `(steps,)` bool; neither the first nor the last is."""
    if absent.any():
        first = int(absent.argmax())
        after = first + int(absent[first:].argmin())
        rows = [int(np.argmax(at == step)) for step in (first - 1, after)]
        files = [f" ({origin.at(row)})" if origin.stack else "" for row in rows]
        message = (
            f"{absent.sum()} of {len(axis)} time steps have no row, the first after "
            f"{axis[first - 1]}{files[0]} (next row {axis[after]}{files[1]})"
        )
        reason: str | Words = ""
        edges = np.flatnonzero(np.diff(absent.astype(np.int8), prepend=0, append=0))
        firsts, ends = axis[edges[::2]], axis[edges[1::2]]
        wall = firsts if firsts.tz is None else firsts.tz_convert("UTC")
        # Clocks may go forward on a night to Sunday in spring, north or south.
        skipped = (wall.day_of_week == 6) & (wall.hour < 4) & wall.month.isin([3, 4, 9, 10])
        if (skipped & (ends - firsts <= pd.Timedelta(hours=1))).all():
            reason = Words(
                "if the clock went forward then, give {time_zone:Europe/Berlin} or that of your "
                "place, and {clock:local}; else "
            )
        elif absent.mean() > 0.8:  # Records are likely at uneven times.
            reason = Words(
                "if the records are at uneven times, put them into even steps with {resample} "
                "{agg:mean} if they are levels, {agg:sum} if they are counts, {agg:count} if each "
                "row is an event, or {agg:total} for the sum of its values; else ",
                resample=frequency(longer_step(np.diff(axis[~absent]), axis[1] - axis[0])),
            )
        refuse_gap(message, origin, gaps, reason)


def check_periods(
    axis: pd.DatetimeIndex,
    time_at: np.ndarray,
    cells: np.ndarray,
    cell_at: np.ndarray,
    origin: Origin,
    allow_gaps: bool,
) -> None:
    """Refuse or log missing rows within the cells' periods; log cells of shorter periods.

    A cell's period reaches from its first row to its last. Outside of it the cell is masked.
    """
    check_size(4 * len(axis) * len(cells), f"{origin.name}: the cube")
    present = np.zeros((len(axis), len(cells)), dtype=bool)
    present[time_at, cell_at] = True
    first = present.argmax(axis=0)
    last = len(axis) - 1 - present[::-1].argmax(axis=0)
    steps = np.arange(len(axis))[:, None]
    inside = (first <= steps) & (steps <= last)
    holes = ~present & inside
    whole = inside.any(axis=1) & ~present.any(axis=1)
    _refuse_steps(whole, axis, time_at, origin, allow_gaps)
    if (partly := holes & ~whole[:, None]).any():
        step, cell = divmod(int(partly.argmax()), len(cells))
        message = (
            f"{partly.sum()} of {partly.size} (time, cell) pairs have no row, the first is "
            f"{axis[step]}, cell {cells[cell]}"
        )
        refuse_gap(message, origin, allow_gaps)
    shorter = np.flatnonzero((first > 0) | (last < len(axis) - 1))
    if len(shorter):
        i = int(shorter[0])
        log.warning(
            origin,
            f"{len(shorter)} of {len(cells)} cells have rows in a part of the time only, "
            f"such as cell {cells[i]} from {axis[first[i]]} to {axis[last[i]]}; left as "
            f"NaN outside of it ({100 * float(np.mean(~inside)):.1f} % of all values)",
        )
