"""Measure what hostile nodes do to the honest ones, for each method, behaviour and defence.

Ten nodes of two clients each train on an invented city. The first of them lie in every round; see
`experiments.hostile_node`. The measure is the mean test error of the honest nodes' clients, against
the same run in which no node lies and no defence is set. What is in the file of results already is
not measured again; `python -m experiments.docs` makes tables of docs/security.md from them.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import statistics
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, cast
from unittest import mock

import numpy as np
import pandas as pd
import xarray as xr
from torch import Tensor
from tqdm import tqdm

from data_prep.base.errors import InputError
from data_prep.cube import open_cube
from experiments import hostile_node
from experiments.benchmarks.frame import Results, benchmark, quiet, timed
from experiments.federation_demo import make_cubes, mean_error
from stforecast.bench.tables import markdown
from stforecast.data.prepared import prepare
from stforecast.data.series import as_series
from stforecast.federated.core.tensors import Payload
from stforecast.federated.engine.rounds import Server
from stforecast.federated.nodes.membership import Patience
from stforecast.federated.nodes.messages import Link, Message
from stforecast.federated.uploads.robust import RULES, Robust, Rule
from stforecast.flower.node import FlowerNode, NodePlace
from stforecast.flower.server_app import serve
from stforecast.flower.settings import RunSettings
from stforecast.flower.wire import pack, unpack
from stforecast.forecasting.config import resolve
from stforecast.forecasting.fit import Fitted, fit
from stforecast.methods import METHODS as ALL

N_NODES, SHARE, DAYS = 10, 2, 21
"""Nodes, clients of each, and days of the invented city."""

COMMON: Mapping[str, Any] = {"service": "internet", "split": "days:14,2,5", "device": "cpu"}
TRAINED: Mapping[str, Any] = {"hidden_size": 8, "lr": 0.01, "rounds": 6}

METHODS: Mapping[str, Mapping[str, Any]] = {
    "fedavg": TRAINED,
    "fuels": TRAINED,
    "fedlean": {"hidden_size": 8, "rounds": 6},
}
"""Methods and their settings; `fedlean` is the default forecaster."""

ATTACKS, REFUSED = ("random", "sign-flipped"), ("not-finite", "oversized")
BEHAVIOURS = (*ATTACKS, "shifted", "prototype-poisoned", *REFUSED, "score-forging")
"""What hostile nodes do. `ATTACKS` are in both benchmarks; checks refuse `REFUSED` before any
defence sees it."""

DEFENCES = ("none", "median", "clip", "trimmed")

TRIM = 0.45
"""Share that `trimmed` leaves out at each end: more than are hostile."""

SHARES = (0.2, 0.4)
"""Shares of the nodes that are hostile."""

EVERY_METHOD = [name for name, method in ALL.items() if not method.pooled and name != "solo"]
"""Methods whose clients send something."""

LIARS = round(max(SHARES) * N_NODES)
"""Nodes that lie in a run of `robust_rules` with liars."""

OWN: Mapping[str, Mapping[str, Any]] = {
    "fedtrees": {"rounds": 31},
    "fedlean": {"rounds": 6},
    "fedda": {**TRAINED, "warmup_epochs": 5},
    "fedda_clusters": {**TRAINED, "warmup_epochs": 5},
}
"""Settings of methods in `robust_rules`, where they are not `TRAINED`."""

LARGEST_COST, LARGEST_HARM = 1.05, 1.25
"""Largest errors at which a rule is sound, by the undisturbed error: without and with liars."""


@benchmark("hostile.csv", goes_on=True)
def hostile(results: Results, *, methods: str = ",".join(METHODS)) -> str:
    """Measure the honest nodes' errors in the presence of hostile ones; needs the extra flower.

    Coordinator, nodes and the coding of messages are the same as on Flower; only Flower's
    processes are left out, which the benchmark `hostile-live` has.

    Args:
        results: gets a row for each run.
        methods: methods to measure.
    """
    with cubes_of(N_NODES, SHARE, DAYS) as cubes:
        measure_all(results, hostile_runs(), methods, lambda run: honest_error_of(run, cubes))
    return table_of_defences(pd.DataFrame(results.rows))


@benchmark("robust.csv", goes_on=True)
def robust_rules(results: Results, *, methods: str = ",".join(EVERY_METHOD)) -> str:
    """Measure what every rule of robust aggregation does to every federated method.

    As the benchmark `hostile`, but with all clients in one process and every method. What
    `Method.attacked` refuses is measured, too. A test checks that each method declares what is
    `sound`.

    Args:
        results: gets a row for each run.
        methods: methods to measure.
    """
    with cubes_of(1, N_NODES * SHARE, DAYS) as (cube,):
        city = open_cube(cube).load()
        measure_all(results, robust_runs(), methods, lambda run: error_with(run, city))
    return robust_table(pd.DataFrame(results.rows))


class HostileRun(NamedTuple):
    """One run with a number of `hostile` nodes, which may be 0."""

    method: str
    hostile: int
    behaviour: str
    robust: str

    def settings(self, out: Path, patience: Patience, n_nodes: int, **changed: Any) -> RunSettings:
        """Return the run's settings, some of them changed, with results below a folder."""
        robust = {"robust": self.robust, "robust_trim": TRIM}
        config = resolve(self.method, **COMMON, **{**METHODS[self.method], **changed}, **robust)
        return RunSettings(config, n_nodes * SHARE, patience, str(out))


