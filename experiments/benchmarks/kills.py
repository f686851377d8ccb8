"""Kill a federation's server or nodes at random moments; compare with a run that nothing disturbs.

    python -m experiments.benchmarks.kills --kills 30 --out FOLDER     # needs the extra flower

A benchmark that was ended goes on with the next run; kills of a run that was not complete do not
count.

Three nodes train over a SuperLink on this machine. Again and again, at a random moment, the
SuperLink or its ServerApp is killed and started again. A run that ends is compared with the same
run of the nodes' and the server's classes in one process, round by round, and the next begins.

With `--target node`, a SuperNode is killed instead, with all else that its `stforecast node` had
started and starts again. The rounds meanwhile go on without its clients, so only the run's test
error is compared. Take more rounds, such as 20: a node is back after a minute (Flower's lease). The
last rounds of a run are left in peace, so that its nodes are there at the end.
"""

from __future__ import annotations

import json
import math
import random
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import numpy as np
import pandas as pd
import psutil

from data_prep.base.errors import InputError
from experiments.benchmarks.hostile import WireLink
from experiments.benchmarks.results import save
from experiments.federation_demo import SETTINGS, SHARES, make_cubes
from experiments.local_flower import LocalFlower, events_of
from stforecast.federated.nodes.membership import Patience
from stforecast.flower.server_app import serve
from stforecast.flower.settings import RunSettings, write_app
from stforecast.forecasting.config import resolve

TARGETS = {"server": ("superlink", "serverapp"), "node": tuple(SHARES)}
"""What is killed."""

LONGEST = 60.0
"""Seconds within which a kill follows the moment at which all clients are connected."""

PEACE = 4
"""Rounds at the end of a run in which no node is killed."""

COMPARED = ("participants", "failed", "train_loss", "validation_loss", "bytes_up")
"""Columns of a run's rounds that the kills must not change."""


class Killed:
    """Runs over a SuperLink of which something is killed now and then.

    Args:
        flower: the processes.
        folder: folder of the runs.
        settings: settings of the method.
        random: source of targets and moments.
    """

    def __init__(
        self, flower: LocalFlower, folder: Path, settings: dict[str, Any], random: random.Random
    ) -> None:
        self.flower, self.folder, self.random = flower, folder, random
        self.settings = settings
        self.kills: list[dict[str, Any]] = []

    def run(self, n_kills: int, target: str) -> Path:
        """Do one run, killing until `kills` has `n_kills`, and return the server's folder.

        Args:
            n_kills: number of kills.
            target: one of `TARGETS`.
        """
        out = self.folder / f"run-{time.monotonic_ns()}"
        app = write_app(out / "app", run_settings(out, self.settings))
        self.flower.run(app)
        seen, end, killed = 0, time.monotonic() + 3600, math.inf
        while not (out / "federation.json").exists():
            if time.monotonic() > end:
                raise InputError(f"the run takes too long; see {out} and {self.flower.folder}")
            time.sleep(0.2)
            if _times_complete(out, target) <= seen:
                continue
            seen += 1
            if killed < math.inf:
                self.kills[-1]["seconds"], killed = time.monotonic() - killed, math.inf
            if len(self.kills) == n_kills:
                continue
            time.sleep(self.random.uniform(0, LONGEST))
            if not self._nears_its_end(out, target):
                killed = time.monotonic()
                self._kill(self.random.choice(TARGETS[target]), out, app)
        return out

    def _nears_its_end(self, out: Path, target: str) -> bool:
        """Return whether a run is done, or too far on for a node to come back."""
        left = self.settings["rounds"] - len(events_of(out, "round"))
        return (out / "federation.json").exists() or (target == "node" and left <= PEACE)

    def _kill(self, target: str, out: Path, app: Path) -> None:
        """Kill one of the targets and start it again, if nothing else does."""
        self.kills.append({"target": target, "rounds": len(events_of(out, "round"))})
        click.echo(f"{len(self.kills)}. kill: {target}, {self.kills[-1]['rounds']} rounds reported")
        if target == "superlink":
            self.flower.restart_superlink()
            self.flower.run(app)
        elif target == "serverapp":
            for process in psutil.Process(self.flower.running["superlink"].pid).children(True):
                if "flwr-serverapp" in " ".join(process.cmdline()):
                    process.kill()
            self.flower.run(app)
        else:
            self.flower.kill_supernode(target)


