"""A delivery as a whole, compared with what was expected of it before it is believed.

Where readings are not as expected, causes that lie in the delivery are tried: another unit, one
value for all, another zone, columns that changed places. A delivery is doubtful if one of them
explains its readings far better than the world does: they are as expected once it is undone.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import pandas as pd
import xarray as xr

from data_prep.base.errors import Words, counted, in_minutes, some
from data_prep.cube import local_time, step_of
from data_prep.preparation import preparation_of
from stforecast.service.expected import (
    SPAN,
    Expected,
    UsualDistance,
    Values,
    expect,
    mad,
    paired,
    readings_of,
    steps_of_day,
    usual_of_forecasts,
    usual_of_weeks,
)
from stforecast.service.folder import ServiceState
from stforecast.service.records import append

FACTORS = {
    8.0: "bits for bytes", 10.0: "tenths for ones", 100.0: "per cent for shares",
    60.0: "seconds for minutes, or minutes for hours", 3600.0: "seconds for hours",
    1000.0: "such as kB for B", 1024.0: "such as KiB for B", 1e6: "such as MB for B",
    2.0**20: "such as MiB for B", 1e9: "such as GB for B",
}  # fmt: skip
"""Factors between units, and what they are between; also upside down."""

LEAST_FACTOR = 3.8
"""Factor, or its reciprocal, from which a level of all cells may be of another unit: four, within
what days differ. After a lockdown all cells of a city rose to twice what was expected."""

LEAST_CORRECTED = 1.25
"""Factor, or its reciprocal, from which corrections of all cells may be of another unit."""

FEW_CELLS, LEAST_OF_FEW = 4, 20.0
"""Cells below which these factors must be larger, as a few may well move together; corrections of
one cell alone likewise."""

SPREAD, LEAST_SPREAD, MOST_SPREAD = 1.2, 0.08, 0.15
"""How far apart the factors of cells may be: in what is usual, but at least and at most so far, as
a logarithm."""

ALIKE, ALIKE_UNIT = 1.5, 1.2
"""Factor within which cells have the same, and within which it is one between units."""

MERGED = 0.5
"""Power of two by which merged readings are off at least: two readings make a factor of two."""

MOST_CELLS = 0.7
"""Share of the expected sum whose cells have a common factor."""

HOURS = 12
"""Hours by which another zone moves a day, at most."""

MOVED_SUM, MOVED_ALL, MOVED_CELLS = 0.5, 0.85, 0.75
"""Share of the error of all cells' sum, and of all readings, that is left at most once a day is
moved back, and share of the cells that are then nearer to what was expected."""

SWAPPED, SWAPPED_ODD = 0.5, 0.6
"""Share of the error of swapped cells that is left at most in each other's places, and share of the
odd cells that they are at least."""

FEWEST = 6
"""Steps of a delivery below which neither zone nor order of the columns is judged."""

AS_EXPECTED, SUM_STAYS = 0.7, 2.0
"""Mean error of swapped cells in their places, in half widths, and that of the sum of all cells, in
what is usual; both at most."""

MOST_SWAPPED = 500
"""Cells that are tried in each other's places."""


NEAR, ANYWHERE = pd.Timedelta(hours=1), pd.Timedelta(hours=14)
"""How far the last step may end after the present, in a known zone and where none is known."""


@dataclass(frozen=True)
class Doubt:
    """Why a delivery is not believed.

    Attributes:
        kind: unit, constant, zone, swapped, future or cadence.
        reason: what is odd, and what explains it.
        instead: what to do instead of giving it again as it is; by default, by the factor.
        factor: what to multiply its values by; 1 if that does not help.
        times: what they were multiplied by already.
        fits: whether the history can take it.
    """

    kind: str
    reason: str
    instead: Words | None = None
    factor: float = 1.0
    times: float = 1.0
    fits: bool = True

    @property
    def remedy(self) -> Words:
        """What to do."""
        total = f"{self.times * self.factor:.10g}"
        words = self.instead or Words("correct it and give it again")
        if self.factor != 1.0:
            again = (
                Words("with {factor}", factor=total) if total != "1" else Words("without {factor}")
            )
            words = Words("if its unit is another, give it again {}", again)
        if not self.fits:
            return words
        right = Words("{accept}")
        if self.times != 1.0:
            right = Words("{factor} {accept}", factor=f"{self.times:.10g}")
        return Words("{}; if it is right, give it again with {}", words, right)


