"""METR-LA: speeds of 207 loop detectors on the highways of Los Angeles County, 2012.

- Paper: Li, Yu, Shahabi, Liu, "Diffusion Convolutional Recurrent Neural Network: Data-Driven
  Traffic Forecasting", ICLR 2018, arXiv 1707.01926; recorded by the highway detectors that
  Jagadish et al., "Big Data and Its Technical Challenges", CACM 57(7), 2014, describe.
- 34,272 steps of 5 minutes, 2012-03-01 00:00 to 2012-06-27 23:55; 207 cells (detectors), named by
  the publisher's sensor ids, which stay text.
- `speed` in miles per hour. **0 means missing** (8.11 %); it is kept as published and marked by
  `zero_is_missing`.
- Road graph: `adjacency`, dimensions `(cell, cell_to)`: DCRNN's Gaussian kernel of the directed
  road distance from `cell` to `cell_to`, 1 on the diagonal, 0 below the threshold 0.1.
- Licence: none stated by the publishers, who share it for research.
- Trap: the clock is Los Angeles wall-clock time in name only. It runs evenly through the change to
  daylight saving on 2012-03-11, so it must not be localised: the cube's `clock` is `"local"`.
- Trap: some copies have the gaps interpolated; they hold no zeros and measure another task.
- Trap: `adj_mx.pkl` is a pickle, which can run any code when it is loaded; it is never read here.
"""

from __future__ import annotations

import logging
import re
import zipfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import h5py
import numpy as np
import pandas as pd

from data_prep.cube import make_cube, write_cube
from data_prep.download import Archive
from data_prep.errors import InputError
from data_prep.table import (
    Origin,
    checksum,
    numbers,
    read_table,
    regular_steps,
    require_columns,
)

# The mirror of torch-spatiotemporal; DCRNN's authors link to shared drives only.
SOURCES: tuple = (
    Archive(
        "https://drive.switch.ch/index.php/s/Z8cKHAVyiDqkzaG/download",
        members=("metr_la.h5", "distances_la.csv", "sensor_locations_la.csv"),
    ),
)
STEP = pd.Timedelta("5min")
YEAR = 2012
RECORDS = ("metr-la.h5", "metr_la.h5")
ADJACENCIES = ("metr-la-adjacency.npz", "distances_la_2012.csv", "distances_la.csv")
LOCATIONS = ("graph_sensor_locations.csv", "sensor_locations_la.csv")

logger = logging.getLogger(__name__)


def prepare(
    raw: Path,
    out: Path,
    *,
    adjacency: Path | None = None,
    locations: Path | None = None,
    step: str = "5min",
    allow_gaps: bool = False,
    progress: bool = False,
) -> Path:
    """Turn METR-LA's pandas HDF5 file into a cube.

    Args:
        raw: The file metr-la.h5, or a folder that holds it.
        out: The cube to write, a .nc file.
        adjacency: Road graph, a .npz (sensor_id, adjacency) or a .csv of distances (from,to,cost).
        locations: A .csv of sensor positions (sensor_id,latitude,longitude).
        step: Length of a time step, 5 minutes or a multiple that divides a day; a longer one holds
            the mean of the speeds observed in it, NaN where there is none.
        allow_gaps: Leave NaN at missing time steps instead of refusing the file.
        progress: Accepted as for every data set; the file is read in one go.

    Returns:
        The path of the cube.

    Raises:
        InputError: naming the file and what is wrong with it.
    """
    path = _find_records(Path(raw))
    adjacency = _given_or_beside(adjacency, path, ADJACENCIES)
    locations = _given_or_beside(locations, path, LOCATIONS)
    frame = _average(_check_speeds(read_frame(path), path.name, allow_gaps), step)
    cells = frame.columns.to_numpy(dtype=str)
    lon, lat = read_locations(locations, cells) if locations else (None, None)
    ds = make_cube(
        {"speed": frame.to_numpy(dtype=np.float64)},
        pd.DatetimeIndex(frame.index),
        cells,
        title="METR-LA road speeds",
        source="DCRNN, ICLR 2018, arXiv 1707.01926",
        license="not stated by the publishers",
        units="mile/hour",
        time_zone="America/Los_Angeles",
        clock="local",
        zero_is_missing=True,
        long_names={"speed": "mean speed of the vehicles"},
        checksums={p.name: checksum(p) for p in (path, adjacency, locations) if p},
        lon=lon,
        lat=lat,
    )
    if adjacency:
        attributes = {"units": "1", "long_name": "road proximity from cell to cell_to"}
        ds = ds.assign_coords(
            cell_to=("cell_to", cells, {"long_name": "cell that a road leads to"})
        )
        ds["adjacency"] = (("cell", "cell_to"), read_adjacency(adjacency, cells), attributes)
    return write_cube(ds, out)


