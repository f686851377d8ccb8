"""Estimates with an interval, the sums of errors that they are computed from, and tests.

Tests that methods have equal errors: permutations by day, Holm's correction, ranks over clients.
Demšar: Statistical Comparisons of Classifiers over Multiple Data Sets, JMLR 7, 2006, section 3.2.2.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from data_prep.base.errors import InputError, counted
from stforecast.bench.tables import MOST_DECIMALS, Cell, short

NEGLIGIBLE = 1e-9
"""Largest width of an interval, by the larger of its value and 1, that is mere rounding."""


@dataclass(frozen=True)
class Estimate:
    """An estimate and its confidence interval.

    Attributes:
        value: estimate.
        low: lower end of the interval; NaN if there is none.
        high: upper end of the interval; NaN if there is none.

    >>> str(Estimate(4.1234, 2.02, 6.31)), str(Estimate(0.2354, math.nan, math.nan))
    ('4.1 [2.0, 6.3]', '0.235')
    >>> str(Estimate(4.57, 0.02, 9.31))  # Whether it excludes 0 must show.
    '4.57 [0.02, 9.31]'
    """

    value: float
    low: float
    high: float

    def excludes(self, value: float) -> bool:
        """Return whether a value lies outside the interval; False if there is no interval."""
        return value < self.low or value > self.high

    def times(self, factor: float) -> Estimate:
        """Return the estimate in other units, or with the opposite sign."""
        low, high = sorted((factor * self.low, factor * self.high))
        return Estimate(factor * self.value, low, high)

    def told(self, unit: str) -> str:
        """Return it with a unit, as in "4.1 % [2.0, 6.3]"."""
        value, _, interval = str(self).partition(" ")
        return f"{value} {unit} {interval}".strip()

    def cell(self, name: str = "{}") -> Cell:
        """Return it as a cell of a table; see `Cell` for the `name` of its numbers."""
        return Cell(str(self), with_ends({name: self}))

    def __str__(self) -> str:
        ends, width = (self.value, self.low, self.high), self.high - self.low
        if not math.isfinite(width):
            return short(self.value)
        if width <= NEGLIGIBLE * max(abs(self.value), 1.0):
            return "{} [{}, {}]".format(*(short(round(x, 9) + 0.0) for x in ends))
        decimals = min(max(0, 1 - math.floor(math.log10(width / 2))), MOST_DECIMALS)
        while decimals < MOST_DECIMALS and any(x and not round(x, decimals) for x in ends[1:]):
            decimals += 1
        # Adding 0 turns -0.0 into 0.0.
        value, low, high = (round(x, decimals) + 0.0 for x in ends)
        return f"{value:,.{decimals}f} [{low:,.{decimals}f}, {high:,.{decimals}f}]"


def with_ends(estimates: Mapping[str, Estimate | None]) -> dict[str, float]:
    """Return the numbers of named estimates, for a row of a table; absent ones are left out.

    >>> with_ends({"error": Estimate(4.0, 2.0, 6.0), "skill": None})
    {'error': 4.0, 'error_low': 2.0, 'error_high': 6.0}
    """
    return {
        f"{name}{end}": getattr(estimate, field)
        for name, estimate in estimates.items()
        if estimate is not None
        for end, field in (("", "value"), ("_low", "low"), ("_high", "high"))
    }


@dataclass(frozen=True)
class Variation:
    """An estimate, its variance, and how well that variance is known.

    Attributes:
        value: estimate.
        variance: variance; NaN if it is unknown.
        parts: variance due to each source alone, and the degrees of freedom of that variance.
    """

    value: float
    variance: float
    parts: tuple[tuple[float, int], ...]

    @property
    def degrees_of_freedom(self) -> float:
        """Degrees of freedom of the variance (Satterthwaite 1946; Welch 1947)."""
        scale = sum(part for part, _ in self.parts)
        if not scale:
            return math.inf
        return 1 / sum((part / scale) ** 2 / freedom for part, freedom in self.parts)

    def estimate(
        self, level: float, transform: Callable[[float], float] = lambda value: value
    ) -> Estimate:
        """Return the estimate with its interval of Student's t."""
        from scipy.special import stdtrit  # slow to import, and `scipy.stats` far slower

        reach = float(stdtrit(self.degrees_of_freedom, (1 + level) / 2))
        reach *= math.sqrt(self.variance)
        ends = sorted((transform(self.value - reach), transform(self.value + reach)))
        return Estimate(transform(self.value), *ends)


def mean_variation(several: Sequence[Variation]) -> Variation:
    """Return the mean of independent estimates; it has a variance if all have one."""
    n = len(several)
    return Variation(
        sum(one.value for one in several) / n,
        sum(one.variance for one in several) / n**2,
        tuple((part / n**2, freedom) for one in several for part, freedom in one.parts),
    )


