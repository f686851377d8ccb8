"""Format of numbers in tables and figures: means with their spread."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

MOST_DECIMALS = 6
"""Maximum number of decimals of a number next to a bar."""


def spread(values: Sequence[float], decimals: int | None = None) -> str:
    """Format the mean, and the standard deviation if there are several values.

    Args:
        values: one or more values.
        decimals: number of decimals; by default those of the mean's first four digits.

    >>> spread([0.25]), spread([100.0, 120.0]), spread([100.0, 120.0], 2)
    ('0.2500', '110.0 ± 14.1', '110.00 ± 14.14')
    """
    mean = float(np.mean(values))
    if decimals is None:
        size = math.floor(math.log10(abs(mean))) if mean and math.isfinite(mean) else 0
        decimals = max(0, 3 - size)
    text = f"{mean:.{decimals}f}"
    return text if len(values) == 1 else f"{text} ± {np.std(values, ddof=1):.{decimals}f}"


def mean_and_spread(errors: np.ndarray) -> tuple[float, float]:
    """Return mean and sample standard deviation: 0 for one error, both NaN if one is not finite.

    >>> mean_and_spread(np.array([1.0, 3.0]))
    (2.0, 1.4142135623730951)
    """
    if not np.isfinite(errors).all():
        return math.nan, math.nan
    return float(errors.mean()), float(errors.std(ddof=1)) if len(errors) > 1 else 0.0


def short(value: float) -> str:
    """Format a number to three digits, or as a whole number from a thousand on.

    >>> short(0.12345), short(123456.7)
    ('0.123', '123,457')
    """
    return f"{value:.3g}" if abs(value) < 1000 else f"{value:,.0f}"


def plus_minus(mean: float, deviation: float) -> str:
    """Format a mean to three digits, or more if its deviation requires them.

    >>> plus_minus(0.23541, 0.0123), plus_minus(0.23541, 0.00021), plus_minus(1234.5, 67.8)
    ('0.235 ± 0.012', '0.2354 ± 0.0002', '1,234 ± 68')
    """
    if not math.isfinite(mean):
        return "not finite"
    digits = [2 - _exponent(mean), -_exponent(deviation)] if deviation else [2 - _exponent(mean)]
    decimals = min(max(0, *digits, 0), MOST_DECIMALS)
    text = f"{mean:,.{decimals}f}"
    return f"{text} ± {deviation:,.{decimals}f}" if deviation else text


def _exponent(value: float) -> int:
    return math.floor(math.log10(abs(value))) if value else 0
