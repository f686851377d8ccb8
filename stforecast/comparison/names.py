"""Names of errors in tables and figures."""

from __future__ import annotations

from stforecast.metrics import METRICS

WORDS = frozenset({"bias", "coverage", "width", "pinball", "scaled_pinball"})
"""Metrics with a name that is no abbreviation."""


def short_title(metric: str) -> str:
    """Return the title of an error without its unit.

    >>> short_title("raw_mse"), short_title("mase"), short_title("scaled_pinball")
    ('MSE', 'MASE', 'scaled pinball')

    Args:
        metric: name as in `metrics.csv`.
    """
    kind = metric.removeprefix("raw_")
    return kind.replace("_", " ") if kind in WORDS else kind.upper()


def skill_title(metric: str) -> str:
    """Return the title of the skill in an error.

    >>> skill_title("raw_mae")
    'skill in MAE, %'

    Args:
        metric: name as in `metrics.csv`.
    """
    return f"skill in {short_title(metric)}, %"


def error_title(metric: str, units: str = "data units") -> str:
    """Return the title of an error.

    >>> error_title("mse"), error_title("raw_mae"), error_title("mase")
    ('MSE', 'MAE, data units', 'MASE')

    Args:
        metric: name as in `metrics.csv`.
        units: units of the data.
    """
    kind, title = metric.removeprefix("raw_"), short_title(metric)
    found = METRICS.get(kind)
    if kind == metric or found is None or found.relative:
        return title
    return f"{title}, {units}{'²' if found.squared and units != 'data units' else ''}"
