"""Measure hostile nodes over a live SuperLink, beside the same runs in one process.

    python -m experiments.benchmarks.hostile_live --out FOLDER      # needs the extra flower

Five SuperNodes of two clients each are started once on this machine, with `stforecast node`, and
serve one run after the other; one or two of them lie. Settings, behaviours and the measure are
those of `experiments.benchmarks.hostile`, with the defence `clip` and fewer rounds. Each run is
repeated in one process, with the defence, which has to give the same numbers, and without.

Results go to `hostile-live.csv`, and a run that is in it already is not repeated;
`python -m experiments.docs` makes the table of docs/security.md from it.
"""

from __future__ import annotations

import itertools
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pandas as pd

from experiments import hostile_node
from experiments.benchmarks.city_parts import make_cubes
from experiments.benchmarks.hostile import (
    BEHAVIOURS,
    COLUMNS,
    DAYS,
    METHODS,
    SHARE,
    Run,
    be_quiet,
    honest_error,
    hostile_numbers,
    is_absent,
    measure,
    read_rows,
    worst_table,
)
from experiments.local_flower import LocalFlower, follow
from stforecast.federated.nodes.membership import Patience
from stforecast.federated.runs.run_folder import write_csv
from stforecast.flower.settings import write_app

N_NODES, ROUNDS, DEFENCE = 5, 3, "clip"
"""Nodes, rounds, and the server's defence."""

ALONE, BARE = "mse_alone", "mse_bare"
"""Errors of the same run in one process, with the defence and without."""


def runs() -> Iterator[Run]:
    """Return all runs, in an order in which the first few have all behaviours and methods."""
    for method in METHODS:
        yield Run(method, 0, "-", DEFENCE)
    methods, numbers = ["fuels", "fedavg", "fedlean"], sorted(hostile_numbers(N_NODES))[::-1]
    for turn, hostile in itertools.product(range(len(methods)), numbers):
        for i, behaviour in enumerate(BEHAVIOURS):
            method = methods[(i + turn) % len(methods)]
            if not is_absent(method, behaviour):
                yield Run(method, hostile, behaviour, DEFENCE)


class LiveNodes:
    """SuperNodes of which the first may lie.

    Args:
        flower: the processes.
        folder: folder of the nodes' results, and of the runs' apps and results.
        cubes: the nodes' cubes.
    """

    def __init__(self, flower: LocalFlower, folder: Path, cubes: list[Path]) -> None:
        self.flower, self.folder, self.cubes = flower, folder, cubes
        self._n_runs = 0
        for i, path in enumerate(cubes):
            flower.start_node(
                path.stem, path, SHARE * i, f"--out={self._folder_of(i)}",
                paths=[str(self._tell(i, ()))],
            )  # fmt: skip

    def _folder_of(self, i: int) -> Path:
        return self.folder / self.cubes[i].stem

    def _tell(self, i: int, names: tuple[str, ...]) -> Path:
        return hostile_node.write(self.folder / f"lies-{i}", names)

    def measure(self, run: Run) -> dict[str, Any]:
        """Do a run and return its row."""
        for i in range(len(self.cubes)):
            self._tell(i, (run.behaviour,) if i < run.hostile else ())
            for earlier in self._folder_of(i).glob("run-*"):
                shutil.rmtree(earlier)
        self._n_runs += 1
        start, out = time.perf_counter(), self.folder / f"run-{self._n_runs}"
        settings = run.settings(out, Patience(1800, 300), len(self.cubes), rounds=ROUNDS)
        follow(self.flower, self.flower.run(write_app(out / "app", settings)), out, 3600)
        mse = honest_error(self.folder, run, settings.config.run.select, len(self.cubes))
        return {**run._asdict(), "mse": mse, "seconds": time.perf_counter() - start}


def live_table(rows: pd.DataFrame) -> str:
    """Tabulate the worst that hostile nodes do, and tell how far live runs are from one process."""
    heads = {BARE: "no defence", ALONE: f"`{DEFENCE}`", "mse": f"`{DEFENCE}`, live"}
    errors = rows.set_index(list(Run._fields[:-1]))[list(heads)].rename(columns=heads)
    apart = (rows["mse"] / rows[ALONE] - 1).abs().max()
    same = f"differ by {apart:.0e} at most from" if apart else "are equal to"
    return f"{worst_table(errors, N_NODES)}\n\nLive errors {same} those in one process."


@click.command()
@click.option("--out", type=click.Path(path_type=Path), required=True, help="Folder of results.")
@click.option("--minutes", default=25.0, show_default=True, help="No run begins later.")
def main(out: Path, minutes: float) -> None:
    """Measure the honest nodes' errors beside hostile ones over a SuperLink."""
    be_quiet()
    path, end = out / "hostile-live.csv", time.monotonic() + 60 * minutes
    columns = [*COLUMNS, ALONE, BARE]
    rows, done = read_rows(path)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        cubes = make_cubes(folder, N_NODES, SHARE, DAYS)
        with LocalFlower(folder / "logs") as flower:
            nodes = LiveNodes(flower, folder, cubes)
            for run in runs():
                if run in done or time.monotonic() > end:
                    continue
                alone, bare = (
                    measure(each, cubes, rounds=ROUNDS)["mse"]
                    for each in (run, run._replace(robust="none"))
                )
                row = nodes.measure(run) | {ALONE: alone, BARE: bare}
                rows.append(row)
                click.echo(row)
                write_csv(pd.DataFrame(rows, columns=columns), path)
    click.echo(live_table(pd.DataFrame(rows, columns=columns)))


if __name__ == "__main__":
    main()
