"""Ranks of the models of finished runs over their clients."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from stforecast.bench.run_groups import RunGroup, by_client, select
from stforecast.bench.statistics.ranks import Ranking, rank
from stforecast.results import ForecastRun

FEWEST_METHODS = 3
"""Minimum number of methods for Friedman's test."""


def rank_groups(rows: Sequence[tuple[RunGroup[ForecastRun], str]]) -> Ranking | None:
    """Rank the models of groups by their clients' test MSE in the best round, mean over seeds.

    Args:
        rows: groups, each with a view of its method: "" or "(global)".

    Returns:
        The ranking over the clients for which any row has an error, diverged rows last; None if
        there are too few clients or rows.
    """
    errors = pd.concat([_client_errors(*row) for row in rows], axis=1, join="inner")
    known = errors.dropna(how="all").fillna(np.inf).to_numpy()
    if len(rows) < FEWEST_METHODS or len(known) < 2:
        return None
    return rank(known, "test MSE (mean over seeds)")


def _client_errors(group: RunGroup[ForecastRun], view: str) -> pd.Series:
    selection = f"best {view}".strip()
    errors = [
        by_client(select(run.metrics(), metric="mse", selection=selection, split="test"))
        for run in group.runs
    ]
    tables = [table.set_index("client")["value"] for table in errors]
    return pd.concat(tables, axis=1).mean(axis=1, skipna=False)
