"""Sensor locations and the road graph, from the files of DCRNN's authors."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from data_prep.errors import InputError
from data_prep.npz import Header, read_npz
from data_prep.tabular.columns import numbers, require_columns
from data_prep.tabular.file import read_table
from data_prep.tabular.origin import Origin

logger = logging.getLogger(__name__)


def read_locations(path: Path, cells: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Read DCRNN's `graph_sensor_locations.csv`.

    Args:
        path: columns `sensor_id`, `latitude`, `longitude`.
        cells: `(cells,)` sensor ids as text.

    Returns:
        Longitudes and latitudes in degrees, each `(cells,)`, in the order of `cells`.

    Raises:
        InputError: if a cell has no row, or a row lacks a valid number.
    """
    df, origin = read_table(path, text_columns=("sensor_id",))
    require_columns(df, ("sensor_id", "latitude", "longitude"), origin)
    at = _locate(cells, df["sensor_id"].to_list(), path.name)
    lon, lat = (_filled(df[column], origin) for column in ("longitude", "latitude"))
    off = np.flatnonzero((abs(lon) > 180) | (abs(lat) > 90))
    if off.size:
        raise InputError(
            f"{origin.at(off[0])}: longitude {lon[off[0]]:g}, latitude {lat[off[0]]:g}, expected "
            "degrees up to 180 and 90; they may be swapped"
        )
    return lon[at], lat[at]


def read_adjacency(path: Path, cells: np.ndarray) -> np.ndarray:
    """Read the road graph from plain arrays or from DCRNN's list of road distances.

    Args:
        path: `.npz` of `sensor_id` and `adjacency`, or `.csv` with columns `from`, `to`, `cost`.
        cells: `(cells,)` sensor ids as text.

    Returns:
        `(cells, cells)` weights from row to column, in the order of `cells`.

    Raises:
        InputError: if the file is a pickle, cannot be read, or lacks a cell.
    """
    if path.suffix in (".pkl", ".pickle"):
        raise InputError(
            f"{path.name}: a pickle can run any code when it is loaded, so it is not read; give "
            "distances_la_2012.csv or, where you trust the pickle, save its ids and matrix with "
            "numpy.savez(path, sensor_id=ids, adjacency=matrix)"
        )
    if path.suffix == ".npz":
        return _read_matrix(path, cells)
    return gaussian_kernel(_read_distances(path, cells))


def gaussian_kernel(distance: np.ndarray, threshold: float = 0.1) -> np.ndarray:
    """Turn distances into weights, `exp(-(d / std)^2)`, 0 where below the threshold.

    Like DCRNN's `gen_adj_mx.py`: std is over all finite distances between the cells, in single
    precision, and the result is not made symmetric.

    Args:
        distance: `(cells, cells)` road distances, inf where there is no road.
        threshold: smallest weight that is kept; lower ones become 0.

    Returns:
        `(cells, cells)` weights from 0 to 1.

    Raises:
        InputError: if all distances are the same.

    >>> gaussian_kernel(np.array([[0.0, 1.0, np.inf], [2.0, 0.0, 8.0], [9.0, 9.0, 0.0]])).round(2)
    array([[1.  , 0.94, 0.  ],
           [0.78, 1.  , 0.  ],
           [0.  , 0.  , 1.  ]])
    """
    std = distance[np.isfinite(distance)].std()
    if not std > 0:
        raise InputError(
            f"the road distances have standard deviation {std}, expected more than 0; give those "
            "between all sensors"
        )
    weights = np.exp(-np.square(distance / std))
    weights[weights < threshold] = 0
    return weights


def _read_matrix(path: Path, cells: np.ndarray) -> np.ndarray:
    def check(found: dict[str, Header]) -> None:
        ids, matrix = found["sensor_id"], found["adjacency"]
        n = ids.size
        if matrix.dtype.kind in "iuf" and ids.dtype.kind in "iuSU" and matrix.shape == (n, n):
            return
        raise InputError(
            f"{path}: adjacency of shape {matrix.shape} for {n} sensors ({matrix.dtype} for "
            f"{ids.dtype}), expected numbers of shape {(n, n)}; save it again"
        )

    ids, matrix = read_npz(path, ("sensor_id", "adjacency"), check)
    if not (np.isfinite(matrix) & (matrix >= 0)).all():
        raise InputError(
            f"{path}: adjacency holds values that are negative or not finite, expected finite "
            "numbers from 0 up; save it again"
        )
    at = _locate(cells, ids.ravel().astype(str).tolist(), path.name)
    return matrix[np.ix_(at, at)]


def _read_distances(path: Path, cells: np.ndarray) -> np.ndarray:
    """Read road distances `(cells, cells)`, inf where there is none; skip other sensors."""
    df, origin = read_table(path, text_columns=("from", "to"))
    require_columns(df, ("from", "to", "cost"), origin)
    cost = _filled(df["cost"], origin)
    if (cost < 0).any():
        row = int(np.argmax(cost < 0))
        raise InputError(f"{origin.at(row)}: cost {cost[row]:g} is below 0; give a road distance")
    rows, columns = (pd.Index(cells).get_indexer(df[end]) for end in ("from", "to"))
    known = (rows >= 0) & (columns >= 0)
    _locate(cells, list(set(df.loc[known, "from"])), path.name)
    if (~known).any():
        logger.info("%s: %d distances of other sensors left out", path.name, (~known).sum())
    twice = np.flatnonzero(df[["from", "to"]].duplicated() & known)
    if twice.size:
        raise InputError(
            f"{origin.at(twice[0])}: the road from {df['from'].iloc[twice[0]]} to "
            f"{df['to'].iloc[twice[0]]} already has a distance, expected one; remove a line"
        )
    distance = np.full((len(cells), len(cells)), np.inf, dtype=np.float32)
    distance[rows[known], columns[known]] = cost[known]
    return distance


def _locate(cells: np.ndarray, ids: Sequence[str], name: str) -> list[int]:
    """Return the position of each cell among `ids`."""
    positions = {sensor: i for i, sensor in enumerate(ids)}
    unknown = [str(cell) for cell in cells if cell not in positions]
    if unknown or len(positions) < len(ids):
        problem = f"no sensor {', '.join(unknown[:5])}" if unknown else "a sensor occurs twice"
        raise InputError(
            f"{name}: {problem} ({len(unknown)} of {len(cells)} cells unknown), expected each cell "
            "once; give the file that belongs to these records"
        )
    return [positions[cell] for cell in cells]


def _filled(column: pd.Series, origin: Origin) -> np.ndarray:
    """Return a column as numbers; raise if a field is empty."""
    values = numbers(column, origin)
    empty = np.flatnonzero(np.isnan(values))
    if empty.size:
        raise InputError(f"{origin.at(empty[0])}: {column.name!r} is empty; fill in a number")
    return values
