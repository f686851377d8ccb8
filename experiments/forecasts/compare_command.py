"""The command that compares finished runs."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from data_prep.base.errors import InputError
from experiments.config_file import IMAGES
from experiments.endings import say_next
from experiments.options import HELP, JSON, PATH, check_runs

if TYPE_CHECKING:
    import pandas as pd

    from stforecast.comparison.leaderboard import Task
    from stforecast.results import ForecastRun

log = logging.getLogger(__name__)

FIGURES = ("critical-difference", "horizon", "hours", "cells")
"""Figures of each task."""


@click.command(context_settings=HELP)
@click.argument("runs", nargs=-1, required=True, type=PATH)
@click.option(
    "--metric",
    help="Error of forecasts to compare, see: stforecast list metrics. mse and mae are of "
    "z-scores, raw_… are in the data's units.  [default: mase]",
)  # fmt: skip
@click.option(
    "--reference",
    help="Label of the row that the others are compared with, or 'seasonal naive'; by default the "
    "row with the lowest error.",
)
@click.option("--out", type=PATH, help="Folder for comparison.md, .csv and .tex, and figures.")
@JSON
def compare(
    runs: tuple[Path, ...], metric: str | None, reference: str | None, out: Path | None,
    as_json: bool,
) -> None:  # fmt: skip
    """Compare finished runs: one sorted table for each data set, with intervals and tests.

    RUNS are folders of runs, benchmarks or backtests. Runs that differ only in the seed or the fold
    are one row. All runs on one data set must be tested on the same targets.

    Image runs are compared by their accuracy and have no --metric.
    """
    check_runs(runs)
    from stforecast.bench.tables import plain
    from stforecast.comparison.leaderboard import compare as compare_runs
    from stforecast.comparison.leaderboard import overall
    from stforecast.comparison.table import (
        basis,
        comparison_rows,
        conclusions,
        legend,
        overall_rows,
    )
    from stforecast.federated.runs.run_folder import check_folder, find_folders, read_about
    from stforecast.results import ForecastRun

    if out is not None:
        check_folder(out)
    first, *_ = find_folders(runs, ForecastRun.command)
    if read_about(first, ForecastRun.command).get("task") == IMAGES:
        from experiments.images.comparison import compare_images

        if metric is not None:
            raise click.UsageError(f"{first} is a run of images, which has no --metric.")
        compare_images(runs, reference, out, as_json=as_json)
        say_next("report", *runs, "--out", "report.html")
        return
    metric = metric or "mase"
    found = ForecastRun.find(runs)
    tasks = compare_runs(found, metric, reference)
    several = overall_rows(overall(tasks), metric) if len(tasks) > 1 else []
    parts = []
    for task in tasks:
        said = [claim.replace("**", "") for claim in conclusions(task.board, task.name)]
        parts += [task.name, plain(comparison_rows(task.board)), *said, *basis(task.board)]
    parts += [f"all {len(tasks)} tasks\n\n{plain(several)}"] if several else []
    columns = "\n".join(legend([task.board for task in tasks]))
    text = "\n\n".join(filter(None, [*parts, columns]))
    click.echo(_numbers(tasks).to_json(orient="records", indent=2) if as_json else text)
    if out is not None:
        _write(out, tasks, several)
        drawn = _draw(out, found, metric)
        click.echo(f"\ncomparison.md, .csv and .tex and {len(drawn)} figures in {out}", err=as_json)
    say_next("report", *runs, "--out", "report.html")


def _write(out: Path, tasks: Sequence[Task], several: list[dict[str, str]]) -> None:
    """Write the tables as Markdown, LaTeX and CSV."""
    from stforecast.bench.tables import latex, markdown, write_comparison
    from stforecast.comparison.table import basis, comparison_rows, conclusions, legend

    page, tables = ["# Comparison"], []
    for task in tasks:
        rows = comparison_rows(task.board)
        page += [f"## {task.name}", markdown(rows), *conclusions(task.board, task.name)]
        page += basis(task.board)
        tables += [f"% {task.name}\n{latex(rows)}"]
    if several:
        page += [f"## All {len(tasks)} tasks", markdown(several)]
        tables += [f"% all tasks\n{latex(several)}"]
    page += legend([task.board for task in tasks])
    write_comparison(out, page, tables, _numbers(tasks))


def _numbers(tasks: Sequence[Task]) -> pd.DataFrame:
    """Return every number of the comparison, one row for each task and method."""
    import pandas as pd

    from stforecast.bench.statistics.estimate import with_ends
    from stforecast.comparison.names import horizon_ahead
    from stforecast.plots.scores import error_name

    rows = []
    for task in tasks:
        for line in task.board.lines:
            estimates = {
                "error": line.error, "last_round_error": line.last,
                "percent_above_reference": line.against,
                "skill_percent": line.skill and line.skill.times(100),
                "wins_percent": line.wins.times(100),
            }  # fmt: skip
            rows.append(
                {
                    "task": task.name, "horizon": horizon_ahead(line.row.first),
                    "method": line.name, "metric": task.board.metric,
                    "error_name": error_name(task.board.metric, line.row.group.runs),
                    "runs": len(line.row.group.runs), "reference": task.board.reference,
                    **with_ends(estimates), "p_value": line.p_value,
                    "train_seconds": line.row.mean_of("train_seconds"),
                    "predict_seconds": line.row.mean_of("predict_seconds"),
                }
            )  # fmt: skip
    return pd.DataFrame(rows)


def _draw(out: Path, runs: Sequence[ForecastRun], metric: str) -> list[Path]:
    """Draw the figures, those of single tasks once for each; a failed one is only logged."""
    import inspect

    from stforecast.bench.curves import labels_of
    from stforecast.bench.drawing import Look, looking, save_figure
    from stforecast.bench.figures import dates_tested
    from stforecast.bench.run_groups import slug
    from stforecast.comparison.leaderboard import APART
    from stforecast.comparison.names import by_task
    from stforecast.plots import PLOTS

    parts = {
        slug(name): [run for group in groups for run in group.runs]
        for name, groups in by_task(runs, APART).items()
    }
    wanted = [("heatmap", "all", list(runs))]
    wanted += [(figure, name, some) for name, some in parts.items() for figure in FIGURES]
    drawn = []
    for figure, name, some in wanted:
        draw = PLOTS.find(figure)
        options = {"metric": metric} if "metric" in inspect.signature(draw).parameters else {}
        try:
            path = out / f"{name}-{figure}.png"
            with looking(Look(among=labels_of(runs))):
                drawn.append(save_figure(draw(some, **options), path, dates_tested(some)))
        except InputError as e:
            log.warning("figure %s of %s: %s", figure, name, e)
    return drawn
