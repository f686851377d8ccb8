"""Comparison of finished forecasts for the terminal and in files, with figures."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from data_prep.base.errors import slug
from stforecast.bench.figures import draw_all
from stforecast.bench.statistics.estimate import with_ends
from stforecast.bench.tables import Compared, ComparedTable
from stforecast.comparison import table
from stforecast.comparison.leaderboard import BOARD_FACTS, Leaderboard, claims, compare, overall
from stforecast.comparison.names import by_task, error_name, horizon_ahead
from stforecast.forecasting.results import ForecastRun
from stforecast.plots import PLOTS

FIGURES = ("critical-difference", "horizon", "hours", "cells")
"""Figures of each task."""


def compare_forecasts(runs: Sequence[ForecastRun], metric: str, reference: str | None) -> Compared:
    """Compare finished forecasts: a sorted table for each data set, with intervals and tests."""
    boards = compare(runs, metric, reference)
    tables = [
        ComparedTable(b.task, table.comparison_rows(b), claims(b), table.basis(b), _numbers(b))
        for b in boards
    ]
    if len(boards) > 1 and (rows := table.overall_rows(overall(boards), metric)):
        tables.append(ComparedTable(f"all {len(boards)} tasks", rows))
    return Compared(tables, table.legend(boards), partial(_draw, runs, metric))


def _numbers(board: Leaderboard) -> list[dict[str, object]]:
    """Return every number of a task, one row for each method."""
    return [
        {
            "task": board.task,
            "horizon": horizon_ahead(line.row.first),
            "method": line.name,
            "metric": board.metric,
            "error_name": error_name(board.metric, line.row.group.runs),
            "runs": len(line.row.group.runs),
            "reference": board.reference,
            **with_ends(
                {
                    "error": line.error,
                    "percent_above_reference": line.against,
                    "skill_percent": line.skill and line.skill.times(100),
                    "wins_percent": line.wins.times(100),
                }
            ),
            "p_value": line.p_value,
            "train_seconds": line.row.mean_of("train_seconds"),
            "predict_seconds": line.row.mean_of("predict_seconds"),
        }
        for line in board.lines
    ]


def _draw(runs: Sequence[ForecastRun], metric: str, out: Path) -> int:
    """Draw the figures, once per task if they show one task; a failed one is only logged."""
    parts = {
        slug(name): [run for group in groups for run in group.runs]
        for name, groups in by_task(runs, BOARD_FACTS).items()
    }
    wanted = [("all", "heatmap", runs)]
    wanted += [(name, figure, some) for name, some in parts.items() for figure in FIGURES]
    figures = {
        out / f"{name}-{figure}.png": (partial(PLOTS.find(figure), metric=metric), some)
        for name, figure, some in wanted
    }
    return len(draw_all(figures, runs).drawn)
