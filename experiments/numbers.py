"""Numbers in tables: means with their spread."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np


def spread(values: Sequence[float], decimals: int | None = None) -> str:
    """Mean, and standard deviation where there are several values.

    Args:
        values: one or more.
        decimals: by default as many as the mean's first four digits need.

    >>> spread([0.25]), spread([100.0, 120.0]), spread([100.0, 120.0], 2)
    ('0.2500', '110.0 ± 14.1', '110.00 ± 14.14')
    """
    mean = float(np.mean(values))
    if decimals is None:
        size = math.floor(math.log10(abs(mean))) if mean and math.isfinite(mean) else 0
        decimals = max(0, 3 - size)
    text = f"{mean:.{decimals}f}"
    return text if len(values) == 1 else f"{text} ± {np.std(values, ddof=1):.{decimals}f}"
