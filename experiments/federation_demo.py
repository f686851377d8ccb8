"""A federation of three nodes on this machine: `python -m experiments.federation_demo --out X`.

It simulates a tiny city and gives each node a part of it. Then it trains over Flower while
everything goes wrong: one node is hostile, another is killed in round 3, and the server in round 4.
It draws the losses and who answered when, and compares the honest nodes' error with training in one
process. All processes are stopped at the end, also on Ctrl-C.
"""

from __future__ import annotations

import shutil
import signal
import time
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

import click
import numpy as np
import pandas as pd

from data_prep.base.errors import InputError
from data_prep.city.simulate import simulate
from data_prep.cube import open_cube, write_cube
from data_prep.sets.milan import prepare
from experiments import hostile_node
from experiments.local_flower import LocalFlower, follow, make_node_key
from stforecast.bench.run_groups import by_client, select
from stforecast.federated.nodes.membership import Patience
from stforecast.federated.runs.run_folder import check_folder, write_csv
from stforecast.flower.settings import RunSettings, write_app
from stforecast.flower.standing import Standing, read_event_log, status_text
from stforecast.flower.superlink import make_keys
from stforecast.forecasting.config import resolve
from stforecast.forecasting.forecaster import Forecaster
from stforecast.forecasting.tables import long_table

ANSWERED, LEFT_OUT, ABSENT = "answered", "left out", "not connected"
COLOURS = {ANSWERED: "#4c956c", LEFT_OUT: "#d1495b", ABSENT: "#d9d9d9"}


def node_rounds(
    events: Iterable[Mapping[str, Any]], names: Mapping[int, str]
) -> tuple[dict[str, list[str]], list[int]]:
    """Return what each node did in each round, and after which rounds the server was started again.

    `names` has the names of the nodes by the number of their first client.
    """
    kept = list(events)
    standing = Standing.of(kept)
    n_rounds = max(standing.rounds, default=0)
    done = {name: [ABSENT] * n_rounds for name in names.values()}
    of_node = {number: names[n.first] for number, n in standing.nodes.items() if n.first in names}
    restarts: list[int] = []
    for each in kept:
        kind, name = each.get("event"), of_node.get(each.get("node", -1), "")
        first = max(each.get("round", 1) - 1, *restarts, 0)
        if kind == "resumed":
            restarts.append(each["round"])
            for states in done.values():  # Nodes join again.
                states[each["round"] :] = [ABSENT] * (n_rounds - each["round"])
        elif name and kind in ("joined", "lost"):
            done[name][first:] = [ANSWERED if kind == "joined" else ABSENT] * (n_rounds - first)
        elif name and kind == "left_out" and first < n_rounds:
            done[name][first] = LEFT_OUT
    return done, restarts


def draw(events: list[dict[str, Any]], names: Mapping[int, str], path: Path) -> Path:
    """Draw the figure; `names` as for `node_rounds`."""
    import matplotlib.pyplot as plt
    from matplotlib.patches import Patch

    standing = Standing.of(events)
    done, restarts = node_rounds(events, names)
    rounds = sorted(standing.rounds)
    figure, (top, below) = plt.subplots(
        2, 1, sharex=True, figsize=(8, 5.4), height_ratios=(3, 1.3), layout="constrained"
    )
    for name, label in (("train_loss", "training"), ("validation_loss", "validation")):
        values = [standing.rounds[r][name] for r in rounds]
        top.plot(rounds, [float("nan") if v is None else v for v in values], "o-", label=label)
    top.set(ylabel="loss (MSE of z-scores)", title=f"{standing.method} on {len(done)} nodes")
    dashed = {"color": "black", "linestyle": "--", "linewidth": 1}
    for axes in (top, below):
        for after in restarts:
            axes.axvline(after + 0.5, label="server killed, and started again", **dashed)
    top.legend(frameon=False)
    for row, (_, states) in enumerate(done.items()):
        left, colours = np.arange(len(states)) + 0.54, [COLOURS[state] for state in states]
        below.barh([row] * len(states), 0.92, left=left, height=0.7, color=colours)
    below.set(xlabel="round", xticks=rounds, xlim=(0.5, len(rounds) + 0.5))
    below.set_yticks(range(len(done)), list(done))
    below.invert_yaxis()
    below.spines[["top", "right", "left"]].set_visible(False)
    top.spines[["top", "right"]].set_visible(False)
    patches = [Patch(color=c, label=state) for state, c in COLOURS.items()]
    figure.legend(handles=patches, loc="outside lower center", ncols=3, frameon=False)
    figure.savefig(path, dpi=150)
    plt.close(figure)
    return path


