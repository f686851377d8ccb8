"""Measure forecasts of few cells, and of new cells."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import click
import numpy as np
import pandas as pd
import tabulate
import xarray as xr

from data_prep.base.errors import InputError, counted
from data_prep.cube import open_cube, services_of, step_of
from experiments.benchmarks.frame import Results, benchmark, hourly_table, per_cent_above
from stforecast.bench.statistics.bootstrap import bootstrap
from stforecast.bench.statistics.estimate import ErrorSums, Estimate
from stforecast.data.dates import DAY
from stforecast.forecasting.forecaster import Forecaster

CELLS, DRAWS = (1, 2, 4), 3
"""Numbers of cells, and how often they are drawn."""

SPLIT = "time:0.65,0.15,0.2"

MANY = 10**6
"""A limit of rounds for each cell that is never reached."""

Methods = dict[str, tuple[str, dict[str, Any]]]

FEW: Methods = {
    "fedlean": ("fedlean", {}),
    "fedlean, all 40 rounds": ("fedlean", {"rounds_per_cell": MANY}),
    "fedlean, no network": ("fedlean", {"rounds": 1}),
    "ridge, same inputs": (
        "ridge",
        {"closeness": 1, "periods": 0, "extra_lags": "auto", "calendar": "auto", "tune": True},
    ),
    "lightgbm": ("lightgbm", {}),
    "seasonal_day": ("seasonal_day", {}),
}
"""Name in the table, method and settings."""

HOUR = pd.Timedelta(hours=1)

LONGEST = 24
"""Steps of the longer forecast; with steps under ten minutes, of an hour."""


@benchmark("few-cells.csv", goes_on=True)
def few_cells(results: Results, *data: Path) -> str:
    """Measure forecasts of few cells of cubes: the default, and methods that need no others.

    Cells are drawn from each cube three times, and every method is fitted to only these, one step
    and a day ahead; with steps of less than ten minutes, an hour ahead stands for the day. What is
    in the file already is not measured again. `python -m experiments.docs` makes the table of
    docs/results/default.md from docs/results/default/few-cells.csv.

    Args:
        results: gets a row for each fit.
        *data: the cubes.
    """
    cubes = {path.stem: open_cube(path) for path in data}
    orders = range(DRAWS), cubes, CELLS, (0, 1), FEW
    for draw, name, n, ahead, method in itertools.product(*orders):
        cube = cubes[name]
        horizon = horizons(cube)[ahead]
        run = {"data": name, "cells": n, "draw": draw, "horizon": horizon, "method": method}
        if not results.has(**run):
            drawn = np.random.default_rng([n, draw]).choice(cube.sizes["cell"], n, replace=False)
            some = cube.isel(cell=np.sort(drawn))
            results.add({**run, "mse": _error(some, horizon, SPLIT, *FEW[method])})
    return above_table(pd.DataFrame(results.rows))


def horizons(cube: xr.Dataset) -> tuple[int, int]:
    """Return two horizons: a step, and the steps of a day, or of an hour if they are short."""
    step = step_of(cube)
    return 1, LONGEST if step >= pd.Timedelta("10min") else pd.Timedelta("1h") // step


def _error(
    cube: xr.Dataset, horizon: int, split: str, method: str, settings: dict[str, Any]
) -> float:
    services = services_of(cube)
    service = "internet" if "internet" in services else services[0]
    forecaster = Forecaster(method, horizon=horizon, split=split, service=service, **settings)
    return test_error(forecaster.fit(cube.load()), "mse")


def test_error(fitted: Forecaster, metric: str) -> float:
    """Return the error of the selected model over all cells and steps of the test part."""
    errors = fitted.evaluate()
    wanted = {"client": "all", "horizon": "all", "split": "test", "metric": metric}
    found = errors[np.all([errors[n].astype(str) == v for n, v in wanted.items()], axis=0)]
    return float(found.set_index("selection")["value"][fitted.config.run.select])


SINGLE: Methods = {
    "fedlean": ("fedlean", {}),
    "pretrained": ("pretrained", {}),
    "fedlean without it": ("fedlean", {"pretrained": "none"}),
}
"""The default, and each of the experts that it mixes after less than two weeks."""

LEARNT, MOST = (2, 3, 5, 7, 10), 40
"""Days of training, and most cells."""


@benchmark("short-histories.csv", goes_on=True)
def short_histories(results: Results, *data: Path) -> str:
    """Measure the default and each of its experts alone after few days of training.

    Takes the last days of at most 40 cells of cubes: days of training, a quarter as many of
    validation, at least one, and four of test, or two where steps are shorter than an hour.
    What is in the file already is not measured again. `python -m experiments.docs` makes the list
    of docs/results/default.md from docs/results/default/short-histories.csv.

    Args:
        results: gets a row for each fit.
        *data: the cubes.
    """
    for path, days in itertools.product(data, LEARNT):
        cube = open_cube(path)
        parts = days, max(1, round(days / 4)), 4 if step_of(cube) >= HOUR else 2
        day, split = DAY // step_of(cube), f"days:{','.join(map(str, parts))}"
        end = cube.sizes["time"] // day * day
        if (begin := end - sum(parts) * day) < 0:
            continue
        places = np.unique(np.linspace(0, cube.sizes["cell"] - 1, MOST).astype(int))
        some = cube.isel(time=slice(begin, end), cell=places)
        for horizon, method in itertools.product(horizons(cube), SINGLE):
            run = {"data": path.stem, "days": days, "horizon": horizon, "method": method}
            if not results.has(**run):
                results.add({**run, "mse": _error(some, horizon, split, *SINGLE[method])})
    return above_table(pd.DataFrame(results.rows))


def above_default(rows: pd.DataFrame) -> dict[tuple[str, str], dict[str, Estimate]]:
    """Return by how many per cent each method's error is above the default's, by span, by size.

    The size is the second column, cells or days. Geometric means over the cubes, each with
    the mean of its draws, with intervals of Student's t: draws from one cube are not independent of
    each other.
    """
    size = rows.columns[1]
    rows = rows.assign(ahead=np.where(rows["horizon"] == 1, "one step", "a day"))
    names = [name for name in rows.columns if name not in ("method", "mse")]
    logs = np.log(rows.set_index([*names, "method"])["mse"]).unstack("method", sort=False)
    above = logs.sub(logs["fedlean"], axis=0)
    found: dict[tuple[str, str], dict[str, Estimate]] = {}
    others, sizes = above.columns.drop("fedlean"), sorted(rows[size].unique())
    for method, ahead, n in itertools.product(others, ("one step", "a day"), sizes):
        own = above[method].xs((n, ahead), level=[size, "ahead"])
        estimate = above_by_data(own, own.index.get_level_values("data"))
        found.setdefault((method, ahead), {})[counted(n, size.removesuffix("s"))] = estimate
    return found


def above_table(rows: pd.DataFrame) -> str:
    """Tabulate `above_default`."""
    found = above_default(rows).items()
    above = [{"% above `fedlean`": name, "ahead": ahead, **row} for (name, ahead), row in found]
    return tabulate.tabulate(above, headers="keys", tablefmt="github")


def above_by_data(logs: Iterable[float], data: Iterable[str]) -> Estimate:
    """Return `per_cent_above` of logarithms of ratios, where each data set counts once."""
    means = pd.Series([*logs]).groupby([*data]).mean()
    return per_cent_above(means.tolist())


DAYS = (0, 1, 3, 7, 14, 28)
TEST_DAYS, WARM_UP_DAYS = 16, 15
EVERY, FIRST = 7, 3
"""Every seventh cell is new, from the fourth on: 13 of 88."""

ADAPTED, ALONE = "fedlean, adapted", "ridge, each cell alone"
"""The default, and the best method that trains on one cell."""

GRU = {"rounds": 10, "select": "last"}
LAGS = {"closeness": 1, "periods": 0, "extra_lags": "2-168", "impute": "newest"}
LINEAR = {"model": "linear", **LAGS, **GRU}

NEW: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    ADAPTED: ("fedlean", {}, {}),
    "fedlean without the pretrained network": ("fedlean", {"pretrained": "none"}, {}),
    "pretrained, as it is": ("pretrained", {}, {}),
    "FedAvg of linear maps, as it is": ("fedavg", LINEAR, {}),
    "FedAvg of linear maps, fine-tuned": ("fedavg", LINEAR, {"fine_tune": 5}),
    "FedRep, adapted head": ("fedrep", GRU, {}),
    "boosting of the old cells, as it is": ("boosting", {}, {}),
    ALONE: ("ridge", {}, {}),
    "ridge on a week of lags, alone": ("ridge", {**LAGS, "alpha": 30.0}, {}),
    "solo (GRU), alone": ("solo", GRU, {}),
    "last value": ("last_value", {}, {}),
}
"""Name in the table, method, settings and options of `adapt`."""

REFIT = "fedlean, whole refit with all cells"


@benchmark(goes_on=True)
def new_cells(results: Results, *data: Path, seeds: int = 2, cells: int | None = None) -> str:
    """Measure forecasts of new cells against the days of history that they have.

    Takes a wide table of hours. Every seventh cell goes on air some days before the test part, the
    last 16 days; nothing is known of it before. Each method is trained on the other cells and
    adapted to the new ones. Beside it: training alone on the same days, and the whole refit of the
    default method with all cells. Errors are z-scores by the cell's own mean and deviation of the
    time before the test part, which the forecasters do not know; intervals are of a bootstrap over
    test days, cells and seeds. What is in the file already is not measured again.

    Args:
        results: gets a row for each method, seed and number of days, with the sums of squared
            errors by cell and test day; None if the method needs more days.
        *data: one table.
        seeds: number of seeds.
        cells: leave out all but the first cells, for a trial.
    """
    if len(data) > 1:
        raise InputError(f"{len(data)} tables; give one")
    results.fix(data=data[0].name, cells=cells)
    wide = hourly_table(data[0]).iloc[:, :cells]
    wide.columns = wide.columns.astype(int)
    for seed in range(1, seeds + 1):
        for name in (*NEW, REFIT):
            if not results.has(method=name, seed=seed):
                results.add(*measure_new(wide, name, seed))
    return new_tables([row for row in results.rows if row["seed"] <= seeds])


def on_air(table: pd.DataFrame, new: list[Any], begin: int) -> pd.DataFrame:
    """Return the table without what new cells have before a step."""
    known = table.copy()
    known.loc[known.index[:begin], new] = np.nan
    return known


def adapted(
    fitted: Forecaster, table: pd.DataFrame, new: list[Any], test: int, days: int, **options: Any
) -> pd.DataFrame | None:
    """Return forecasts `(test steps, new cells)`; None if the method needs more days."""
    per_day = 24
    # A table of new cells alone has no reading on their first day, so an old one stands beside.
    known = on_air(table, new, test - days * per_day)[[table.columns[0], *new]]
    begin = test - max(days, 1) * per_day
    try:
        model = fitted.adapt(known.iloc[begin:test], days, **options if days else {})
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


def measure_new(table: pd.DataFrame, name: str, seed: int) -> list[dict[str, Any]]:
    """Return the rows of a method and seed: squared errors of z-scores, `(cells, test days)`."""
    new = table.columns[FIRST::EVERY].tolist()
    old, test = table.drop(columns=new), len(table) - TEST_DAYS * 24
    scale = table[new].iloc[:test].std(ddof=0)
    method, settings, options = NEW.get(name, ("fedlean", {}, {}))
    if name != REFIT:
        # What is trained alone learns nothing of other cells.
        others = old.iloc[:, :2] if name.endswith("alone") else old
        fitted = Forecaster(method, split=_split(table), seed=seed, **settings).fit(others)
    rows = []
    y_hat: pd.DataFrame | None
    for days in DAYS[1:] if name == REFIT else DAYS:
        if name == REFIT:
            y_hat = refitted(table, new, test, days, seed)
        else:
            y_hat = adapted(fitted, table, new, test, days, **options)
        sums = None
        if y_hat is not None:
            error = ((y_hat[new] - table[new].iloc[test:]) / scale).to_numpy() ** 2
            sums = error.reshape(TEST_DAYS, 24, -1).sum(axis=1).T.tolist()
            click.echo(f"{name}, {days} days: MSE {error.mean():.4f}", err=True)
        rows.append({"method": name, "days": days, "seed": seed, "squares": sums})
    return rows


def new_tables(rows: Iterable[Mapping[str, Any]]) -> str:
    """Return the errors with intervals, and how far the adapted default's are above others."""
    of_seeds: dict[str, list[list[list[float]]]] = {}
    for row in rows:
        if row["squares"]:
            of_seeds.setdefault(f"{row['method']}/{row['days']}", []).append(row["squares"])
    totals = {name: np.array(found) for name, found in of_seeds.items()}
    found = {name: ErrorSums(t, np.full(t.shape, 24.0)) for name, t in totals.items()}
    groups = np.arange(next(iter(found.values())).total.shape[1])
    of = bootstrap(found, lambda total, weight: total / weight, groups)

    def above(reference: str, days: int) -> Estimate | None:
        pair = [f"{name}/{days}" for name in (ADAPTED, reference)]
        return of.relative_difference(*pair) if of.pooled.keys() >= set(pair) else None

    def error(name: str, days: int) -> Estimate | None:
        return of.error(f"{name}/{days}") if f"{name}/{days}" in found else None

    errors = _by_days("MSE with days of history:", (*NEW, REFIT), error)
    title = f"% that `{ADAPTED}` is above, with days of history:"
    return f"{errors}\n\n{_by_days(title, (REFIT, *list(NEW)[1:6], ALONE), above)}"


def _by_days(title: str, names: Iterable[str], of: Callable[[str, int], Estimate | None]) -> str:
    """Tabulate an estimate of each name by days of history."""
    rows = [[name, *(of(name, days) or "-" for days in DAYS)] for name in names]
    return tabulate.tabulate(rows, [title, *map(str, DAYS)], tablefmt="github")
