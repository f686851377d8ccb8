"""Measure what every rule of robust aggregation does to every federated method.

    python -m experiments.benchmarks.robust_rules --out FOLDER

As `experiments.benchmarks.hostile`, whose city, behaviours and measure it has, but with all clients
in one process and every method. What `Method.guards` refuses is measured, too. Results go to
`robust.csv`, and a run that is in it already is not repeated; `python -m experiments.docs` makes
the table of docs/security.md from it. A test checks that each method declares what is `sound`.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import statistics
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast
from unittest import mock

import click
import numpy as np
import pandas as pd
import xarray as xr
from torch import Tensor
from tqdm import tqdm

from data_prep.cube import open_cube
from experiments import hostile_node
from experiments.benchmarks.city_parts import make_city
from experiments.benchmarks.hostile import (
    COLUMNS,
    DAYS,
    N_NODES,
    SHARE,
    TRIM,
    Run,
    be_quiet,
    change,
    hostile_numbers,
    read_rows,
)
from stforecast.bench.tables import markdown
from stforecast.data.prepared import prepare
from stforecast.data.series import as_series
from stforecast.federated.engine.server import Server
from stforecast.federated.nodes.messages import Message
from stforecast.federated.runs.run_folder import write_csv
from stforecast.federated.uploads.payload import Payload
from stforecast.federated.uploads.robust import RULES, Robust, Rule
from stforecast.forecasting.config import resolve
from stforecast.forecasting.fit import Fitted, fit
from stforecast.methods import METHODS as ALL

METHODS = [name for name, method in ALL.items() if not method.pooled and name != "solo"]
"""Methods whose clients send something."""

BEHAVIOURS = ("random", "sign-flipped")

LIARS = max(hostile_numbers(N_NODES))
"""Nodes that lie in a run with liars: the larger of the numbers of the other benchmark."""

COMMON: Mapping[str, Any] = {
    "service": "internet", "split": "days:14,2,5", "device": "cpu",
}  # fmt: skip
TRAINED: Mapping[str, Any] = {"hidden_size": 8, "lr": 0.01, "rounds": 6}
OWN: Mapping[str, Mapping[str, Any]] = {
    "fedtrees": {"rounds": 31},
    "fedlean": {"rounds": 6},
    "fedda": {**TRAINED, "warmup_epochs": 5},
    "fedda_clusters": {**TRAINED, "warmup_epochs": 5},
}
"""Settings of all methods, of those without own ones, and of the others."""

LARGEST_COST, LARGEST_HARM = 1.05, 1.25
"""Largest ratios to the undisturbed error at which a rule is sound: nobody lies, and some do."""


def runs() -> Iterator[Run]:
    """Return all runs, first those in which nobody lies."""
    guarded = list(itertools.product(METHODS, (*RULES, "none")))
    for method, robust in guarded:
        yield Run(method, 0, "-", robust)
    for behaviour, (method, robust) in itertools.product(BEHAVIOURS, guarded):
        yield Run(method, LIARS, behaviour, robust)


@contextmanager
def hostile(run: Run) -> Iterator[None]:
    """Within the context, servers of this process use the run's rule, and its nodes lie to them."""
    truth = Server.aggregate

    def aggregate(self: Server, ids: Tensor, upload: Payload, stage: int = 0) -> None:
        self.robust = Robust(cast(Rule, run.robust), TRIM)
        asked = Message({"task": "round", "round": self.state.round})
        sent = {name: t.clone() for name, t in upload.items()}
        for node in range(run.hostile):
            rows = (ids // SHARE == node).nonzero().flatten()
            honest = Message({"ids": ids[rows].tolist()}, {n: t[rows] for n, t in sent.items()})
            lie = hostile_node.told([run.behaviour], asked, honest)
            for name, t in lie.payload.items():
                sent[name][rows] = t
        truth(self, ids, sent, stage)

    with mock.patch.object(Server, "aggregate", aggregate):
        yield


def measure(run: Run, city: xr.Dataset) -> dict[str, Any]:
    """Do a run in this process and return its row; if lies end it, its error is infinite."""
    start = time.perf_counter()
    asked = resolve(run.method, **COMMON, **OWN.get(run.method, TRAINED))
    series = as_series(city, asked.data.service, asked.window)
    config = asked.at(series.calendar.step)
    data = prepare(series, config.window, config.data.split, config.data.scale)
    config = dataclasses.replace(config, window=data.window)
    with hostile(run):
        try:
            mse = honest_error(fit(config, data))
        except (RuntimeError, ValueError):
            if not run.hostile:
                raise
            mse = math.inf
    return {**run._asdict(), "mse": mse, "seconds": time.perf_counter() - start}


def honest_error(fitted: Fitted) -> float:
    """Return the mean test MSE of the clients of nodes that lie in no run."""
    data = fitted.data
    y, mask = data.test_targets
    chosen = fitted.predictors[fitted.config.run.select]
    y_hat = chosen.predict(data.z, data.split.test, data.calendar)
    honest = slice(LIARS * SHARE, None)
    return float(np.square((y_hat - y)[honest][mask[honest]], dtype=np.float64).mean())


def ratios(rows: pd.DataFrame) -> dict[tuple[str, str], list[float]]:
    """Return the errors of each method and rule over that of the undisturbed run.

    Returns:
        Without liars, and with them, of the worst behaviour; NaN if one was not measured.
    """
    found = rows.groupby(["method", "robust", "hostile"])["mse"]
    whole = found.count() == [len(BEHAVIOURS) if n else 1 for *_, n in found.count().index]
    worst = found.max().where(whole).to_dict()
    base = {method: worst.get((method, "none", 0), math.nan) for method in METHODS}
    return {
        (method, rule): [worst.get((method, rule, n), math.nan) / base[method] for n in (0, LIARS)]
        for method, rule in itertools.product(METHODS, ("none", *RULES))
    }


def sound(of_rule: list[float]) -> bool:
    """Return whether a rule's `ratios` are below the limits.

    >>> sound([1.02, 1.2]), sound([1.06, 1.2]), sound([1.0, math.nan])
    (True, False, False)
    """
    honest, attacked = of_rule
    return honest <= LARGEST_COST and attacked <= LARGEST_HARM


def table_of(rows: pd.DataFrame) -> str:
    """Tabulate for which methods each rule is sound, and the errors of those."""
    found = ratios(rows)
    table = []
    for rule in ("none", *RULES):
        known = [m for m in METHODS if not math.isnan(sum(found[m, rule]))]
        refused = [m for m in known if rule not in ("none", *ALL[m].guards)]
        honest, attacked = zip(*(found[m, rule] for m in known if m not in refused), strict=True)
        table.append(
            {
                "rule": "no defence" if rule == "none" else f"`{rule}`",
                "methods": f"{len(honest)} of {len(known)}",
                "refused for": ", ".join(f"`{m}`" for m in refused) or "none",
                "nobody lies, worst": change(max(honest)),
                "liars, median": change(statistics.median(attacked)),
                "liars, worst": change(max(attacked)),
            }
        )
    return markdown(table)


@click.command()
@click.option("--out", type=click.Path(path_type=Path), required=True, help="Folder of results.")
@click.option("--methods", default=",".join(METHODS), help="Methods; by default all.")
def main(out: Path, methods: str) -> None:
    """Measure the honest clients' errors with each rule."""
    be_quiet()
    path = out / "robust.csv"
    rows, done = read_rows(path)
    chosen = [run for run in runs() if run.method in methods.split(",") and run not in done]
    with tempfile.TemporaryDirectory() as name:
        city = open_cube(make_city(Path(name), N_NODES * SHARE, DAYS)).load()
        for run in tqdm(chosen, "runs", unit="run"):
            rows.append(measure(run, city))
            write_csv(pd.DataFrame(rows, columns=COLUMNS), path)
    click.echo(table_of(pd.DataFrame(rows, columns=COLUMNS)))


if __name__ == "__main__":
    main()