SHARES = {"north": (0, 4), "centre": (4, 7), "south": (7, 9)}
"""First cell of each node, and the one after its last."""

KILLED, HOSTILE = "centre", "south"
"""The node that is killed, and the one that lies: fewer clients than of either honest one."""

LIES = ("not-finite", "huge", "foreign")
"""What the hostile node does in turn."""

SETTINGS: dict[str, Any] = {
    "service": "internet",
    "split": "days:7,1,2",
    "hidden_size": 8,
    "device": "cpu",
}
"""Settings of the forecast: ten days, so small that Flower's own time dominates a round."""

GUARDED: dict[str, Any] = {**SETTINGS, "robust": "median", "lr": 0.01}
"""Settings with a defence against the hostile node, with which six rounds show progress."""

DAYS, CELLS = 10, 9

PATIENCE = Patience(start=300, answer=45)

MARK = ".federation-demo"
"""File that marks a folder as written by the demo."""

FOLDERS = {"raw", "app", "keys", "logs", "hostile", "checkpoints"}
FILES = {MARK, "city.nc", "server.log", "server.jsonl", "metrics.prom", "rounds.csv"}
FILES |= {"federation.json", "federation.png", ".lock"}
MADE = FOLDERS | FILES | {f"{n}{end}" for n in SHARES for end in (".nc", ".federation")}
"""Names of all files and folders that the demo writes."""


@click.command()
@click.option("--out", type=click.Path(path_type=Path), default=Path("federation-demo"))
@click.option("--method", default="fedavg", show_default=True, help="Method.")
@click.option("--rounds", default=6, show_default=True, help="Rounds.")
@click.option("--tls", is_flag=True, help="Use TLS, and admit only nodes with known keys.")
def demo(out: Path, method: str, rounds: int, tls: bool) -> None:
    """Train on three local nodes while nodes and the server fail, and stop everything."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # As Ctrl-C: stop all, then end.
    start, out = time.perf_counter(), out.resolve()
    try:
        run_federation(out, method, rounds, tls)
    except InputError as e:
        raise click.ClickException(e.typed) from e
    events = list(read_event_log(out))
    names = {first: name for name, (first, _) in SHARES.items()}
    names[SHARES[HOSTILE][0]] += " (hostile)"
    click.echo(f"\n{status_text(Standing.of(events))}")
    click.echo(
        f"\ntest MSE of z-scores: {error_of_honest_nodes(out, method):.4f} of the honest nodes"
    )
    alone = in_one_process(out, method, GUARDED | {"rounds": rounds}, SHARES.keys() - {HOSTILE})
    click.echo(f"                      {alone:.4f} in one process, where nothing fails")
    click.echo("\nthe coming day, forecast on each node by its own model:")
    for name, path, mean in forecast_tomorrow(out):
        click.echo(f"  {name}: {mean:.4g} an hour in the mean of its cells, {path}")
    click.echo(f"figure: {draw(events, names, out / 'federation.png')}")
    click.echo(f"Done in {time.perf_counter() - start:.0f} s; everything is stopped.")


def run_federation(out: Path, method: str, rounds: int, tls: bool) -> dict[str, Any]:
    """Make the data, run the federation and return the server's `federation.json`.

    Files of an earlier demo in the folder are removed.

    Raises:
        InputError: if the folder holds anything else, or the run fails.
    """
    begin_anew(out)
    make_cubes(out)
    config = resolve(method, **GUARDED, rounds=rounds)
    app = write_app(out / "app", RunSettings(config, CELLS, PATIENCE, str(out)))
    keys = make_keys(out / "keys") if tls else None
    with LocalFlower(out / "logs", keys) as flower:
        click.echo(f"SuperLink at {flower.address}" + (" with TLS" if tls else ""))
        for name, (first, end) in SHARES.items():
            start_node(flower, out, name)
            hostile = ", hostile" if name == HOSTILE else ""
            click.echo(f"node {name}: clients {first} to {end - 1}{hostile}")
        run = flower.run(app)
        click.echo(f"{method}, {rounds} rounds; a round's line comes after the next one:")
        scenes = {1: lambda: kill_node(flower), 2: lambda: restart_server(flower, app)}
        return follow(flower, run, out, scenes=scenes)


def start_node(flower: LocalFlower, out: Path, name: str) -> None:
    """Start a node of the demo, with a key if the server knows keys."""
    key = None
    if flower.keys:
        key, public = make_node_key(out / "keys", name)
        flower.register(public)
    lies = [str(hostile_node.write(out / "hostile", LIES))] if name == HOSTILE else []
    # A rule against the hostile node needs plain uploads; with some methods, nodes refuse these.
    first, plain = SHARES[name][0], "--allow-disclosure"
    flower.start_node(name, out / f"{name}.nc", first, plain, key=key, paths=lies)


def kill_node(flower: LocalFlower) -> None:
    """Kill a node's SuperNode, and say so."""
    click.echo(f"  -- {KILLED} is killed; stforecast node starts it again")
    flower.kill_supernode(KILLED)