def _times_complete(out: Path, target: str) -> int:
    """Return how often all clients were connected: at each start of a server, or of nodes."""
    if target == "server":
        return len(events_of(out, "gathered"))
    return max(0, len(events_of(out, "joined")) - len(SHARES) + 1)


def run_settings(out: Path, settings: dict[str, Any]) -> RunSettings:
    """Return the settings of a run with results in a folder."""
    config = resolve("fedavg", **settings)
    return RunSettings(config, SHARES["south"][1], Patience(start=300, answer=120), str(out))


def undisturbed(folder: Path, cubes: list[Path], settings: dict[str, Any]) -> Path:
    """Do the run with nodes in this process, and return the server's folder."""
    out = folder / "undisturbed"
    run = run_settings(out, settings)
    configs = {
        i: {"data": str(cube), "first-client": first, "out": str(folder / f"alone-{i}")}
        for i, (cube, (first, _)) in enumerate(zip(cubes, SHARES.values(), strict=True))
    }
    serve(WireLink(run, configs, {}), run)
    return out


def difference(out: Path, expected: Path, columns: Sequence[str] = COMPARED) -> float:
    """Return the largest relative difference of two runs' test errors and rounds.

    Args:
        out: folder of one run.
        expected: folder of the other.
        columns: columns of the rounds.
    """
    values = [
        np.append(pd.read_csv(folder / "rounds.csv")[list(columns)].to_numpy(float),
                  json.loads((folder / "federation.json").read_text())["test"]["mse"])
        for folder in (out, expected)
    ]  # fmt: skip
    scale = np.maximum(np.abs(values[1]), 1e-12)
    return float(np.max(np.abs(values[0] - values[1]) / scale))


def told(out: Path, expected: Path, target: str) -> dict[str, Any]:
    """Return what a run tells beside the undisturbed one.

    Args:
        out: its folder.
        expected: folder of the undisturbed run.
        target: what was killed, one of `TARGETS`.

    Returns:
        The `difference`, answers `left_out`, the part of the clients' rounds that they `missed`,
        and whether all nodes `finished`.
    """
    table = pd.read_csv(out / "rounds.csv")
    answered = (table["participants"] - table["failed"]).sum()
    whole = pd.read_csv(expected / "rounds.csv")["participants"].sum()
    return {
        "difference": difference(out, expected, COMPARED if target == "server" else ()),
        "left_out": int(table["failed"].sum()),
        "missed": 1 - float(answered / whole),
        "finished": json.loads((out / "federation.json").read_text())["nodes"] == len(SHARES),
    }


def begun(path: Path, target: str, rounds: int) -> dict[str, Any]:
    """Return the results so far.

    Raises:
        InputError: if they are of runs with other rounds.
    """
    if not path.exists():
        return {"target": target, "rounds": rounds, "kills": [], "runs": []}
    found: dict[str, Any] = json.loads(path.read_text())
    if found["rounds"] != rounds:
        raise InputError(
            f"{path}: has runs of {found['rounds']} rounds; give --rounds or remove it"
        )
    return found


@click.command()
@click.option("--kills", default=30, show_default=True, help="Number of kills.")
@click.option("--rounds", default=6, show_default=True, help="Rounds of a run.")
@click.option("--target", type=click.Choice(list(TARGETS)), default="server", show_default=True)
@click.option("--seed", default=1, show_default=True, help="Seed of targets and moments.")
@click.option("--out", type=click.Path(path_type=Path), required=True, help="Folder of results.")
def main(kills: int, rounds: int, target: str, seed: int, out: Path) -> None:
    """Kill at random moments, and compare each run with one that nothing disturbs."""
    settings, path = SETTINGS | {"lr": 0.01, "rounds": rounds}, out / f"kills-{target}.json"
    results = begun(path, target, rounds)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        cubes = make_cubes(folder)
        expected = undisturbed(folder, cubes, settings)
        with LocalFlower(folder / "logs") as flower:
            for cube, (name, (first, _)) in zip(cubes, SHARES.items(), strict=True):
                flower.start_node(name, cube, first)
            source = random.Random(seed + len(results["kills"]))
            killed = Killed(flower, folder, settings, source)
            killed.kills = results["kills"]
            while len(killed.kills) < kills:
                done = killed.run(kills, target)
                results["runs"].append(told(done, expected, target))
                click.echo(f"a run of {rounds} rounds is complete: {results['runs'][-1]}")
                save(results, path)


if __name__ == "__main__":
    main()
