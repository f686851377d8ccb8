"""Measure forecasts of new cells against the days of history that they have.

    python -m experiments.benchmarks.new_cells milan-records-88cells-62days.csv.gz --out new.md

Every seventh cell goes on air some days before the test part, the last 16 days; nothing is known
of it before. Each method is trained on the other cells and adapted to the new ones. Beside it:
training alone on the same days, and the whole refit of the default method with all cells. Errors
are z-scores by the cell's own mean and deviation of the time before the test part, which the
forecasters do not know; intervals are of a bootstrap over test days, cells and seeds.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import click
import numpy as np
import pandas as pd
import tabulate

from stforecast.bench.statistics.bootstrap import Replicates, bootstrap
from stforecast.bench.statistics.estimate import ErrorSums
from stforecast.forecasting.forecaster import Forecaster

DAYS = (0, 1, 3, 7, 14, 28)
TEST_DAYS, WARM_UP_DAYS = 16, 15
EVERY, FIRST = 7, 3
"""Every seventh cell is new, from the fourth on: 13 of 88."""

ALONE = "ridge, each cell alone"
"""The best of what is trained alone."""

GRU = {"rounds": 10, "select": "last"}
LAGS = {"closeness": 1, "periods": 0, "extra_lags": "2-168", "impute": "newest"}

METHODS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "fedlean, adapted": ("fedlean", {}, {}),
    "FedAvg of linear maps, as it is": ("fedavg", {"model": "linear", **LAGS, **GRU}, {}),
    "FedAvg of linear maps, fine-tuned": (
        "fedavg", {"model": "linear", **LAGS, **GRU}, {"fine_tune": 5},
    ),
    "FedRep, adapted head": ("fedrep", GRU, {}),
    "boosting of the old cells, as it is": ("boosting", {}, {}),
    ALONE: ("ridge", {}, {}),
    "ridge on a week of lags, alone": ("ridge", {**LAGS, "alpha": 30.0}, {}),
    "solo (GRU), alone": ("solo", GRU, {}),
    "last value": ("last_value", {}, {}),
}  # fmt: skip
"""Name in the table, method, settings and options of `adapt`."""

REFIT = "fedlean, whole refit with all cells"


def on_air(table: pd.DataFrame, new: list[Any], begin: int) -> pd.DataFrame:
    """Return the table with new cells that are missing before a step."""
    known = table.copy()
    known.loc[known.index[:begin], new] = np.nan
    return known


def adapted(
    fitted: Forecaster, table: pd.DataFrame, new: list[Any], test: int, days: int,
    options: Mapping[str, Any],
) -> pd.DataFrame | None:  # fmt: skip
    """Return forecasts `(test steps, new cells)`; None if the method needs more days."""
    per_day = 24
    known = on_air(table, new, test - days * per_day)[new]
    options = options if days else {}
    begin = test - max(days, 1) * per_day
    try:
        model = fitted.adapt(known.iloc[begin:test], days, **options)
    except ValueError as e:
        logging.getLogger(__name__).info("%d days: %s", days, e)
        return None
    return _table(model.test_forecasts(known.iloc[test - WARM_UP_DAYS * per_day :]), table, test)


def refitted(table: pd.DataFrame, new: list[Any], test: int, days: int, seed: int) -> pd.DataFrame:
    """Return forecasts of the default method fitted to old and new cells together."""
    known = on_air(table, new, test - days * 24)
    model = Forecaster(seed=seed, split=_split(table)).fit(known)
    return _table(model.test_forecasts().sel(cell=new), table, test)


def _table(forecasts: Any, table: pd.DataFrame, test: int) -> pd.DataFrame:
    of_test = forecasts["y_hat"].sel(time=forecasts["time"] >= table.index[test]).isel(horizon=0)
    return pd.DataFrame(of_test.to_pandas().T)


def _split(table: pd.DataFrame) -> str:
    return f"days:{len(table) // 24 - TEST_DAYS},0,{TEST_DAYS}"


def measure(table: pd.DataFrame, seeds: int) -> dict[str, ErrorSums]:
    """Return squared z-scored errors by method and days of history.

    Args:
        table: hours × cells, whole days.
        seeds: number of seeds.
    """
    new = table.columns[FIRST::EVERY].tolist()
    old, test = table.drop(columns=new), len(table) - TEST_DAYS * 24
    scale = table[new].iloc[:test].std(ddof=0)
    runs: dict[str, list[np.ndarray]] = {}

    def note(name: str, days: int, y_hat: pd.DataFrame | None) -> None:
        if y_hat is not None:
            error = ((y_hat[new] - table[new].iloc[test:]) / scale).to_numpy() ** 2
            by_day = error.reshape(TEST_DAYS, 24, -1).sum(axis=1).T
            runs.setdefault(f"{name}/{days}", []).append(by_day)
            click.echo(f"{name}, {days} days: MSE {error.mean():.4f}", err=True)

    for seed in range(1, seeds + 1):
        for name, (method, settings, options) in METHODS.items():
            # What is trained alone learns nothing of other cells.
            others = old.iloc[:, :2] if name.endswith("alone") else old
            fitted = Forecaster(method, split=_split(table), seed=seed, **settings).fit(others)
            for days in DAYS:
                note(name, days, adapted(fitted, table, new, test, days, options))
        for days in DAYS[1:]:
            note(REFIT, days, refitted(table, new, test, days, seed))
    totals = {name: np.stack(of_seeds) for name, of_seeds in runs.items()}
    return {name: ErrorSums(t, np.full(t.shape, 24.0)) for name, t in totals.items()}


def tables(found: Mapping[str, ErrorSums]) -> str:
    """Return the errors with intervals, and the differences to the whole refit."""
    groups = np.arange(next(iter(found.values())).total.shape[1])
    replicates = bootstrap(found, lambda total, weight: total / weight, groups)
    parts = [_rows("MSE with days of history:", (*METHODS, REFIT), replicates)]
    for reference in (REFIT, ALONE):
        title = f"% above {reference}, with days of history:"
        parts.append(_rows(title, list(METHODS)[:4], replicates, reference))
    return "\n\n".join(parts) + "\n"


def _rows(
    title: str, names: Iterable[str], replicates: Replicates, reference: str | None = None
) -> str:
    """Return errors by method and days, or their differences to a reference of the same days."""

    def text(name: str, days: int) -> str:
        needed = [f"{n}/{days}" for n in (name, reference) if n]
        if not replicates.pooled.keys() >= set(needed):
            return "-"
        if reference is None:
            return str(replicates.error(*needed))
        return str(replicates.relative_difference(*needed))

    rows = [[name, *(text(name, days) for days in DAYS)] for name in names]
    return tabulate.tabulate(rows, [title, *map(str, DAYS)], tablefmt="github")


@click.command()
@click.argument("data", type=click.Path(exists=True, path_type=Path))
@click.option("--seeds", default=2, show_default=True, help="Number of seeds.")
@click.option("--cells", type=int, help="Leave out all but the first cells, for a trial.")
@click.option("--out", type=click.Path(path_type=Path), help="Markdown file to write.")
def main(data: Path, seeds: int, cells: int | None, out: Path | None) -> None:
    """Measure forecasts of new cells; DATA is a wide table of hours."""
    table = pd.read_csv(data, index_col=0, parse_dates=True).iloc[:, :cells]
    table.columns = table.columns.astype(int)
    text = tables(measure(table, seeds))
    click.echo(text)
    if out:
        out.write_text(text)


if __name__ == "__main__":
    main()
