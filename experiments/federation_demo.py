"""A federation of three nodes on this machine: `python -m experiments.federation_demo --out X`.

It simulates a small city and gives each node a part of it. Then it trains over Flower while things
go wrong: a node is killed in round 3, and the server in round 4. It shows the standing of
rounds and nodes, compares the error with training in one process, and ends with a forecast of the
coming day on each node. All processes are stopped at the end, also on Ctrl-C.

By default uploads are added up under masks. With `--hostile`, one node lies and a median protects
the others, for which uploads are plain.
"""

from __future__ import annotations

import shutil
import signal
import time
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import click
import pandas as pd
import xarray as xr

from data_prep.base.errors import InputError
from data_prep.city.simulate import simulate
from data_prep.cube import open_cube, write_cube
from data_prep.sets.milan import prepare
from experiments import hostile_node
from experiments.local_flower import LocalFlower, follow, make_node_key
from stforecast.bench.run_groups import by_client, select
from stforecast.federated.nodes.disclosure import uploads_in_words, with_secure_sums
from stforecast.federated.nodes.membership import Patience
from stforecast.federated.runs.run_folder import check_folder, write_csv
from stforecast.federated.uploads.masking import SecureSums
from stforecast.flower.settings import RunSettings, write_app
from stforecast.flower.standing import Standing, read_event_log, status_text
from stforecast.flower.superlink import make_keys
from stforecast.forecasting import DEFAULT_METHOD
from stforecast.forecasting.config import read_by, resolve
from stforecast.forecasting.forecaster import Forecaster
from stforecast.forecasting.tables import long_table

SHARES = {"north": (0, 4), "centre": (4, 7), "south": (7, 9)}
"""First cell of each node, and the one after its last, in tests and benchmarks."""

NODES = {"north": (0, 8), "centre": (8, 16), "south": (16, 24)}
"""The same in the demo: attacks find little in sums over so many cells."""

KILLED, HOSTILE = "centre", "south"
"""The node that is killed, and the one that lies."""

LIES = ("not-finite", "huge", "foreign")
"""What the hostile node does in turn."""

SETTINGS: dict[str, Any] = {
    "service": "internet",
    "split": "days:7,1,2",
    "hidden_size": 8,
    "device": "cpu",
}
"""Settings of tests: ten days, so small that Flower's own time dominates a round."""

DAYS = 10

OF_DEMO: dict[str, Any] = {
    **SETTINGS,
    "split": "days:21,2,5",
    "horizon": 24,
    "intervals": "conformal",
    "lr": 0.01,
    "refit": "final",
    "refit_rounds": 1,
}
"""Settings of the demo's forecasts, of four weeks."""

PATIENCE = Patience(start=300, answer=45)

MARK = ".federation-demo"
"""File that marks a folder as written by the demo."""

FOLDERS = {"raw", "app", "keys", "logs", "hostile", "checkpoints"}
FILES = {MARK, "city.nc", "server.log", "server.jsonl", "metrics.prom", "rounds.csv"}
FILES |= {"federation.json", "refits.csv", ".lock"}
MADE = FOLDERS | FILES | {f"{n}{end}" for n in NODES for end in (".nc", ".federation")}
"""Names of all files and folders that the demo writes."""


