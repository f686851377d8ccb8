"""Measure what differential privacy costs the default, and whether its noise stops the attack.

Only the first round of `fedlean` is sent, since noise grows with each upload. It is simulated in
one process: noise that nodes share (`--share-noise`) is drawn by cells, with the same sum.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pandas as pd
import torch
from torch import Tensor

from experiments.benchmarks.cells import test_error
from experiments.benchmarks.disclosure import products_of
from experiments.benchmarks.frame import Results, benchmark, hourly_table, listed_numbers, quiet
from experiments.benchmarks.inversion import (
    SPLIT,
    Recovered,
    Victims,
    closeness,
    solved,
    weekly_guess,
)
from stforecast.bench.tables import markdown
from stforecast.federated.core.state import generator
from stforecast.federated.uploads.masking import SecureSums
from stforecast.federated.uploads.uplink import Uplink, clip_uploads
from stforecast.forecasting.forecaster import Forecaster
from stforecast.methods.fedlean import FedLean, calendar_basis, n_cycles

EPSILONS, DELTA, NODES = (64, 8, 1), Uplink.privacy_delta, 10

ONE_ROUND = {"rounds": 1, "refit": "never", "pretrained": "none"}

CLIP, OTHERS = 100.0, 100
"""Norm to which uploads are clipped, which is less than most have; and cells of another table whose
map is used."""

YARDSTICKS: dict[str, tuple[str, dict[str, Any]]] = {
    "nothing: last week's value": ("seasonal_week", {}),
    "nothing: each cell alone": ("fedlean", {**ONE_ROUND, "ridge": 1e12}),
    "all rounds": ("fedlean", {}),
    "the first round": ("fedlean", ONE_ROUND),
}
"""What has no noise: what is sent, method and settings. A penalty so large leaves no common map."""

ATTACKED = 9
"""Cells of the sum that is attacked."""


@benchmark("privacy.csv")
def privacy(results: Results, *data: Path, cells: str = "10,100,1000") -> str:
    """Measure the MSE of the default one step ahead against ε, and the attack on its first sum.

    Args:
        results: gets a row for each fit, and one for each attack.
        *data: tables of hourly readings, a column for each cell.
        cells: numbers of cells; of a table with fewer, all count.
    """
    tables = [hourly_table(path) for path in data]
    for i, (path, table) in enumerate(zip(data, tables, strict=True)):
        other = tables[i - 1].iloc[:, :OTHERS] if len(tables) > 1 else None
        for n in sorted({min(n, table.shape[1]) for n in listed_numbers(cells)}):
            for row in errors(table.iloc[:, :n], other):
                results.add({"data": path.name.split("-")[0], "cells": n, **row})
    with quiet():
        first = tables[0].iloc[: 24 * 14, :ATTACKED]
        results.add(*attacked(Victims.of(first, "fedlean", 1)))
    return privacy_table(pd.DataFrame(results.rows))


def errors(table: pd.DataFrame, other: pd.DataFrame | None) -> Iterator[dict[str, Any]]:
    """Return a row for each fit to a table; `other` gives a map of other cells."""
    for name, (method, settings) in YARDSTICKS.items():
        yield {"sent": name, "noise": "none", "mse": measured_error(table, method, **settings)}
    if other is not None:
        of_others = first_map(other)
        with mock.patch.object(FedLean, "_solved", return_value=of_others):
            mse = measured_error(table, "fedlean", **ONE_ROUND)
        yield {"sent": "nothing: the map of other cells", "noise": "none", "mse": mse}
    for noise, epsilon in itertools.product(("each cell's own", "shared by nodes"), EPSILONS):
        std = deviation(epsilon) * (
            1.0 if noise == "each cell's own" else noise_share(table.shape[1])
        )
        private = {**ONE_ROUND, "clip": CLIP, "noise": "gaussian", "noise_std": std}
        mse = measured_error(table, "fedlean", **private)
        yield {"sent": "the first round", "noise": noise, "epsilon": epsilon, "mse": mse}


def first_map(table: pd.DataFrame) -> Tensor:
    """Return what the first round of a table's cells is solved for."""
    found, solved_by = list[Tensor](), FedLean._solved

    def recorded(*args: Any) -> Tensor:
        found.append(solved_by(*args))
        return found[0]

    with mock.patch.object(FedLean, "_solved", recorded):
        measured_error(table, "fedlean", **ONE_ROUND)
    return found[0]


