"""What a planner asks of a forecast: busy hours, peaks, thresholds and headroom.

High loads are a problem, and low speeds: of a speed, a table or plan has the lowest values and the
probabilities of falling below a threshold. `Side` tells them apart.

Probabilities follow from a forecast m and its central interval [l, u] of coverage c. On either side
of its median m, the value is taken to be normal, with the spread for which it lies above u with
probability (1 - c) / 2, and below l with the same.

That a threshold is passed at any step of a span depends on how errors go together: as in the
tested forecasts of all cells, of which each is a path of errors (an empirical copula). The
probability is the share of paths that pass the threshold. Independent errors would promise too
many exceedances, and the highest probability of one step too few; the benchmark `exceedance`
measures all three.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import pandas as pd
import scipy
import xarray as xr

from data_prep.base.errors import InputError, Words
from data_prep.readers.units import is_speed

log = logging.getLogger(__name__)

ROUNDING = 1e-4
"""Share of a cell's highest value by which a forecast may leave its bounds, as float32 rounds."""

ANY = (-np.inf, np.inf)
"""Limits of a service whose values may be any number."""

MOST_PATHS = 4000
"""Largest number of paths of errors, the same for all cells."""

SPANS = 20
"""Number of tested spans, which have no step in common, from which errors keep half of their sizes;
by the Brier score of six data sets."""

Threshold = float | Mapping[object, float]
"""One threshold in the data's units, or one of each cell."""


class Side(NamedTuple):
    """The side of a threshold on which values are a problem.

    Attributes:
        sign: 1 if they are high, -1 if they are low.
        beyond: where they lie: `above` or `below` the threshold.
        extreme: `highest` or `lowest`.
        worst: column of a plan with the highest or lowest forecast.
    """

    sign: int
    beyond: str
    extreme: str
    worst: str


LOADS, SPEEDS = Side(1, "above", "highest", "peak"), Side(-1, "below", "lowest", "lowest")


def side_of(values: pd.DataFrame) -> Side:
    """Return the side of a table, whose attributes `service` and `units` tell if it is a speed."""
    speed = is_speed(str(values.attrs.get("service", "")), str(values.attrs.get("units", "1")))
    return SPEEDS if speed else LOADS


def no_values(cells: np.ndarray, service: str, units: str) -> pd.DataFrame:
    """Return an empty table of cells, which tells its side."""
    table = pd.DataFrame(columns=cells, dtype=float)
    table.attrs = {"service": service, "units": units}
    return table


def busy_hour(values: pd.DataFrame) -> pd.DataFrame:
    """Return the busy hour of each cell: the clock hour of the highest mean value.

    Of a speed, it is that of the lowest: roads are slow when they are busy.

    Args:
        values: table (time × cell), on the wall clock of interest.

    Returns:
        A row for each cell: `busy_hour`, when it begins, and `busy_hour_mean`.

    >>> times = pd.date_range("2024-01-01 08:00", periods=4, freq="30min")
    >>> busy_hour(pd.DataFrame({"a": [1.0, 9.0, 6.0, 6.0]}, times)).iloc[0].astype(str).tolist()
    ['2024-01-01 09:00:00', '6.0']
    """
    times = pd.DatetimeIndex(values.index)
    # Hours of the wall clock, which in some zones do not begin with those of UTC.
    past = pd.to_timedelta(times.minute * 60 + times.second, unit="s")
    sign = side_of(values).sign
    by_hour = sign * values.groupby(times - past).mean()
    known = by_hour.dropna(axis="columns", how="all")
    columns = {"busy_hour": known.idxmax(), "busy_hour_mean": sign * known.max()}
    return pd.DataFrame(columns).reindex(values.columns)


