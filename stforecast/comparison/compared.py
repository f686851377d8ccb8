"""Comparison of finished forecasts for the terminal and in files, with figures."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pandas as pd

from data_prep.base.errors import InputError
from data_prep.base.text import slug
from stforecast.bench.curves import labels_of
from stforecast.bench.drawing import Look, looking, save_figure
from stforecast.bench.figures import dates_tested
from stforecast.bench.kind import Compared
from stforecast.bench.statistics.estimate import with_ends
from stforecast.bench.tables import for_terminal, latex, markdown, write_comparison
from stforecast.comparison.leaderboard import APART, Task, compare, overall
from stforecast.comparison.names import by_task, horizon_ahead
from stforecast.comparison.table import (
    basis,
    comparison_rows,
    conclusions,
    legend,
    overall_rows,
)
from stforecast.forecasting.results import ForecastRun
from stforecast.plots import PLOTS
from stforecast.plots.scores import error_name

log = logging.getLogger(__name__)

FIGURES = ("critical-difference", "horizon", "hours", "cells")
"""Figures of each task."""


def compare_forecasts(runs: Sequence[ForecastRun], metric: str, reference: str | None) -> Compared:
    """Compare finished forecasts: a sorted table for each data set, with intervals and tests."""
    tasks = compare(runs, metric, reference)
    several = overall_rows(overall(tasks), metric) if len(tasks) > 1 else []
    parts = []
    for task in tasks:
        said = [claim.replace("**", "") for claim in conclusions(task.board, task.name)]
        parts += [task.name, for_terminal(comparison_rows(task.board)), *said, *basis(task.board)]
    parts += [f"all {len(tasks)} tasks\n\n{for_terminal(several)}"] if several else []
    columns = "\n".join(legend([task.board for task in tasks]))
    text = "\n\n".join(filter(None, [*parts, columns]))
    return Compared(text, _numbers(tasks), partial(_write, runs, tasks, several))


def _write(
    runs: Sequence[ForecastRun], tasks: Sequence[Task], several: list[dict[str, str]], out: Path
) -> int:
    """Write the tables as Markdown, LaTeX and CSV; return the number of figures drawn."""
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
    return len(_draw(out, runs, tasks[0].board.metric))


def _numbers(tasks: Sequence[Task]) -> pd.DataFrame:
    """Return every number of the comparison, one row for each task and method."""
    rows = []
    for task in tasks:
        for line in task.board.lines:
            estimates = {
                "error": line.error,
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
