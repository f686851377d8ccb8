"""Estimates with a confidence interval, and the sums of errors that they are computed from."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from data_prep.base.errors import InputError, counted
from stforecast.bench.tables import MOST_DECIMALS, short

NEGLIGIBLE = 1e-9
"""Width of an interval, by the larger of its value and 1, that is rounding."""


@dataclass(frozen=True)
class Estimate:
    """An estimate and its confidence interval.

    Attributes:
        value: estimate.
        low: lower end of the interval; NaN if there is none.
        high: upper end of the interval; NaN if there is none.

    >>> str(Estimate(4.1234, 2.02, 6.31)), str(Estimate(0.2354, math.nan, math.nan))
    ('4.1 [2.0, 6.3]', '0.235')
    """

    value: float
    low: float
    high: float

    def excludes(self, value: float) -> bool:
        """Return whether a value lies outside the interval; False if there is no interval."""
        return value < self.low or value > self.high

    def times(self, factor: float) -> Estimate:
        """Return the estimate in other units."""
        return Estimate(factor * self.value, factor * self.low, factor * self.high)

    def __str__(self) -> str:
        ends, width = (self.value, self.low, self.high), self.high - self.low
        if not math.isfinite(width):
            return short(self.value)
        if width <= NEGLIGIBLE * max(abs(self.value), 1.0):
            return "{} [{}, {}]".format(*(short(round(x, 9) + 0.0) for x in ends))
        decimals = min(max(0, 1 - math.floor(math.log10(width / 2))), MOST_DECIMALS)
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
        """Return the estimate with its interval of Student's t.

        Args:
            level: coverage, such as 0.95.
            transform: monotone function of value and ends.
        """
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
