"""Measure forecasts of months ahead: errors, coverage, and probabilities of passing a threshold."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from pathlib import Path

import numpy as np
import pandas as pd

from experiments.benchmarks.frame import (
    Results,
    benchmark,
    hourly_table,
    listed_numbers,
    quiet,
    table,
)
from stforecast.data.cubes import open_cube
from stforecast.data.series import Series, as_series
from stforecast.forecasting.months import LEAST_WEEKS, plan_months, weekly

AHEAD = {
    "data": ("data", ""),
    "ahead": ("weeks ahead", ""),
    "n": ("forecasts", ","),
    "held": ("held", ".3f"),
    "factor": ("upper bound / forecast", ".2f"),
    "error": ("error %", ".1f"),
    "last": ("last week's", ".1f"),
    "said": ("mean probability", ".3f"),
    "passed": ("passed", ".3f"),
    "brier": ("Brier score", ".3f"),
}
"""Columns of `months`. Errors are the mean ratio of load and forecast, or its inverse, above 1."""


@benchmark()
def months(
    results: Results, *data: Path, ahead: str = "4,8,26,52", every: int = 8, most: int = 100
) -> str:
    """Measure busy hours forecast weeks ahead from the history before, at several times.

    The threshold is the highest of the last 26 weeks. The rival is the last week.

    Args:
        results: gets a row for each table and number of weeks.
        data: wide tables of counts.
        ahead: weeks ahead.
        every: weeks between the times, fewer if there are few.
        most: number of cells.
    """
    for path in data:
        wide = hourly_table(path)
        series = as_series(open_cube(wide.iloc[:, :: -(-wide.shape[1] // most)], allow_gaps=True))
        for lead in listed_numbers(ahead):
            with quiet():
                parts = _measured(series, lead, every)
            if parts:
                row = {name: float(values.mean()) for name, values in parts.items()}
                row |= {name: 100 * np.expm1(row[name]) for name in row.keys() & RATIOS}
                row["factor"] = float(np.exp(np.median(parts["factor"])))
                row["brier"] = float(np.mean((parts["said"] - parts["passed"]) ** 2))
                name = path.name.partition("-")[0]
                results.add({"data": name, "ahead": lead, "n": len(parts["held"]), **row})
    return table(results.rows, AHEAD)


RATIOS = {"error", "last"}
"""Ratios that are errors, of forecasts and of the last week."""


def _measured(series: Series, lead: int, every: int) -> dict[str, np.ndarray]:
    """Return values by name over all times and cells whose target and last week are known."""
    truth, least = weekly(series), max(LEAST_WEEKS, lead)
    parts: dict[str, list[pd.Series]] = defaultdict(list)
    n, last = len(truth), len(truth) - lead
    for end in range(last, least - 1, -min(every, max(1, (last - least) // 4))):
        steps = len(series.times) - (n - end) * 168
        cut = dataclasses.replace(series, values=series.values[:steps], times=series.times[:steps])
        past = truth.iloc[:end]
        limit = past[-26:].max().where(lambda v: v > 0, 1.0)
        until = str((past.index[-1] + pd.Timedelta(days=7 * lead + 6)).date())
        found = plan_months(cut, until, threshold=limit.to_dict())
        assert found.passing is not None
        y, centre = truth.iloc[end + lead - 1], found.forecast.iloc[-1]
        lower, upper = (bound.iloc[-1] for bound in found.interval)
        known = (y > 0) & centre.notna() & (past.iloc[-1] > 0)
        values: dict[str, pd.Series] = {
            "error": y / centre,
            "last": y / past.iloc[-1],
            "factor": upper / centre,
        }
        logs = {name: ratio[known].map(np.log) for name, ratio in values.items()}
        logs |= {name: logs[name].abs() for name in logs.keys() & RATIOS}
        more: dict[str, pd.Series] = {"said": found.passing["probability"]}
        more["held"] = (lower <= y) & (y <= upper)
        more["passed"] = (truth.iloc[end : end + lead] > limit).any()
        for name, of in {**logs, **more}.items():
            parts[name].append(of[truth.columns[known]])
    return {name: np.concatenate(of).astype(float) for name, of in parts.items()}
