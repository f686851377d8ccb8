"""Critical difference diagram of mean ranks."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
from matplotlib.figure import Figure

from data_prep.errors import InputError
from stforecast.bench.critical_difference import critical_difference as draw_ranks
from stforecast.bench.curves import as_curves
from stforecast.bench.drawing import TWO_COLUMNS, add_legend
from stforecast.comparison.ranks import FEWEST_CLIENTS, FEWEST_METHODS, client_errors, rank_clients
from stforecast.comparison.rows import Row
from stforecast.comparison.tasks import by_task
from stforecast.plots.figure import figure
from stforecast.plots.scores import error_rows
from stforecast.results import ForecastRun


@figure
def critical_difference(
    runs: Sequence[ForecastRun], *, metric: str = "mse", width: float = TWO_COLUMNS
) -> Figure:
    """Mean ranks of methods over clients, and bars across those that do not differ.

    A critical difference diagram: methods are ranked at each client of each data set by the mean
    error over seeds; bars join methods whose mean ranks are closer than the critical difference
    (Nemenyi). Only main methods are ranked, not ablations in tables of their own, since each
    further method makes the test weaker. As in Figure 1 of Demšar (JMLR 7, 2006).

    Args:
        runs: finished runs.
        metric: error of each client over all steps; raw_… is in the data's units.
        width: width of the figure in inches.

    Raises:
        InputError: if the metric is unknown, listing the known ones, or if there are too few
            methods or clients.
    """
    as_curves(runs)  # Refuses no runs.
    main = [run for run in runs if not run.table]
    for run in main:
        error_rows(run, metric)
    tasks = by_task(main)
    tables = [client_errors([Row(group) for group in rows], metric) for rows in tasks.values()]
    errors = pd.concat(tables, join="inner", keys=tasks) if tables else pd.DataFrame()
    ranking = rank_clients(errors, metric)
    if ranking is None:
        on = "" if len(tasks) < 2 else f" on all {len(tasks)} data sets"
        raise InputError(
            f"{errors.shape[1]} main methods{on} with {len(errors)} clients; ranks need at least "
            f"{FEWEST_METHODS} methods and {FEWEST_CLIENTS} clients"
        )
    fig = draw_ranks(ranking, list(errors.columns), width)
    absent = {name for table in tables for name in table.columns} - set(errors.columns)
    absent |= {run.label for run in runs if run.table}
    left_out = f"\nNot ranked: {', '.join(sorted(absent))}" if absent else ""
    add_legend(fig, f"{ranking}{left_out}")
    return fig