def doubt_of_times(history: xr.Dataset, records: xr.Dataset, present: pd.Timestamp) -> Doubt | None:
    """Find that records have other steps, or end after the present (UTC)."""
    step = step_of(history)
    if records.sizes["time"] > 1 and step_of(records) != step:
        own, other = in_minutes(step), in_minutes(step_of(records))
        reason = f"it has steps of {other}, but the history has steps of {own}"
        in_steps = Words("give it in steps of {}", own)
        if not step_of(records) % step:
            reason += ", so rows are missing, or its values are of longer steps"
            return Doubt("cadence", reason, in_steps)
        if not step % step_of(records):
            in_steps = Words(
                "prepare it with {resample}, and {agg:sum} for counts or {agg:mean} for levels as "
                "the history has them, and give the cube",
                resample=f"{step / pd.Timedelta(minutes=1):g}min",
            )
        return Doubt("cadence", reason, in_steps, fits=False)
    ahead = end_in_utc(records, step) - present
    zone = str(records.attrs.get("time_zone", "UTC"))
    if ahead <= (ANYWHERE if zone == "UTC" else NEAR):
        return None
    long = (
        f"{ahead / pd.Timedelta(days=1):,.1f} days" if ahead > 2 * ANYWHERE else in_minutes(ahead)
    )
    return Doubt("future", f"it ends at {local_time(records)[-1]}, {long} from now")


def end_in_utc(records: xr.Dataset, step: pd.Timedelta) -> pd.Timestamp:
    """Return the end of the last step in UTC."""
    local = records.attrs.get("clock") == "local"
    end = records.indexes["time"][-1] + step
    zone = records.attrs.get("time_zone", "UTC") if local else "UTC"
    placed = end.tz_localize(zone, ambiguous=True, nonexistent="shift_forward")
    return pd.Timestamp(placed.tz_convert("UTC"))


def doubt_of_values(
    state: ServiceState, records: xr.Dataset, name: str, issued: xr.Dataset, before: xr.Dataset
) -> Doubt | None:
    """Find what explains new records better than the world does; None if they are as expected.

    Args:
        state: the state before them.
        records: a cube with the steps of the history.
        name: name of the records in messages.
        issued: the forecasts made before, that of the coming span among them.
        before: the run's `tested` forecasts.
    """
    service = state.service
    empty = state.history.assign({service: state.history[service] * np.nan})
    given = readings_of(append(empty, records, name)[0], issued)
    known = readings_of(state.history, issued).reindex(given.index)
    differs = given.notna() & ~np.isclose(given, known, rtol=1e-9)
    corrected = (differs & known.notna()).any(axis=1)
    if corrected.any() and (found := _corrections(given, known, corrected)):
        return found
    step = step_of(state.history)
    day, hour = steps_of_day(step), round(pd.Timedelta(hours=1) / step)
    hour = hour if step <= pd.Timedelta(hours=1) else 0
    first = max(state.history.sizes["time"] - SPAN * day, 0)
    rows = np.flatnonzero(differs.any(axis=1))
    rows = rows[rows >= first]
    if not len(rows):
        return None
    begin, end = int(rows[0]), int(rows[-1]) + 1
    lead = min(HOURS * hour, begin - first)
    believed = readings_of(state.believed, issued)
    of_weeks = usual_of_weeks(believed, day)
    usual = usual_of_forecasts(before, state.issued)
    if of_weeks.total < usual.total:  # The model is no good, or its horizon is far.
        issued, usual = issued.isel(time=slice(0)), of_weeks
    until = given.index[0] + step * (end - 1 + HOURS * hour)
    asked = slice(begin - lead - first, None)
    expected = expect(issued, believed.iloc[first:], until, asked)
    # What is known of other steps need not be expected.
    history = believed.to_numpy()[first:]
    was = history[asked]
    others = np.isfinite(was)
    others[lead : lead + end - begin] = False
    expected.values[: len(was)][others] = was[others]
    own, agg = (preparation_of(ds).get("options", {}).get("agg") for ds in (state.history, records))
    delivery = Delivery(
        given.to_numpy()[begin:end], expected, lead, hour,
        [str(cell) for cell in given.columns], usual, float(np.nanmin(known.to_numpy())),
        history, LEAST_FACTOR if given.shape[1] >= FEW_CELLS else LEAST_OF_FEW,
        merged="" if agg in (None, own) else agg,
    )  # fmt: skip
    causes = (_of_one_value, _in_another_unit, _moved, _swapped, _merged)
    days = range(0, len(delivery.readings), day) if len(delivery.readings) > day else ()
    if found := next(filter(None, (find(delivery) for find in causes)), None):
        return found
    parts = (delivery.of(slice(n, n + day)) for n in days)
    odd = next((found for part in parts for find in causes if (found := find(part))), None)
    # What helps one day would spoil the others.
    alone = Words("give the days by themselves, in their order, or correct that one")
    return odd and dataclasses.replace(odd, factor=1.0, instead=alone)


