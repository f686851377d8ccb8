"""Measure a federation of many SuperNodes on this machine.

    python -m experiments.benchmarks.nodes --nodes 50 --out FOLDER       # needs the extra flower

Each node has four clients of an invented city and is started by `stforecast node`: once with a
worker that stays, and once with `--no-worker`, where Flower's process of each message imports torch
anew. Both train the same run. Start-up lasts until all clients are connected; a round's seconds and
bytes are the server's own. Processor time is that of all processes from the second round on, by
message and node. Memory is the proportional set size after the last round, in which pages that
processes share count once. All processes are stopped at the end.

The SuperLink keeps its state in memory. With some eight nodes on one machine, its SQLite file was
locked for longer than the five seconds that Flower 1.41 waits, and messages were lost.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import click
import pandas as pd
import psutil
import tabulate

from experiments.benchmarks.city_parts import make_cubes
from experiments.benchmarks.processes import memory, processor_time
from experiments.benchmarks.results import save
from experiments.local_flower import LocalFlower, events_of, follow
from stforecast.federated.nodes.membership import Patience
from stforecast.flower.settings import RunSettings, write_app
from stforecast.forecasting.config import resolve

CLIENTS, DAYS = 4, 10
"""Clients of a node, and days of the city."""

SETTINGS: dict[str, Any] = {
    "service": "internet", "split": "days:7,1,2", "hidden_size": 8, "device": "cpu", "lr": 0.01,
}  # fmt: skip

VARIANTS = {"a process a message": "--no-worker", "a worker that stays": "--worker"}
"""Options of `stforecast node` by what they stand for."""

PATIENCE = Patience(start=3000, answer=600)

POLL = 1.0
"""Seconds between two looks for work, as Flower has it."""


def measure(option: str, cubes: list[Path], rounds: int, method: str) -> dict[str, Any]:
    """Run the federation once and return what it took."""
    with tempfile.TemporaryDirectory() as name:
        out = Path(name)
        config = resolve(method, **SETTINGS, rounds=rounds)
        run = RunSettings(config, CLIENTS * len(cubes), PATIENCE, str(out / "server"))
        app = write_app(out / "app", run)
        with LocalFlower(out / "logs", keeps=False, poll=POLL) as flower:
            start = time.perf_counter()
            for i, cube in enumerate(cubes):
                flower.start_node(
                    f"node-{i}", cube, CLIENTS * i, f"--out={out / f'node-{i}'}", option
                )
            number = flower.run(app)
            began = time.time() - (time.perf_counter() - start)
            pids = {name: p.pid for name, p in flower.running.items()}
            before: list[float] = []
            scenes = {1: lambda: before.append(processor_time(pids.values()))}
            about = follow(flower, number, out / "server", 7200.0, scenes)
            spent = processor_time(pids.values()) - before[0]
            server = memory([pids.pop("superlink")])
            of_nodes = memory(pids.values()) / len(cubes)
        table = pd.read_csv(out / "server" / "rounds.csv")
        gathered = events_of(out / "server", "gathered")[0]["time"]
    return {
        "start": pd.Timestamp(gathered).timestamp() - began,
        "round": statistics.median(table["seconds"][1:]),
        "bytes_down": int(table["bytes_down"].iloc[-1]),
        "bytes_up": int(table["bytes_up"].iloc[-1]),
        "left_out": int(table["failed"].sum()),
        # Round 1 is told after two messages; one to validate and one to finish come at the end.
        "cpu_of_message": spent / (rounds * len(cubes)),
        "server_mb": server,
        "node_mb": of_nodes,
        "test_mse": about["test"]["mse"],
    }


def table_of(measured: Iterable[dict[str, Any]]) -> str:
    """Tabulate the measurements of several numbers of nodes."""
    rows = [
        [results["nodes"], variant, r["start"], r["round"], r["cpu_of_message"],
         r["bytes_down"] / 1e3, r["bytes_up"] / 1e3, r["server_mb"], r["node_mb"],
         f"{r['test_mse']:.6f}"]
        for results in measured for variant, r in results["variants"].items()
    ]  # fmt: skip
    headers = [
        "nodes", "answers from", "start-up s", "s a round", "CPU s a message", "kB down", "kB up",
        "SuperLink MB", "a node MB", "test MSE",
    ]  # fmt: skip
    floats = ("", "", ".0f", ".1f", ".2f", ".0f", ".0f", ".0f", ".0f", "")
    return tabulate.tabulate(rows, headers, "github", floatfmt=floats, disable_numparse=[1, 9])


@click.command()
@click.option("--nodes", "n_nodes", default=50, show_default=True, help="Number of nodes.")
@click.option("--rounds", default=4, show_default=True, help="Rounds.")
@click.option("--method", default="fedavg", show_default=True, help="Method.")
@click.option("--only", type=click.Choice(list(VARIANTS)), help="One of the two variants.")
@click.option("--out", type=click.Path(path_type=Path), required=True, help="Folder of results.")
def main(n_nodes: int, rounds: int, method: str, only: str | None, out: Path) -> None:
    """Measure start-up, rounds and memory with and without a worker that stays."""
    chosen = {name: o for name, o in VARIANTS.items() if only in (None, name)}
    with tempfile.TemporaryDirectory() as name:
        cubes = make_cubes(Path(name), n_nodes, CLIENTS, DAYS)
        found = {variant: measure(o, cubes, rounds, method) for variant, o in chosen.items()}
    results = {"nodes": n_nodes, "clients": CLIENTS, "rounds": rounds, "method": method,
               "cores": psutil.cpu_count(), "variants": found}  # fmt: skip
    save(results, out / f"nodes-{n_nodes}.json")
    click.echo(table_of([results]))


if __name__ == "__main__":
    main()
