"""Test errors of runs, as figures read and name them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from data_prep.errors import InputError, choose
from stforecast.bench.run_groups import pooled, select
from stforecast.metrics import METRICS
from stforecast.results import ForecastRun


def error_rows(run: ForecastRun, metric: str, selection: str | None = None) -> pd.DataFrame:
    """Rows of `metrics.csv` on the test part.

    Args:
        run: a finished run.
        metric: which error.
        selection: which of its models; by default the one that its settings name.

    Raises:
        InputError: listing the metrics or selections if there is no such one.
    """
    table = select(run.metrics(), split="test")
    selection = selection or run.settings["select"]
    for column, wanted in {"selection": selection, "metric": metric}.items():
        if wanted not in set(table[column]):
            raise InputError(f"{run.folder}: {choose(column, wanted, table[column].unique())}")
        table = select(table, **{column: wanted})
    return table


def pooled_errors(
    runs: Sequence[ForecastRun], metric: str, selection: str | None = None
) -> np.ndarray:
    """Test errors `(runs,)`, each over all clients and steps; arguments as in `error_rows`."""
    tables = [pooled(error_rows(run, metric, selection)) for run in runs]
    return np.array([float(table["value"].iloc[0]) for table in tables])


def quantity(runs: Sequence[ForecastRun], *, squared: bool = False) -> str:
    """What was forecast, with its unit: "speed (mph)", or "internet" where there is none.

    Several services together are "traffic".

    Args:
        runs: finished runs.
        squared: whether it is the square of it.
    """
    services = {run.about["service"] for run in runs}
    units = set()
    for run in runs:
        with run.open_forecasts() as ds:
            units.add(ds["y"].attrs.get("units", "1"))
    name = services.pop() if len(services) == 1 else "traffic"
    if len(units) > 1:
        return f"{name} (own units)"
    (unit,) = units
    return name if unit == "1" else f"{name} ({unit}{'²' if squared else ''})"


def error_name(name: str, runs: Sequence[ForecastRun]) -> str:
    """Name of an error with its unit: "MSE of z-scores", "MAE of speed (mph)"."""
    kind = name.removeprefix("raw_")
    if kind == name:
        return f"{kind.upper()} of z-scores"
    metric = METRICS.get(kind)
    if metric and metric.relative:
        return f"{kind.upper()} (share)"
    return f"{kind.upper()} of {quantity(runs, squared=bool(metric and metric.squared))}"


def axis_name(
    metric: str, runs: Sequence[ForecastRun], selection: str | None, *, seeds: bool
) -> str:
    """Label of an axis of pooled test errors.

    Args:
        metric: which error.
        runs: whose.
        selection: of which model, if not of the one that the runs' settings name.
        seeds: whether there are several runs of a group.
    """
    chosen = f", {selection}" if selection else ""
    spread = "\n(mean ± std over seeds)" if seeds else ""
    return f"test {error_name(metric, runs)}{chosen}{spread}"
