"""Neighbours on the road graph, and their latest readings as inputs."""

from __future__ import annotations

import dataclasses

import numpy as np

from stforecast.data.clock import Calendar
from stforecast.data.window_spec import WindowSpec
from stforecast.data.windows import input_windows

READINGS = 2
"""Number of latest readings of each neighbour."""


def strongest_neighbours(adjacency: np.ndarray, n: int) -> np.ndarray:
    """Return the cells with the strongest roads to or from each cell, the strongest first.

    >>> roads = np.array([[1.0, 0.2, 0.0], [0.5, 1.0, 0.0], [0.3, 0.0, 1.0]])
    >>> strongest_neighbours(roads, 2).tolist()
    [[1, 2], [0, -1], [0, -1]]

    Args:
        adjacency: `(cells, cells)` weights of the roads from row to column, 0 for none.
        n: largest number of neighbours.

    Returns:
        `(cells, n)` positions; -1 where there are fewer.
    """
    either = np.maximum(adjacency, adjacency.T)
    np.fill_diagonal(either, 0.0)
    order = np.argsort(-either, axis=1, kind="stable")[:, :n]
    found = np.where(np.take_along_axis(either, order, axis=1) > 0, order, -1)
    return np.pad(found, ((0, 0), (0, n - found.shape[1])), constant_values=-1)


def neighbour_inputs(
    series: np.ndarray,
    starts: np.ndarray,
    spec: WindowSpec,
    calendar: Calendar,
    neighbours: np.ndarray,
) -> np.ndarray:
    """Return the latest readings of each cell's neighbours before each window.

    Args:
        series: `(steps, cells)`, z-scored, NaN where missing; read before each start only.
        starts: `(windows,)` first target steps.
        spec: the windows' shape; gaps are filled by its rule.
        calendar: the series' wall clock.
        neighbours: result of `strongest_neighbours`.

    Returns:
        `(cells, windows, neighbours * READINGS)` float32, the newest reading of each neighbour
        first, 0.0 where there is no neighbour.
    """
    latest = dataclasses.replace(
        spec, closeness=1, periods=0, extra_lags=f"2-{READINGS}", calendar="none", holidays=""
    )
    readings = input_windows(series, starts, latest, calendar)[neighbours]
    readings[neighbours < 0] = 0.0
    return readings.swapaxes(1, 2).reshape(len(neighbours), len(starts), -1)
