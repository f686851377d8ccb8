"""Measure what hostile nodes do to the honest ones, for each method, behaviour and defence.

    python -m experiments.benchmarks.hostile --out FOLDER      # needs the extra flower

Ten nodes of two clients each train on an invented city. The first of them lie in every round; see
`experiments.hostile_node`. Coordinator, nodes and the coding of messages are those of a federation
on Flower; only Flower's processes are left out, which `experiments.benchmarks.hostile_live` has.

The measure is the mean test error of the honest nodes' clients, against the same run in which no
node lies and no defence is set. Results go to `hostile.csv`, and a run that is in it already is not
repeated; `python -m experiments.docs` makes the table of docs/security.md from it.
"""

from __future__ import annotations

import itertools
import logging
import math
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import click
import pandas as pd
from tqdm import tqdm

from data_prep.base.errors import InputError
from experiments import hostile_node
from experiments.benchmarks.city_parts import make_cubes
from experiments.federation_demo import mean_error
from stforecast.bench.tables import markdown
from stforecast.federated.nodes.membership import Patience
from stforecast.federated.nodes.messages import Link, Message
from stforecast.federated.runs.run_folder import write_csv
from stforecast.flower.node import FlowerNode, Place
from stforecast.flower.server_app import serve
from stforecast.flower.settings import RunSettings
from stforecast.flower.wire import pack, unpack
from stforecast.forecasting.config import resolve
from stforecast.methods import METHODS as ALL

N_NODES, SHARE, DAYS = 10, 2, 21
"""Nodes, clients of each, and days of the invented city."""

COMMON: dict[str, Any] = {
    "service": "internet", "split": "days:14,2,5", "hidden_size": 8, "device": "cpu",
}  # fmt: skip

METHODS: Mapping[str, Mapping[str, Any]] = {
    "fedavg": {"lr": 0.01, "rounds": 6},
    "fuels": {"lr": 0.01, "rounds": 6},
    "fedlean": {"rounds": 6},
}
"""Methods and their settings; `fedlean` is the default forecaster."""

BEHAVIOURS = (
    "random", "sign-flipped", "shifted", "prototype-poisoned", "not-finite", "oversized",
    "score-forging",
)  # fmt: skip
REFUSED = ("not-finite", "oversized")
"""Behaviours that the server's checks refuse, before any defence."""

DEFENCES = ("none", "median", "clip", "trimmed")

TRIM = 0.45
"""Share that `trimmed` leaves out at each end: more than are hostile."""

SHARES = (0.2, 0.4)
"""Shares of the nodes that are hostile."""

COLUMNS = ["method", "hostile", "behaviour", "robust", "mse", "seconds"]


class Run(NamedTuple):
    """One run: nothing is hostile if `hostile` is 0."""

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
    """Return whether a method sends nothing that a node can spoil in this way."""
    return behaviour == "prototype-poisoned" and method != "fuels"


def runs() -> Iterator[Run]:
    """Return all runs with a rule that the method can use.

    What the server refuses is tried without a defence only, as none ever sees it.
    """
    for robust, method in itertools.product(DEFENCES, METHODS):
        if robust not in ("none", *ALL[method].guards):
            continue
        yield Run(method, 0, "-", robust)
        for hostile, behaviour in itertools.product(hostile_numbers(N_NODES), BEHAVIOURS):
            refused = behaviour in REFUSED and robust != "none"
            if not refused and not is_absent(method, behaviour):
                yield Run(method, hostile, behaviour, robust)


class WireLink(Link):
    """Nodes in this process behind Flower's coding of messages; the first of them lie.

    Args:
        settings: settings of the run.
        configs: the nodes' configurations.
        behaviours: what the first nodes do.
    """

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
            place = Place.of(self.configs[node], asked.about["run"])
            self._made[node] = FlowerNode(self.settings, place)
        answer = self._made[node].answer(asked)
        if node in self.behaviours:
            answer = hostile_node.told([self.behaviours[node]], asked, answer)
        try:
            return unpack(pack(answer))
        except ValueError as e:
            return str(e)


