"""Numbers of one method for a page: errors by cell, hour, day and step, loads and coverage."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import xarray as xr

from stforecast.bench.run_groups import RunGroup
from stforecast.bench.statistics.estimate import Finalise
from stforecast.bench.tables import number
from stforecast.comparison.errors import (
    SEASONAL,
    ModelErrors,
    coverages,
    local_times,
    model_errors,
    variables,
)
from stforecast.comparison.rows import by_seed, folds_of, join_errors
from stforecast.forecasting.results import ForecastRun, without_bounds
from stforecast.forecasting.tables import as_predicted
from stforecast.metrics.metric import mean
from stforecast.report.tables import Table, axis_times, share


@dataclass(frozen=True, eq=False)
class Successive:
    """Forecasts and observations, in the data's units.

    Attributes:
        times: `(steps,)` local times of the targets, as text.
        y: `(cells, steps)` observed values, NaN where missing, and between folds.
        y_hat: `(cells, steps)` forecasts.
        lower: `(cells, steps)` lower bounds of the widest interval; None without intervals.
        upper: `(cells, steps)` upper bounds.
    """

    times: tuple[str, ...]
    y: np.ndarray
    y_hat: np.ndarray
    lower: np.ndarray | None
    upper: np.ndarray | None


def successive(forecasts: Sequence[xr.Dataset]) -> Successive:
    """Take from each fold's forecasts the windows that do not overlap, from the first one on."""
    times: list[str] = []
    values: dict[str, list[np.ndarray]] = {"y": [], "y_hat": [], "lower": [], "upper": []}
    names = [name for name in values if all(name in part for part in forecasts)]
    for part in forecasts:
        if times:  # A missing step between folds breaks the lines.
            times.append(times[-1])
            for name in names:
                values[name].append(np.full((part.sizes["cell"], 1), np.nan))
        starts, step = local_times(part)
        horizon = part.sizes["horizon"]
        chosen = [0]
        for i in range(1, len(starts)):
            if starts[i] - starts[chosen[-1]] >= horizon * step:
                chosen.append(i)
        ahead = [starts[chosen] + step * k for k in range(horizon)]
        places = np.stack([axis_times(of_step) for of_step in ahead], axis=1)
        times += places.ravel().tolist()
        for name in names:
            of_cells = part[name].to_numpy()[:, chosen]
            values[name].append(of_cells.reshape(len(of_cells), -1))
    joined = {name: np.concatenate(values[name], axis=1) for name in names}
    return Successive(
        tuple(times), joined["y"], joined["y_hat"], joined.get("lower"), joined.get("upper")
    )


class Errors(NamedTuple):
    """Errors of one model on one test part, over all windows.

    Attributes:
        by_cell: `(cells,)`, not finite where the model diverged or nothing was observed.
        by_cell_and_hour: `(cells, 24)` by hour of local time.
        by_hour: `(24,)` over all cells.
        by_step: `(horizon,)` over all cells.
        by_day: over all cells, by local day.
    """

    by_cell: np.ndarray
    by_cell_and_hour: np.ndarray
    by_hour: np.ndarray
    by_step: np.ndarray
    by_day: pd.Series


@dataclass(frozen=True, eq=False)
class MethodNumbers:
    """Numbers of one method; errors are means over seeds, the rest is of the first seed.

    Attributes:
        errors: in the metric of the page.
        mae: `(cells,)` mean absolute error in the data's units.
        forecast: `(cells,)` mean forecast, as `predict` gives it.
        load: `(cells,)` mean observed value.
        coverage: `(cells,)` share of targets inside the widest interval; None without intervals.
        nominal: coverage that the widest interval promises; NaN without intervals.
        path: forecasts of successive windows, as `predict` gives them.
        naive: errors of seasonal naive; None where it could not forecast.
    """

    errors: Errors
    mae: np.ndarray
    forecast: np.ndarray
    load: np.ndarray
    coverage: np.ndarray | None
    nominal: float
    path: Successive
    naive: Errors | None


def method_numbers(group: RunGroup[ForecastRun], metric: str) -> MethodNumbers:
    """Read the numbers of a method from its runs, one seed after the other."""
    seeds = by_seed(group.runs)
    n_folds = len(folds_of(group.runs))
    whole = [runs for runs in seeds if len(folds_of(runs)) == n_folds] or seeds[:1]
    found = [_of_seed([*folds_of(runs).values()], metric, first=runs is whole[0]) for runs in whole]
    errors, mae = ([getattr(of, name) for of in found] for name in ("errors", "mae"))
    *means, by_day = (np.mean(values, axis=0) for values in zip(*errors, strict=True))
    pooled = Errors._make([*means, pd.Series(by_day, errors[0].by_day.index)])
    return dataclasses.replace(found[0], errors=pooled, mae=np.mean(mae, axis=0))


def _of_seed(folds: Sequence[ForecastRun], metric: str, *, first: bool) -> MethodNumbers:
    """Read the numbers of one seed by blocks of cells, as all may not fit into the memory.

    Bounds come from the `first` seed.
    """
    with ExitStack() as stack:
        opened = [stack.enter_context(run.open_forecasts()) for run in folds]
        opened = opened if first else [without_bounds(ds) for ds in opened]
        parts = zip(
            *(run.in_blocks(ds) for run, ds in zip(folds, opened, strict=True)), strict=True
        )
        blocks = [_block(part, metric) for part in parts]
    return MethodNumbers(**{name: _whole([block[name] for block in blocks]) for name in blocks[0]})


