"""Tables of leaderboards, ranks over clients, and errors by cell and step ahead."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

import numpy as np
import pandas as pd

from data_prep.base.errors import InputError, counted
from stforecast.bench.run_groups import ALL, RunGroup, by_client, select
from stforecast.bench.statistics.bootstrap import Replicates, log_ratio
from stforecast.bench.statistics.estimate import Ranking, rank
from stforecast.bench.tables import Cell, number
from stforecast.comparison.errors import SEASONAL, variables
from stforecast.comparison.leaderboard import Leaderboard, Overall
from stforecast.comparison.names import error_title, short_title
from stforecast.comparison.rows import Row, by_seed, joined_errors
from stforecast.forecasting.results import ForecastRun

AGAINST = "against reference, %"
"""Column of numbers of a difference from the reference, whatever its name."""


def comparison_rows(board: Leaderboard, ranking: Ranking | None = None) -> list[dict[str, str]]:
    """Return the rows of a leaderboard's table, from the lowest error to the highest."""
    names = [line.name for line in board.lines]
    ranks = {} if ranking is None else dict(zip(names, ranking.ranks, strict=True))
    several = len(board.lines) > 1
    reference, rows = board.reference, []
    for line in board.sorted_lines:
        leads = line.name == reference
        row: dict[str, str] = {"method": Cell(line.name, {"{}": line.name, "reference": reference})}
        row[f"{error_title(board.metric)} [95 %]"] = line.error.cell()
        if several:
            row[f"against {reference}, %"] = "-" if leads else line.against.cell(AGAINST)
            row["p"] = number(line.p_value, ".2g")
        if line.skill is not None:
            row[f"skill in {short_title(board.metric)}, %"] = line.skill.times(100).cell()
        if several:
            row["wins, %"] = line.wins.times(100).cell()
        if ranks:
            row["rank"] = number(ranks[line.name], ".2f")
        rows.append(row)
    return rows


def overall_rows(methods: Sequence[Overall], metric: str) -> list[dict[str, str]]:
    """Return the rows of the table over all tasks; wins and places need several methods."""
    several, title = len(methods) > 1, f"skill in {short_title(metric)}, %"
    return [
        {
            "method": one.name,
            **({title: one.skill.times(100).cell()} if one.skill is not None else {}),
            **({"wins, %": one.wins.times(100).cell()} if several else {}),
            **({"place in each task": ", ".join(map(str, one.error_ranks))} if several else {}),
        }
        for one in methods
    ]


def resampled_units(replicates: Replicates, n_days: int) -> str:
    """Return what a bootstrap over so many test days resampled, with its degrees of freedom.

    Of successive days that are drawn together, each block counts as one unit.
    """
    n_blocks, n_groups = replicates.n_days, replicates.n_groups
    n_seeds = max(replicates.n_seeds.values())
    blocks = n_days // n_blocks > 1
    days = f"{n_blocks} blocks of two test days" if blocks else counted(n_days, "test day")
    units = {days: n_blocks, f"{n_groups} groups of neighbouring cells": n_groups}
    units |= {f"up to {counted(n_seeds, 'seed')}": n_seeds}
    several = [
        f"{name} ({counted(n - 1, 'degree')} of freedom)" for name, n in units.items() if n > 1
    ]
    return ", ".join(several or [days])


def basis(board: Leaderboard) -> list[str]:
    """Return what the intervals of one table are about, and which cells and rows it lacks."""
    n_seeds = {line.name: board.replicates.n_seeds[line.name] for line in board.lines}
    n_groups, most = board.replicates.n_groups, max(n_seeds.values())
    resampled = resampled_units(board.replicates, len(board.errors.days))
    fixed = [] if n_groups > 1 else ["these cells"]
    fixed += [] if most > 1 else ["this seed"]
    about = f"; it holds for {' and '.join(fixed)} only" if fixed else ""
    found = [
        f"[95 %]: interval from a bootstrap over {resampled}{about}. "
        "The day of a window is that of its first target."
    ]
    if single := [name for name, n in n_seeds.items() if n == 1 < most]:
        found.append(f"Seeds are not resampled for rows with a single seed: {'; '.join(single)}.")
    known = next(iter(board.errors.sums.values())).weight[0].any(axis=1)
    if not known.all():
        absent = f"{counted(int((~known).sum()), 'cell')} of {len(known)}"
        found.append(
            f"Left out: {absent}, without a target or, for scaled errors, without a change from "
            "day to day in training."
        )
    if board.errors.incomplete:
        found.append(f"Left out, since folds are missing: {', '.join(board.errors.incomplete)}.")
    return found