def exceedance(
    forecast: pd.DataFrame,
    lower: pd.DataFrame,
    upper: pd.DataFrame,
    threshold: Threshold,
    coverage: float,
    limits: tuple[float, float] | None = None,
) -> pd.DataFrame:
    """Return the probability that each value exceeds a threshold; of a speed, falls below it.

    Args:
        forecast: table (time × cell) of medians, not cut at limits: `predict(…, limits=ANY)`.
        lower: lower bounds, not cut either.
        upper: upper bounds, not cut either.
        threshold: one, or one of each cell.
        coverage: coverage of the interval between the bounds.
        limits: lowest and highest possible value; by default those of the forecast.

    Returns:
        Probabilities; NaN where there is no finite bound.

    Raises:
        InputError: if a cell has no threshold, or one that its values cannot pass or have always
            passed, a forecast lies outside its bounds, or the tables are cut at limits.

    >>> table = lambda value: pd.DataFrame({"a": [value]})
    >>> exceedance(table(10.0), table(8.0), table(14.0), 14.0, 0.9).round(3).iloc[0, 0].item()
    0.05
    """
    places = _places(forecast, lower, upper, threshold, coverage, limits)
    return pd.DataFrame(scipy.special.ndtr(-places), forecast.index, forecast.columns)


def _places(
    forecast: pd.DataFrame,
    lower: pd.DataFrame,
    upper: pd.DataFrame,
    threshold: Threshold,
    coverage: float,
    limits: tuple[float, float] | None,
) -> np.ndarray:
    """Return the thresholds as normal scores of the values `(steps, cells)`, negative for speeds.

    They are NaN without bounds, and with infinite ones, from which no spread follows.
    """
    limit = cell_limits(threshold, forecast, limits)
    _check_uncut(forecast, lower, upper)
    centre, low, high = (table.to_numpy(dtype=float) for table in (forecast, lower, upper))
    _check_inside(centre, forecast.columns, low, high)
    if side_of(forecast) is SPEEDS:
        limit, centre, low, high = -limit, -centre, -high, -low
    reach = np.where(limit > centre, high - centre, centre - low).clip(0)
    with np.errstate(divide="ignore", invalid="ignore"):
        places = (limit - centre) / (reach / scipy.special.ndtri((1 + coverage) / 2))
    places = np.where(reach == 0, np.where(centre > limit, -np.inf, np.inf), places)
    return np.where(np.isfinite(low) & np.isfinite(high), places, np.nan)


def error_paths(forecasts: xr.Dataset) -> np.ndarray | None:
    """Return how the errors of the steps ahead went together, `(paths, horizon)` normal scores.

    A path is one forecast of one cell, whose errors are in the units of `places`. The more spans
    were tested, the more they keep their sizes; else a step's errors have the ranks alone, so that
    their sizes are those of the bounds.

    Args:
        forecasts: tested forecasts with bounds, see `Forecaster.test_forecasts`.

    Returns:
        At most `MOST_PATHS`, drawn at random; None without bounds or if there are fewer than two
        complete forecasts.
    """
    if "upper" not in forecasts:
        return None
    y, centre, low, high = (forecasts[n].to_numpy() for n in ("y", "y_hat", "lower", "upper"))
    with np.errstate(divide="ignore", invalid="ignore"):
        reach = np.where(y > centre, high - centre, centre - low)
        errors = np.where(np.isinf(reach), np.nan, (y - centre) / reach)
    errors = errors.reshape(-1, y.shape[2]).astype(float)
    errors = errors[np.isfinite(errors).all(axis=1)]
    if len(errors) < 2:
        return None
    n_spans = len(errors) / len(y) / y.shape[2]
    ranks = (pd.DataFrame(errors).rank().to_numpy() - 0.5) / len(errors)
    sizes = errors * scipy.special.ndtri((1 + forecasts.attrs["coverage"]) / 2)
    paths = (n_spans * sizes + SPANS * scipy.special.ndtri(ranks)) / (n_spans + SPANS)
    drawn = np.random.default_rng(0).permutation(len(paths))[:MOST_PATHS]
    return np.asarray(paths[drawn])


