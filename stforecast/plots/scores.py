"""Test errors of runs, as figures read and name them."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pandas as pd

from data_prep.errors import InputError, choose
from stforecast.metrics import METRICS
from stforecast.plots.curves import quantity
from stforecast.results import Run

MOST_DECIMALS = 6


def error_rows(run: Run, metric: str, selection: str | None = None) -> pd.DataFrame:
    """Rows of `metrics.csv` on the test part.

    Args:
        run: a finished run.
        metric: which error.
        selection: which of its models; by default the one that its settings name.

    Raises:
        InputError: listing the metrics or selections if there is no such one.
    """
    table = run.metrics()
    table = table[table["split"] == "test"]
    selection = selection or run.about["settings"]["select"]
    for column, wanted in {"selection": selection, "metric": metric}.items():
        if wanted not in set(table[column]):
            raise InputError(f"{run.folder}: {choose(column, wanted, table[column].unique())}")
        table = table[table[column] == wanted]
    return table


def pooled(runs: Sequence[Run], metric: str, selection: str | None = None) -> np.ndarray:
    """Test errors `(runs,)`, each over all clients and steps; arguments as in `error_rows`."""
    tables = [error_rows(run, metric, selection) for run in runs]
    pooled = [t[(t["client"] == "all") & (t["horizon"] == "all")]["value"] for t in tables]
    return np.array([float(value.iloc[0]) for value in pooled])


def mean_and_spread(errors: np.ndarray) -> tuple[float, float]:
    """Mean and sample standard deviation; 0 of a single error, both NaN if one is not finite.

    >>> mean_and_spread(np.array([1.0, 3.0]))
    (2.0, 1.4142135623730951)
    """
    if not np.isfinite(errors).all():
        return math.nan, math.nan
    return float(errors.mean()), float(errors.std(ddof=1)) if len(errors) > 1 else 0.0


def error_name(name: str, runs: Sequence[Run]) -> str:
    """Name of an error with its unit: "MSE of z-scores", "MAE of speed (mph)"."""
    kind = name.removeprefix("raw_")
    if kind == name:
        return f"{kind.upper()} of z-scores"
    metric = METRICS.get(kind)
    if metric and metric.relative:
        return f"{kind.upper()} (share)"
    return f"{kind.upper()} of {quantity(runs, squared=bool(metric and metric.squared))}"


def axis_name(metric: str, runs: Sequence[Run], selection: str | None, *, seeds: bool) -> str:
    """Label of an axis of pooled test errors.

    Args:
        metric: which error.
        runs: whose.
        selection: of which model, if not of the one that the runs' settings name.
        seeds: whether there are several runs of a variant.
    """
    chosen = f", {selection}" if selection else ""
    spread = "\n(mean ± std over seeds)" if seeds else ""
    return f"test {error_name(metric, runs)}{chosen}{spread}"


def short(value: float) -> str:
    """A number to three digits, or whole from a thousand on.

    >>> short(0.12345), short(123456.7)
    ('0.123', '123,457')
    """
    return f"{value:.3g}" if abs(value) < 1000 else f"{value:,.0f}"


def plus_minus(mean: float, spread: float) -> str:
    """A mean to three digits, or as many as its spread needs to show.

    >>> plus_minus(0.23541, 0.0123), plus_minus(0.23541, 0.00021), plus_minus(1234.5, 67.8)
    ('0.235 ± 0.012', '0.2354 ± 0.0002', '1,234 ± 68')
    """
    if not math.isfinite(mean):
        return "not finite"
    digits = [2 - _exponent(mean), -_exponent(spread)] if spread else [2 - _exponent(mean)]
    decimals = min(max(0, *digits, 0), MOST_DECIMALS)
    text = f"{mean:,.{decimals}f}"
    return f"{text} ± {spread:,.{decimals}f}" if spread else text


def _exponent(value: float) -> int:
    return math.floor(math.log10(abs(value))) if value else 0
