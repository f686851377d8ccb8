"""Test errors of runs, and names of errors, steps ahead and tasks in tables and figures."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from data_prep.base.errors import InputError, Words, choose
from data_prep.readers.units import with_unit
from stforecast.bench.run_groups import RunGroup, group_runs, grouped, pooled, select, tell_apart
from stforecast.comparison.errors import SEASONAL, ModelErrors, variables
from stforecast.comparison.rows import check_targets, folds_of, joined_errors
from stforecast.forecasting.results import ForecastRun, data_of
from stforecast.metrics import INTERVAL_METRICS, METRICS


def short_title(metric: str) -> str:
    """Return the title of an error without its unit.

    >>> short_title("raw_mse"), short_title("mase"), short_title("scaled_pinball")
    ('MSE', 'MASE', 'scaled pinball')
    """
    kind = metric.removeprefix("raw_")
    if kind in METRICS and METRICS[kind].heading:
        return METRICS[kind].heading
    words = {"bias", "coverage", "width", "pinball", "scaled_pinball"}  # Not abbreviations.
    return kind.replace("_", " ") if kind in words else kind.upper()


def error_title(metric: str, units: str = "data units") -> str:
    """Return the title of an error.

    >>> error_title("mse"), error_title("raw_mae"), error_title("mase")
    ('MSE', 'MAE, data units', 'MASE')
    """
    kind, title = metric.removeprefix("raw_"), short_title(metric)
    found = METRICS.get(kind)
    if kind == metric or found is None or found.relative:
        return title
    return f"{title}, {units}{'²' if found.squared and units != 'data units' else ''}"


def shown_steps(horizon: int) -> list[int]:
    """Return the steps ahead in a table: 3, 6 and 12 of 12.

    >>> shown_steps(12), shown_steps(24), shown_steps(2)
    ([3, 6, 12], [6, 12, 24], [1, 2])
    """
    return sorted({math.ceil(horizon / 4), math.ceil(horizon / 2), horizon})


def time_ahead(step: int, run: ForecastRun) -> str:
    """Format a step ahead, in minutes or hours if the run gives the length of a step.

    An hour of shorter steps is "60 min", as in the tables of METR-LA.
    """
    length = run.about.get("step_minutes", math.nan)
    minutes = step * length
    if math.isnan(minutes):
        return f"step {step}"
    in_minutes = minutes % 60 or (minutes <= 60 and length < 60)
    return f"{minutes:g} min" if in_minutes else f"{minutes / 60:g} h"


def horizon_ahead(run: ForecastRun) -> str:
    """Format all steps of a run, such as "1 h ahead" or "up to 24 h ahead"; empty if unknown."""
    horizon = run.settings.get("horizon")
    if horizon is None:
        return ""
    return f"{'up to ' if int(horizon) > 1 else ''}{time_ahead(int(horizon), run)} ahead"


def by_task(
    runs: Sequence[ForecastRun],
    apart: Sequence[str] = ("service", "split", "horizon", "scale", "path"),
) -> dict[str, list[RunGroup[ForecastRun]]]:
    """Return groups of runs by task: by the name of the data and the facts `apart`.

    A task is named by its data, by its horizon if not all have the same, and by what else
    distinguishes it from others of these data, in the order of the facts. A folder given twice
    counts once.
    """

    def task(run: ForecastRun) -> tuple[str, ...]:
        own = _facts(run) | {"path": str(data_of(run.about).resolve())}  # However it was typed.
        return own["data"], *(own[key] for key in apart)

    tasks = list(grouped(runs, task).values())
    facts = [_facts(of_task[0]) for of_task in tasks]
    names, known = [own["data"] for own in facts], [{k: own[k] for k in apart} for own in facts]
    tags = tell_apart(names, known, ("horizon",), lambda _, value: str(value))
    return {
        ", ".join([name, *tag]): group_runs(of_task)
        for name, tag, of_task in zip(names, tags, tasks, strict=True)
    }


def _facts(run: ForecastRun) -> dict[str, str]:
    """Return what may distinguish tasks, as texts for their names."""
    settings = run.settings
    return {
        "path": run.about["data"],
        "split": f"split {settings.get('split')}",
        **run.facts(),
        "horizon": horizon_ahead(run),
        "scale": f"scaled by {settings.get('scale')}",
    }


def error_rows(run: ForecastRun, metric: str) -> pd.DataFrame:
    """Return the rows of `metrics.csv` on the test part, of the run's own selection."""
    table = select(run.metrics(), split="test")
    for column, wanted in {"selection": run.selection(), "metric": metric}.items():
        found = select(table, **{column: wanted})
        if found.empty:
            raise InputError(f"{run.folder}: {choose(column, wanted, table[column].unique())}")
        table = found
    return table


def pooled_errors(runs: Sequence[ForecastRun], metric: str) -> np.ndarray:
    """Return test errors `(runs,)` over all clients and steps."""
    tables = [pooled(error_rows(run, metric)) for run in runs]
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
    units = {run.about["units"] for run in runs}
    name = services.pop() if len(services) == 1 else "traffic"
    if len(units) > 1:
        return f"{name} (own units)"
    (unit,) = units
    return with_unit(name, unit, "²" if squared else "")


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


def axis_name(metric: str, runs: Sequence[ForecastRun], *, seeds: bool) -> str:
    """Return the label of an axis of pooled test errors; with `seeds`, a group has several."""
    folds, several = any(run.fold for run in runs), len({run.seed for run in runs}) > 1
    units = "folds and seeds" if folds and several else "folds" if folds else "seeds"
    spread = f"\n(mean ± std over {units})" if seeds else ""
    return f"test {error_name(metric, runs)}{spread}"


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

    Runs of a backtest are compared with runs of the same fold. Runs of the same data, part and
    steps have the same targets, so their files are not read.
    """
    tests: dict[int, dict[Any, ForecastRun]] = {}
    for run in runs:
        if run.facts() != runs[0].facts():
            return True
        known = run.about.get("content"), run.test_span, run.about.get("window", {}).get("horizon")
        # What its targets follow from; the run itself if it notes none of that.
        targets = (*known, run.about.get("units")) if all(known) else run.folder
        tests.setdefault(run.fold, {}).setdefault(targets, run)
    for first, *others in (list(of_fold.values()) for of_fold in tests.values()):
        for run in others:
            try:
                check_targets(run, *(r.means()[["y"]] for r in (run, first)))
            except InputError:
                return True
    return False