def _in_span(places: np.ndarray, paths: np.ndarray) -> np.ndarray:
    """Return the probability `(cells,)` to lie above a place `(steps, cells)` at any step.

    It is at least that of one step and at most the sum of all, whatever the paths say, and NaN
    where a step has none.
    """
    n = len(places)
    if n > paths.shape[1]:
        return np.full(places.shape[1], np.nan)
    found = np.array([(paths[:, :n] > of_cell).any(axis=1).mean() for of_cell in places.T])
    of_steps = scipy.special.ndtr(-places)
    found = np.clip(found, of_steps.max(axis=0), of_steps.sum(axis=0))
    return np.where(np.isnan(places).any(axis=0), np.nan, found)


def plan(
    forecast: pd.DataFrame,
    interval: tuple[pd.DataFrame, pd.DataFrame] | None = None,
    threshold: Threshold | None = None,
    limits: tuple[float, float] | None = None,
    paths: np.ndarray | None = None,
) -> pd.DataFrame:
    """Tabulate a forecast for a planner, one row for each cell.

    Args:
        forecast: table (time × cell) from `Forecaster.predict`; with bounds and a threshold from
            `predict(…, limits=ANY)`, as for `exceedance`.
        interval: lower and upper bounds from `Forecaster.predict_interval`, likewise.
        threshold: capacity or limit in the data's units, one or one of each cell.
        limits: lowest and highest possible value, at which the table's values are cut; by default
            those of the forecast.
        paths: `error_paths` of tested forecasts, for probabilities over the span.

    Returns:
        `busy_hour` and `busy_hour_mean`; `peak`, the highest forecast, and `peak_time`; with a
        threshold also `threshold`, `headroom` (threshold minus the peak) and `steps_above`, the
        number of forecasts above it, missing without a forecast; with bounds too `headroom_95`
        (threshold minus the highest upper bound: with a 90 % interval, each value stays below that
        bound with a probability of 95 %), `highest_probability` of exceeding the threshold at
        one step, the `likeliest_time` of it, and `expected_steps_above`; they are missing where a
        step has no bounds, with a warning. With paths also `probability`, of exceeding the
        threshold at any step. Of a speed, `lowest`, `lowest_time`, `steps_below` and
        `expected_steps_below` stand in place of these; `headroom` is what the lowest forecast has
        above the threshold, and probabilities are of falling below it.

    Raises:
        InputError: as `exceedance`.
    """
    side, limits = side_of(forecast), _of_values(forecast, limits)
    sign, uncut, forecast = side.sign, forecast, forecast.clip(*limits)
    load = sign * forecast
    known = load.dropna(axis="columns", how="all")
    table = busy_hour(forecast)
    table[side.worst] = sign * load.max()
    table[f"{side.worst}_time"] = known.idxmax().reindex(forecast.columns)
    if threshold is None:
        return table
    limit = cell_limits(threshold, forecast, limits)
    table["threshold"] = limit
    limit = sign * limit
    table["headroom"] = limit - load.max()
    table[f"steps_{side.beyond}"] = (load > limit).sum().where(forecast.notna().any())
    if interval is not None:
        lower, upper = interval
        coverage = upper.attrs["coverage"]
        bound = sign * (upper if side is LOADS else lower).clip(*limits)
        table[f"headroom_{50 * (1 + coverage):g}"] = limit - bound.max(skipna=False)
        places = _places(uncut, lower, upper, threshold, coverage, limits)
        chances = pd.DataFrame(scipy.special.ndtr(-places), forecast.index, forecast.columns)
        known = chances.dropna(axis="columns")
        if paths is not None:
            table["probability"] = _in_span(places, sign * paths)
        table["highest_probability"] = chances.max(skipna=False)
        table["likeliest_time"] = known.idxmax().reindex(forecast.columns)
        table[f"expected_steps_{side.beyond}"] = chances.sum(skipna=False)
        _warn_of_steps_without_bounds(chances)
    return table


def chance_column(table: pd.DataFrame) -> str | None:
    """Return the column of the probability over the span, or of one step where that is unknown."""
    columns = ("probability", "highest_probability")
    return next((c for c in columns if c in table and table[c].notna().any()), None)


