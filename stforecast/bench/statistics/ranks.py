"""Comparison of methods over many clients: average ranks, Friedman's and Nemenyi's tests.

Demšar: Statistical Comparisons of Classifiers over Multiple Data Sets, JMLR 7, 2006, section 3.2.2.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

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
        measure: error by which methods are ranked, for texts.
    """

    ranks: np.ndarray
    n_clients: int
    p_value: float
    critical_difference: float
    measure: str

    def __str__(self) -> str:
        return (
            f"rank: mean over {self.n_clients} clients of the rank by {self.measure}; 1 is best, "
            f"and diverged methods are last. Friedman's test gives p = {self.p_value:.2g}; ranks "
            f"that are more than {self.critical_difference:.2f} apart differ at {LEVEL} (Nemenyi's "
            "test). Both tests assume that clients are independent, but clients of one region are "
            "not."
        )

    def indistinct_groups(self) -> list[tuple[int, ...]]:
        """Return the largest groups of methods whose mean ranks do not differ (Nemenyi).

        Groups overlap where the first differs from the last but neither from those between. They
        are the bars of a critical difference diagram (Demšar, Figure 1).

        Returns:
            Groups of two or more methods, as their places in `ranks`, best first.
        """
        order = np.argsort(self.ranks, kind="stable")
        # Mean ranks are multiples of a fraction; a difference equal to the critical one counts.
        reach = self.ranks[order] + self.critical_difference * (1 + 1e-12)
        ends = np.searchsorted(self.ranks[order], reach, side="right")
        return [
            tuple(int(place) for place in order[start:end])
            for start, end in enumerate(ends)
            if end - start > 1 and (start == 0 or end > ends[start - 1])
        ]


def rank(errors: np.ndarray, measure: str = "error") -> Ranking:
    """Rank methods by their errors; equal errors share the mean of their ranks.

    Both tests assume that the clients are independent.

    Args:
        errors: `(clients, methods)` of at least two clients and three methods; infinite where a
            method diverged, which ranks it last.
        measure: what the errors are, for texts.
    """
    from scipy.stats import friedmanchisquare, rankdata, studentized_range  # slow to import

    n_clients, n_methods = errors.shape
    ranks = rankdata(errors, axis=1)
    all_tied = (ranks == ranks[:, :1]).all()
    p_value = 1.0 if all_tied else float(friedmanchisquare(*ranks.T).pvalue)
    # Demšar's q is the studentized range's quantile divided by √2 (his Table 5a).
    quantile = studentized_range.ppf(1 - LEVEL, n_methods, np.inf) / np.sqrt(2)
    difference = quantile * np.sqrt(n_methods * (n_methods + 1) / (6 * n_clients))
    return Ranking(ranks.mean(axis=0), n_clients, p_value, float(difference), measure)
