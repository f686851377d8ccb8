"""Measure federations over a live SuperLink on this machine: hostile nodes, and kills.

Both compare with runs of the nodes' and the server's classes in one process; both need the extra
flower. A call that was ended goes on with the next run.
"""

from __future__ import annotations

import itertools
import json
import math
import random
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import click
import numpy as np
import pandas as pd
import psutil

from data_prep.base.errors import InputError
from experiments import hostile_node
from experiments.benchmarks import hostile
from experiments.benchmarks.frame import Results, benchmark, quiet, timed
from experiments.federation_demo import SETTINGS, SHARES, make_cubes
from experiments.local_flower import LocalFlower, events_of, follow
from stforecast.federated.nodes.membership import Patience
from stforecast.flower.server_app import serve
from stforecast.flower.settings import RunSettings, write_app
from stforecast.forecasting.config import resolve

N_NODES, ROUNDS, DEFENCE = 5, 3, "clip"
"""Nodes, rounds, and the server's defence."""

ALONE, BARE = "mse_alone", "mse_bare"
"""Errors of the same run in one process, with the defence and without."""

TARGETS = {"server": ("superlink", "serverapp"), "node": tuple(SHARES)}
"""Processes that may be killed, by the option `target`."""

LONGEST = 60.0
"""Seconds within which a kill follows the moment at which all clients are connected."""

PEACE = 4
"""Rounds at the end of a run in which no node is killed."""

COMPARED = ("participants", "failed", "train_loss", "validation_loss", "bytes_up")
"""Columns of a run's rounds that the kills must not change."""


@benchmark("hostile-live.csv", goes_on=True)
def hostile_live(results: Results, *, minutes: float = 25.0) -> str:
    """Measure hostile nodes over a live SuperLink, and the same runs in one process.

    Five SuperNodes of two clients each are started once on this machine, with `stforecast node`,
    and serve one run after the other; one or two of them lie. Settings, behaviours and the measure
    are those of the benchmark `hostile`, with the defence `clip` and fewer rounds. Each run is
    repeated in one process, with the defence, which has to give the same numbers, and without.

    Args:
        results: gets a row for each run.
        minutes: minutes after which no run begins.
    """
    end = time.monotonic() + 60 * minutes
    with (
        hostile.cubes_of(N_NODES, hostile.SHARE, hostile.DAYS) as cubes,
        tempfile.TemporaryDirectory() as name,
        LocalFlower(Path(name) / "logs") as flower,
        quiet(),
    ):
        nodes = LiveNodes(flower, Path(name), cubes)
        for run in runs():
            if results.has(**run._asdict()) or time.monotonic() > end:
                continue
            alone, bare = (
                hostile.honest_error_of(each, cubes, rounds=ROUNDS)
                for each in (run, run._replace(robust="none"))
            )
            mse, seconds, _ = timed(nodes.measure, run)
            row = {**run._asdict(), "mse": mse, "seconds": seconds, ALONE: alone, BARE: bare}
            results.add(row)
            click.echo(row)
    return live_table(pd.DataFrame(results.rows))


@benchmark("kills-{target}.json", goes_on=True)
def kills(
    results: Results,
    *,
    times: int = 30,
    rounds: int = 6,
    target: Literal["server", "node"] = "server",
    seed: int = 1,
) -> str:
    """Kill at random moments, and compare each run with one that nothing disturbs.

    Three nodes train over a SuperLink on this machine. Again and again, at a random moment, the
    SuperLink or its ServerApp is killed and started again. A run that ends is compared with the
    same run in one process, round by round, and the next begins. Kills of a run that was not
    complete do not count.

    With `--target node`, a SuperNode is killed instead, with all else that its `stforecast node`
    had started and starts again. The rounds meanwhile go on without its clients, so only the run's
    test error is compared. Take more rounds, such as 20: a node is back after a minute (Flower's
    lease). The last rounds of a run are left in peace, so that its nodes are there at the end.

    Args:
        results: gets all kills and runs.
        times: number of kills.
        rounds: rounds of a run.
        target: what is killed.
        seed: seed of targets and moments.
    """
    results.fix(rounds=rounds)
    done = results.about.setdefault("kills", [])
    told_runs = results.about.setdefault("runs", [])
    settings = SETTINGS | {"lr": 0.01, "rounds": rounds}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        cubes = make_cubes(folder)
        expected = undisturbed(folder, cubes, settings)
        with LocalFlower(folder / "logs") as flower:
            for cube, (name, (first, _)) in zip(cubes, SHARES.items(), strict=True):
                flower.start_node(name, cube, first)
            random.seed(seed + len(done))
            killed = Killed(flower, folder, settings, done)
            while len(done) < times:
                told_runs.append(differences_of_runs(killed.run(times, target), expected, target))
                results.add()
                click.echo(f"a run of {rounds} rounds is complete: {told_runs[-1]}")
    return f"{len(done)} kills in {len(told_runs)} runs"


