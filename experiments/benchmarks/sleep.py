"""Replay which cells can sleep, day by day: how often promises held, and what sleep saves."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

from experiments.benchmarks.frame import Results, benchmark, geometric_mean, listed_numbers, table
from stforecast.data.cubes import open_cube
from stforecast.forecasting.forecaster import Forecaster
from stforecast.forecasting.groups import Groups
from stforecast.forecasting.quick import make_plan
from stforecast.forecasting.sleep import Sleep, plan_sleep


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