def legend(boards: Sequence[Leaderboard]) -> list[str]:
    """Return what the columns of `comparison_rows` mean."""
    several = any(len(board.lines) > 1 for board in boards)
    found = []
    if several:
        names = {board.reference for board in boards}
        found.append(
            f"against {names.pop() if len(names) == 1 else '…'}: how much higher the error is, "
            "negative if it is lower; p: p-value of no difference, from a test that swaps the "
            "errors of the two methods day by day, with Holm's correction. A difference is called "
            "significant only if both the interval and p say so."
        )
    if any(line.row.table for board in boards for line in board.lines):
        found.append(
            "Holm's correction counts the main methods, and the rows of each further table of a "
            "benchmark, such as its ablations, by themselves."
        )
    for metric in sorted({board.metric for board in boards if any(x.skill for x in board.lines)}):
        found.append(
            f"skill in {short_title(metric)}: 1 minus the geometric mean, over cells, of the "
            "error divided by that of seasonal naive: the value one day or one week before, "
            "whichever was nearer in the test part."
        )
    if several:
        found.append(
            "wins: share of the pairs of a cell and another row in which the other row has the "
            "higher error."
        )
    return found


FEWEST_METHODS = 3
"""Minimum number of methods for Friedman's test."""

FEWEST_CLIENTS = 2
"""Minimum number of clients for Friedman's test."""


def client_errors(rows: Sequence[Row], metric: str) -> pd.DataFrame:
    """Return the clients' test errors, mean over seeds: a column for each row."""
    means = []
    for row in rows:
        kept = {"metric": metric, "selection": row.selection, "split": "test"}
        tables = [by_client(select(run.metrics(), **kept)) for run in row.group.runs]
        errors = pd.concat([t.set_index("client")["value"] for t in tables], axis=1)
        means.append(errors.mean(axis=1, skipna=False).rename(row.name))
    return pd.concat(means, axis=1, join="inner")


def rank_clients(errors: pd.DataFrame, metric: str) -> Ranking | None:
    """Rank the columns of a table from `client_errors`, or of several that are stacked.

    Clients count for which any row has an error; diverged rows are last. None if there are too few
    clients or rows.
    """
    known = errors.dropna(how="all").fillna(np.inf).to_numpy()
    if known.shape[1] < FEWEST_METHODS or len(known) < FEWEST_CLIENTS:
        return None
    return rank(known, f"test {error_title(metric)} (mean over seeds)")


def errors_by_cell(
    group: RunGroup[ForecastRun],
    metric: str,
    *,
    naive: bool = False,
) -> pd.DataFrame:
    """Return test errors by cell, a column for each step ahead and `ALL`, mean over seeds.

    `naive` asks for seasonal naive's on the same targets. NaN where nothing was observed,
    infinite where a forecast is not finite.
    """
    model = SEASONAL if naive else None
    tables = [_of_seed(runs, metric, model) for runs in by_seed(group.runs)]
    return reduce(pd.DataFrame.add, tables) / len(tables)


def skill_by_step(errors: pd.DataFrame, naive: pd.DataFrame) -> pd.Series:
    """Return the skill of each column: 1 minus the geometric mean over cells of ratios of errors.

    Both tables are of `errors_by_cell`; see `stforecast.bench.statistics.bootstrap.skill`.
    """
    logs = log_ratio(errors.to_numpy(), naive.to_numpy())
    return 1 - np.exp(pd.DataFrame(logs, errors.index, errors.columns).mean())


def _of_seed(runs: Sequence[ForecastRun], metric: str, model: str | None) -> pd.DataFrame:
    """Return the errors of a seed, pooled over the folds of a backtest."""
    with runs[0].open_forecasts() as forecasts:
        if model and SEASONAL not in variables(forecasts):
            raise InputError(
                f"{runs[0].folder}: no forecasts of {SEASONAL}, which needs a day of data before "
                "the test part; draw bars or cdf instead"
            )
        cells, steps = forecasts.indexes["cell"], forecasts.indexes["horizon"]
    found = joined_errors(runs, metric, model)
    table = pd.DataFrame(found.by_cell_and_step(), cells, steps)
    table = table.rename(columns=str).assign(**{ALL: found.by_cell()})
    counts = found.weight.sum(axis=1)
    seen = np.column_stack([counts, counts.sum(axis=1)]) > 0
    return table.mask(table.isna() & seen, np.inf)