def _block(forecasts: Sequence[xr.Dataset], metric: str) -> dict[str, Any]:
    """Return `MethodNumbers` of the cells of each fold's forecasts, with sums of errors."""
    covered = [coverages(part) for part in forecasts]
    nominal = max(set.intersection(*map(set, covered)), default=float("nan"))
    widest = [] if np.isnan(nominal) else [part[nominal] for part in covered]
    known = all(SEASONAL in variables(part) for part in forecasts)
    given = [as_predicted(part) for part in forecasts]
    return {
        "errors": _Sums.of(_joined(forecasts, metric)),
        "mae": _joined(forecasts, "raw_mae").by_cell(),
        "forecast": _mean_by_cell(given, "y_hat"),
        "load": _mean_by_cell(forecasts, "y"),
        "coverage": join_errors(widest).by_cell() if widest else None,
        "path": successive(given),
        "naive": _Sums.of(_joined(forecasts, metric, SEASONAL)) if known else None,
        "nominal": nominal,
    }


class _Sums(NamedTuple):
    """Totals and weights, as `(2, cells, 24)` by hour, `(2, horizon)` and `(2, days)`."""

    by_cell_and_hour: np.ndarray
    by_step: np.ndarray
    by_day: np.ndarray
    days: pd.DatetimeIndex
    finalise: Finalise

    @classmethod
    def of(cls, errors: ModelErrors) -> _Sums:
        by_step = [values.sum(axis=(0, 1)) for values in (errors.total, errors.weight)]
        by_day = [values.sum(axis=0) for values in errors.by_day()]
        by_hour = np.stack(errors.by_cell_and_hour())
        return cls(by_hour, np.stack(by_step), np.stack(by_day), errors.days, errors.finalise)


def _whole(blocks: Sequence[Any]) -> Any:
    """Join the numbers of blocks of cells; those that are not of cells are of the first block."""
    first = blocks[0]
    if isinstance(first, np.ndarray):
        return np.concatenate(blocks)
    if isinstance(first, Successive):
        names = ("y", "y_hat", "lower", "upper")
        joined = {name: _whole([getattr(block, name) for block in blocks]) for name in names}
        return dataclasses.replace(first, **joined)
    return _finalised(blocks) if isinstance(first, _Sums) else first


def _joined(
    forecasts: Sequence[xr.Dataset], metric: str, selection: str | None = None
) -> ModelErrors:
    return join_errors([model_errors(part, metric, selection) for part in forecasts])


def _finalised(blocks: Sequence[_Sums]) -> Errors:
    """Return errors of all blocks' cells from their sums."""
    by_cell_and_hour = np.concatenate([sums.by_cell_and_hour for sums in blocks], axis=1)
    finalise = blocks[0].finalise
    with np.errstate(invalid="ignore"):  # Where the method diverged.
        by_step, by_day = (
            finalise(*np.sum([getattr(sums, name) for sums in blocks], axis=0))
            for name in ("by_step", "by_day")
        )
        return Errors(
            finalise(*by_cell_and_hour.sum(axis=2)),
            finalise(*by_cell_and_hour),
            finalise(*by_cell_and_hour.sum(axis=1)),
            by_step,
            pd.Series(by_day, blocks[0].days),
        )


def _mean_by_cell(forecasts: Sequence[xr.Dataset], name: str) -> np.ndarray:
    """Return the mean of observed or forecast values at observed targets, `(cells,)`."""
    seen = [np.isfinite(part["y"].to_numpy()) for part in forecasts]
    totals = [
        np.where(mask, part[name].to_numpy(), 0.0).sum(axis=(1, 2))
        for part, mask in zip(forecasts, seen, strict=True)
    ]
    counts = [mask.sum(axis=(1, 2)) for mask in seen]
    return mean(np.sum(totals, axis=0), np.sum(counts, axis=0))


def worst_tables(
    cells: np.ndarray, best: MethodNumbers, name: str, error: str, quantity: str, clock: str
) -> tuple[Table, ...]:
    """Return tables of the cells, hours and days where the best method, `name`, is worst.

    `error` and `quantity` are titles, `clock` names the clock of hours and days.
    """
    own = f"{error} of {name}"
    of_cells = []
    for i in highest(best.errors.by_cell):
        row = {"cell": str(cells[i]), **_errors_at(i, "by_cell", best, own)}
        row[f"mean {quantity}"] = number(best.load[i])
        if best.coverage is not None:
            row["inside the interval"] = share(best.coverage[i])
        of_cells.append(row)
    of_hours = [
        {"hour": f"{hour:02d}:00", **_errors_at(hour, "by_hour", best, own)}
        for hour in highest(best.errors.by_hour)
    ]
    days = best.errors.by_day.index
    of_days = [
        {"day": f"{days[i]:%Y-%m-%d}", "weekday": f"{days[i]:%A}"}
        | _errors_at(i, "by_day", best, own)
        for i in highest(best.errors.by_day.to_numpy())
    ]
    return (
        Table(f"Cells with the highest errors of {name}", of_cells, opens="cell"),
        Table(f"Hours with the highest errors of {name}, {clock}", of_hours),
        Table(f"Days with the highest errors of {name}, {clock}", of_days),
    )


def _errors_at(place: int, name: str, best: MethodNumbers, own: str) -> dict[str, str]:
    """Return the error of the best method, and of seasonal naive, at a place of an attribute."""
    found = {own: best.errors, "of seasonal naive": best.naive}
    return {
        head: number(np.asarray(getattr(errors, name))[place])
        for head, errors in found.items()
        if errors is not None
    }


def highest(errors: np.ndarray) -> list[int]:
    """Return the positions of the highest errors, the highest first.

    >>> highest(np.array([1.0, np.nan, 3.0, np.inf]))
    [3, 2, 0]
    """
    return pd.Series(errors).dropna().nlargest(10).index.tolist()