def read_frame(path: Path) -> pd.DataFrame:
    """Read a frame that pandas saved with `to_hdf`, with neither PyTables nor pickle.

    Args:
        path: an HDF5 file that holds one frame in pandas' fixed format.

    Returns:
        `(time, cell)`, naive times as index, ids as text columns.

    Raises:
        InputError: if there is no such frame, an axis is pickled, or its dates are not of 2012,
            as when their unit is misread.
    """
    try:
        with h5py.File(path) as file:
            group = _find_frame(file, path.name)
            # The values' own labels, which pandas may order otherwise than the frame's axis0.
            cells = _read_labels(group.get("block0_items", group["axis0"]), path.name)
            times = _read_times(group["axis1"], path.name)
            values = group["block0_values"][:]
    except (OSError, KeyError) as e:
        raise InputError(
            f"{path.name}: cannot be read as a pandas HDF5 frame ({e}); download it again"
        ) from e
    if values.shape != (len(times), len(cells)) or values.dtype.kind not in "fiu":
        raise InputError(
            f"{path.name}: block0_values is {values.dtype} of shape {values.shape}, expected "
            f"numbers of shape {(len(times), len(cells))} (axis1, axis0); download it again"
        )
    return pd.DataFrame(values, index=times, columns=cells)


def read_locations(path: Path, cells: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Read DCRNN's `graph_sensor_locations.csv`.

    Args:
        path: columns `sensor_id`, `latitude`, `longitude`.
        cells: `(cells,)` sensor ids as text.

    Returns:
        Longitudes and latitudes in degrees, each `(cells,)`, in the order of `cells`.

    Raises:
        InputError: if a cell has no row, or a row no number.
    """
    df, origin = read_table(path, text_columns=("sensor_id",))
    require_columns(df, ("sensor_id", "latitude", "longitude"), origin)
    at = _locate(cells, df["sensor_id"].to_list(), path.name)
    return _filled(df["longitude"], origin)[at], _filled(df["latitude"], origin)[at]


def read_adjacency(path: Path, cells: np.ndarray) -> np.ndarray:
    """Read the road graph from plain arrays or from DCRNN's list of road distances.

    Args:
        path: `.npz` with `sensor_id` and `adjacency`, or `.csv` with columns `from`, `to`, `cost`.
        cells: `(cells,)` sensor ids as text.

    Returns:
        `(cells, cells)` weights from row to column, in the order of `cells`.

    Raises:
        InputError: if the file is a pickle, cannot be read, or does not know a cell.
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

    As DCRNN's `gen_adj_mx.py` does: std is over all finite distances between the cells, in single
    precision, and the result is not made symmetric.

    Args:
        distance: `(cells, cells)`, inf where there is no road.
        threshold: weights below it become 0.

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


def _find_records(raw: Path) -> Path:
    if raw.is_file():
        return raw
    found = sorted(raw.glob("*.h5"))
    official = [path for path in found if path.name in RECORDS]
    if len(found) == 1 or official:
        return (official or found)[0]
    names = ", ".join(path.name for path in found) or "no .h5 file"
    raise InputError(f"{raw}: found {names}, expected metr-la.h5; give the path of the one to read")


def _given_or_beside(given: Path | None, records: Path, names: Sequence[str]) -> Path | None:
    """The path given, else the first file of a well-known name beside the records, if any."""
    if given is not None:
        if not Path(given).is_file():
            raise InputError(f"{given}: no such file; give one such as {names[0]}")
        return Path(given)
    beside = [path for name in names if (path := records.parent / name).is_file()]
    if not beside:
        return None
    logger.info("%s: found beside %s and used", beside[0].name, records.name)
    return beside[0]


def _check_speeds(frame: pd.DataFrame, name: str, allow_gaps: bool) -> pd.DataFrame:
    """Refuse times out of order and impossible speeds; fill allowed gaps with NaN."""
    times = pd.DatetimeIndex(frame.index)
    backwards = np.flatnonzero(np.diff(times) <= np.timedelta64(0))
    if backwards.size:
        row = int(backwards[0])
        raise InputError(
            f"{name}: {times[row + 1]} follows {times[row]}, expected increasing times without "
            "repeats; sort the frame and drop what is double"
        )
    speeds = frame.to_numpy()
    wrong = np.argwhere((speeds < 0) | np.isinf(speeds))
    if wrong.size:
        row, column = wrong[0]
        raise InputError(
            f"{name}: speed {speeds[row, column]} at {times[row]}, sensor "
            f"{frame.columns[column]}, expected mph from 0 (missing) up; correct it or set it to 0"
        )
    axis, _ = regular_steps(times, name, allow_gaps=allow_gaps)
    if len(axis) > 1 and axis[1] - axis[0] != STEP:
        raise InputError(
            f"{name}: time steps of {axis[1] - axis[0]}, expected 5 minutes; give the published "
            "file and choose longer steps with --step"
        )
    return frame.reindex(axis)


def _average(frame: pd.DataFrame, step: str) -> pd.DataFrame:
    """Means over longer steps, counted from midnight, of the speeds observed (not 0, not NaN)."""
    try:
        length = pd.Timedelta(step)
    except ValueError as e:
        raise InputError(f"step {step!r} is not a length of time; write one like 15min") from e
    if length < STEP or length % STEP or pd.Timedelta("1D") % length:
        raise InputError(
            f"step {step!r} does not fit, expected a multiple of 5 minutes that divides a day; "
            "choose one such as 15min or 1h"
        )
    if length == STEP:
        return frame
    return frame.where(frame != 0).resample(length, origin="start_day").mean()


def _find_frame(file: h5py.File, name: str) -> h5py.Group:
    kinds = {key: _text(item.attrs.get("pandas_type", "")) for key, item in file.items()}
    frames = [key for key, kind in kinds.items() if kind == "frame"]
    if len(frames) != 1:
        raise InputError(
            f"{name}: {len(frames)} frames in pandas' fixed format among {kinds or 'no groups'}, "
            "expected one; save it with DataFrame.to_hdf(path, key='df', format='fixed')"
        )
    group = file[frames[0]]
    blocks = int(group.attrs.get("nblocks", 1))
    if blocks != 1:
        raise InputError(
            f"{name}: the frame has columns of {blocks} types, expected speeds only; save it with "
            "DataFrame.astype(float).to_hdf(path, key='df')"
        )
    return group


def _read_labels(axis: h5py.Dataset, name: str) -> list[str]:
    if axis.dtype.kind not in "Siu":
        raise InputError(
            f"{name}: {axis.name} holds {axis.dtype}, which may be pickled, and a pickle can run "
            "any code when it is loaded; save the frame again with text or integer labels"
        )
    labels = [str(label) for label in (axis.asstr() if axis.dtype.kind == "S" else axis)[:]]
    repeated = [label for label, count in Counter(labels).items() if count > 1]
    if repeated:
        raise InputError(
            f"{name}: {axis.name} names sensor {repeated[0]} more than once; rename or merge them"
        )
    return labels


def _read_times(axis: h5py.Dataset, name: str) -> pd.DatetimeIndex:
    kind, zone = (_text(axis.attrs.get(key, "")) for key in ("kind", "tz"))
    unit = re.fullmatch(r"datetime64(?:\[(s|ms|us|ns)\])?", kind)
    if not unit or zone or axis.dtype.kind != "i":
        raise InputError(
            f"{name}: {axis.name} is {axis.dtype} of kind {kind!r} and zone {zone!r}, expected "
            "naive datetime64; give the published file"
        )
    times = axis[:].astype(f"datetime64[{unit[1] or 'ns'}]")
    years = times.astype("datetime64[Y]").astype(int) + 1970
    if (years != YEAR).any():
        raise InputError(
            f"{name}: {axis.name} read as {kind!r} has the year {years[years != YEAR][0]}, "
            f"expected {YEAR}; its attribute 'kind' may name the wrong unit, save the file again"
        )
    return pd.DatetimeIndex(times.astype("datetime64[ns]"))


def _text(attribute: object) -> str:
    """An HDF5 attribute as text; PyTables writes bytes, or nothing for an empty one."""
    if isinstance(attribute, h5py.Empty):
        return ""
    return attribute.decode() if isinstance(attribute, bytes) else str(attribute)


def _locate(cells: np.ndarray, ids: Sequence[str], name: str) -> list[int]:
    """Position of each cell among `ids`."""
    positions = {sensor: i for i, sensor in enumerate(ids)}
    unknown = [str(cell) for cell in cells if cell not in positions]
    if unknown or len(positions) < len(ids):
        problem = f"no sensor {', '.join(unknown[:5])}" if unknown else "a sensor occurs twice"
        raise InputError(
            f"{name}: {problem} ({len(unknown)} of {len(cells)} cells unknown), expected each cell "
            "once; give the file that belongs to these records"
        )
    return [positions[cell] for cell in cells]


def _read_matrix(path: Path, cells: np.ndarray) -> np.ndarray:
    try:
        with np.load(path, allow_pickle=False) as arrays:
            ids, matrix = arrays["sensor_id"].astype(str), arrays["adjacency"]
    except (OSError, KeyError, ValueError, zipfile.BadZipFile) as e:
        raise InputError(
            f"{path.name}: cannot be read ({e}), expected plain arrays 'sensor_id' and "
            "'adjacency'; save them with numpy.savez"
        ) from e
    if matrix.shape != (len(ids), len(ids)) or not np.isfinite(matrix).all():
        raise InputError(
            f"{path.name}: adjacency of shape {matrix.shape} for {len(ids)} sensors, expected "
            f"finite numbers of shape {(len(ids), len(ids))}; save it again"
        )
    at = _locate(cells, ids.tolist(), path.name)
    return matrix[np.ix_(at, at)]


def _read_distances(path: Path, cells: np.ndarray) -> np.ndarray:
    """Road distances `(cells, cells)`, inf where there is none; other sensors are left out."""
    df, origin = read_table(path, text_columns=("from", "to"))
    require_columns(df, ("from", "to", "cost"), origin)
    cost = _filled(df["cost"], origin)
    rows, columns = (pd.Index(cells).get_indexer(df[end]) for end in ("from", "to"))
    known = (rows >= 0) & (columns >= 0)
    _locate(cells, list(set(df.loc[known, "from"])), path.name)
    if (~known).any():
        logger.info("%s: %d distances of other sensors left out", path.name, (~known).sum())
    distance = np.full((len(cells), len(cells)), np.inf, dtype=np.float32)
    distance[rows[known], columns[known]] = cost[known]
    return distance


def _filled(column: pd.Series, origin: Origin) -> np.ndarray:
    """A column of numbers without an empty field."""
    values = numbers(column, origin)
    empty = np.flatnonzero(np.isnan(values))
    if empty.size:
        raise InputError(f"{origin.at(empty[0])}: {column.name!r} is empty; fill in a number")
    return values
