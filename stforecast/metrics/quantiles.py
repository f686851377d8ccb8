"""Quantile levels: parsing, and pairing into intervals."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from data_prep.base.errors import InputError


def parse_levels(text: str) -> tuple[float, ...]:
    """Read quantile levels from text.

    >>> parse_levels("0.05,0.5,0.95")
    (0.05, 0.5, 0.95)

    Raises:
        InputError: unless they increase, lie in (0, 1) and come in pairs around 0.5.
    """
    try:
        levels = tuple(float(level) for level in text.split(","))
    except ValueError as e:
        raise InputError(f"quantiles is {text!r}; give numbers like 0.05,0.5,0.95") from e
    increasing = all(low < high for low, high in pairwise((0.0, *levels, 1.0)))
    mirrored = [1 - level for level in reversed(levels)]
    if not increasing or not np.allclose(levels, mirrored) or len(levels) % 2 == 0:
        raise InputError(
            f"quantiles is {text!r}; give increasing levels between 0 and 1 in pairs around 0.5, "
            "like 0.05,0.5,0.95"
        )
    return levels


def pair_coverages(levels: tuple[float, ...]) -> dict[float, tuple[int, int]]:
    """Pair quantile levels that lie symmetrically around the median into intervals.

    The interval between the levels α / 2 and 1 - α / 2 has the nominal coverage 1 - α.

    >>> pair_coverages((0.05, 0.25, 0.5, 0.75, 0.95))
    {0.5: (1, 3), 0.9: (0, 4)}

    Args:
        levels: increasing levels, as returned by `parse_levels`.

    Returns:
        Positions of the lower and the upper level by coverage, narrow intervals first.
    """
    half = len(levels) // 2
    places = [(i, len(levels) - 1 - i) for i in reversed(range(half))]
    return {round(levels[high] - levels[low], 9): (low, high) for low, high in places}