def by_urgency(table: pd.DataFrame, side: Side) -> pd.DataFrame:
    """Sort cells of a `plan` with a threshold: the most probable to pass it come first.

    Of cells of one probability in whole per cent, of which many may have 100 %, those that are
    expected beyond it for longest come first, then those furthest beyond it; cells without any of
    these come last.
    """
    keys = {"headroom": table["headroom"]}
    if (name := chance_column(table)) is not None:
        expected = table[f"expected_steps_{side.beyond}"]
        keys = {"chance": -table[name].round(2), "expected": -expected.round(1)} | keys
    return table.loc[pd.DataFrame(keys).sort_values(list(keys), kind="stable").index]


def _warn_of_steps_without_bounds(chances: pd.DataFrame) -> None:
    known = int(chances.notna().any(axis=1).sum())
    if 0 < known < len(chances):
        log.warning(
            "%d of %d steps have bounds, since those beyond the horizon have none: headroom "
            "of upper bounds and highest_probability are missing; %s",
            known,
            len(chances),
            Words("train with {horizon}", horizon=len(chances)),
        )


def _check_uncut(*tables: pd.DataFrame) -> None:
    """Refuse values at a limit, where tables were cut: their spread is unknown there."""
    cut = [limit for limit in _of_values(tables[0], None) if np.isfinite(limit)]
    for limit in cut:
        if any((table == limit).any(axis=None) for table in tables):
            raise InputError(
                f"forecasts or bounds are cut at {limit:g}, so that no probability follows from "
                "them; give those of predict and predict_interval with limits=planning.ANY, and "
                "the limits to planning"
            )


def _check_inside(
    centre: np.ndarray, cells: pd.Index, lower: np.ndarray, upper: np.ndarray
) -> None:
    """Refuse forecasts `(steps, cells)` outside their bounds, for which no probability follows."""
    outside = np.fmax(lower - centre, centre - upper)
    size = np.fmax.reduce(np.abs([centre, lower, upper]).reshape(-1, len(cells)))
    if (odd := outside > ROUNDING * size).any():
        step, cell = np.argwhere(odd)[0]
        at = (step, cell)
        raise InputError(
            f"the forecast of cell {cells[cell]} is {centre[at]:g}, outside its bounds "
            f"{lower[at]:g} and {upper[at]:g}; give forecasts and bounds of one model and limits"
        )


def _of_values(forecast: pd.DataFrame, limits: tuple[float, float] | None) -> tuple[float, float]:
    """Return the lowest and highest possible value: those given, or those of the forecast."""
    lowest, highest = forecast.attrs.get("limits", ANY) if limits is None else limits
    return lowest, highest


def cell_limits(
    threshold: Threshold, forecast: pd.DataFrame, of_values: tuple[float, float] | None
) -> np.ndarray:
    """Return the threshold of each cell `(cells,)`."""
    cells = forecast.columns
    if isinstance(threshold, Mapping):
        by_name = {str(cell): float(value) for cell, value in threshold.items()}
        if absent := [cell for cell in cells if str(cell) not in by_name]:
            raise InputError(
                f"{len(absent)} of {len(cells)} cells have no threshold, such as {absent[0]}; give "
                "one for each cell, or one number for all"
            )
        limits = np.array([by_name[str(cell)] for cell in cells])
    else:
        limits = np.full(len(cells), float(threshold))
    lowest, highest = _of_values(forecast, of_values)
    loads = side_of(forecast) is LOADS
    # A value at its limit has not passed a threshold there.
    end = highest if loads else lowest
    possible = (limits >= lowest) & (limits <= highest) & (limits != end) & np.isfinite(limits)
    if len(odd := limits[~possible]):
        wanted = "finite"
        if np.isfinite(odd[0]):
            low, high = f"above {lowest:g}", f"{highest:g} or less"
            if loads:
                low, high = f"{lowest:g} or more", f"below {highest:g}"
            wanted = f"{low if odd[0] <= lowest else high}, as the data are"
        raise InputError(f"threshold is {odd[0]:g}; it must be {wanted}")
    return limits
