"""Series of cells in a page, as much as its size allows, and the looks of lines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from stforecast.bench.curves import HUES
from stforecast.bench.run_groups import RunGroup
from stforecast.forecasting.results import ForecastRun
from stforecast.plots.losses import LOSSES
from stforecast.report.numbers import MethodNumbers
from stforecast.report.tables import Arrays

HOURS = 24

FEWEST_STEPS = 48
"""Steps of each series that come before a further method."""


def series(numbers: Sequence[MethodNumbers], arrays: Arrays, room: int) -> dict[str, Any]:
    """Add observations, forecasts, bounds and errors by hour of each cell to the page's arrays.

    The lowest error comes first. Where the room does not suffice, the methods of the highest errors
    are left out first, then the last steps.
    """
    n_cells, n_steps = numbers[0].path.y.shape
    n_series = [1 if method.path.lower is None else 3 for method in numbers]
    n_methods, shown = fitting(n_series, n_steps, room // max(1, n_cells))
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
    """Return how many methods, the best first, and steps fit into the room of a cell.

    >>> fitting([3, 3], 100, 1000), fitting([3, 3], 100, 300), fitting([3, 3], 100, 20)
    ((2, 100), (1, 69), (0, 0))
    """
    for n in range(len(n_series), 0, -1):
        steps = min(n_steps, (room - HOURS * n) // (1 + sum(n_series[:n])))
        if steps >= min(n_steps, FEWEST_STEPS if n > 1 else 1):
            return n, steps
    return 0, 0


MOST_ROUNDS = 400
"""Largest number of rounds to draw of a run."""

DASHES = ("solid", "dash", "dot", "dashdot")
"""Line styles, in the order of those of figures."""


def looks(places: Mapping[str, int]) -> list[dict[str, str]]:
    """Return name, colour and line style of each line."""
    return [
        {
            "name": name,
            "color": HUES[place % len(HUES)],
            "dash": DASHES[place // len(HUES) % len(DASHES)],
        }
        for name, place in places.items()
    ]


def evenly(n: int) -> np.ndarray:
    """Return the places to draw of `n` rounds: all, or evenly spread ones with the last."""
    return np.unique(np.linspace(0, n - 1, MOST_ROUNDS).round().astype(int))


def losses(groups: Sequence[RunGroup[ForecastRun]]) -> list[dict[str, Any]]:
    """Return the losses of each run that trained in rounds, with the place of its group.

    With them come rounds, and bytes sent and received so far by all clients. Of many rounds, evenly
    spread ones with the last are taken.
    """
    found = []
    for place, group in enumerate(groups):
        for run in group.runs:
            table = run.rounds()
            values = {name: table[column].to_numpy(float) for name, column in LOSSES.items()}
            if not any(np.isfinite(v).any() for v in values.values()):
                continue
            sent = (table["bytes_down"] + table["bytes_up"]).cumsum().to_numpy(float)
            shown = evenly(len(table))
            found.append(
                {
                    "method": place,
                    "name": group.run_label(run) if len(group.runs) > 1 else group.name,
                    "loss": str(run.settings.get("loss", "mse")),
                    "round": table["round"].to_numpy()[shown],
                    "bytes": sent[shown],
                    **{name: v[shown] for name, v in values.items()},
                }
            )
    return found
