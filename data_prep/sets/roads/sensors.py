"""Sensor locations and the road graph, from the files of DCRNN's authors."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from data_prep.base.errors import InputError, reading, some
from data_prep.readers.columns import numbers, require_columns
from data_prep.readers.decode import read_table
from data_prep.readers.formats import numbered
from data_prep.readers.npz import Header, read_npz
from data_prep.readers.options import TableOptions
from data_prep.readers.origin import Origin
from data_prep.sets.roads.common import check_weights

log = logging.getLogger(__name__)


def read_locations(
    path: Path, cells: np.ndarray, columns: Sequence[str] = ("sensor_id", "latitude", "longitude")
) -> tuple[np.ndarray, np.ndarray]:
    """Return the longitudes and latitudes of cells in degrees, each `(cells,)`, from a table.

    Its `columns` are those of ids, latitudes and longitudes, in this order if it has no header, as
    in DCRNN's `graph_sensor_locations.csv`. It may have other rows.
    """
    df, origin = _read_named(path, columns, n_ids=1)
    at = locate(cells, df[columns[0]].to_list(), path.name)
    lat, lon = (_filled(df[column], origin) for column in columns[1:])
    off = np.flatnonzero((abs(lon) > 180) | (abs(lat) > 90))
    if off.size:
        raise InputError(
            f"{origin.at(off[0])}: longitude {lon[off[0]]:g}, latitude {lat[off[0]]:g}, expected "
            "degrees up to 180 and 90; they may be swapped"
        )
    return lon[at], lat[at]


def read_adjacency(path: Path, cells: np.ndarray, *, neighbours: bool = False) -> np.ndarray:
    """Return the road graph `(cells, cells)`: weights from row to column, 1 on the diagonal.

    The file is a `.npz` of `sensor_id` and `adjacency`, or a `.csv` with columns `from`, `to` and
    `cost` or `distance`, in this order if it has no header. Lists of the `neighbours` of each
    sensor (ASTGCN, STSGCN), rather than of the roads between all sensors of a region (DCRNN), have
    weight 1, as in these papers: a kernel of distances that are all short would drop most of them.
    """
    refuse_pickle(path)
    if path.suffix == ".npz":
        return _read_matrix(path, cells)
    roads, origin = _read_roads(path, cells)
    if not neighbours:
        return gaussian_kernel(_all_distances(roads, cells, origin))
    for end, position in (("from", "row"), ("to", "column")):
        foreign = np.flatnonzero(roads[position] < 0)
        if foreign.size:
            raise InputError(
                f"{origin.at(foreign[0])}: sensor {roads[end].iloc[foreign[0]]} is not in the "
                f"records, whose sensors are {some(cells, 3)}; give the distances of the same data "
                "set, and its file of sensor ids if it has one"
            )
    weights = np.eye(len(cells), dtype=np.float32)
    weights[roads["row"], roads["column"]] = 1
    return weights


def refuse_pickle(path: Path) -> None:
    """Refuse a pickled matrix, by its name."""
    if path.suffix in (".pkl", ".pickle"):
        raise InputError(
            f"{path.name}: a pickle can run any code when it is loaded, so it is not read; give "
            "the .csv of distances or, where you trust the pickle, save its ids and matrix with "
            "numpy.savez(path, sensor_id=ids, adjacency=matrix)"
        )


def gaussian_kernel(distance: np.ndarray, threshold: float = 0.1) -> np.ndarray:
    """Turn distances `(cells, cells)` into weights, `exp(-(d / std)^2)`, 0 below the threshold.

    Like DCRNN's `gen_adj_mx.py`: std is over all finite distances between the cells, in single
    precision, and the result is not made symmetric. A distance is inf where there is no road.

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
    return np.where(weights < threshold, 0, weights)


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
    check_weights(matrix, str(path))
    at = locate(cells, ids.ravel().astype(str).tolist(), path.name)
    return matrix[np.ix_(at, at)]


def _read_roads(path: Path, cells: np.ndarray) -> tuple[pd.DataFrame, Origin]:
    """Read roads: `from`, `to`, `cost`, and the positions `row` and `column` of their ends.

    A position is -1 if the sensor is not among the cells.
    """
    df, origin = _read_named(path, ("from", "to", "cost"), n_ids=2)
    cost = _filled(df["cost"], origin)
    if (cost < 0).any():
        row = int(np.argmax(cost < 0))
        raise InputError(f"{origin.at(row)}: cost {cost[row]:g} is below 0; give a road distance")
    rows, columns = (pd.Index(cells).get_indexer(df[end]) for end in ("from", "to"))
    return df.assign(cost=cost, row=rows, column=columns), origin


def _all_distances(roads: pd.DataFrame, cells: np.ndarray, origin: Origin) -> np.ndarray:
    """Return distances `(cells, cells)`, inf where there is no road; skip other sensors."""
    known = (roads[["row", "column"]] >= 0).all(axis=1).to_numpy()
    locate(cells, list(set(roads.loc[known, "from"])), origin.name)
    if (~known).any():
        log.info("%s: %d distances of other sensors left out", origin.name, (~known).sum())
    twice = np.flatnonzero(roads[["from", "to"]].duplicated() & known)
    if twice.size:
        start, end = roads[["from", "to"]].iloc[twice[0]]
        raise InputError(
            f"{origin.at(twice[0])}: the road from {start} to {end} already has a distance, "
            "expected one; remove a line"
        )
    distance = np.full((len(cells), len(cells)), np.inf, dtype=np.float32)
    inside = roads[known]
    distance[inside["row"], inside["column"]] = inside["cost"]
    return distance


def _read_named(path: Path, names: Sequence[str], n_ids: int) -> tuple[pd.DataFrame, Origin]:
    """Read columns of a table; the first ones are ids, kept as text.

    A file whose first line holds values has no header: its columns are taken in order. A last
    column `distance` serves as `cost`, as in STSGCN's lists.
    """
    first = ""
    if path.is_file() and path.suffix == ".csv":
        with (
            reading(path.name, "as a table", "get it again"),
            path.open(encoding="utf-8-sig", errors="replace") as file,
        ):
            first = file.readline(100).partition(",")[0].strip()
    if first.isascii() and first.isdigit():
        columns = numbered(len(names))
        df, origin = read_table(
            path, text_columns=columns[:n_ids], options=TableOptions(no_header=True)
        )
        require_columns([*df], columns, origin)
        return df[columns].set_axis(list(names), axis="columns"), origin
    df, origin = read_table(path, text_columns=names[:n_ids])
    if "cost" not in df.columns:
        df = df.rename(columns={"distance": "cost"})
    require_columns([*df], names, origin)
    return df, origin


def locate(cells: np.ndarray, ids: Sequence[str], name: str) -> list[int]:
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
