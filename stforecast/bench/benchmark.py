"""Execution of a benchmark: missing runs, tables and figures."""

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
    """Result of a benchmark.

    Attributes:
        runs: finished runs.
        failures: one-line error of each failed run, by its folder below `runs/`.
        table: table of the results, as Markdown.
        gallery: its figures.
    """

    runs: Sequence[R]
    failures: Mapping[str, str]
    table: str
    gallery: Gallery


def run_grid(
    grid: Grid[R], out: Path, *, progress: bool = False, engine: str = LOCAL
) -> Outcome[R]:
    """Execute all missing runs of the grid, write the tables and draw the figures.

    A failed run is recorded in its folder and in the table and does not stop the others; it is
    retried the next time.

    Args:
        grid: the benchmark.
        out: folder for `runs/`, `figures/`, `table.md`, `metrics.csv` and further tables.
        progress: whether to show progress bars.
        engine: `local`, or `ray` for runs in parallel.

    Raises:
        InputError: if `out` holds runs with other settings or another process writes there, two
            runs would share a folder, or data cannot be created.
    """
    with locked(out):
        jobs = grid_jobs(grid, out, progress)
        runs, failures = do_jobs(jobs, grid.title, out / "runs", progress, engine)
        gallery = draw_figures(grid.figures, runs, out / "figures", grid.kind.plots)
        table = grid.kind.results_table(grid, runs, failures)
        table = f"{grid.note}\n\n{table}" if grid.note else table
        _write_tables(grid, runs, out)
        write_page(out, grid.title, grid.repeat(out), runs, table, gallery)
    return Outcome(runs, failures, table, gallery)


def _write_tables(grid: Grid[R], runs: Sequence[R], out: Path) -> None:
    """Write the tables of all runs, one file for each kind of table."""
    parts: dict[str, list[pd.DataFrame]] = {}
    for run in runs:
        for name, table in grid.kind.tables(run).items():
            parts.setdefault(name, []).append(_identified(table, run))
    for name, tables in parts.items():
        write_csv(pd.concat(tables), out / f"{name}.csv")


def _identified(table: pd.DataFrame, run: Run) -> pd.DataFrame:
    """Return a table with further columns that identify the run."""
    facts: dict[str, Any] = {"label": run.label, **run.facts(), "seed": run.seed}
    return table.assign(**{name: fact for name, fact in facts.items() if name not in table})
