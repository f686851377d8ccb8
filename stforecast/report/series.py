"""Series of cells in a page, as much as its size allows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from stforecast.report.method_numbers import MethodNumbers
from stforecast.report.packing import Arrays

HOURS = 24

FEWEST_STEPS = 48
"""Steps of each series that come before a further method."""


def series(numbers: Sequence[MethodNumbers], arrays: Arrays, room: int) -> dict[str, Any]:
    """Add observations, forecasts, bounds and errors by hour of each cell.

    Where the room does not suffice, the methods of the highest errors are left out first, then the
    last steps.

    Args:
        numbers: numbers of each method, the lowest error first.
        arrays: arrays of the page, which grow.
        room: number of values that may be added.
    """
    n_cells, n_steps = numbers[0].path.y.shape
    n_methods, shown = fitting([_n_series(m) for m in numbers], n_steps, room // max(1, n_cells))
    if not shown:
        return {"times": [], "all": n_steps, "methods": []}
    methods = []
    for method in numbers[:n_methods]:
        path = method.path.first(shown)
        bounds = {"lower": path.lower, "upper": path.upper}
        methods.append(
            {
                "forecast": arrays.rows(path.y_hat),
                **{name: arrays.rows(v) for name, v in bounds.items() if v is not None},
                "hours": arrays.rows(method.errors.by_cell_and_hour),
            }
        )
    first = numbers[0].path.first(shown)
    return {
        "times": first.times,
        "all": n_steps,
        "observed": arrays.rows(first.y),
        "methods": methods,
    }


def fitting(n_series: Sequence[int], n_steps: int, room: int) -> tuple[int, int]:
    """Return how many methods and steps fit into the room of a cell.

    >>> fitting([3, 3], 100, 1000), fitting([3, 3], 100, 300), fitting([3, 3], 100, 20)
    ((2, 100), (1, 69), (0, 0))

    Args:
        n_series: number of series of each method, the best first.
        n_steps: number of steps that there are.
        room: number of values for one cell.
    """
    for n in range(len(n_series), 0, -1):
        steps = min(n_steps, (room - HOURS * n) // (1 + sum(n_series[:n])))
        if steps >= min(n_steps, FEWEST_STEPS if n > 1 else 1):
            return n, steps
    return 0, 0


def _n_series(method: MethodNumbers) -> int:
    return 1 if method.path.lower is None else 3
