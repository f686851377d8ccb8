"""Numbers of one method for a page: errors by cell, hour, day and step, loads and coverage."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pandas as pd
import xarray as xr

from stforecast.bench.run_groups import RunGroup
from stforecast.comparison.errors import SEASONAL, ModelErrors, local_times, model_errors, variables
from stforecast.comparison.rows import by_seed, coverages, folds_of, join_errors
from stforecast.forecasting.results import ForecastRun
from stforecast.forecasting.tables import as_predicted
from stforecast.report.tables import Table, number, share

FORMAT = "%Y-%m-%d %H:%M"


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

    def first(self, steps: int) -> Successive:
        """Return the first steps alone."""
        bounds = (None if v is None else v[:, :steps] for v in (self.lower, self.upper))
        return Successive(self.times[:steps], self.y[:, :steps], self.y_hat[:, :steps], *bounds)


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
        chosen = _apart(starts, horizon * step)
        ahead = [starts[chosen] + step * k for k in range(horizon)]
        ordered = np.stack([of_step.strftime(FORMAT) for of_step in ahead], axis=1)
        times += ordered.ravel().tolist()
        for name in names:
            of_cells = part[name].to_numpy()[:, chosen]
            values[name].append(of_cells.reshape(len(of_cells), -1))
    joined = {name: np.concatenate(values[name], axis=1) for name in names}
    return Successive(
        tuple(times), joined["y"], joined["y_hat"], joined.get("lower"), joined.get("upper")
    )


def _apart(starts: pd.DatetimeIndex, length: pd.Timedelta) -> np.ndarray:
    """Return positions of starts that lie at least a length apart, from the first one on."""
    chosen = [0]
    for i in range(1, len(starts)):
        if starts[i] - starts[chosen[-1]] >= length:
            chosen.append(i)
    return np.array(chosen)


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
        nominal: what the widest interval promises; NaN without intervals.
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
    first = [run.forecasts() for run in folds_of(whole[0]).values()]
    found = [_errors(first, metric)]
    mae = [_joined(first, "raw_mae").by_cell()]
    for runs in whole[1:]:
        forecasts = [run.forecasts() for run in folds_of(runs).values()]
        found.append(_errors(forecasts, metric))
        mae.append(_joined(forecasts, "raw_mae").by_cell())
    nominal, coverage = _coverage(first)
    known = all(SEASONAL in variables(part) for part in first)
    given = [as_predicted(part) for part in first]
    return MethodNumbers(
        _mean(found),
        np.mean(mae, axis=0),
        _mean_by_cell(given, "y_hat"),
        _mean_by_cell(first, "y"),
        coverage,
        nominal,
        successive(given),
        _errors(first, metric, SEASONAL) if known else None,
    )


def _joined(
    forecasts: Sequence[xr.Dataset], metric: str, selection: str | None = None
) -> ModelErrors:
    return join_errors([model_errors(part, metric, selection) for part in forecasts])


def _errors(forecasts: Sequence[xr.Dataset], metric: str, selection: str | None = None) -> Errors:
    errors = _joined(forecasts, metric, selection)
    by_day = [sums.sum(axis=0) for sums in errors.by_day()]
    with np.errstate(invalid="ignore"):  # Where the method diverged.
        return Errors(
            errors.by_cell(),
            errors.finalise(*errors.by_cell_and_hour()),
            errors.by_hour().to_numpy(),
            errors.by_step().to_numpy(),
            pd.Series(errors.finalise(*by_day), errors.days),
        )


def _mean(several: Sequence[Errors]) -> Errors:
    means = [np.mean(values, axis=0) for values in zip(*several, strict=True)]
    return Errors._make([*means[:-1], pd.Series(means[-1], several[0].by_day.index)])


def _mean_by_cell(forecasts: Sequence[xr.Dataset], name: str) -> np.ndarray:
    """Return the mean of what was observed or forecast at observed targets, `(cells,)`."""
    seen = [np.isfinite(part["y"].to_numpy()) for part in forecasts]
    totals = [
        np.where(mask, part[name].to_numpy(), 0.0).sum(axis=(1, 2))
        for part, mask in zip(forecasts, seen, strict=True)
    ]
    counts = np.sum([mask.sum(axis=(1, 2)) for mask in seen], axis=0)
    total = np.sum(totals, axis=0)
    return np.divide(total, counts, out=np.full(total.shape, np.nan), where=counts > 0)


def _coverage(forecasts: Sequence[xr.Dataset]) -> tuple[float, np.ndarray | None]:
    """Return the nominal coverage of the widest interval, and that of each cell."""
    parts = [coverages(part) for part in forecasts]
    shared = set.intersection(*(set(part) for part in parts))
    if not shared:
        return float("nan"), None
    widest = max(shared)
    return widest, join_errors([part[widest] for part in parts]).by_cell()


N_WORST = 10


def worst_tables(
    cells: np.ndarray, best: MethodNumbers, name: str, error: str, quantity: str, clock: str
) -> tuple[Table, ...]:
    """Return tables of the cells, hours and days where the best method, `name`, is worst.

    `error` and `quantity` are titles, `clock` names that of hours and days.
    """
    own = f"{error} of {name}"
    return (
        _cells(cells, best, name, own, quantity),
        _hours(best, name, own, clock),
        _days(best, name, own, clock),
    )


def _cells(cells: np.ndarray, best: MethodNumbers, name: str, own: str, quantity: str) -> Table:
    errors = best.errors.by_cell
    rows = []
    for i in highest(errors):
        naive = {} if best.naive is None else {"of seasonal naive": best.naive.by_cell[i]}
        inside = {} if best.coverage is None else {"inside the interval": best.coverage[i]}
        rows.append(
            {"cell": str(cells[i]), own: number(errors[i])}
            | {column: number(value) for column, value in naive.items()}
            | {f"mean {quantity}": number(best.load[i])}
            | {column: share(value) for column, value in inside.items()}
        )
    return Table(f"Cells with the highest errors of {name}", rows, opens="cell")


def _hours(best: MethodNumbers, name: str, own: str, clock: str) -> Table:
    errors = best.errors.by_hour
    rows = [
        {"hour": f"{hour:02d}:00", own: number(errors[hour])}
        | ({} if best.naive is None else {"of seasonal naive": number(best.naive.by_hour[hour])})
        for hour in highest(errors)
    ]
    return Table(f"Hours with the highest errors of {name}, {clock}", rows)


def _days(best: MethodNumbers, name: str, own: str, clock: str) -> Table:
    errors = best.errors.by_day
    rows = [
        {"day": f"{errors.index[i]:%Y-%m-%d}", "weekday": f"{errors.index[i]:%A}"}
        | {own: number(errors.iloc[i])}
        | ({} if best.naive is None else {"of seasonal naive": number(best.naive.by_day.iloc[i])})
        for i in highest(errors.to_numpy())
    ]
    return Table(f"Days with the highest errors of {name}, {clock}", rows)


def highest(errors: np.ndarray) -> list[int]:
    """Return the positions of the highest errors, the highest first.

    >>> highest(np.array([1.0, np.nan, 3.0, np.inf]))
    [3, 2, 0]
    """
    known = np.flatnonzero(~np.isnan(errors))
    order = known[np.argsort(-errors[known], kind="stable")]
    return [int(i) for i in order[:N_WORST]]
