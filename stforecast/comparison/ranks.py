"""Ranks of the models of finished runs over their clients."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from stforecast.bench.run_groups import by_client, select
from stforecast.bench.statistics.ranks import Ranking, rank
from stforecast.comparison.names import error_title
from stforecast.comparison.rows import Row

FEWEST_METHODS = 3
"""Minimum number of methods for Friedman's test."""

FEWEST_CLIENTS = 2
"""Minimum number of clients for Friedman's test."""


def rank_groups(rows: Sequence[Row], metric: str = "mse") -> Ranking | None:
    """Rank the models of groups by their clients' test errors in the best round, mean over seeds.

    Args:
        rows: the models to rank.
        metric: name of the error.

    Returns:
        The ranking over the clients for which any row has an error, diverged rows last; None if
        there are too few clients or rows.
    """
    return rank_clients(client_errors(rows, metric), metric)


def client_errors(rows: Sequence[Row], metric: str) -> pd.DataFrame:
    """Return the clients' test errors in the best round, mean over seeds: a column for each row."""
    errors = [_client_errors(row, metric) for row in rows]
    return pd.concat(errors, axis=1, join="inner")


def rank_clients(errors: pd.DataFrame, metric: str) -> Ranking | None:
    """Rank the columns of a table from `client_errors`, or of several that are stacked.

    Returns:
        As `rank_groups`.
    """
    known = errors.dropna(how="all").fillna(np.inf).to_numpy()
    if known.shape[1] < FEWEST_METHODS or len(known) < FEWEST_CLIENTS:
        return None
    return rank(known, f"test {error_title(metric)} (mean over seeds)")


def _client_errors(row: Row, metric: str) -> pd.Series:
    selection = row.selection("best")
    errors = [
        by_client(select(run.metrics(), metric=metric, selection=selection, split="test"))
        for run in row.group.runs
    ]
    tables = [table.set_index("client")["value"] for table in errors]
    mean = pd.concat(tables, axis=1).mean(axis=1, skipna=False)
    return mean.rename(row.name)
