"""Compare clients with different models, by the model of the client."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from pathlib import Path

import pandas as pd

from experiments.benchmarks.frame import Results, benchmark, per_cent_above
from stforecast.bench.statistics.estimate import with_ends
from stforecast.bench.tables import markdown
from stforecast.federated.core.mixed_models import kinds_of
from stforecast.forecasting.results import ForecastRun

ALONE = "solo"


@benchmark("{name}.csv")
def mixed(results: Results, *data: Path, name: str = "mixed") -> str:
    """Compare errors of clients that take turns at different models, with training by themselves.

    Errors are means over the clients of a model; the interval of a ratio is over seeds.

    Args:
        results: gets a row for each model and method.
        *data: folders of runs of `stforecast bench mixed`.
        name: name of the file of results, such as mixed-sizes.
    """
    of_rows: dict[tuple[str, str], dict[int, float]] = defaultdict(dict)
    for run in ForecastRun.find(data):
        settings = run.about["settings"]
        for model, error in _by_model(run).items():
            of_rows[model, settings["method"]][settings["seed"]] = error
    for (model, method), of_seeds in of_rows.items():
        alone = of_rows[model, ALONE]
        logs = [math.log(e / alone[seed]) for seed, e in of_seeds.items() if seed in alone]
        row = {"model": model, "method": method, "seeds": len(logs)}
        row["mse"] = statistics.fmean(of_seeds.values())
        above = per_cent_above(logs) if method != ALONE else None
        results.add(row | with_ends({"above": above}))
    return mixed_table(pd.DataFrame(results.rows))


def mixed_table(rows: pd.DataFrame) -> str:
    """Tabulate by how many per cent errors are above local training, a column for each model."""
    table: dict[str, dict[str, str]] = defaultdict(dict)
    for _, row in rows.iterrows():
        cell = f"{row['above']:+.1f} [{row['above_low']:.1f}, {row['above_high']:.1f}]"
        alone = f"MSE {row['mse']:.3f}"
        table[row["method"]][row["model"]] = alone if row["method"] == ALONE else cell
    return markdown([{"method": f"`{name}`", **cells} for name, cells in table.items()])


def _by_model(run: ForecastRun) -> dict[str, float]:
    """Return the mean test error of the clients of each model."""
    settings = run.about["settings"]
    kinds, found = kinds_of(settings["models"]), run.metrics()
    found = found[
        (found["metric"] == "mse") & (found["split"] == "test") & (found["horizon"] == "all")
        & (found["selection"] == settings["select"]) & (found["client"] != "all")
    ]  # fmt: skip
    errors = found["value"].to_numpy()
    return {kind: float(errors[turn :: len(kinds)].mean()) for turn, kind in enumerate(kinds)}
