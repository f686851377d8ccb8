"""Ranks of the models of finished runs over their clients."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from stforecast.bench.run_groups import RunGroup, by_client, select
from stforecast.bench.statistics.ranks import Ranking, rank
from stforecast.comparison.names import error_title
from stforecast.results import ForecastRun

FEWEST_METHODS = 3
"""Minimum number of methods for Friedman's test."""

FEWEST_CLIENTS = 2
"""Minimum number of clients for Friedman's test."""

View = tuple[RunGroup[ForecastRun], str]
"""A group with a view of its method: "" or "(global)"."""


def rank_groups(rows: Sequence[View], metric: str = "mse") -> Ranking | None:
    """Rank the models of groups by their clients' test errors in the best round, mean over seeds.

    Args:
        rows: groups, each with a view of its method.
        metric: name of the error.

    Returns:
        The ranking over the clients for which any row has an error, diverged rows last; None if
        there are too few clients or rows.
    """
    return rank_clients(client_errors(rows, metric), metric)


def client_errors(rows: Sequence[View], metric: str) -> pd.DataFrame:
    """Return the clients' test errors in the best round, mean over seeds: a column for each row."""
    errors = [_client_errors(group, view, metric) for group, view in rows]
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


def _client_errors(group: RunGroup[ForecastRun], view: str, metric: str) -> pd.Series:
    selection = f"best {view}".strip()
    errors = [
        by_client(select(run.metrics(), metric=metric, selection=selection, split="test"))
        for run in group.runs
    ]
    tables = [table.set_index("client")["value"] for table in errors]
    mean = pd.concat(tables, axis=1).mean(axis=1, skipna=False)
    return mean.rename(f"{group.name} {view}".strip())
