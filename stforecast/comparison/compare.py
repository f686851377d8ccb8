"""Leaderboards of runs by data, service and horizon, and skill over all of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from data_prep.errors import InputError, choose
from stforecast.bench.statistics.estimate import Estimate
from stforecast.bench.statistics.scores import skill, win_rate
from stforecast.comparison.errors import SEASONAL
from stforecast.comparison.leaderboard import Leaderboard, leaderboard
from stforecast.comparison.rows import Row
from stforecast.comparison.tasks import by_task
from stforecast.results import ForecastRun

APART = ("service", "horizon", "path")
"""Facts in which the runs of one task agree, see `by_task`."""


@dataclass(frozen=True, eq=False)
class Task:
    """Runs on one test part.

    Attributes:
        name: name of the data, and what distinguishes it from other tasks.
        board: their leaderboard.
    """

    name: str
    board: Leaderboard


@dataclass(frozen=True)
class Overall:
    """One method over all tasks.

    Attributes:
        name: name of the method.
        skill: against seasonal naive; None if a task has no seasonal naive.
        wins: share of other methods × clients with a higher error, mean over tasks.
        error_ranks: rank by pooled error in each task.
    """

    name: str
    skill: Estimate | None
    wins: Estimate
    error_ranks: tuple[int, ...]


def compare(
    runs: Sequence[ForecastRun], metric: str = "mase", reference: str | None = None
) -> list[Task]:
    """Compare runs, those of each data set, service and horizon by themselves.

    Of methods with several models, the first is compared.

    Args:
        runs: finished runs.
        metric: error to compare, as in `metrics.csv`.
        reference: label of the runs that the others are compared with, or `SEASONAL`; by default
            those of the lowest error in each task.

    Raises:
        InputError: if runs of one task were tested on different targets, the metric is unknown, or
            no task has the reference.
    """
    tasks = []
    known: set[str] = set()
    for name, groups in by_task(runs, APART).items():
        rows = [Row(group) for group in groups]
        names = {row.name for row in rows} | {SEASONAL}
        known |= names
        own = reference if reference in names else None
        tasks.append(Task(name, leaderboard(rows, metric, own)))
    if reference is not None and reference not in known:
        raise choose("reference", reference, known)
    if not tasks:
        raise InputError("no runs to compare; give folders of finished runs")
    return tasks


def overall(tasks: Sequence[Task]) -> list[Overall]:
    """Judge the methods that have a row in every task over all of them, best skill first."""
    boards = [task.board for task in tasks]
    names = [
        line.name
        for line in boards[0].lines
        if all(line.name in {other.name for other in board.lines} for board in boards)
    ]
    with_naive = all(SEASONAL in board.replicates.pooled for board in boards)
    ours = [board.replicates.only(names) for board in boards]
    whole = [board.replicates for board in boards]
    found = [
        Overall(
            name,
            skill(whole, name, SEASONAL) if with_naive else None,
            win_rate(ours, name),
            tuple(_rank(board, name) for board in boards),
        )
        for name in names
    ]
    return sorted(found, key=lambda one: -(one.skill or one.wins).value)


def _rank(board: Leaderboard, name: str) -> int:
    """Return the place of a method by its error, from 1."""
    errors = {line.name: line.error.value for line in board.lines}
    return 1 + sum(error < errors[name] for error in errors.values())
