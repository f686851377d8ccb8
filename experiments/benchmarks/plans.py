"""Measure plans: errors, coverage and probabilities months ahead, and how often sleep held."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from pathlib import Path

import numpy as np
import pandas as pd

from experiments.benchmarks.frame import (
    Results,
    benchmark,
    geometric_mean,
    hourly_table,
    listed_numbers,
    quiet,
    table,
)
from stforecast.data.cubes import open_cube
from stforecast.data.series import Series, as_series
from stforecast.forecasting.forecaster import Forecaster
from stforecast.forecasting.groups import Groups
from stforecast.forecasting.months import LEAST_WEEKS, plan_months, weekly
from stforecast.forecasting.quick import make_plan
from stforecast.forecasting.sleep import Sleep, plan_sleep

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


@benchmark("sleep.csv", goes_on=True)
def sleep(
    results: Results, *data: Path, wanted: str = "80,90,95", size: int = 4, method: str = "ridge"
) -> str:
    """Replay the last third of the days: plan each from all days before, and see what held.

    Groups are neighbours in the order of cells. A cell's threshold is its highest load before, and
    cells sleep below the median load of all.

    Args:
        results: gets a row for each table, wanted probability and day: promises, the mean share of
            the paths that chose them, the mean probability, the share that held, and hours.
        data: tables or cubes of hours, which begin at midnight.
        wanted: probabilities in per cent.
        size: cells of a group.
        method: method of the models.
    """
    for path in data:
        cube, name = open_cube(path), path.name.partition("-")[0].partition(".")[0]
        n_days = cube.sizes["time"] // 24
        for day in range(2 * n_days // 3, n_days):
            past = cube.isel(time=slice(24 * day))
            plan = make_plan(past, 24, None, method, {})
            fitted = Forecaster(method, **plan.settings).fit(past)
            paths, loads = fitted.sample_paths(past, None), fitted.read(cube).values
            before, after = loads[: 24 * day], loads[24 * day : 24 * day + 24]
            limits = dict(zip(fitted.cells, np.nanmax(before, axis=0), strict=True))
            sites = {"site": [str(i // size) for i in range(len(limits))]}
            cover = Groups.of_columns(sites, fitted.cells)
            half = paths.sizes["path"] // 2
            for per_cent in listed_numbers(wanted):
                asked = Sleep(float(np.nanmedian(before)), per_cent / 100)
                found = plan_sleep(paths, cover, limits, asked)
                results.add({
                    "data": f"{name}, {len(limits)} cells", "wanted": per_cent, "day": day + 1,
                    "promises": len(found.table), "hours": found.table["hours"].sum(),
                    "chosen": found.held(paths.to_numpy()[:half]).sum() / (half + 1),
                    "said": found.table["probability"].sum(),
                    "held": int(found.held(after.T[None]).sum()), "saved": found.energy_saved,
                })  # fmt: skip
    return sleep_table(pd.DataFrame(results.rows))


def sleep_table(rows: pd.DataFrame) -> str:
    """Tabulate promises and how many held; intervals of 95 % are Student's t's over days."""
    heads = {
        "data": ("data", ""), "wanted": ("wanted %", ""), "days": ("days", ""),
        "promises": ("promises", ","), "hours": ("hours each", ".1f"),
        "chosen": ("on the choosing paths %", ".1f"), "said": ("probability %", ".1f"),
        "held": ("held %", ".1f"), "above": ("held above probability, points", ""),
        "saved": ("energy saved %", ".2f"),
    }  # fmt: skip
    found = []
    for (data, wanted), own in rows.groupby(["data", "wanted"], sort=False):
        total, known = own.sum(numeric_only=True), own[own["promises"] > 0]
        above = 100 * (known["held"] - known["said"]) / known["promises"]
        shares = {n: 100 * total[n] / total["promises"] for n in ("chosen", "said", "held")}
        found.append({
            "data": data, "wanted": wanted, "days": len(own), "promises": int(total["promises"]),
            "hours": total["hours"] / total["promises"], **shares,
            "above": str(geometric_mean(above.tolist(), float)), "saved": 100 * own["saved"].mean(),
        })  # fmt: skip
    return table(found, heads)