def hostile_numbers(n_nodes: int) -> list[int]:
    """Return the numbers of nodes that lie in one of the runs.

    >>> hostile_numbers(10)
    [2, 4]
    """
    return [round(share * n_nodes) for share in SHARES]


def is_absent(method: str, behaviour: str) -> bool:
    """Return whether a method does not send what a behaviour spoils."""
    return behaviour == "prototype-poisoned" and method != "fuels"


def hostile_runs() -> Iterator[HostileRun]:
    """Return all runs with a rule that the method can use.

    What the server refuses is tried without a defence only, as none ever sees it.
    """
    for robust, method in itertools.product(DEFENCES, METHODS):
        if robust not in ("none", *ALL[method].attacked.guards):
            continue
        yield HostileRun(method, 0, "-", robust)
        for hostile, behaviour in itertools.product(hostile_numbers(N_NODES), BEHAVIOURS):
            refused = behaviour in REFUSED and robust != "none"
            if not refused and not is_absent(method, behaviour):
                yield HostileRun(method, hostile, behaviour, robust)


def measure_all(
    results: Results,
    runs: Iterable[HostileRun],
    methods: str,
    measure: Callable[[HostileRun], float],
) -> None:
    """Do the runs of some methods that the results lack, and add their rows."""
    chosen = [r for r in runs if r.method in methods.split(",") and not results.has(**r._asdict())]
    for run in tqdm(chosen, "runs", unit="run"):
        with quiet():  # Lost and refused answers are the result.
            mse, seconds, _ = timed(measure, run)
        results.add({**run._asdict(), "mse": mse, "seconds": seconds})


@contextmanager
def cubes_of(n_nodes: int, share: int, days: int) -> Iterator[list[Path]]:
    """Yield the cubes of nodes with `share` cells each of an invented city, in a folder."""
    shares = {f"node-{i}": (share * i, share * (i + 1)) for i in range(n_nodes)}
    with tempfile.TemporaryDirectory() as name:
        yield make_cubes(Path(name), shares, days)


class WireLink(Link):
    """Nodes in this process behind Flower's coding of messages; the first of them lie."""

    def __init__(
        self,
        settings: RunSettings,
        configs: Mapping[int, Mapping[str, Any]],
        behaviours: Mapping[int, str],
    ) -> None:
        self.settings, self.configs, self.behaviours = settings, configs, behaviours
        self._made: dict[int, FlowerNode] = {}

    def nodes(self) -> set[int]:
        """Return all nodes."""
        return set(self.configs)

    def ask(self, messages: Mapping[int, Message], timeout: float) -> dict[int, Message | str]:
        """Return each node's answer, encoded and decoded as on a real link."""
        return {node: self._answer(node, message) for node, message in messages.items()}

    def _answer(self, node: int, message: Message) -> Message | str:
        asked = unpack(pack(message))
        if node not in self._made:
            place = NodePlace.of(self.configs[node], asked.about["run"])
            self._made[node] = FlowerNode(self.settings, place)
        answer = self._made[node].answer(asked)
        if node in self.behaviours:
            answer = hostile_node.told([self.behaviours[node]], asked, answer)
        try:
            return unpack(pack(answer))
        except ValueError as e:
            return str(e)


def honest_error(folder: Path, run: HostileRun, select: str, n_nodes: int) -> float:
    """Return the mean test error of the clients of nodes that do not lie.

    The nodes that count are the same for all runs, so that their errors can be compared: those that
    lie in none.
    """
    honest = range(max(hostile_numbers(n_nodes)), n_nodes)
    paths = [p for i in honest for p in (folder / f"node-{i}").glob("run-*/metrics.csv")]
    if len(paths) != len(honest):
        raise InputError(f"{run}: {len(paths)} of {len(honest)} honest nodes finished")
    return mean_error(pd.concat([pd.read_csv(path) for path in paths]), select)


