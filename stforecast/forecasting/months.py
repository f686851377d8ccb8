"""Months ahead: the busy hour of each week, with bounds, and when it passes a threshold.

The load of a week's busy hour is the mean of its busiest hour; of a speed, of its slowest. Weeks
are counted back from the end of the history. Logarithms are forecast by exponential smoothing, a
damped trend (Gardner, McKenzie, "Forecasting trends in time series", Management Science 31, 1985)
and the season, the median change of all cells over the same weeks of earlier years. Trend and
season are used only if past forecasts of this history would have been better with them. Damped ETS
and Theta of statsforecast had higher errors on the development sets.

Bounds and probabilities follow from paths of the errors of past forecasts, relative to the size of
the cell's own. As errors of one time go together, each stretch of a history as long as the forecast
counts as `FREEDOM` independent ones, and paths are wider by the quantiles of Student's t. Where the
history is too short to test all weeks, paths are stretched as random walks are: four times as long,
twice as wide. The benchmark `months` measures all three.
"""

from __future__ import annotations

import logging
import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pandas as pd
from scipy.special import ndtri
from scipy.stats import t as student

from data_prep.base.errors import InputError, Words, counted
from stforecast.data.series import Series
from stforecast.forecasting.groups import Groups
from stforecast.forecasting.planning import Side, Threshold, cell_limits, no_values, side_of
from stforecast.forecasting.tables import Interval, in_digits, long_table

log = logging.getLogger(__name__)

WEEK, YEAR = pd.Timedelta("7D"), 365.25 / 7
"""A week, and a year in weeks."""

LEVEL, TREND, DAMPING = 0.3, 0.05, 0.99
"""Weights of the newest week in level and trend, and the share of a trend that a week leaves."""

LEAST_WEEKS = 4
"""Weeks of history without which nothing is forecast."""

KNOWN = 0.8
"""Share that must be known of the hours at which a cell has readings in any week."""

GAIN = 0.02
"""Share by which trend and season must each lower the errors of past forecasts."""

FREEDOM = 2
"""Independent errors in a stretch of a history as long as the forecast."""

RECENT = 156
"""Newest past forecasts whose errors count, and choose the parts: one a week."""

PATHS = 4000
"""Largest number of paths."""

LOAD = "busy_hour_load"
"""Column of forecasts."""

DATES = (10, 50, 90)
"""Probabilities in per cent whose dates a plan names."""


@dataclass(frozen=True, eq=False)
class Months:
    """The busy hour of the coming weeks, of cells and groups, in the data's units.

    Attributes:
        past: busy-hour load of the past weeks (week × label), by the wall clock at their begin.
        forecast: medians of the coming weeks (week × label).
        interval: their bounds.
        side: on which side of a threshold values are a problem.
        parts: which of `trend`, `growth` and `season` the forecasts have besides the level.
        tested: weeks ahead at which past forecasts could be tested.
        chances: probability of each week's busy hour beyond the threshold; None without one.
        passing: a row for each label, the most probable first: `now` (the level), `then` (the last
            week's forecast), `threshold`, `probability` of passing it until the end, and the first
            days of the weeks by whose end it is passed with 10, 50 and 90 %, empty if these are
            later; None without a threshold.
        groups: groups whose labels follow the cells; None for cells only.
    """

    past: pd.DataFrame
    forecast: pd.DataFrame
    interval: Interval
    side: Side
    parts: tuple[str, ...]
    tested: int
    chances: pd.DataFrame | None = None
    passing: pd.DataFrame | None = None
    groups: Groups | None = None

    def long(self) -> pd.DataFrame:
        """Return a row for each label and week: `busy_hour_load`, bounds and probability."""
        table = long_table(self.forecast, self.interval)
        table = table.rename(columns={"time": "week", self.forecast.attrs["service"]: LOAD})
        table["week"] = [f"{week:%Y-%m-%d}" for week in table["week"]]
        if self.chances is not None:
            chances = self.chances.to_numpy().T.ravel().round(4)
            table[f"probability_{self.side.beyond}"] = chances
        return table if self.groups is None else self.groups.leveled(table)

    def dates(self) -> pd.DataFrame:
        """Return `passing` with a column `cell`; a threshold is needed."""
        assert self.passing is not None
        rows = self.passing.rename_axis("cell").reset_index()
        rows = rows.assign(**rows.select_dtypes("float").map(in_digits)).round({"probability": 4})
        return rows if self.groups is None else self.groups.leveled(rows)