def runs() -> Iterator[hostile.HostileRun]:
    """Return all runs, in an order in which the first few have all behaviours and methods."""
    for method in hostile.METHODS:
        yield hostile.HostileRun(method, 0, "-", DEFENCE)
    methods = ["fuels", "fedavg", "fedlean"]
    numbers = sorted(hostile.hostile_numbers(N_NODES), reverse=True)
    for turn, liars in itertools.product(range(len(methods)), numbers):
        for i, behaviour in enumerate(hostile.BEHAVIOURS):
            method = methods[(i + turn) % len(methods)]
            if not hostile.is_absent(method, behaviour):
                yield hostile.HostileRun(method, liars, behaviour, DEFENCE)


class LiveNodes:
    """SuperNodes; the first may lie."""

    def __init__(self, flower: LocalFlower, folder: Path, cubes: list[Path]) -> None:
        self.flower, self.folder, self.cubes = flower, folder, cubes
        self._n_runs = 0
        for i, path in enumerate(cubes):
            # A rule against liars needs plain uploads.
            own = (f"--out={self._folder_of(i)}", "--allow-disclosure")
            lies = [str(self._tell(i, ()))]
            flower.start_node(path.stem, path, hostile.SHARE * i, *own, paths=lies)

    def _folder_of(self, i: int) -> Path:
        return self.folder / self.cubes[i].stem

    def _tell(self, i: int, names: tuple[str, ...]) -> Path:
        return hostile_node.write(self.folder / f"lies-{i}", names)

    def measure(self, run: hostile.HostileRun) -> float:
        """Do a run and return the honest nodes' error."""
        for i in range(len(self.cubes)):
            self._tell(i, (run.behaviour,) if i < run.hostile else ())
            for earlier in self._folder_of(i).glob("run-*"):
                shutil.rmtree(earlier)
        self._n_runs += 1
        out = self.folder / f"run-{self._n_runs}"
        settings = run.settings(out, Patience(1800, 300), len(self.cubes), rounds=ROUNDS)
        follow(self.flower, self.flower.run(write_app(out / "app", settings)), out, 3600)
        return hostile.honest_error(self.folder, run, settings.config.run.select, len(self.cubes))


def live_table(rows: pd.DataFrame) -> str:
    """Tabulate the worst that hostile nodes do, in live runs and in one process."""
    heads = {BARE: "no defence", ALONE: f"`{DEFENCE}`", "mse": f"`{DEFENCE}`, live"}
    errors = rows.set_index(list(hostile.HostileRun._fields[:-1]))[list(heads)].rename(
        columns=heads
    )
    return hostile.worst_table(errors, N_NODES)


class Killed:
    """Runs over a SuperLink in which processes are killed now and then, and all kills so far."""

    def __init__(
        self, flower: LocalFlower, folder: Path, settings: dict[str, Any], kills: list[Any]
    ) -> None:
        self.flower, self.folder, self.settings, self.kills = flower, folder, settings, kills

    def run(self, n_kills: int, target: str) -> Path:
        """Do one run, killing until there are `n_kills` kills; return the server's folder."""
        out = self.folder / f"run-{time.monotonic_ns()}"
        app = write_app(out / "app", run_settings(out, self.settings))
        self.flower.run(app)
        seen, end, killed = 0, time.monotonic() + 3600, math.inf
        # All clients are connected when a server has gathered them, and when the last node joins.
        event, n_first = ("gathered", 1) if target == "server" else ("joined", len(SHARES))
        while not (out / "federation.json").exists():
            if time.monotonic() > end:
                raise InputError(f"the run takes too long; see {out} and {self.flower.folder}")
            time.sleep(0.2)
            if len(events_of(out, event)) < n_first + seen:
                continue
            seen += 1
            if killed < math.inf:
                self.kills[-1]["seconds"], killed = time.monotonic() - killed, math.inf
            if len(self.kills) == n_kills:
                continue
            time.sleep(random.uniform(0, LONGEST))
            left = self.settings["rounds"] - len(events_of(out, "round"))
            too_late = target == "node" and left <= PEACE  # For a node to come back.
            if not (too_late or (out / "federation.json").exists()):
                killed = time.monotonic()
                self._kill(random.choice(TARGETS[target]), out, app)
        return out

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
    serve(hostile.WireLink(run, configs, {}), run)
    return out


def difference(out: Path, expected: Path, columns: Sequence[str] = COMPARED) -> float:
    """Return the largest relative difference of two runs' test errors and rounds."""

    def numbers(folder: Path) -> np.ndarray:
        rounds = pd.read_csv(folder / "rounds.csv")[list(columns)].to_numpy(float)
        return np.append(
            rounds, json.loads((folder / "federation.json").read_text())["test"]["mse"]
        )

    ours, theirs = numbers(out), numbers(expected)
    return float(np.max(np.abs(ours - theirs) / np.maximum(np.abs(theirs), 1e-12)))


def differences_of_runs(out: Path, expected: Path, target: str) -> dict[str, Any]:
    """Compare a run with the undisturbed one.

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
