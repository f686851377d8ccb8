"""Runs a benchmark, keeps what is finished and writes the tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic

import pandas as pd

from stforecast.bench.figures import Gallery, draw_figures
from stforecast.bench.grid import Grid
from stforecast.bench.jobs import do_jobs, grid_jobs
from stforecast.bench.ray_engine import LOCAL
from stforecast.bench.run_groups import R
from stforecast.bench.tables import write_page
from stforecast.federated.runs.run import Run
from stforecast.federated.runs.run_folder import write_csv
from stforecast.federated.runs.run_lock import locked


@dataclass(frozen=True)
class Outcome(Generic[R]):
    """What became of a benchmark.

    Attributes:
        runs: finished runs.
        failures: folder of each failed run below `runs/` to its error's one line.
        table: of the results, as Markdown.
        gallery: its figures.
    """

    runs: Sequence[R]
    failures: Mapping[str, str]
    table: str
    gallery: Gallery


def run_grid(
    grid: Grid[R], out: Path, *, progress: bool = False, engine: str = LOCAL
) -> Outcome[R]:
    """Do every run of the grid that is not done yet, write the tables and draw the figures.

    A run that fails is noted in its folder and in the table and does not stop the others; it is
    tried again the next time.

    Args:
        grid: the benchmark.
        out: folder for `runs/`, `figures/`, `metrics.csv` and `table.md`.
        progress: whether to show progress bars.
        engine: `local`, or `ray` for many runs at a time.

    Raises:
        InputError: if `out` holds runs with other settings or another process writes there, two
            runs would share a folder, or data cannot be made.
    """
    with locked(out):
        jobs = grid_jobs(grid, out, progress)
        runs, failures = do_jobs(jobs, grid.title, out / "runs", progress, engine)
        gallery = draw_figures(grid.figures, runs, out / "figures", grid.kind.plots)
        table = grid.kind.results_table(runs, failures, grid.published)
        if runs:
            write_csv(pd.concat([_metrics(run) for run in runs]), out / "metrics.csv")
        write_page(out, grid.title, grid.repeat(out), runs, table, gallery)
    return Outcome(runs, failures, table, gallery)


def _metrics(run: Run) -> pd.DataFrame:
    """`metrics.csv`, and what tells the run from others where its columns do not say it."""
    table = run.metrics().assign(label=run.label)
    facts: dict[str, Any] = {**run.facts(), "seed": run.seed}
    for name, fact in facts.items():
        if name not in table:
            table[name] = fact
    return table