Finalise = Callable[[np.ndarray, np.ndarray], np.ndarray]
"""Turns sums into an error, `(total, weight) -> error`, elementwise; NaN where the weight is 0."""


@dataclass(frozen=True, eq=False)
class ErrorSums:
    """Sums of one method's errors on one data set; an error is `finalise(Σ total, Σ weight)`.

    Attributes:
        total: `(seeds, clients, blocks)` sums, such as of squared errors; a block is a day of test
            targets. Infinite or NaN where the method diverged.
        weight: `(seeds, clients, blocks)` numbers of observed targets, or another denominator that
            does not depend on the method; 0 where nothing was observed.
    """

    total: np.ndarray
    weight: np.ndarray

    def __post_init__(self) -> None:
        if self.total.ndim != 3 or self.total.shape != self.weight.shape or not self.total.size:
            raise InputError(
                f"totals of shape {self.total.shape} and weights of shape {self.weight.shape}; "
                "give both as (seeds, clients, blocks), each at least 1"
            )
        if not (np.isfinite(self.weight) & (self.weight >= 0)).all():
            raise InputError("a weight is negative or not finite; give 0 where nothing is observed")


def common_weight(methods: Mapping[str, ErrorSums]) -> np.ndarray:
    """Return the weights `(clients, blocks)` that all seeds of all methods share.

    Methods or seeds that were tested on different targets are refused.
    """
    if not methods:
        raise InputError("no methods to compare; give at least one")
    first, *_ = methods
    weight = methods[first].weight[0]
    for name, sums in methods.items():
        if sums.weight.shape[1:] != weight.shape:
            raise InputError(
                f"{first} has errors of {_size(weight)}, {name} of {_size(sums.weight[0])}; "
                "compare methods that were tested on the same targets"
            )
        if differing := int((~np.isclose(sums.weight, weight, rtol=1e-6)).any(axis=0).sum()):
            raise InputError(
                f"{name} was tested on other targets than {first}: the weights of {differing} of "
                f"{weight.size} client days differ; compare methods that were tested on the same "
                "targets"
            )
    if not weight.any():
        raise InputError(
            "there is no error to compare: no target was observed, or no cell changed in training, "
            "without which there is no MASE; take other data, or another metric"
        )
    return weight


def _size(weight: np.ndarray) -> str:
    return f"{counted(weight.shape[0], 'client')} and {counted(weight.shape[1], 'block')}"


@dataclass(frozen=True)
class PermutationTest:
    """Result of a permutation test.

    Attributes:
        p_value: probability, if the methods are equal, of a difference at least as large; NaN if a
            method diverged.
        smallest: smallest p-value that so many days can give: 2/32 for five.
    """

    p_value: float
    smallest: float


def permutation_test(method: ErrorSums, reference: ErrorSums, *, seed: int = 0) -> PermutationTest:
    """Test whether the pooled errors of two methods are equal, by swapping them day by day.

    If the methods are equal, their errors of a day can be swapped: the difference of the pooled
    sums keeps its distribution when the signs of the days' differences are flipped. The patterns of
    signs of up to 14 days are enumerated, which makes the test exact; of more days, 10,000
    patterns are drawn, and the observed one counts as one of them (Phipson and Smyth,
    Permutation P-values Should Never Be Zero, SAGMB 9(1), 2010). Sums are averaged over seeds. The
    result is the same for a mean and for its root, as the root keeps the order of the differences.

    Days are assumed to be independent, and symmetric under the swap. Clients and trained models are
    taken as they are: the test says nothing about other clients or seeds.
    """
    weight = common_weight({"the method": method, "the reference": reference})
    observed = weight.any(axis=0)
    with np.errstate(invalid="ignore"):
        ours, theirs = (
            np.where(weight > 0, sums.total, 0).sum(axis=1).mean(axis=0)
            for sums in (method, reference)
        )
        days = (ours - theirs)[observed]
    n = len(days)
    exact, n_random = n <= 14, 10_000
    smallest = min(1.0, 2.0 ** (1 - n)) if exact else 1 / (n_random + 1)
    if not np.isfinite(days).all():
        return PermutationTest(float("nan"), smallest)
    if exact:
        signs = 1 - 2 * (np.arange(2**n)[:, None] >> np.arange(n) & 1)
    else:
        signs = np.random.default_rng(seed).choice([-1, 1], (n_random, n))
    # Equal statistics may differ by rounding: the sums are added in any order.
    least = abs(days.sum()) - 1e-9 * np.abs(days).sum()
    reached = int((np.abs(signs @ days) >= least).sum())
    p_value = reached / len(signs) if exact else (reached + 1) / (n_random + 1)
    return PermutationTest(p_value, smallest)


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


LEVEL = 0.05
"""Significance level of the critical difference, and of sentences on methods."""


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
