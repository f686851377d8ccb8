"""What each reading was expected to be, and how rare it is: the one measure of all that is odd.

A reading is expected where the newest forecast made before it put it. Beyond all forecasts, and
where the day before a forecast is missing, it is the median of the same time in the four weeks
before, at the level of the last week. Its distance is counted in half widths of the bounds,
separately above and below; how rare a distance is, follows from the distances of earlier readings
of all cells, whose upper end is taken as a Pareto distribution. Broken counters, deliveries and the
list of anomalies are judged by this measure.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import pandas as pd
import xarray as xr

from data_prep.base.errors import reading
from data_prep.base.files import atomic_path, naming_full_disk
from data_prep.cube import observed
from data_prep.netcdf import dump, netcdf_target, open_netcdf
from stforecast.federated.runs.model_files import IN_SERVICE
from stforecast.forecasting.results import FORECASTS, SMALL, ForecastRun
from stforecast.service.scores import since

SPAN = 35
"""Last days of a history whose readings are compared with their expected values."""

WEEKS = 4
"""Weeks before a reading whose same time says what is expected beyond all forecasts."""

LEAST_WIDTH = 0.25
"""Least half width of bounds, in the mean of their cell's: bounds of a night may have none."""

END = 0.01
"""Share of the earlier distances that shows how fast their distribution ends."""

FEWEST = 200
"""Earlier distances below which bounds of 90 % and a wide end are assumed instead."""

MOST = 500_000
"""Earlier distances that are read, about."""

BLOCK = 50
"""Cells whose weeks are compared at a time, so few that they stay in the cache."""

TESTED = "tested.nc"
"""File of the tested forecasts that readings are compared with, in the folder of the service."""

RAREST = 1e9
"""A reading is at most one in so many."""

Values = np.ndarray


@dataclass(frozen=True, eq=False)
class Tails:
    """How rare large distances are, above and below.

    Attributes:
        known: earlier distances with their sign, sorted.
    """

    known: Values

    @classmethod
    def of(cls, distances: Values) -> Tails:
        """Return the tails of signed distances of any shape; NaN are left out."""
        return cls(np.sort(distances[np.isfinite(distances)]))

    def rarity(self, distances: Values) -> Values:
        """Return of how many readings one is as far from its expected value; NaN stays NaN."""
        known, n = self.known, len(self.known)
        found = np.full(distances.shape, np.nan)
        for side in (1, -1):
            of_side = np.isfinite(distances) & ((distances > 0) == (side > 0))
            before = side * known[side * known > 0][::side]
            found[of_side] = 2 * _chance(side * distances[of_side], before, n)
        return 1 / np.clip(found, 1 / RAREST, 1)


def _chance(sizes: Values, known: Values, n: int) -> Values:
    """Return the share of readings that are as far to one side.

    Beyond the largest `END` of the distances it falls as a power (Pareto's distribution, whose
    exponent is Hill's estimate).

    Args:
        sizes: distances to this side, of any shape.
        known: earlier ones, positive and sorted, of `n` readings in all.
        n: number of earlier readings, of both sides.
    """
    n_last, share, at, power = max(10, round(END * n / 2)), 0.05, 1.0, 0.3
    enough = n >= FEWEST and len(known) > n_last
    if enough:
        at, last = float(known[-n_last - 1]), known[-n_last:]
        share, power = n_last / n, max(float(np.log(last / at).mean()), 0.05)
    with np.errstate(divide="ignore", invalid="ignore"):
        far = share * (np.fmax(sizes, 1e-9) / at) ** (-1 / power)
    if not enough:
        return np.clip(far, 0, 0.5)
    near = (len(known) - np.searchsorted(known, sizes)) / n
    return np.where(sizes > at, far, near)


@dataclass(frozen=True, eq=False)
class Expected:
    """What readings were expected to be, all `(steps, cells)`; NaN where nothing was.

    Attributes:
        times: `(steps,)` start of each step, on the clock of the history.
        values: expected values in the data's units.
        below: half width of the bounds below them.
        above: half width above.
        forecast: whether a forecast said so, and not the weeks before.
    """

    times: pd.DatetimeIndex
    values: Values
    below: Values
    above: Values
    forecast: Values

    def distances(self, readings: Values) -> Values:
        """Return how far readings are from their expected values, in half widths with sign."""
        error = readings - self.values
        with np.errstate(divide="ignore", invalid="ignore"):
            found: Values = error / np.where(error > 0, self.above, self.below)
        return np.where(error == 0, 0.0, found)

    def of(self, steps: slice, cells: slice = slice(None)) -> Expected:
        """Return some of the steps, of all cells or of some."""
        parts = (self.values, self.below, self.above, self.forecast)
        return Expected(self.times[steps], *(part[steps, cells] for part in parts))