def honest_error(folder: Path, run: Run, select: str, n_nodes: int) -> float:
    """Return the mean test error of the clients of nodes that do not lie.

    The nodes that count are the same for all runs, so that their errors can be compared: those that
    lie in none.

    Args:
        folder: folder of the nodes' results, `node-NUMBER` each.
        run: the run.
        select: selection of the round that a node forecasts with.
        n_nodes: number of nodes.
    """
    honest = range(max(hostile_numbers(n_nodes)), n_nodes)
    paths = [p for i in honest for p in (folder / f"node-{i}").glob("run-*/metrics.csv")]
    if len(paths) != len(honest):
        raise InputError(f"{run}: {len(paths)} of {len(honest)} honest nodes finished")
    return mean_error(pd.concat([pd.read_csv(path) for path in paths]), select)


def measure(run: Run, cubes: list[Path], **changed: Any) -> dict[str, Any]:
    """Do a run in this process, with settings changed, and return its row."""
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        settings = run.settings(folder / "server", Patience(1, 60, 0.01), len(cubes), **changed)
        configs = {
            i: {"data": str(path), "first-client": SHARE * i, "out": str(folder / path.stem)}
            for i, path in enumerate(cubes)
        }
        serve(WireLink(settings, configs, dict.fromkeys(range(run.hostile), run.behaviour)),
              settings)  # fmt: skip
        mse = honest_error(folder, run, settings.config.run.select, len(cubes))
    return {**run._asdict(), "mse": mse, "seconds": time.perf_counter() - start}


def table_of(rows: pd.DataFrame) -> str:
    """Tabulate the worst that hostile nodes do to honest ones, by defence."""
    errors = rows.pivot_table("mse", list(Run._fields[:-1]), "robust", sort=False)
    heads = {name: f"`{name}`" for name in DEFENCES[1:]}
    return worst_table(errors.reindex(columns=list(DEFENCES)).rename(columns=heads), N_NODES)


def worst_table(errors: pd.DataFrame, n_nodes: int) -> str:
    """Tabulate the largest error of all behaviours, by method and number of hostile nodes.

    Args:
        errors: errors by method, number of hostile nodes and behaviour; the first column is without
            a defence, and its error without hostile nodes is what all are compared with.
        n_nodes: number of all nodes.
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


def be_quiet() -> None:
    """Print no warnings of this package: what is refused is what this measures."""
    package = logging.getLogger("stforecast")
    package.addHandler(logging.NullHandler())
    package.propagate = False


def read_rows(path: Path) -> tuple[list[dict[Any, Any]], set[Run]]:
    """Return the rows of a table that was begun, and their runs; none without one."""
    rows = pd.read_csv(path).to_dict("records") if path.exists() else []
    return rows, {Run(*(row[name] for name in Run._fields)) for row in rows}


@click.command()
@click.option("--out", type=click.Path(path_type=Path), required=True, help="Folder of results.")
@click.option("--methods", default=",".join(METHODS), show_default=True, help="Methods.")
def main(out: Path, methods: str) -> None:
    """Measure the honest nodes' errors beside hostile ones."""
    be_quiet()
    path = out / "hostile.csv"
    rows, done = read_rows(path)
    chosen = [run for run in runs() if run.method in methods.split(",") and run not in done]
    with tempfile.TemporaryDirectory() as name:
        cubes = make_cubes(Path(name), N_NODES, SHARE, DAYS)
        for run in tqdm(chosen, "runs", unit="run"):
            rows.append(measure(run, cubes))
            write_csv(pd.DataFrame(rows, columns=COLUMNS), path)
    click.echo(table_of(pd.DataFrame(rows, columns=COLUMNS)))


if __name__ == "__main__":
    main()