def restart_server(flower: LocalFlower, app: Path) -> str:
    """Kill the server, start it again, and return the run's new number."""
    click.echo("  -- the server is killed, and started again")
    flower.restart_superlink()
    return flower.run(app)


def begin_anew(out: Path) -> None:
    """Remove the files of an earlier demo from a folder, and mark it as the demo's.

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


def make_cubes(
    out: Path, shares: Mapping[str, tuple[int, int]] = SHARES, days: int = DAYS
) -> list[Path]:
    """Simulate a city and write the nodes' shares of its cells, one file each."""
    raw, whole = out / "raw", out / "city.nc"
    simulate(raw, cells=max(end for _, end in shares.values()), days=days, seed=1)
    prepare(raw, whole)
    shutil.rmtree(raw)
    with open_cube(whole) as cube:
        return [
            write_cube(cube.isel(cell=slice(*share)).load(), out / f"{name}.nc")
            for name, share in shares.items()
        ]


def forecast_tomorrow(out: Path) -> list[tuple[str, Path, float]]:
    """Forecast the 24 hours after each node's data by the model that the run left there.

    Returns the nodes' names, the files that were written, and the mean forecasts.
    """
    found = []
    for name in SHARES:
        for model in sorted((out / f"{name}.federation").glob("run-*/model")):
            table = Forecaster.load(model).predict(out / f"{name}.nc", 24)
            path = model.parent / "forecast.csv"
            write_csv(long_table(table, None), path)
            found.append((name, path, float(table.to_numpy().mean())))
    return found


def error_of_honest_nodes(out: Path, method: str) -> float:
    """Return the test error of the honest nodes' clients from their own tables."""
    folders = (out / f"{name}.federation" for name in SHARES if name != HOSTILE)
    paths = [path for folder in folders for path in folder.glob("run-*/metrics.csv")]
    table = pd.concat([pd.read_csv(path) for path in paths])
    return mean_error(table, resolve(method).run.select)


def in_one_process(
    out: Path, method: str, settings: Mapping[str, Any], names: Collection[str] = SHARES.keys()
) -> float:
    """Return the test error of the same training in one process, on the cells of some nodes."""
    cells = sorted(i for name in names for i in range(*SHARES[name]))
    with open_cube(out / "city.nc") as city:
        cube = city.isel(cell=cells).load()
    forecaster = Forecaster(method, **settings).fit(cube)
    return mean_error(forecaster.evaluate(), forecaster.config.run.select)


def mean_error(table: pd.DataFrame, selection: str) -> float:
    """Return the mean test MSE over clients, which all have as many targets."""
    chosen = select(by_client(table), metric="mse", split="test", selection=selection)
    return float(chosen["value"].mean())


if __name__ == "__main__":
    demo()
