"""Tests that methods have equal errors: permutations by day, Holm's correction, ranks over clients.

Demšar: Statistical Comparisons of Classifiers over Multiple Data Sets, JMLR 7, 2006, section 3.2.2.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from stforecast.bench.statistics.estimate import ErrorSums, common_weight

MOST_ENUMERATED = 14
"""Maximum number of blocks of which all 2^n sign patterns are tried."""

N_RANDOM = 10_000
"""Number of random sign patterns of more blocks."""

ROUNDING = 1e-9
"""Relative difference below which two statistics are equal: the sums are added in any order."""


@dataclass(frozen=True)
class PermutationTest:
    """Result of a permutation test.

    Attributes:
        p_value: probability, if the methods are equal, of a difference at least as large; NaN if a
            method diverged.
        smallest: smallest p-value that so many blocks can give: 2/32 for five.
        n_blocks: number of blocks with observed targets.
    """

    p_value: float
    smallest: float
    n_blocks: int


def permutation_test(
    method: ErrorSums, reference: ErrorSums, *, block_length: int = 1, seed: int = 0
) -> PermutationTest:
    """Test whether the pooled errors of two methods are equal, by swapping them in blocks of days.

    If the methods are equal, their errors of a block can be swapped: the difference of the pooled
    sums keeps its distribution when the signs of the blocks' differences are flipped. Up to
    2^`MOST_ENUMERATED` patterns of signs are enumerated, which makes the test exact; of more
    blocks, `N_RANDOM` patterns are drawn, and the observed one counts as one of them (Phipson and
    Smyth, Permutation P-values Should Never Be Zero, SAGMB 9(1), 2010). Sums are averaged over
    seeds. The result is the same for a mean and for its root, as the root keeps the order of the
    differences.

    Blocks of successive days are for errors of one day that depend on those of the day before. They
    are assumed to be independent, and symmetric under the swap. Clients and trained models are
    taken as they are: the test says nothing about other clients or seeds.
    """
    weight = common_weight({"the method": method, "the reference": reference})
    observed = weight.any(axis=0)
    with np.errstate(invalid="ignore"):
        days = (_day_sums(method, weight) - _day_sums(reference, weight))[observed]
    blocks = np.add.reduceat(days, np.arange(0, len(days), block_length))
    n = len(blocks)
    exact = n <= MOST_ENUMERATED
    smallest = min(1.0, 2.0 ** (1 - n)) if exact else 1 / (N_RANDOM + 1)
    if not np.isfinite(blocks).all():
        return PermutationTest(float("nan"), smallest, n)
    signs = _all_signs(n) if exact else np.random.default_rng(seed).choice([-1, 1], (N_RANDOM, n))
    least = abs(blocks.sum()) - ROUNDING * np.abs(blocks).sum()
    reached = int((np.abs(signs @ blocks) >= least).sum())
    p_value = reached / len(signs) if exact else (reached + 1) / (N_RANDOM + 1)
    return PermutationTest(p_value, smallest, n)


def holm(p_values: Sequence[float] | np.ndarray) -> np.ndarray:
    """Correct p-values for their number, so that any false rejection stays at its level.

    Holm: A Simple Sequentially Rejective Multiple Test Procedure, Scandinavian Journal of
    Statistics 6(2), 1979. A NaN stays NaN and is not counted as a test.

    >>> holm([0.01, 0.04, 0.03, float("nan")]).tolist()
    [0.03, 0.06, 0.06, nan]
    """
    corrected = np.array(p_values, dtype=np.float64)
    known = np.flatnonzero(~np.isnan(corrected))
    order = known[np.argsort(corrected[known], kind="stable")]
    factors = np.arange(len(order), 0, -1)
    corrected[order] = np.minimum(np.maximum.accumulate(factors * corrected[order]), 1)
    return corrected


def _day_sums(sums: ErrorSums, weight: np.ndarray) -> np.ndarray:
    """Return the sums of each day, mean over seeds; what was not observed is 0."""
    return np.where(weight > 0, sums.total, 0).sum(axis=1).mean(axis=0)


def _all_signs(n: int) -> np.ndarray:
    """Return all patterns of signs, `(2^n, n)`."""
    return 1 - 2 * (np.arange(2**n)[:, None] >> np.arange(n) & 1)


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
    """Rank methods by errors `(clients, methods)`; equal errors share the mean of their ranks.

    Both tests assume that the clients are independent. There are at least two clients and three
    methods; an infinite error, where a method diverged, ranks last.
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
