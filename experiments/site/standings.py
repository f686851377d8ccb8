"""Where the default method stands among all in the benchmarks "Who wins"."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from statistics import geometric_mean

from experiments.site.markdown_tables import rows_of
from stforecast.bench.tables import markdown

DEFAULT, POOLED = "fedlean", "†"
ERRORS = ("MSE", "MAE")

RIVALS: dict[str, Callable[[str], bool]] = {
    "lower than all rows that do not pool": lambda method: POOLED not in method,
    "lower than boosting": lambda method: method.startswith("boosting"),
    "lower than LightGBM": lambda method: method.startswith("lightgbm"),
}
"""Which methods the default is compared with, by the row of the table."""


def standing_table(sections: Mapping[str, str]) -> str:
    """Count the benchmarks in which the default's error is lower than that of other methods.

    Args:
        sections: sections of a page by the benchmark's name.
    """
    found = [rows_of(text, ERRORS[0]) for n, text in sections.items() if n.startswith("who_wins")]
    errors = {
        name: [{row["method"]: float(row[name].split()[0]) for row in rows} for rows in found]
        for name in ERRORS
    }
    first = f"`{DEFAULT}`"
    body = [
        {first: name} | {error: _won(values, is_rival) for error, values in errors.items()}
        for name, is_rival in RIVALS.items()
    ]
    above = {error: _above(values) for error, values in errors.items()}
    return markdown([*body, {first: "above the lowest row of any kind, mean"} | above])


def _won(benchmarks: list[dict[str, float]], is_rival: Callable[[str], bool]) -> str:
    won = [
        all(errors[DEFAULT] < e for m, e in errors.items() if m != DEFAULT and is_rival(m))
        for errors in benchmarks
    ]
    return f"{sum(won)} of {len(won)}"


def _above(benchmarks: list[dict[str, float]]) -> str:
    ratios = [errors[DEFAULT] / min(errors.values()) for errors in benchmarks]
    return f"{100 * (geometric_mean(ratios) - 1):.1f} %"