@dataclass(frozen=True, eq=False)
class Delivery:
    """Readings of a delivery beside what was expected of them.

    Attributes:
        readings: `(steps, cells)`, NaN where it has none.
        expected: what was expected from `HOURS` before its first step to `HOURS` after its last.
        lead: steps of `expected` before the first reading.
        hour: steps of an hour; 0 if steps are longer.
        cells: ids of the cells.
        usual: how far readings usually are from their expected values.
        lowest: lowest reading of the history.
        history: readings of the history, of any shape; None for none.
        least: factor, or its reciprocal, from which its level is doubtful.
        what: what it is compared with, in words.
        merged: how shorter steps were merged to its own, if the history's were so otherwise.
    """

    readings: Values
    expected: Expected
    lead: int
    hour: int
    cells: list[str]
    usual: UsualDistance
    lowest: float
    history: Values | None = None
    least: float = LEAST_FACTOR
    what: str = "what was expected"
    merged: str = ""

    def of(self, steps: slice) -> Delivery:
        """Return a part of it, such as one of its days."""
        readings = self.readings[steps]
        until = steps.start + self.lead + len(readings) + HOURS * self.hour
        what = f"{self.what} on day {steps.start // (steps.stop - steps.start) + 1} of it"
        expected = self.expected.of(slice(steps.start, until))
        return dataclasses.replace(self, readings=readings, expected=expected, what=what)

    @cached_property
    def digit(self) -> float:
        """Last digit of the history's readings; 0 without any."""
        return 0.0 if self.history is None else digit_of(self.history)

    @cached_property
    def own(self) -> Expected:
        """What was expected of its readings, `(steps, cells)`."""
        return self.expected.of(slice(self.lead, self.lead + len(self.readings)))

    @cached_property
    def both(self) -> Values:
        """Whether a reading and its expected value are known."""
        return np.isfinite(self.readings) & np.isfinite(self.own.values)

    @cached_property
    def pair(self) -> tuple[Values, Values]:
        """Its readings and their expected values, 0 where one of the two is unknown."""
        return paired(self.readings, self.own.values)


def _corrections(given: pd.DataFrame, known: pd.DataFrame, rows: pd.Series) -> Doubt | None:
    """Find that new readings of known steps (time × cell) are the known ones in another unit.

    They are right if they are nearer to what is usual than those that they replace.
    """
    usual = np.nanmedian(known.to_numpy()) or 1.0
    given, known = given[rows], known[rows]
    with np.errstate(divide="ignore", invalid="ignore"):
        was, would = (np.abs(np.log(np.nanmean(of.to_numpy()) / usual)) for of in (known, given))
    if would < was:
        return None
    values = known.to_numpy()
    width = np.ones_like(values)
    before = Expected(pd.DatetimeIndex(known.index), values, width, width, np.isfinite(values))
    least = LEAST_CORRECTED if known.shape[1] > 1 else LEAST_OF_FEW
    return _in_another_unit(Delivery(
        given.to_numpy(), before, 0, 0, [], UsualDistance(spread=0.0), 0.0, values,
        least, "the records that they replace",
    ))  # fmt: skip


