"""Comparison of methods over many clients: average ranks, Friedman's and Nemenyi's tests.

Demšar: Statistical Comparisons of Classifiers over Multiple Data Sets, JMLR 7, 2006, section 3.2.2.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy.stats import friedmanchisquare, rankdata, studentized_range

from stforecast.bench.run_groups import RunGroup, by_client, select
from stforecast.results import ForecastRun

FEWEST_METHODS = 3
"""Minimum number of methods for Friedman's test."""

LEVEL = 0.05
"""Significance level of the critical difference."""


@dataclass(frozen=True, eq=False)
class Ranking:
    """Ranking of methods over clients.

    Attributes:
        ranks: `(methods,)` mean rank, 1 for a method that is best for every client.
        n_clients: number of clients.
        p_value: p-value of Friedman's test that all methods are equal, corrected for ties.
        critical_difference: difference above which mean ranks differ (Nemenyi, at `LEVEL`).
    """

    ranks: np.ndarray
    n_clients: int
    p_value: float
    critical_difference: float

    def __str__(self) -> str:
        return (
            f"rank: mean over {self.n_clients} clients of the rank by test MSE (mean over seeds), "
            f"1 is best, diverged methods are last; Friedman's p = {self.p_value:.2g}, and ranks "
            f"more than {self.critical_difference:.2f} apart differ at {LEVEL} (Nemenyi). Both "
            "tests assume independent clients, which those of one region are not."
        )


def rank(errors: np.ndarray) -> Ranking:
    """Rank methods by their errors; equal errors share the mean of their ranks.

    Both tests assume that the clients are independent.

    Args:
        errors: `(clients, methods)` of at least two clients and three methods; infinite where a
            method diverged, which ranks it last.
    """
    n_clients, n_methods = errors.shape
    ranks = rankdata(errors, axis=1)
    all_tied = (ranks == ranks[:, :1]).all()
    p_value = 1.0 if all_tied else float(friedmanchisquare(*ranks.T).pvalue)
    # Demšar's q is the studentized range's quantile divided by √2 (his Table 5a).
    quantile = studentized_range.ppf(1 - LEVEL, n_methods, np.inf) / np.sqrt(2)
    difference = quantile * np.sqrt(n_methods * (n_methods + 1) / (6 * n_clients))
    return Ranking(ranks.mean(axis=0), n_clients, p_value, float(difference))


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
    return rank(known) if len(rows) >= FEWEST_METHODS and len(known) > 1 else None


def _client_errors(group: RunGroup[ForecastRun], view: str) -> pd.Series:
    selection = f"best {view}".strip()
    errors = [
        by_client(select(run.metrics(), metric="mse", selection=selection, split="test"))
        for run in group.runs
    ]
    tables = [table.set_index("client")["value"] for table in errors]
    return pd.concat(tables, axis=1).mean(axis=1, skipna=False)