def plan_months(
    series: Series,
    until: str,
    *,
    growth: Threshold | None = None,
    threshold: Threshold | None = None,
    groups: Groups | None = None,
    coverage: float = 0.9,
) -> Months:
    """Forecast the busy hour of the weeks until a date.

    Args:
        series: history, see `Forecaster.read`, with steps of an hour or less.
        until: month or day of the last week, such as "2025-06".
        growth: factor by which loads grow until then, evenly, instead of their trend: one for
            all, or by cell, by label of a group, or by level of groups.
        threshold: capacity or limit in the data's units, one of all cells or one of each; groups
            have the sum of their cells' or their own, see `Groups.thresholds`.
        groups: sums to forecast, too: their own busy hours, which are not the sums of the cells'.
        coverage: nominal coverage of the bounds.

    Raises:
        InputError: if the date is not after the history or too far, the history is too short or
            has longer steps, or a threshold or growth is missing or impossible.
    """
    past, empty = weekly(series, groups), no_values(series.cells, series.service, series.units)
    if (twice := past.columns[past.columns.duplicated()]).size:
        raise InputError(f"a cell has the name of a group, {twice[0]}; rename one of them")
    x = _logs(past)
    ahead = _weeks_until(until, past.index[-1] + WEEK)
    _check_length(len(x), ahead, until)
    found = _forecast(x, ahead, coverage, has_trend=growth is None)
    centre = found.centre
    if growth is not None:
        factors = _factors(growth, found.level, past.columns, groups)
        centre = centre + np.log(factors) * np.arange(1, ahead + 1)[:, None] / ahead
    index = pd.date_range(past.index[-1], periods=ahead + 1, freq=WEEK)[1:]

    def table(logs: np.ndarray) -> pd.DataFrame:
        made = pd.DataFrame(np.exp(logs), index, past.columns)
        made.attrs = {"service": series.service, "units": series.units, "coverage": coverage}
        return made

    shares = (1 - coverage) / 2, (1 + coverage) / 2
    down, up = np.quantile(found.paths, shares, axis=0)[..., None] * found.scale
    # Where past forecasts were all too low, or too high, the forecast itself is a bound.
    lower, upper = table(centre + down.clip(max=0)), table(centre + up.clip(min=0))
    chances = passing = None
    if threshold is not None:
        of_cells, sign = cell_limits(threshold, empty, (-np.inf, np.inf)), side_of(empty).sign
        of_groups = (groups.thresholds(threshold) or {}) if groups else {}
        limit = np.array([*of_cells, *of_groups.values()])
        if (low := limit <= 0).any():
            raise InputError(f"threshold is {limit[low][0]:g}; loads need one above 0")
        places = sign * (np.log(limit) - centre) / found.scale
        chances, passing = _passing(places, sign * found.paths, index, past.columns)
        values = {"now": np.exp(found.level), "then": np.exp(centre[-1]), "threshold": limit}
        passing = pd.DataFrame(values, past.columns).join(passing)
        passing = passing.sort_values("probability", ascending=False, kind="stable")
    forecast, bounds, side = table(centre), Interval(lower, upper), side_of(empty)
    parts = found.parts if growth is None else ("growth", *found.parts)
    return Months(past, forecast, bounds, side, parts, found.tested, chances, passing, groups)