def _merged(of: Delivery) -> Doubt | None:
    """Find that shorter steps were merged otherwise than the history's, such as to means."""
    seen, due = (v.sum() for v in of.pair)
    if not of.merged or not due or abs(math.log2(max(seen / due, 0.01))) < MERGED:
        return None
    reason = f"its steps are the {of.merged} of shorter ones, and values {seen / due:.2g} times"
    other = Words("prepare it with {agg}", agg="sum" if of.merged == "mean" else "mean")
    return Doubt("unit", f"{reason} what was expected", other)


def _of_one_value(of: Delivery) -> Doubt | None:
    """Find that all readings are one value, which neither was expected nor is usual."""
    known = of.readings[np.isfinite(of.readings)]
    if len(known) < FEWEST or (known != known[0]).any() or not of.both.any():
        return None
    seen, due = of.pair
    if np.abs(seen - due).sum() <= np.abs(due).sum() / 2 and known[0] >= of.lowest:
        return None
    return Doubt("constant", f"all {counted(len(known), 'reading')} are {known[0]:g}")


def _in_another_unit(of: Delivery) -> Doubt | None:
    """Find a common factor of most cells."""
    seen, expected = (v.sum(axis=0) for v in of.pair)
    asked = (expected > 0) & (seen > 0)
    if not asked.any():
        return None
    factors, weights = seen[asked] / expected[asked], expected[asked]
    order = np.argsort(factors)
    middle = np.searchsorted(weights[order].cumsum(), weights.sum() / 2)
    factor = float(factors[order][middle])
    if max(factor, 1 / factor) < of.least:
        return None
    same = np.abs(np.log(factors / factor)) < math.log(ALIKE)
    if weights[same].sum() < MOST_CELLS * expected[expected > 0].sum():
        return None
    # The world moves cells by different factors.
    if mad(np.log(factors)) > np.clip(SPREAD * of.usual.spread, LEAST_SPREAD, MOST_SPREAD):
        return None
    named, what = _named(factor, of.readings, of.digit)
    n = f"{same.sum()} of {counted(len(seen), 'cell')}"
    reason = f"values of {n} are about {_times(named)} {of.what}"
    by_step, due = (v.sum(axis=1) for v in of.pair)
    with np.errstate(divide="ignore", invalid="ignore"):
        others = np.abs(np.log(by_step / due / named)) >= math.log(ALIKE)
    if due[others].sum() > (1 - MOST_CELLS) * due.sum():  # One factor would spoil some of them.
        return Doubt("unit", f"{reason}, but not at all times; a part may have another unit")
    if not what:  # A factor that is none between units would make the world as it was expected.
        return Doubt("unit", reason)
    return Doubt("unit", f"{reason} ({what})", factor=1 / named)


def _named(factor: float, readings: Values, digit: float) -> tuple[float, str]:
    """Return the nearest factor between units, and what it is; the factor itself if none is near.

    Of 1000 and 1024, and of their squares, that one is taken by which the readings can be divided
    to have no more digits than the history, by default 1000.

    >>> _named(1010.0, 1024 * np.array([[3.0, 7.0]]), 1.0)[0]
    1024.0
    """
    known = {sign: what for f, what in FACTORS.items() for sign in (f, 1 / f)}
    off = {f: abs(math.log(f / factor)) for f in known}

    def order(f: float) -> tuple[bool, bool, bool, float]:
        divides = _in_digits(readings / f, digit)
        return (
            off[f] > math.log(ALIKE_UNIT),
            not divides,
            max(f, 1 / f) in (2.0**10, 2.0**20),
            off[f],
        )

    nearest = min(off, key=order)
    if off[nearest] > math.log(ALIKE_UNIT):
        return float(f"{factor:.2g}"), ""
    return nearest, known[nearest]


def digit_of(readings: Values) -> float:
    """Return the last digit that all readings have, such as 0.01; 0 if there are more than six."""
    digits = (10.0**-n for n in range(7))
    return next((digit for digit in digits if _in_digits(readings, digit)), 0.0)


def _in_digits(readings: Values, digit: float) -> bool:
    """Return whether all readings are multiples of a digit."""
    known = readings[np.isfinite(readings)] / digit if digit else np.array([0.5])
    return bool(np.allclose(known, np.round(known), rtol=1e-9, atol=1e-4))


def _times(factor: float) -> str:
    return f"{factor:g} times" if factor > 1 else f"1/{1 / factor:g} of"


