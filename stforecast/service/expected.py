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
from typing import NamedTuple

import numpy as np
import pandas as pd
import xarray as xr

from stforecast.forecasting.results import ForecastRun

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

BLOCK = 500
"""Cells whose weeks are compared at a time, to spare memory."""

RAREST = 1e9
"""A reading is at most one in so many."""

Values = np.ndarray


@dataclass(frozen=True)
class Tail:
    """How rare large distances to one side are: `share` are above `at`, beyond as a power.

    Attributes:
        sizes: sorted distances seen to this side, of `n` readings in all.
        n: number of readings, of both sides.
        share: share of all readings beyond `at`.
        at: distance from which on the power holds.
        power: reciprocal of the exponent of Pareto's distribution (Hill's estimate).
    """

    sizes: Values
    n: int
    share: float = 0.05
    at: float = 1.0
    power: float = 0.3

    @classmethod
    def of(cls, distances: Values, n: int) -> Tail:
        """Return the tail of the positive distances among `n` readings."""
        sizes = np.sort(distances)
        k = max(10, round(END * n / 2))
        if n < FEWEST or len(sizes) <= k or sizes[-k - 1] <= 0:
            return cls(sizes[:0], 0)
        at, last = sizes[-k - 1], sizes[-k:]
        return cls(sizes, n, k / n, float(at), max(float(np.log(last / at).mean()), 0.05))

    def chance(self, sizes: Values) -> Values:
        """Return the share of all readings that are as far to this side."""
        with np.errstate(divide="ignore", invalid="ignore"):
            far = self.share * (np.fmax(sizes, 1e-9) / self.at) ** (-1 / self.power)
        if not self.n:
            return np.clip(far, 0, 0.5)
        near = (len(self.sizes) - np.searchsorted(self.sizes, sizes)) / self.n
        return np.where(sizes > self.at, far, near)


@dataclass(frozen=True)
class Tails:
    """Both sides of the distribution of distances."""

    above: Tail
    below: Tail

    @classmethod
    def of(cls, distances: Values) -> Tails:
        """Return the tails of signed distances of any shape; NaN are left out."""
        known = distances[np.isfinite(distances)]
        return cls(Tail.of(known[known > 0], len(known)), Tail.of(-known[known < 0], len(known)))

    def rarity(self, distances: Values) -> Values:
        """Return of how many readings one is as far from what is expected; NaN stays NaN."""
        far = np.where(distances > 0, self.above.chance(distances), self.below.chance(-distances))
        rare = 1 / np.clip(2 * far, 1 / RAREST, 1)
        return np.where(np.isfinite(distances), rare, np.nan)


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
        """Return how far readings are from what was expected, in half widths, with their sign."""
        error = readings - self.values
        with np.errstate(divide="ignore", invalid="ignore"):
            found: Values = error / np.where(error > 0, self.above, self.below)
        return np.where(error == 0, 0.0, found)

    def of(self, steps: slice, cells: slice = slice(None)) -> Expected:
        """Return some of the steps, of all cells or of some."""
        parts = (self.values, self.below, self.above, self.forecast)
        return Expected(self.times[steps], *(part[steps, cells] for part in parts))


@dataclass(frozen=True)
class Measure:
    """How rare distances from forecasts are, and from the weeks before."""

    forecast: Tails
    weeks: Tails

    def rarity(self, expected: Expected, readings: Values) -> Values:
        """Return of how many readings one is as far from what was expected; NaN if unknown."""
        far = expected.distances(readings)
        own, other = self.forecast.rarity(far), self.weeks.rarity(far)
        return np.where(expected.forecast, own, other)


def half_widths(forecasts: xr.Dataset) -> tuple[Values, Values]:
    """Return half widths of the bounds of forecasts `(cell, time, horizon)`, below and above.

    Without bounds, they are the error of the day before in training, of each cell.
    """
    y_hat = forecasts["y_hat"].to_numpy()
    if "lower" not in forecasts:
        mae = forecasts["seasonal_mae"].to_numpy() if "seasonal_mae" in forecasts else np.nan
        wide = np.broadcast_to(np.reshape(mae, (-1, 1, 1)), y_hat.shape)
        return wide, wide
    bounds = forecasts["lower"].to_numpy(), forecasts["upper"].to_numpy()
    below, above = y_hat - bounds[0], bounds[1] - y_hat
    mean = np.nanmean((below + above) / 2, axis=(1, 2), keepdims=True) if below.size else 0.0
    return np.fmax(below, LEAST_WIDTH * mean), np.fmax(above, LEAST_WIDTH * mean)


