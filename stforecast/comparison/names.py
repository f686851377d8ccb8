"""Names of errors in tables and figures."""

from __future__ import annotations

from stforecast.metrics import METRICS


def error_title(metric: str, units: str = "data units") -> str:
    """Return the title of an error.

    >>> error_title("mse"), error_title("raw_mae"), error_title("mase")
    ('MSE', 'MAE, data units', 'MASE')

    Args:
        metric: name as in `metrics.csv`.
        units: units of the data.
    """
    kind = metric.removeprefix("raw_")
    found = METRICS.get(kind)
    if kind == metric or found is None or found.relative:
        return kind.upper()
    return f"{kind.upper()}, {units}{'²' if found.squared and units != 'data units' else ''}"