class _Fit(NamedTuple):
    """Errors by what was expected: of all readings, of the sum of all cells, and of each cell."""

    all: float
    sum: float
    cells: Values


def _moved(of: Delivery) -> Doubt | None:
    """Find that the day is moved by whole hours."""
    n, found = len(of.readings), dict[int, _Fit]()
    if not of.hour or n < FEWEST * of.hour:
        return None
    # A time at which nothing ever is reported, such as at night, is expected to have nothing.
    cells = np.isfinite(of.readings).sum(axis=0) > np.isfinite(of.own.values).sum(axis=0) / 2
    seen, expected = (np.nan_to_num(v[:, cells]) for v in (of.readings, of.expected.values))
    for hours in range(-HOURS, HOURS + 1):
        begin = of.lead - hours * of.hour
        due = expected[max(begin, 0) : begin + n]
        if begin >= 0 and len(due) == n and (size := np.abs(due).sum()):
            error = seen - due
            by_cell = np.abs(error).sum(axis=0)
            of_sum = np.abs(error.sum(axis=1)).sum()
            found[hours] = _Fit(by_cell.sum() / size, of_sum / size, by_cell)
    best = min(found, key=lambda h: (found[h].all * found[h].sum, abs(h)), default=0)
    if not best or 0 not in found:
        return None
    was, would = found[0], found[best]
    better = float((would.cells < was.cells).mean())
    all_better = would.all <= MOVED_ALL * was.all and better >= MOVED_CELLS
    if would.sum > MOVED_SUM * was.sum or not all_better:
        return None
    way = "late" if best > 0 else "early"
    reason = f"the day is {counted(abs(best), 'hour')} too {way}, as if times were of another zone"
    return Doubt("zone", reason)


def _swapped(of: Delivery) -> Doubt | None:
    """Find cells that are as expected in each other's places."""
    if len(of.readings) < FEWEST or of.readings.shape[1] < 2:
        return None
    seen, due = of.pair
    if np.abs((seen - due).sum(axis=1)).sum() > SUM_STAYS * of.usual.total * due.sum():
        return None  # Cells that change places leave their sum as it is.
    own, known = of.own.values, of.both.sum(axis=0)
    width = np.where(of.readings > own, of.own.above, of.own.below)
    with np.errstate(divide="ignore", invalid="ignore"):
        off = np.where(of.both, np.abs(seen - due) / width, 0.0).sum(axis=0) / known
    # A cell that always was 0 has no width.
    odd = np.flatnonzero((off > 1) & np.isfinite(off))[:MOST_SWAPPED]
    fewest = max(2, SWAPPED_ODD * len(odd))
    if len(odd) < fewest:
        return None
    scale = np.where(of.both, width, 0.0).sum(axis=0)[odd] / known[odd]
    seen = np.where(np.isfinite(of.readings), of.readings, own)[:, odd]
    cost = np.stack([_mean(np.abs(seen - own[:, [c]])) for c in odd]) / scale[:, None]
    if (cost < SWAPPED * cost.diagonal()[:, None]).any(axis=1).sum() < fewest:
        return None
    from scipy.optimize import linear_sum_assignment  # slow to import

    _, place = linear_sum_assignment(cost)
    at = np.arange(len(odd))
    moved = place != at
    before, after = cost[at, at], cost[at, place]
    fits = moved & (after < SWAPPED * before)
    # On a holiday many cells are odd, and a few are so as others usually are. A counter that stops
    # looks like a quiet one, but no other cell has the readings that are expected of it.
    if fits.sum() < fewest or after[fits].mean() > AS_EXPECTED or (fits & fits[place]).sum() < 2:
        return None
    names = [f"{of.cells[odd[j]]} as {of.cells[odd[i]]}" for i, j in enumerate(place) if fits[i]]
    return Doubt("swapped", f"cells are as expected in other places: {some(names)}")


def _mean(values: Values) -> Values:
    """Return the mean over steps of what is known; infinite (but a number) if nothing is."""
    n = np.isfinite(values).sum(axis=0)
    total: Values = np.where(np.isfinite(values), values, 0.0).sum(axis=0)
    return np.where(n > 0, total / np.fmax(n, 1), 1e9)