def paired(readings: Values, expected: Values) -> tuple[Values, Values]:
    """Return readings and their expected values, both 0 where one of the two is unknown."""
    both = np.isfinite(readings) & np.isfinite(expected)
    return np.where(both, readings, 0.0), np.where(both, expected, 0.0)


def of_forecasts(forecasts: xr.Dataset) -> Expected:
    """Return what forecasts say, `(cell, time, horizon)`, at the times of their first steps.

    Without bounds, half widths are the error of the day before in training, of each cell. One that
    is infinite is NaN.
    """
    times, y_hat = pd.DatetimeIndex(forecasts.indexes["time"]), forecasts["y_hat"].to_numpy()
    known = np.isfinite(y_hat)
    if "lower" not in forecasts:
        mae = forecasts["seasonal_mae"].to_numpy() if "seasonal_mae" in forecasts else np.nan
        wide = np.broadcast_to(np.reshape(mae, (-1, 1, 1)), y_hat.shape)
        return Expected(times, y_hat, wide, wide, known)
    sides = y_hat - forecasts["lower"].to_numpy(), forecasts["upper"].to_numpy() - y_hat
    both = (sides[0] + sides[1]) / 2
    finite = np.isfinite(both)
    with np.errstate(invalid="ignore"):
        mean = np.where(finite, both, 0.0).sum(axis=(1, 2)) / finite.sum(axis=(1, 2))
    least = LEAST_WIDTH * mean[:, None, None]
    below, above = (np.where(np.isinf(of), np.nan, np.fmax(of, least)) for of in sides)
    return Expected(times, y_hat, below, above, known)


