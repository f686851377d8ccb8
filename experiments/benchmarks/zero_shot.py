"""Compare other weights of `pretrained` with the shipped ones, on the folds of who_wins.toml."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import torch

from experiments.benchmarks.frame import Results, benchmark, listed_numbers, per_cent_above
from stforecast.baselines.pretrained import Past, Perceptron, WallClock, forecasts, trained_arrays
from stforecast.bench.tables import markdown
from stforecast.data.cubes import open_cube
from stforecast.data.folds import FoldOptions, plan_folds
from stforecast.data.prepared import PreparedSeries, prepare
from stforecast.data.series import as_series
from stforecast.forecasting.forecaster import Forecaster


@benchmark("pretrained.csv", goes_on=True)
def zero_shot(results: Results, *data: Path, weights: Path, ahead: str = "1,24") -> str:
    """Measure the MSE of other weights, which were trained on simulated traffic, too.

    Args:
        results: gets a row for each cube and horizon.
        *data: cubes; of several services, internet is forecast.
        weights: file that experiments.pretrain wrote.
        ahead: horizons in steps.
    """
    with np.load(weights, allow_pickle=False) as file:
        networks = {"mse": Perceptron.from_arrays(dict(file))}
    networks["shipped"] = Perceptron.from_arrays(trained_arrays())
    for path, horizon in itertools.product(data, listed_numbers(ahead)):
        folds = folds_of_cube(path, horizon)
        errors = {name: error_of_folds(network, folds) for name, network in networks.items()}
        about = {"weights": weights.stem, "data": path.stem, "ahead": horizon}
        results.add({**about, **errors})
    return weights_table(pd.DataFrame(results.rows))


def folds_of_cube(path: Path, horizon: int) -> list[PreparedSeries]:
    """Return the three folds of a backtest of a cube."""
    cube = open_cube(path)
    series = as_series(cube, "internet" if "internet" in cube else None)
    window = Forecaster("pretrained", horizon=horizon).asked.window
    calendar = series.calendar
    plan = plan_folds(len(series.values), calendar, {"pretrained": window}, FoldOptions())
    return [prepare(series, window.at(calendar.step), split, "cell") for split in plan.splits]


def error_of_folds(network: Perceptron, folds: Sequence[PreparedSeries]) -> float:
    """Return the MSE of z-scores over the test parts of all folds."""
    total, count = 0.0, 0
    for fold in folds:
        past = Past(torch.tensor(fold.z), WallClock.of(fold.calendar))
        y, mask = fold.test_targets
        y_hat = forecasts(past, fold.split.test, fold.window.horizon, network)
        total += float(np.square(y_hat - y).sum(where=mask, dtype=float))
        count += int(mask.sum())
    return total / count


def weights_table(rows: pd.DataFrame) -> str:
    """Tabulate by how many per cent the MSE is above the shipped network's, mean and highest."""
    rows = rows.assign(log=np.log(rows["mse"] / rows["shipped"]))
    table = list[dict[str, str]]()
    for weights, own in rows.groupby("weights"):
        one = own["ahead"] == 1
        parts = {"one step": own[one], "further": own[~one]}
        logs = {name: part["log"].tolist() for name, part in parts.items() if len(part)}
        found = {name: str(per_cent_above(of_part)) for name, of_part in logs.items()}
        highest = f"{100 * math.expm1(own['log'].max()):.1f}"
        table.append({"weights": str(weights), **found, "highest": highest})
    return markdown(table)