def weekly(series: Series, groups: Groups | None = None) -> pd.DataFrame:
    """Return the load of each week's busy hour (week × cells and groups), of a speed the lowest.

    Weeks with less than 80 % of their hours are missing; hours at which a cell never has readings,
    as at night, do not count. For sums, a cell's missing hours are its means at that hour of the
    week.
    """
    step = series.calendar.step
    sign = side_of(no_values(series.cells, series.service, series.units)).sign
    per_hour = pd.Timedelta("1h") / step
    if per_hour < 1 or per_hour % 1:
        raise InputError(
            f"{series.name}: steps of {step / pd.Timedelta('1h'):g} h, from which no busy hour "
            "follows; give data with steps that divide an hour"
        )
    per_hour = int(per_hour)
    end = series.times[-1] + step
    n_steps = len(series.times) - int((end - end.floor("h")) / step)
    n_weeks = n_steps // (168 * per_hour)
    if not n_weeks:
        raise InputError(f"{series.name}: less than a week of history; give {LEAST_WEEKS} or more")
    first = n_steps - n_weeks * 168 * per_hour
    cut = series.values[first:n_steps].reshape(n_weeks, 168, per_hour, -1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # Means and maxima of nothing.
        hours = np.nanmean(cut, axis=2)
        known = np.isfinite(hours)
        shares = known.sum(axis=1) / known.any(axis=0).sum(axis=0).clip(1)
        if groups is not None:
            usual = np.nan_to_num(np.nanmean(hours, axis=0))
            filled = np.where(known, hours, usual)
            sums = groups.sum(filled.transpose(2, 0, 1)).transpose(1, 2, 0)
            hours = np.concatenate([hours, sums], axis=2)
            of_groups = (groups.sum(shares.T) / groups.sizes[:, None]).T
            shares = np.concatenate([shares, of_groups], axis=1)
        peaks = sign * np.nanmax(sign * hours, axis=1)
    labels = [*map(str, series.cells), *(groups.labels if groups else ())]
    # On the wall clock, whose weeks may have an hour more or less.
    last = series.zoned(series.times[[first]] + (n_weeks - 1) * WEEK)[0].tz_localize(None)
    weeks = pd.date_range(end=last, periods=n_weeks, freq=WEEK)
    return pd.DataFrame(np.where(shares >= KNOWN, peaks, np.nan), weeks, labels)


def _logs(peaks: pd.DataFrame) -> np.ndarray:
    """Return logarithms `(weeks, labels)`; NaN for labels whose median week is not above 0."""
    median = peaks.median()
    floor = (0.02 * median).where(median > 0)
    return np.log(peaks.clip(lower=floor, axis=1).where(floor.notna() & peaks.notna()).to_numpy())


def _weeks_until(until: str, end: pd.Timestamp) -> int:
    """Return the number of weeks from the end of a history to the end of a month or day."""
    try:
        last = pd.Period(until)
        if str(last) != until:  # pandas takes 05.12.2025 for a day in May.
            raise ValueError(until)
    except ValueError as e:
        raise InputError(f"until is {until!r}; give a month or a day, such as 2025-06") from e
    found = math.ceil((last.end_time - end) / WEEK)
    if found < 1:
        raise InputError(
            f"until is {until}, and the history ends {end - pd.Timedelta('1ns'):%Y-%m-%d}; give a "
            "later month, or newer data by ", Words("{history}"),
        )  # fmt: skip
    return found


def _check_length(n: int, ahead: int, until: str) -> None:
    """Refuse a history that is too short, and warn of what it cannot show."""
    if n < max(LEAST_WEEKS, ahead):
        raise InputError(
            f"until {until} there are {counted(ahead, 'week')}, which needs as many weeks of "
            f"history and at least {LEAST_WEEKS}, found {n}; ",
            Words("give a longer {history}, or an earlier {until}"),
        )
    if n < 2 * ahead + 1:
        log.warning(
            "%s of history test forecasts of at most %s; bounds of later weeks follow from these, "
            "and grow with the square root of the time; %d weeks would test all",
            counted(n, "week"), counted(max(1, (n - 1) // 2), "week"), 2 * ahead + 1,
        )  # fmt: skip
    if n < YEAR + LEAST_WEEKS:
        log.warning(
            "%d weeks of history do not show the seasons of a year, such as holidays; forecasts "
            "have none: %d weeks are needed", n, math.ceil(YEAR) + LEAST_WEEKS,
        )  # fmt: skip


class _Found(NamedTuple):
    """Forecasts of logarithms.

    `level` and `scale` have the shape `(labels,)`, `centre` has `(weeks, labels)`, and the `paths`
    of errors in scales have `(paths, weeks)`.
    """

    level: np.ndarray
    centre: np.ndarray
    scale: np.ndarray
    paths: np.ndarray
    parts: tuple[str, ...]
    tested: int


def _forecast(x: np.ndarray, ahead: int, coverage: float, *, has_trend: bool) -> _Found:
    """Forecast logarithms `(weeks, labels)`, by the parts that past forecasts were better with."""
    n, smoothed = len(x), {weight: _smooth(x, weight) for weight in (0.0, TREND)}
    tested = min(ahead, max(1, (n - 1) // 2))
    damped = np.cumsum(DAMPING ** np.arange(1, ahead + 1))

    def forecast(of: slice, lead: int, parts: tuple[str, ...]) -> np.ndarray:
        levels, trends = smoothed[TREND if "trend" in parts else 0.0]
        found = levels[of] + damped[lead - 1] * trends[of]
        return found + seasons[of, [lead - 1]] if "season" in parts else found

    def errors(lead: int, parts: tuple[str, ...]) -> np.ndarray:
        begin = max(1, n - tested - RECENT)
        return x[begin + lead :] - forecast(slice(begin, n - lead), lead, parts)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # Labels without a week.
        seasons = _seasons(x, smoothed[0.0][0], ahead)
        choices: list[tuple[str, ...]] = [(), ("season",)]
        choices += [("trend",), ("trend", "season")] if has_trend else []
        size = {
            parts: np.mean([np.nanmean(np.abs(errors(h, parts))) for h in range(1, tested + 1)])
            for parts in choices
        }
        parts = min(choices, key=lambda one: size[one] * (1 + GAIN * len(one)))
        found = [errors(h, parts) for h in range(1, tested + 1)]
        if not has_trend:  # The growth of the history is no error of a given one.
            found = [of_lead - np.nanmedian(of_lead) for of_lead in found]
        first = np.concatenate(found[:4])
        known, total = np.isfinite(first).sum(axis=0), np.nansum(np.abs(first), axis=0)
        # The mean size of a label's errors, and of twelve errors of all labels.
        scale = (total + 12 * total.sum() / max(1, known.sum())) / (known + 12) + 1e-9
        paths = _paths([of_lead / scale for of_lead in found], ahead, coverage)
    newest = slice(n - 1, n)
    centre = np.concatenate([forecast(newest, h, parts) for h in range(1, ahead + 1)])
    return _Found(smoothed[0.0][0][-1], centre, scale, paths, parts, tested)


def _smooth(x: np.ndarray, weight: float) -> tuple[np.ndarray, np.ndarray]:
    """Return level and damped trend `(weeks, labels)` after each week; missing weeks move neither.

    The newest week has this weight in the trend. The level of the first weeks is their mean.
    """
    level, trend = np.full(x.shape[1], np.nan), np.zeros(x.shape[1])
    seen = np.zeros(x.shape[1])
    levels, trends = np.empty_like(x), np.empty_like(x)
    for week, values in enumerate(x):
        known = np.isfinite(values)
        seen += known
        expected = np.where(np.isnan(level), values, level + DAMPING * trend)
        error = np.where(known, values - expected, 0.0)
        level = expected + np.maximum(LEVEL, 1 / np.maximum(seen, 1)) * error
        trend = DAMPING * trend + LEVEL * weight * error
        levels[week], trends[week] = level, trend
    return levels, trends


def _seasons(x: np.ndarray, levels: np.ndarray, ahead: int) -> np.ndarray:
    """Return the change `(weeks, ahead)` that each forecast expects from earlier years.

    It is the median over labels of the change from the level of that week to the three weeks around
    the target, without the year's growth; the mean over years, and one year of none.
    """
    n, total = len(x), np.zeros((len(x), ahead))
    n_years = np.zeros((n, ahead))
    for year in range(1, int(n / YEAR) + 1):
        back = round(YEAR * year)
        now = np.arange(back + LEAST_WEEKS, n)
        for lead in range(1, ahead + 1):
            part = lead % YEAR
            target = now - round(YEAR * year - part)
            near = [np.minimum(target + shift, now) for shift in (-1, 0, 1)]
            grown = levels[now - back + round(YEAR)] - levels[now - back]
            change = np.nanmean(x[near], axis=0) - levels[now - back] - part / YEAR * grown
            median = np.nanmedian(change, axis=1)
            total[now, lead - 1] += np.nan_to_num(median)
            n_years[now, lead - 1] += np.isfinite(median)
    return total / (n_years + 1)


def _paths(errors: list[np.ndarray], ahead: int, coverage: float) -> np.ndarray:
    """Return paths `(paths, weeks)` of past errors `(times, labels)` of each number of weeks ahead.

    Each is one past forecast of one label. Their sizes follow all past forecasts so many
    weeks ahead, and do not fall with the weeks.
    """
    tested, n_full = len(errors), len(errors[-1])
    full = np.stack([of_lead[:n_full] for of_lead in errors]).reshape(tested, -1)
    full = full[:, np.isfinite(full).mean(axis=0) > 0.5]
    drawn = np.random.default_rng(0).permutation(full.shape[1])[:PATHS]
    paths = pd.DataFrame(full[:, drawn]).interpolate(limit_direction="both").to_numpy().T
    sizes = []
    for lead, of_lead in enumerate(errors, start=1):
        freedom = max(1.0, FREEDOM * len(of_lead) / lead)
        wider = student.ppf((1 + coverage) / 2, freedom) / ndtri((1 + coverage) / 2)
        sizes.append(wider * np.nanquantile(np.abs(of_lead), coverage))
    paths = paths * np.maximum.accumulate(sizes) / np.quantile(np.abs(paths), coverage, axis=0)
    weeks = np.arange(1, ahead + 1)
    tested_weeks = np.ceil(weeks * tested / ahead).astype(int)
    stretched = paths[:, tested_weeks - 1] * np.sqrt(weeks / tested_weeks)
    return np.concatenate([paths, stretched[:, tested:]], axis=1)


def _passing(
    places: np.ndarray, paths: np.ndarray, weeks: pd.DatetimeIndex, labels: pd.Index
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the probability that each of the places `(weeks, labels)` is passed, and the dates."""
    chances, rows = np.full(places.shape, np.nan), []
    for column, place in enumerate(places.T):
        row: dict[str, object] = {"probability": np.nan, **{f"date_{s}": "" for s in DATES}}
        if np.isfinite(place).all():
            beyond = paths > place
            chances[:, column] = beyond.mean(axis=0)
            passed = np.logical_or.accumulate(beyond, axis=1).mean(axis=0)
            row["probability"] = passed[-1]
            reached = [(share, np.flatnonzero(passed >= share / 100)) for share in DATES]
            row |= {f"date_{s}": f"{weeks[at[0]]:%Y-%m-%d}" for s, at in reached if len(at)}
        rows.append(row)
    return pd.DataFrame(chances, weeks, labels), pd.DataFrame(rows, labels)


def _factors(
    growth: Threshold, level: np.ndarray, labels: pd.Index, groups: Groups | None
) -> np.ndarray:
    """Return the factor of each label; of a group the mean of its cells' by their loads."""
    n = len(labels) if groups is None else len(groups.cells)
    names = [[str(label)] for label in labels[:n]]
    if groups is not None:
        for (_, cell), number in np.ndenumerate(groups.of):
            names[cell] += [groups.labels[number], groups.levels[number]]
    given = {str(k): v for k, v in growth.items()} if isinstance(growth, Mapping) else {}
    common = np.nan if isinstance(growth, Mapping) else growth
    found = np.array([next((given[k] for k in of if k in given), common) for of in names], float)
    if (odd := ~(np.isfinite(found) & (found > 0))).any():
        value = "missing" if np.isnan(found[odd][0]) else f"{found[odd][0]:g}"
        raise InputError(
            f"growth of cell {labels[:n][odd][0]} is {value}; "
            "give factors above 0, 1.2 for 20 %, for each cell, its group or its level"
        )
    if groups is None:
        return found
    loads = np.nan_to_num(np.exp(level[:n])) + 1e-9
    return np.concatenate([found, groups.sum(loads * found) / groups.sum(loads)])
