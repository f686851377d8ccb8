"""A federation of three nodes on this machine: `python -m experiments.federation_demo --out X`.

It simulates a tiny city, writes a third of its cells to a file for each node, starts a SuperLink
and three SuperNodes, trains FUELS, and compares with training in one process. All processes are
stopped at the end, also on Ctrl-C.
"""

from __future__ import annotations

import json
import shutil
import signal
import time
from pathlib import Path
from typing import Any

import click
import pandas as pd

from data_prep.cube import open_cube, write_cube
from data_prep.errors import InputError
from data_prep.milan import prepare
from data_prep.simulate import simulate
from experiments.flower_keys import make_keys, make_node_key
from experiments.flower_processes import LocalFlower
from stforecast.config import resolve
from stforecast.federated.nodes.membership import Patience
from stforecast.federated.runs.run_folder import check_folder
from stforecast.flower.app_folder import write_app
from stforecast.flower.settings import RunSettings
from stforecast.forecaster import Forecaster

NODES = ("north", "centre", "south")

SETTINGS: dict[str, Any] = {
    "service": "internet", "split": "days:7,1,2", "hidden_size": 8, "device": "cpu",
}  # fmt: skip
"""Settings of the forecast: ten days, so small that Flower's own time dominates a round."""

DAYS, CELLS = 10, 9

MARK = ".federation-demo"
"""File that marks a folder as written by the demo."""

MADE = {
    MARK, "raw", "city.nc", "app", "keys", "logs", "server.log", "rounds.csv", "federation.json",
    *(f"{name}{ending}" for name in NODES for ending in (".nc", ".federation")),
}  # fmt: skip
"""Names of all files and folders that the demo writes."""


@click.command()
@click.option("--out", type=click.Path(path_type=Path), default=Path("federation-demo"))
@click.option("--method", default="fuels", show_default=True, help="Method.")
@click.option("--rounds", default=3, show_default=True, help="Rounds.")
@click.option("--tls", is_flag=True, help="Use TLS, and admit only nodes with known keys.")
def demo(out: Path, method: str, rounds: int, tls: bool) -> None:
    """Train on three local nodes, and stop them."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # As Ctrl-C: stop all, then end.
    start = time.perf_counter()
    try:
        about = federate(out.resolve(), method, rounds, tls)
    except InputError as e:
        raise click.ClickException(str(e)) from e
    alone = in_one_process(out / "city.nc", method, rounds)
    click.echo(f"\ntest MSE of z-scores, pooled: {about['test']['mse']:.6f} on three nodes")
    click.echo(f"                              {alone:.6f} in one process")
    click.echo(f"each node's models and errors: {out}/<node>.federation")
    click.echo(f"Done in {time.perf_counter() - start:.0f} s; everything is stopped.")


def federate(out: Path, method: str, rounds: int, tls: bool) -> dict[str, Any]:
    """Make the data, run the federation and return the server's `run.json`.

    Args:
        out: folder; files of an earlier demo are removed.
        method: name of the method.
        rounds: number of rounds.
        tls: whether to use certificates and keys.

    Raises:
        InputError: if the folder holds anything else, or the run fails.
    """
    begin_anew(out)
    cubes = make_cubes(out)
    config = resolve(method, **SETTINGS, rounds=rounds)
    app = write_app(
        out / "app", RunSettings(config, CELLS, Patience(start=300, answer=300), str(out))
    )
    keys = make_keys(out / "keys") if tls else None
    with LocalFlower(out / "logs", keys) as flower:
        click.echo(f"SuperLink at {flower.address}" + (" with TLS" if tls else ""))
        for i, name in enumerate(NODES):
            key = None
            if tls:
                key, public = make_node_key(out / "keys", name)
                flower.register(public)
            first = i * CELLS // len(NODES)
            flower.start_node(name, {"data": str(cubes[i]), "first-client": first}, key)
            click.echo(f"SuperNode {name}: {cubes[i].name}, clients from number {first} on")
        run = flower.run(app)
        click.echo(f"run {run} of {method}, {rounds} rounds:")
        return follow(flower, run, out)


def begin_anew(out: Path) -> None:
    """Remove the files of an earlier demo from a folder, and mark it as the demo's.

    Args:
        out: the folder; created if it does not exist.

    Raises:
        InputError: if it holds other files; then nothing is removed.
    """
    check_folder(out)
    found = {path.name: path for path in out.iterdir()} if out.exists() else {}
    others = sorted(found.keys() - MADE if MARK in found else found)
    if others:
        raise InputError(
            f"{out}: holds {others[0]}, which this demo did not make; choose another --out"
        )
    for path in found.values():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
    out.mkdir(parents=True, exist_ok=True)
    (out / MARK).touch()


def follow(flower: LocalFlower, run: str, out: Path, seconds: float = 900.0) -> dict[str, Any]:
    """Show the server's log until the run is done.

    Args:
        flower: the processes.
        run: Flower's number of the run.
        out: the server's folder.
        seconds: maximum time to wait.

    Raises:
        InputError: if the run fails or takes longer.
    """
    done, log, shown, look = out / "federation.json", out / "server.log", 0, 1
    end = time.monotonic() + seconds
    while not done.exists():
        time.sleep(0.5)
        shown = _show_new(log, shown)
        look += 1
        # Asking Flower starts a process each time, so it is done rarely.
        ended = look % 60 == 0 and flower.status(run).startswith("finished")
        if time.monotonic() > end or (ended and not done.exists()):
            raise InputError(f"the run failed or takes too long; see {log} and {flower.folder}")
    _show_new(log, shown)
    about: dict[str, Any] = json.loads(done.read_text())
    return about


def _show_new(log: Path, shown: int) -> int:
    """Echo new lines of the log and return the position reached."""
    text = log.read_text() if log.exists() else ""
    whole = text.rfind("\n") + 1
    for line in text[shown:whole].splitlines():
        click.echo(f"  {line}")
    return max(shown, whole)


def make_cubes(out: Path) -> list[Path]:
    """Simulate a city and write its thirds, one file per node."""
    raw, whole = out / "raw", out / "city.nc"
    simulate(raw, cells=CELLS, days=DAYS, seed=1)
    prepare(raw, whole)
    shutil.rmtree(raw)
    paths = []
    with open_cube(whole) as cube:
        for i, name in enumerate(NODES):
            share = slice(i * CELLS // len(NODES), (i + 1) * CELLS // len(NODES))
            paths.append(write_cube(cube.isel(cell=share).load(), out / f"{name}.nc"))
    return paths


def in_one_process(cube: Path, method: str, rounds: int) -> float:
    """Return the test error of the same training in one process."""
    forecaster = Forecaster(method, **SETTINGS, rounds=rounds).fit(cube)
    table: pd.DataFrame = forecaster.evaluate().query(
        "client == 'all' and horizon == 'all' and metric == 'mse' and split == 'test'"
    )
    return float(table.loc[table["selection"] == "best", "value"].iloc[0])


if __name__ == "__main__":
    demo()