@click.command()
@click.option("--out", type=click.Path(path_type=Path), default=Path("federation-demo"))
@click.option("--method", default=DEFAULT_METHOD, show_default=True, help="Method.")
@click.option("--rounds", default=6, show_default=True, help="Rounds.")
@click.option("--tls", is_flag=True, help="Use TLS, and admit only nodes with known keys.")
@click.option("--hostile", is_flag=True, help="One node lies; uploads are plain, under a median.")
def demo(out: Path, method: str, rounds: int, *, tls: bool, hostile: bool) -> None:
    """Train on three local nodes while a node and the server fail; forecast, and stop all."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # As Ctrl-C: stop all, then end.
    start, out = time.perf_counter(), out.resolve()
    try:
        run = run_federation(out, method, rounds, tls=tls, hostile=hostile)
    except InputError as e:
        raise click.ClickException(e.typed) from e
    honest = NODES.keys() - ({HOSTILE} if hostile else set())
    click.echo(f"\n{status_text(Standing.of(read_event_log(out)))}")
    click.echo(f"\ntest MSE of z-scores: {error_of_nodes(out, run, honest):.4f} on the nodes")
    alone = in_one_process(out, method, run.config.flat(), honest)
    click.echo(f"                      {alone:.4f} in one process, where nothing fails")
    click.echo("\nthe coming day, forecast on each node by its own model:")
    for name, path, mean in forecast_tomorrow(out):
        click.echo(f"  {name}: {mean:.4g} an hour in the mean of its cells, {path}")
    click.echo(f"Done in {time.perf_counter() - start:.0f} s; everything is stopped.")


def run_federation(
    out: Path, method: str, rounds: int, *, tls: bool = False, hostile: bool = False
) -> RunSettings:
    """Make the data, run the federation and return its settings.

    Files of an earlier demo in the folder are removed.

    Raises:
        InputError: if the folder holds anything else, or the run fails.
    """
    begin_anew(out)
    make_cubes(out, NODES, 28)
    run = settings_of(out, method, rounds, hostile=hostile)
    app = write_app(out / "app", run)
    keys = make_keys(out / "keys") if tls else None
    with LocalFlower(out / "logs", keys) as flower:
        click.echo(f"SuperLink at {flower.address}" + (" with TLS" if tls else ""))
        for name, (first, end) in NODES.items():
            lies = hostile and name == HOSTILE
            start_node(flower, out, name, lies=lies, plain=run.secure is None)
            click.echo(f"node {name}: clients {first} to {end - 1}{', hostile' if lies else ''}")
        click.echo("\n".join(what_leaves(run)))
        number = flower.run(app)
        click.echo(f"{method}, {rounds} rounds; a round's line comes after the next one:")
        scenes = {1: lambda: kill_node(flower), 2: lambda: restart_server(flower, app)}
        follow(flower, number, out, scenes=scenes)
    return run


def settings_of(out: Path, method: str, rounds: int, *, hostile: bool) -> RunSettings:
    """Return the demo's run: with sums under masks if they can be, or a rule against a liar."""
    given = {**OF_DEMO, "rounds": rounds, **({"robust": "median"} if hostile else {})}
    config = resolve(method, **read_by(method, given))
    n_clients = max(end for _, end in NODES.values())
    run = RunSettings(config, n_clients, PATIENCE, str(out), secure=SecureSums())
    return with_secure_sums(run, insisted=False, fewest_given=False)


def what_leaves(run: RunSettings) -> list[str]:
    """Return lines on the data that stay on the nodes, and that leave them."""
    return [
        "stays on each node: readings, its clients' models, forecasts",
        "leaves it: an upload, numbers of samples and losses each round; at the end test errors",
        *(f"  {words.typed}" for words in uploads_in_words(run)),
    ]


def start_node(flower: LocalFlower, out: Path, name: str, *, lies: bool, plain: bool) -> None:
    """Start a node of the demo, with a key if the server knows keys."""
    key = None
    if flower.keys:
        key, public = make_node_key(out / "keys", name)
        flower.register(public)
    paths = [str(hostile_node.write(out / "hostile", LIES))] if lies else []
    # With some methods, nodes refuse plain uploads.
    allowed = ["--allow-disclosure"] if plain else []
    flower.start_node(name, out / f"{name}.nc", NODES[name][0], *allowed, key=key, paths=paths)


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
    for name, model in models_of(out):
        forecaster, data = Forecaster.load(model), out / f"{name}.nc"
        table, path = forecaster.predict(data, 24), model.parent / "forecast.csv"
        write_csv(long_table(table, forecaster.predict_interval(data, 24)), path)
        found.append((name, path, float(table.to_numpy().mean())))
    return found


def models_of(out: Path) -> list[tuple[str, Path]]:
    """Return the names of nodes and the models that a run left there."""
    return [(n, m) for n in NODES for m in (out / f"{n}.federation").glob("run-*/model")]


def error_of_nodes(out: Path, run: RunSettings, names: Collection[str]) -> float:
    """Return the test error of some nodes' clients from their own tables."""
    paths = [path for n in names for path in (out / f"{n}.federation").glob("run-*/metrics.csv")]
    return mean_error(pd.concat([pd.read_csv(path) for path in paths]), run.config.run.select)


def in_one_process(
    out: Path, method: str, settings: Mapping[str, Any], names: Collection[str] = SHARES.keys()
) -> float:
    """Return the test error of the same training in one process, on the cells of some nodes."""
    cubes = [open_cube(out / f"{name}.nc").load() for name in SHARES if name in names]
    cube = xr.concat(cubes, "cell", combine_attrs="override")
    forecaster = Forecaster.recorded({"method": method, **settings}).fit(cube)
    return mean_error(forecaster.evaluate(), forecaster.config.run.select)


def mean_error(table: pd.DataFrame, selection: str) -> float:
    """Return the mean test MSE over clients, which all have as many targets."""
    chosen = select(by_client(table), metric="mse", split="test", selection=selection)
    return float(chosen["value"].mean())


if __name__ == "__main__":
    demo()