def forecast_for(forecasts: xr.Dataset, times: pd.DatetimeIndex) -> Expected:
    """Return what the newest forecast before each time said of it."""
    found, horizon = of_forecasts(forecasts), forecasts.sizes["horizon"]
    step = pd.Timedelta(minutes=float(forecasts.attrs["step_minutes"]))
    window = found.times.searchsorted(times, side="right") - 1
    ahead = np.full(len(times), -1)
    if len(found.times):
        ahead = np.asarray((times - found.times[window.clip(0)]) // step)
    known = (window >= 0) & (ahead >= 0) & (ahead < horizon)

    def at_times(of: Values) -> Values:
        one = np.full((len(times), len(of)), np.nan)
        one[known] = of[:, window[known], ahead[known]].T
        return one

    values, below, above = map(at_times, (found.values, found.below, found.above))
    return Expected(times, values, below, above, np.isfinite(values))


def weeks_before(values: Values, n_new: int, week: int) -> tuple[Values, Values]:
    """Return what the weeks before say of all readings, and how far off that usually is.

    Args:
        values: readings `(steps, cells)`.
        n_new: number of further steps, of which no reading is known.
        week: steps of a week.

    Returns:
        Expected values `(steps + n_new, cells)`, NaN where no week before is known; and the usual
        error at each time of the week's days, the same shape.
    """
    n, n_cells = values.shape
    padded = np.concatenate([values, np.full((n_new, n_cells), np.nan)])
    lags = np.full((WEEKS, *padded.shape), np.nan)
    for i in range(WEEKS):
        lag = week * (i + 1)
        lags[i, lag:] = padded[: max(len(padded) - lag, 0)]
    expected = _median(lags)
    recent = slice(max(n - week, 0), n)
    seen, due = (of.sum(axis=0) for of in paired(values[recent], expected[recent]))
    with np.errstate(divide="ignore", invalid="ignore"):
        level = np.where(due > 0, seen / due, 1.0)
    expected[n:] *= np.clip(level, 1 / WEEKS, WEEKS)
    return expected, _usual_error(np.abs(padded - expected), max(week // 7, 1))


def _median(lags: Values) -> Values:
    """Return the median over the first axis, NaN without any; numpy's own is slow and warns."""
    n, ordered = np.isfinite(lags).sum(axis=0), np.where(np.isnan(lags), np.inf, lags)
    for last in range(len(lags) - 1, 0, -1):
        for a, b in pairwise(ordered[: last + 1]):
            a[:], b[:] = np.minimum(a, b), np.maximum(a, b)
    middle = [
        np.take_along_axis(ordered, at[None], axis=0)[0] for at in ((n - 1).clip(0) // 2, n // 2)
    ]
    return np.where(n > 0, (middle[0] + middle[1]) / 2, np.nan)


def _usual_error(errors: Values, day: int) -> Values:
    """Return the mean error at each time of day, over three times, at least a share of the mean."""
    n, n_cells = errors.shape
    whole = np.full((-(-n // day) * day, n_cells), np.nan)
    whole[:n] = errors
    days = whole.reshape(-1, day, n_cells)
    total, count = np.nansum(days, axis=0), np.isfinite(days).sum(axis=0)
    around, n_around = (sum(np.roll(of, i, 0) for i in (-1, 0, 1)) for of in (total, count))
    with np.errstate(divide="ignore", invalid="ignore"):
        usual, mean = around / n_around, total.sum(axis=0) / count.sum(axis=0)
    return 2 * np.fmax(usual, LEAST_WIDTH * mean)[np.arange(n) % day]


def expect(
    issued: xr.Dataset,
    history: pd.DataFrame,
    until: pd.Timestamp | None = None,
    steps: slice = slice(None),
) -> Expected:
    """Return what each reading of a history was expected to be, and those until a later time.

    Args:
        issued: the forecasts made so far.
        history: readings (time × cell) of their cells, NaN where missing, at even steps.
        until: start of the last step to say something of; by default that of the history.
        steps: those that are asked, of the steps from the first of the history.
    """
    return _by_forecasts(issued, history, by_weeks(history, until).of(steps))


def by_weeks(history: pd.DataFrame, until: pd.Timestamp | None = None) -> Expected:
    """Return what `expect` does without any forecast."""
    first, last = history.index[0], history.index[-1]
    step = history.index[1] - first
    times = pd.date_range(first, max(last, until or last), freq=step)
    week = max(round(pd.Timedelta(days=7) / step), 1)
    readings, n_new = history.to_numpy(), len(times) - len(history)
    values, width = np.empty((2, len(times), history.shape[1]))
    for begin in range(0, history.shape[1], BLOCK):
        some = slice(begin, begin + BLOCK)
        values[:, some], width[:, some] = weeks_before(readings[:, some], n_new, week)
    return Expected(times, values, width, width, np.zeros(values.shape, dtype=bool))


def _by_forecasts(issued: xr.Dataset, history: pd.DataFrame, weeks: Expected) -> Expected:
    """Return what forecasts say where they could be made and have bounds, else what weeks say."""
    found = forecast_for(issued, weeks.times)
    own = found.forecast & np.isfinite(found.below) & np.isfinite(found.above)
    own &= _fed(pd.DatetimeIndex(issued.indexes["time"]), history, weeks.times)
    values, below, above = (
        np.where(own, getattr(found, name), getattr(weeks, name))
        for name in ("values", "below", "above")
    )
    return Expected(weeks.times, values, below, above, own)


def _fed(starts: pd.DatetimeIndex, history: pd.DataFrame, times: pd.DatetimeIndex) -> Values:
    """Return whether the newest forecast of each time could read most of its cell's last day.

    One that could not may be worse than its bounds say.
    """
    n = len(history)
    known = np.concatenate([np.zeros((1, history.shape[1])), history.notna().cumsum().to_numpy()])
    start = starts.searchsorted(times, side="right") - 1
    if not len(starts):
        return np.zeros((len(times), history.shape[1]), dtype=bool)
    end = history.index.searchsorted(starts[start.clip(0)]).clip(0, n)
    begin = (end - steps_of_day(history.index[1] - history.index[0])).clip(0)
    found: Values = known[end] - known[begin] >= (end - begin)[:, None] / 2
    return found


def steps_of_day(step: pd.Timedelta) -> int:
    """Return the steps of a day, at least one."""
    return max(round(pd.Timedelta(days=1) / step), 1)


def readings_of(history: xr.Dataset, issued: xr.Dataset) -> pd.DataFrame:
    """Return the readings (time × cell) of the cells that are forecast."""
    values = observed(history, str(issued.attrs["service"])).sel(cell=issued["cell"])
    return pd.DataFrame(values.to_numpy(), history.indexes["time"], issued["cell"].to_numpy())


def thinned_forecasts(run: ForecastRun) -> xr.Dataset:
    """Return the tested forecasts of a run, of which few cover the same reading.

    Those of a large file are kept beside the service: few of them lie together in it.
    """
    file, kept = run.folder / FORECASTS, run.folder / IN_SERVICE.parts[0] / TESTED
    if not file.is_file() or file.stat().st_size <= SMALL:
        return _tested(run)
    of = f"{file.stat().st_size} bytes of {file.stat().st_mtime_ns}"
    if kept.exists():
        with reading(kept, "as tested forecasts", "delete it"), open_netcdf(kept) as ds:
            if ds.attrs.pop("of", "") == of:
                return ds.load()
    found = _tested(run)
    kept.parent.mkdir(exist_ok=True)
    with naming_full_disk(kept), atomic_path(kept) as part, netcdf_target(part) as target:
        dump(found.assign_attrs(of=of), target)
    return found


def _tested(run: ForecastRun) -> xr.Dataset:
    with run.open_forecasts() as found:
        size = found.sizes["time"] * found.sizes["cell"] * found.sizes["horizon"]
        every = max(found.sizes["horizon"], size // MOST)
        names = [n for n in ("y_hat", "y", "lower", "upper", "seasonal_mae") if n in found]
        return found[names].isel(time=slice(None, None, every)).load()


class Rarity(NamedTuple):
    """How rare readings are, `(last steps, cells)`: one in so many.

    Attributes:
        expected: what was expected of them.
        listed: by what was expected.
        surely: by that and, where it is a number of `least` or more, by the weeks before, since a
            forecast may be wrong, too.
    """

    expected: Expected
    listed: Values
    surely: Values


def rarity_of(
    before: xr.Dataset,
    issued: xr.Dataset,
    readings: pd.DataFrame,
    believed: pd.DataFrame,
    begin: pd.Timestamp | None = None,
    least: float = 0.0,
) -> Rarity:
    """Return how rare the last readings are; those of the last day by those before it.

    Args:
        before: the run's `thinned_forecasts`.
        issued: the forecasts made in service, with what is believed as `y`.
        readings: all readings (time × cell).
        believed: the same without those of broken counters.
        begin: first step that is asked; by default the first of the last `SPAN` days. The last day
            always is.
        least: rarity below which it is not asked what weeks say.
    """
    day = steps_of_day(readings.index[1] - readings.index[0])
    recent = believed.iloc[-SPAN * day :]
    weeks, first = by_weeks(recent), recent.index.searchsorted(begin or recent.index[0])
    asked = slice(min(first, max(len(recent) - day, 0)), None)
    seen = readings.to_numpy()[-SPAN * day :][asked]
    expected = _by_forecasts(issued, recent, weeks.of(asked))
    y = issued["y"].where(since(issued, readings.index[-1], 1.0)["y"].isnull())
    known = recent.to_numpy(copy=True)
    known[len(known) - day :] = np.nan
    far = [of_forecasts(one).distances(one["y"].to_numpy()).ravel()
           for one in (before, issued.assign(y=y))]  # fmt: skip
    tails = Tails.of(np.concatenate(far)), Tails.of(weeks.distances(known))
    listed, distances = np.empty(seen.shape), expected.distances(seen)
    for one, of_one in zip(tails, (expected.forecast, ~expected.forecast), strict=True):
        listed[of_one] = one.rarity(distances[of_one])
    surely, odd = listed.copy(), ~(listed < least)
    by_week = tails[1].rarity(weeks.of(asked).distances(seen)[odd])
    surely[odd] = np.fmin(listed[odd], by_week)
    return Rarity(expected, listed, surely)


class UsualDistance(NamedTuple):
    """How far nine of ten days, or forecasts, are from their expected values.

    Attributes:
        total: error of the sum of all cells at each step, by the sum of the readings.
        spread: median over cells of the distance of their level from the median level of all, both
            by what was expected, as a logarithm.
    """

    total: float = np.inf
    spread: float = np.inf


def usual_error(readings: Values, expected: Values) -> UsualDistance:
    """Return how far days `(days, steps, cells)` usually are from their expected values."""
    y, y_hat = paired(readings, expected)
    with np.errstate(divide="ignore", invalid="ignore"):
        totals = np.abs((y - y_hat).sum(axis=2)).sum(axis=1) / np.abs(y.sum(axis=(1, 2)))
        levels = np.log(y.sum(axis=1) / y_hat.sum(axis=1))
    spreads = [mad(of[np.isfinite(of)]) for of in levels if np.isfinite(of).any()]
    found = [np.asarray(of)[np.isfinite(of)] for of in (totals, spreads)]
    return UsualDistance(*(float(np.quantile(of, 0.9)) if len(of) else np.inf for of in found))


def mad(levels: Values) -> float:
    """Return the median distance of levels from their median."""
    return float(np.median(np.abs(levels - np.median(levels))))


def usual_of_forecasts(before: xr.Dataset, issued: xr.Dataset) -> UsualDistance:
    """Return how far `thinned_forecasts` and issued ones usually are from the readings."""
    parts = [
        np.concatenate([one[name].transpose("time", "horizon", "cell") for one in (before, issued)])
        for name in ("y", "y_hat")
    ]
    return usual_error(*parts)


def usual_of_weeks(history: pd.DataFrame, day: int) -> UsualDistance:
    """Return how far the last four weeks were from what the weeks before them say."""
    history = history.iloc[-2 * WEEKS * 7 * day :]
    values, expected = history.to_numpy(), by_weeks(history).values
    n = min(len(values) // day, WEEKS * 7) * day
    days = (v[len(v) - n :].reshape(-1, day, v.shape[1]) for v in (values, expected))
    return usual_error(*days)