def measured_error(table: pd.DataFrame, method: str, **settings: Any) -> float:
    """Return the MSE of z-scores in the test part."""
    return test_error(Forecaster(method, horizon=1, split=SPLIT, **settings).fit(table), "mse")


def deviation(epsilon: float) -> float:
    """Return the deviation of the noise on a sum with this ε."""
    import dp_accounting

    return 2 * CLIP * float(dp_accounting.get_sigma_gaussian(epsilon, DELTA))


def noise_share(cells: int) -> float:
    """Return the share of the noise that each of so many cells draws in place of its node."""
    nodes = max(2, min(NODES, cells))
    return math.sqrt(nodes / SecureSums().threshold(nodes) / cells)


def attacked(victims: Victims) -> Iterator[dict[str, Any]]:
    """Return a row for each attack on the sum of the victims' first uploads."""
    for epsilon in (math.inf, *EPSILONS):
        of = attack(victims, deviation(epsilon) if epsilon < math.inf else 0.0)
        near, guess = (closeness(x, of.truth)["within .1"] for x in (of.found, of.guess))
        about = {"sent": "attack", "cells": ATTACKED, "epsilon": epsilon}
        yield {**about, "within .1": near, "guess within .1": guess}


def attack(victims: Victims, std: float) -> Recovered:
    """Solve for the mean reading, given a sum of clipped uploads with noise of this deviation.

    The attacker weighs each equation by its noise, which it knows.
    """
    truth = victims.readings
    cells = list(range(truth.shape[1]))
    sent = {n: t.double() for n, t in victims.sent.items()}
    sent = clip_uploads(sent, CLIP) if std else sent
    scale = float(sent["products"][:, 0].mean())  # The intercept times itself is 1.
    rng = generator(0)
    for t in sent.values():
        t[0] += std * torch.randn(t.shape[1:], generator=rng, dtype=t.dtype)
        t /= scale
    noisy = dataclasses.replace(victims)
    noisy.__dict__["sent"] = sent
    products, guess = products_of(noisy, cells), weekly_guess(truth).mean(1, keepdim=True)
    known = calendar_basis(victims.inputs.known, n_cycles(victims.data.window))
    of_windows = torch.cat([torch.ones(len(known), 1), known], dim=1) / len(known)
    strength = torch.linalg.svdvals(of_windows)[: products.linear.shape[1]]
    whole = truth.mean(1, keepdim=True)
    noise = max(std / scale, 1e-6) / strength / len(cells)  # Of single precision, at least.
    rows = float((guess - whole).std()) / torch.cat([noise.repeat(len(products.linear)), noise[:1]])
    values = torch.cat([products.linear.flatten(), torch.zeros(1)]) / len(cells)
    found = solved(rows[:, None] * products.equations, (rows * values)[:, None], guess, 1.0)
    return Recovered(found, whole, guess)


def privacy_table(rows: pd.DataFrame) -> str:
    """Tabulate the errors, a column for each number of cells, and the findings of the attack."""
    found = rows.assign(epsilon=rows["epsilon"].fillna(math.inf))
    table: list[dict[str, str]] = []
    is_attack = found["sent"] == "attack"
    near = dict(found[is_attack].set_index("epsilon")["within .1"].items())
    kinds = found[~is_attack].groupby(["sent", "noise", "epsilon"], sort=False)
    for (sent, noise, epsilon), own in kinds:
        errors = {
            f"{r['data']}, {int(r['cells'])} cells": f"{r['mse']:.3f}" for _, r in own.iterrows()
        }
        attacked = sent == "the first round" and noise != "each cell's own"
        row = {
            "sent": str(sent),
            "noise": str(noise),
            "ε": f"{epsilon:g}" if noise != "none" else "-",
        }
        found_by = f"{near[epsilon]:.0%}".replace("%", " %")
        table.append({**row, **errors, "attack": found_by if attacked else "-"})
    return markdown(table)
