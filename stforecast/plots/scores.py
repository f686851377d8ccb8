"""Test errors of runs and their names in figures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from data_prep.base.errors import InputError, Words, choose
from stforecast.bench.run_groups import pooled, select
from stforecast.comparison.errors import SEASONAL, ModelErrors, variables
from stforecast.comparison.names import short_title
from stforecast.comparison.rows import check_targets, folds_of, joined_errors
from stforecast.forecasting.results import ForecastRun
from stforecast.metrics import INTERVAL_METRICS, METRICS


def error_rows(run: ForecastRun, metric: str, selection: str | None = None) -> pd.DataFrame:
    """Return the rows of `metrics.csv` on the test part, by default of the run's own selection."""
    table = select(run.metrics(), split="test")
    selection = selection or run.selection()
    for column, wanted in {"selection": selection, "metric": metric}.items():
        if wanted not in set(table[column]):
            raise InputError(f"{run.folder}: {choose(column, wanted, table[column].unique())}")
        table = select(table, **{column: wanted})
    return table


def pooled_errors(
    runs: Sequence[ForecastRun], metric: str, selection: str | None = None
) -> np.ndarray:
    """Return test errors `(runs,)` over all clients and steps; arguments as in `error_rows`."""
    tables = [pooled(error_rows(run, metric, selection)) for run in runs]
    return np.array([float(table["value"].iloc[0]) for table in tables])


def finite_mean(errors: np.ndarray) -> float:
    """Return the mean of finite errors, which infinity sorts last if there are none."""
    known = errors[np.isfinite(errors)]
    return float(known.mean()) if len(known) else np.inf


def quantity(runs: Sequence[ForecastRun], *, squared: bool = False) -> str:
    """Return the service with its unit: "speed (mph)", or "internet" without a unit.

    Several services together are "traffic".
    """
    services = {run.about["service"] for run in runs}
    units = set()
    for run in runs:
        if "units" in run.about:
            units.add(run.about["units"])
            continue
        with run.open_forecasts() as ds:  # As older versions wrote it.
            units.add(ds["y"].attrs.get("units", "1"))
    name = services.pop() if len(services) == 1 else "traffic"
    if len(units) > 1:
        return f"{name} (own units)"
    (unit,) = units
    return name if unit == "1" else f"{name} ({unit}{'²' if squared else ''})"


def error_name(name: str, runs: Sequence[ForecastRun]) -> str:
    """Return the name of an error with any unit: "MSE of z-scores", "MAE of speed (mph)"."""
    kind = name.removeprefix("raw_")
    metric, title = METRICS.get(kind) or INTERVAL_METRICS.get(kind), short_title(name)
    if metric and metric.scaled_by:
        return title
    if metric and metric.relative:
        return f"{title} (share)"
    if kind == name:
        return f"{title} of z-scores"
    return f"{title} of {quantity(runs, squared=getattr(metric, 'squared', False))}"


def axis_name(
    metric: str, runs: Sequence[ForecastRun], selection: str | None, *, seeds: bool
) -> str:
    """Return the label of an axis of pooled test errors; with `seeds`, a group has several."""
    chosen = f", {selection}" if selection else ""
    units = "folds" if any(run.fold for run in runs) else "seeds"
    spread = f"\n(mean ± std over {units})" if seeds else ""
    return f"test {error_name(metric, runs)}{chosen}{spread}"


def seasonal_errors(runs: Sequence[ForecastRun], metric: str) -> ModelErrors | None:
    """Return the errors of seasonal naive on the targets of the runs.

    None if the runs were tested on different targets, if seasonal naive could not forecast them, or
    if the metric needs bounds.
    """
    if metric.removeprefix("raw_") not in METRICS or different_tests(runs):
        return None
    for run in folds_of(runs).values():
        with run.open_forecasts() as forecasts:
            if SEASONAL not in variables(forecasts):
                return None
    return joined_errors(runs, metric, SEASONAL)


def refuse_different_tests(runs: Sequence[ForecastRun]) -> None:
    """Refuse runs that were tested on different targets."""
    if different_tests(runs):
        raise InputError(
            "these runs were tested on different targets; ",
            Words("draw those of one data set, {split} and {horizon}"),
        )


def different_tests(runs: Sequence[ForecastRun]) -> bool:
    """Return whether runs were tested on targets that `check_targets` refuses, or other data.

    Runs of a backtest are compared with those of the same fold. Runs of the same data, part and
    steps have the same targets, so their files are not read.
    """
    tests: dict[int, dict[Any, ForecastRun]] = {}
    for run in runs:
        if run.facts() != runs[0].facts():
            return True
        tests.setdefault(run.fold, {}).setdefault(_tested_on(run), run)
    for first, *others in (list(of_fold.values()) for of_fold in tests.values()):
        for run in others:
            targets, expected = (r.means()[["y"]] for r in (run, first))
            try:
                check_targets(run, targets, expected)
            except InputError:
                return True
    return False


def _tested_on(run: ForecastRun) -> Any:
    """Return what its targets follow from; the run itself if an older version did not note it."""
    horizon = run.about.get("window", {}).get("horizon")
    known = run.about.get("content"), run.test_span, horizon
    return (*known, run.about.get("units")) if all(known) else run.folder