def forecast_for(forecasts: xr.Dataset, times: pd.DatetimeIndex) -> Expected:
    """Return what the newest forecast before each time said of it."""
    n_cells, horizon = forecasts.sizes["cell"], forecasts.sizes["horizon"]
    starts = forecasts.indexes["time"]
    step = pd.Timedelta(minutes=float(forecasts.attrs["step_minutes"]))
    window = starts.searchsorted(times, side="right") - 1
    ahead = np.full(len(times), -1)
    if len(starts):
        ahead = np.asarray((times - starts[window.clip(0)]) // step)
    known = (window >= 0) & (ahead >= 0) & (ahead < horizon)

    def at_times(of: Values) -> Values:
        one = np.full((len(times), n_cells), np.nan)
        one[known] = of[:, window[known], ahead[known]].T
        return one

    values = at_times(forecasts["y_hat"].to_numpy())
    below, above = map(at_times, half_widths(forecasts))
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
    seen = np.isfinite(values[recent]) & np.isfinite(expected[recent])
    sums = [np.where(seen, v[recent], 0.0).sum(axis=0) for v in (values, expected)]
    with np.errstate(divide="ignore", invalid="ignore"):
        level = np.where(sums[1] > 0, sums[0] / sums[1], 1.0)
    expected[n:] *= np.clip(level, 1 / WEEKS, WEEKS)
    return expected, _usual_error(np.abs(padded - expected), max(week // 7, 1))


def _median(lags: Values) -> Values:
    """Return the median over the first axis, NaN without any; numpy's own is slow and warns."""
    ordered, n = np.sort(lags, axis=0), np.isfinite(lags).sum(axis=0)
    middle = [
        np.take_along_axis(ordered, at[None], axis=0)[0] for at in ((n - 1).clip(0) // 2, n // 2)
    ]
    found: Values = (middle[0] + middle[1]) / 2
    return found


def _usual_error(errors: Values, day: int) -> Values:
    """Return the mean error at each time of day, over three times, at least a share of the mean."""
    n, n_cells = errors.shape
    phase = np.arange(n) % day
    known = np.isfinite(errors)
    total, count = np.zeros((day, n_cells)), np.zeros((day, n_cells))
    np.add.at(total, phase, np.where(known, errors, 0.0))
    np.add.at(count, phase, known)
    around = (
        sum(np.roll(total, i, 0) for i in (-1, 0, 1)),
        sum(np.roll(count, i, 0) for i in (-1, 0, 1)),
    )
    with np.errstate(divide="ignore", invalid="ignore"):
        usual = around[0] / around[1]
        mean = total.sum(axis=0) / count.sum(axis=0)
    return 2 * np.fmax(usual, LEAST_WIDTH * mean)[phase]


def expect(
    issued: xr.Dataset, history: pd.DataFrame, until: pd.Timestamp | None = None
) -> Expected:
    """Return what each reading of a history was expected to be, and those until a later time.

    Args:
        issued: the forecasts made so far.
        history: readings (time × cell) of their cells, NaN where missing, at even steps.
        until: start of the last step to say something of; by default that of the history.
    """
    times = pd.DatetimeIndex(history.index)
    step = pd.Timedelta(minutes=float(issued.attrs["step_minutes"]))
    n_new = 0 if until is None else max(int((until - times[-1]) / step), 0)
    times = pd.date_range(times[0], periods=len(times) + n_new, freq=step)
    found = forecast_for(issued, times)
    week = max(round(pd.Timedelta(days=7) / step), 1)
    blocks = np.array_split(history.to_numpy(), -(-history.shape[1] // BLOCK), axis=1)
    before = [weeks_before(block, n_new, week) for block in blocks]
    values, width = (np.concatenate(parts, axis=1) for parts in zip(*before, strict=True))
    own = found.forecast & np.isfinite(found.below) & np.isfinite(found.above)
    own &= _fed(pd.DatetimeIndex(issued.indexes["time"]), history, times, max(week // 7, 1))
    values, below, above = (
        np.where(own, a, b)
        for a, b in ((found.values, values), (found.below, width), (found.above, width))
    )
    return Expected(times, values, below, above, own)


def _fed(
    starts: pd.DatetimeIndex, history: pd.DataFrame, times: pd.DatetimeIndex, day: int
) -> Values:
    """Return whether the newest forecast of each time could read most of its cell's last day.

    One that could not may be worse than its bounds say.
    """
    n = len(history)
    known = np.concatenate([np.zeros((1, history.shape[1])), history.notna().cumsum().to_numpy()])
    start = starts.searchsorted(times, side="right") - 1
    if not len(starts):
        return np.zeros((len(times), history.shape[1]), dtype=bool)
    end = history.index.searchsorted(starts[start.clip(0)]).clip(0, n)
    begin = (end - day).clip(0)
    found: Values = known[end] - known[begin] >= (end - begin)[:, None] / 2
    return found


def tested(run: ForecastRun) -> xr.Dataset:
    """Return the tested forecasts of a run, of which few cover the same reading."""
    with run.open_forecasts() as found:
        size = found.sizes["time"] * found.sizes["cell"] * found.sizes["horizon"]
        every = max(found.sizes["horizon"], size // MOST)
        names = [n for n in ("y_hat", "y", "lower", "upper", "seasonal_mae") if n in found]
        return found[names].isel(time=slice(None, None, every)).load()


def measure(before: xr.Dataset, issued: xr.Dataset, weeks: Expected, readings: Values) -> Measure:
    """Return how rare distances are, from tested forecasts and all that was believed since.

    Args:
        before: `tested` forecasts.
        issued: the forecasts made in service, with the believed readings as `y`.
        weeks: what the weeks before say of the last readings of the history.
        readings: these, without what is not believed, `(steps, cells)`.
    """
    distances = np.concatenate([_distances(one).ravel() for one in (before, issued)])
    return Measure(Tails.of(distances), Tails.of(weeks.distances(readings)))


class Usual(NamedTuple):
    """How far nine of ten days, or forecasts, are from what was expected.

    Attributes:
        total: error of the sum of all cells at each step, by the sum of the readings.
        spread: median over cells of the distance of their level from the median level of all, both
            by what was expected, as a logarithm.
    """

    total: float = np.inf
    spread: float = np.inf


def usual_error(readings: Values, expected: Values) -> Usual:
    """Return how far days `(days, steps, cells)` usually are from what was expected."""
    both = np.isfinite(readings) & np.isfinite(expected)
    y, y_hat = (np.where(both, v, 0.0) for v in (readings, expected))
    with np.errstate(divide="ignore", invalid="ignore"):
        totals = np.abs((y - y_hat).sum(axis=2)).sum(axis=1) / np.abs(y.sum(axis=(1, 2)))
        levels = np.log(y.sum(axis=1) / y_hat.sum(axis=1))
    spreads = [spread(of[np.isfinite(of)]) for of in levels if np.isfinite(of).any()]
    found = [np.asarray(of)[np.isfinite(of)] for of in (totals, spreads)]
    return Usual(*(float(np.quantile(of, 0.9)) if len(of) else np.inf for of in found))


def spread(levels: Values) -> float:
    """Return the median distance of levels from their median."""
    return float(np.median(np.abs(levels - np.median(levels))))


def usual_of_forecasts(before: xr.Dataset, issued: xr.Dataset) -> Usual:
    """Return how far `tested` and issued forecasts usually are from the readings."""
    parts = [
        np.concatenate([one[name].transpose("time", "horizon", "cell") for one in (before, issued)])
        for name in ("y", "y_hat")
    ]
    return usual_error(*parts)


def usual_of_weeks(history: pd.DataFrame, day: int) -> Usual:
    """Return how far the last four weeks were from what the weeks before them say."""
    values = history.to_numpy()[-2 * WEEKS * 7 * day :]
    expected, _ = weeks_before(values, 0, 7 * day)
    n = min(len(values) // day, WEEKS * 7) * day
    days = (v[len(v) - n :].reshape(-1, day, v.shape[1]) for v in (values, expected))
    return usual_error(*days)


def _distances(forecasts: xr.Dataset) -> Values:
    below, above = half_widths(forecasts)
    error = forecasts["y"].to_numpy() - forecasts["y_hat"].to_numpy()
    with np.errstate(divide="ignore", invalid="ignore"):
        found: Values = error / np.where(error > 0, above, below)
    return np.where(error == 0, 0.0, found)