def honest_error_of(run: HostileRun, cubes: list[Path], **changed: Any) -> float:
    """Do a run in this process, with settings changed, and return the honest nodes' error."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        settings = run.settings(folder / "server", Patience(1, 60, 0.01), len(cubes), **changed)
        configs = {
            i: {"data": str(path), "first-client": SHARE * i, "out": str(folder / path.stem)}
            for i, path in enumerate(cubes)
        }
        lies = dict.fromkeys(range(run.hostile), run.behaviour)
        serve(WireLink(settings, configs, lies), settings)
        return honest_error(folder, run, settings.config.run.select, len(cubes))


def table_of_defences(rows: pd.DataFrame) -> str:
    """Tabulate the worst that hostile nodes do to honest ones, by defence."""
    errors = rows.pivot_table("mse", list(HostileRun._fields[:-1]), "robust", sort=False)
    heads = {name: f"`{name}`" for name in DEFENCES[1:]}
    return worst_table(errors.reindex(columns=list(DEFENCES)).rename(columns=heads), N_NODES)


def worst_table(errors: pd.DataFrame, n_nodes: int) -> str:
    """Tabulate the largest error of all behaviours, by method and number of hostile nodes.

    The errors are by method, number of hostile nodes and behaviour. The first column is without a
    defence; all are compared with its error without hostile nodes.
    """
    bare = errors.columns[0]
    rows = []
    for method in errors.index.unique("method"):
        of_method = errors.loc[[method]]
        base = of_method[bare].xs(0, level="hostile").iloc[0]
        for hostile in sorted(of_method.index.unique("hostile")):
            found = of_method[of_method.index.get_level_values("hostile") == hostile]
            (*_, behaviour), *_ = found.sort_values(bare, ascending=False).index
            row = {
                "method": f"`{method}`",
                "hostile": f"{hostile} of {n_nodes}" if hostile else "none",
                "worst without defence": behaviour.strip("-").replace("-", " "),
                "no defence": change(found[bare].max() / base),
            }
            rows.append(
                row | {head: change(found[head].max() / base) for head in errors.columns[1:]}
            )
    return markdown(rows)


def change(ratio: float) -> str:
    """Return a ratio of errors as a change in percent, or as a factor if it is large.

    >>> change(1.034), change(0.9996), change(3.21), change(float("nan"))
    ('+3 %', '0 %', '× 3.2', '-')
    """
    if math.isnan(ratio):
        return "-"
    if ratio >= 2:
        return f"× {ratio:.1f}" if ratio < 1000 else f"× {ratio:.0e}"
    return f"{round(100 * (ratio - 1)):+d} %".replace("+0", "0").replace("-0", "0")


def robust_runs() -> Iterator[HostileRun]:
    """Return all runs, first those in which nobody lies."""
    guarded = list(itertools.product(EVERY_METHOD, (*RULES, "none")))
    for method, robust in guarded:
        yield HostileRun(method, 0, "-", robust)
    for behaviour, (method, robust) in itertools.product(ATTACKS, guarded):
        yield HostileRun(method, LIARS, behaviour, robust)


@contextmanager
def lying(run: HostileRun) -> Iterator[None]:
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


def error_with(run: HostileRun, city: xr.Dataset) -> float:
    """Do a run in this process; return the honest clients' error, infinite if lies end the run."""
    asked = resolve(run.method, **COMMON, **OWN.get(run.method, TRAINED))
    series = as_series(city, asked.data.service, asked.window)
    config = asked.at(series.calendar.step)
    data = prepare(series, config.window, config.data.split, config.data.scale)
    config = dataclasses.replace(config, window=data.window)
    with lying(run):
        try:
            return honest_clients_error(fit(config, data))
        except (RuntimeError, ValueError):
            if not run.hostile:
                raise
            return math.inf


def honest_clients_error(fitted: Fitted) -> float:
    """Return the mean test MSE of the clients of nodes that lie in no run."""
    data = fitted.data
    y, mask = data.test_targets
    chosen = fitted.predictors[fitted.config.run.select]
    y_hat = chosen.predict(data.z, data.split.test, data.calendar)
    honest = slice(LIARS * SHARE, None)
    return float(np.square((y_hat - y)[honest][mask[honest]], dtype=np.float64).mean())


def ratios(rows: pd.DataFrame) -> dict[tuple[str, str], list[float]]:
    """Return the errors of each method and rule, over the undisturbed run's.

    They are without liars, and with them, of the worst behaviour; NaN if one was not measured.
    """
    found = rows.groupby(["method", "robust", "hostile"])["mse"]
    whole = found.count() == [len(ATTACKS) if n else 1 for *_, n in found.count().index]
    worst = found.max().where(whole).to_dict()
    base = {method: worst.get((method, "none", 0), math.nan) for method in EVERY_METHOD}
    return {
        (method, rule): [worst.get((method, rule, n), math.nan) / base[method] for n in (0, LIARS)]
        for method, rule in itertools.product(EVERY_METHOD, ("none", *RULES))
    }


def sound(of_rule: list[float]) -> bool:
    """Return whether a rule's `ratios` are below the limits.

    >>> sound([1.02, 1.2]), sound([1.06, 1.2]), sound([1.0, math.nan])
    (True, False, False)
    """
    honest, attacked = of_rule
    return honest <= LARGEST_COST and attacked <= LARGEST_HARM


def robust_table(rows: pd.DataFrame) -> str:
    """Tabulate for which methods each rule is sound, and the errors of those."""
    found = ratios(rows)
    table = []
    for rule in ("none", *RULES):
        known = [m for m in EVERY_METHOD if not math.isnan(sum(found[m, rule]))]
        refused = [m for m in known if rule not in ("none", *ALL[m].attacked.guards)]
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
