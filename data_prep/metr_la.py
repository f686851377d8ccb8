"""METR-LA: speeds of 207 loop detectors on the highways of Los Angeles County, 2012.

- Paper: Li, Yu, Shahabi, Liu, "Diffusion Convolutional Recurrent Neural Network: Data-Driven
  Traffic Forecasting", ICLR 2018, arXiv 1707.01926; recorded by the highway detectors that
  Jagadish et al., "Big Data and Its Technical Challenges", CACM 57(7), 2014, describe.
- 34,272 steps of 5 minutes, 2012-03-01 00:00 to 2012-06-27 23:55; 207 cells (detectors). Cell ids
  are the publisher's sensor ids, as text.
- `speed` in miles per hour. **0 means missing** (8.11 %); zeros are kept as published and marked
  by `zero_is_missing`.
- Road graph: `adjacency`, dimensions `(cell, cell_to)`: DCRNN's Gaussian kernel of the directed
  road distance from `cell` to `cell_to`, 1 on the diagonal, 0 below the threshold 0.1.
- Licence: none stated by the publishers, who share the data for research.
- Trap: times are Los Angeles wall-clock times without daylight saving: steps stay even through the
  change on 2012-03-11. They must not be localised, so the cube's `clock` is `"local"`.
- Trap: some copies have interpolated gaps; they hold no zeros and pose a different task.
- Trap: `adj_mx.pkl` is a pickle, which can run any code when it is loaded; it is never read.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr

from data_prep.checksum import checksum
from data_prep.cube import make_cube, write_cube
from data_prep.dcrnn.frame import read_frame
from data_prep.dcrnn.sensors import read_adjacency, read_locations
from data_prep.download import Archive
from data_prep.errors import InputError, check_regular, no_file
from data_prep.tabular.gaps import check_steps
from data_prep.tabular.times import regular_steps

# The mirror of torch-spatiotemporal, because DCRNN's authors link to shared drives only.
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


def prepare(raw: Path, out: Path, *, progress: bool = False, **options: Any) -> Path:
    """Turn METR-LA's pandas HDF5 file into a cube.

    Args:
        raw: The file metr-la.h5, or a folder that holds it.
        out: The cube to write, a .nc file.
        progress: No effect; the file is read at once.
        **options: Options of `read`.

    Returns:
        The path of the cube.

    Raises:
        InputError: as `read`.
    """
    return write_cube(read(raw, **options), out)


def read(
    raw: Path,
    *,
    adjacency: Path | None = None,
    locations: Path | None = None,
    step: str = "5min",
    allow_gaps: bool = False,
) -> xr.Dataset:
    """Read METR-LA's pandas HDF5 file as a cube.

    Args:
        raw: The file metr-la.h5, or a folder that holds it.
        adjacency: Road graph, a .npz (sensor_id, adjacency) or a .csv of distances (from,to,cost).
        locations: A .csv of sensor positions (sensor_id,latitude,longitude).
        step: Length of a time step, 5 minutes or a multiple that divides a day. Longer steps hold
            the mean of their observed speeds, NaN if there are none.
        allow_gaps: Leave NaN at missing time steps instead of refusing the file.

    Returns:
        The cube.

    Raises:
        InputError: if a file is invalid; names it.
    """
    length = _step_length(step)
    path = _find_records(Path(raw))
    adjacency = _given_or_beside(adjacency, path, ADJACENCIES)
    locations = _given_or_beside(locations, path, LOCATIONS)
    frame = _average(_check_speeds(read_frame(path, YEAR), path.name, allow_gaps), length)
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
        ds = _add_roads(ds, read_adjacency(adjacency, cells))
    return ds


def _add_roads(ds: xr.Dataset, weights: np.ndarray) -> xr.Dataset:
    attributes = {"units": "1", "long_name": "road proximity from cell to cell_to"}
    other_end = ("cell_to", ds["cell"].to_numpy(), {"long_name": "cell that a road leads to"})
    return ds.assign(adjacency=(("cell", "cell_to"), weights, attributes)).assign_coords(
        cell_to=other_end
    )


def _find_records(raw: Path) -> Path:
    if raw.is_file():
        return raw
    if not raw.is_dir():
        raise no_file(raw, "file or folder", "give metr-la.h5, or the folder that holds it")
    found = sorted(raw.glob("*.h5"))
    official = [path for path in found if path.name in RECORDS]
    if len(found) == 1 or official:
        path = (official or found)[0]
        check_regular(path, "file of speeds", "put metr-la.h5 itself there")
        return path
    names = ", ".join(path.name for path in found) or "no .h5 file"
    raise InputError(f"{raw}: found {names}, expected metr-la.h5; give the path of the one to read")


def _given_or_beside(given: Path | None, records: Path, names: Sequence[str]) -> Path | None:
    """Return the path given, else the first well-known file beside the records, if any."""
    if given is not None:
        if not Path(given).is_file():
            raise no_file(Path(given), "file", f"give one such as {names[0]}")
        return Path(given)
    beside = [path for name in names if os.path.lexists(path := records.parent / name)]
    if not beside:
        return None
    check_regular(beside[0], "file", "put the file itself there, or remove this one")
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
            "repeats; sort the frame and drop duplicates"
        )
    speeds = frame.to_numpy()
    wrong = np.argwhere((speeds < 0) | np.isinf(speeds))
    if wrong.size:
        row, column = wrong[0]
        raise InputError(
            f"{name}: speed {speeds[row, column]} at {times[row]}, sensor "
            f"{frame.columns[column]}, expected mph from 0 (missing) up; correct it or set it to 0"
        )
    axis, at = regular_steps(times, name)
    check_steps(axis, at, name, allow_gaps)
    if len(axis) > 1 and axis[1] - axis[0] != STEP:
        raise InputError(
            f"{name}: time steps of {axis[1] - axis[0]}, expected 5 minutes; give the published "
            "file and choose longer steps with --step"
        )
    return frame.reindex(axis)


def _step_length(step: str) -> pd.Timedelta:
    try:
        length = pd.Timedelta(step)
    except ValueError as e:
        raise InputError(f"step {step!r} is not a length of time; write one like 15min") from e
    if length < STEP or length % STEP or pd.Timedelta("1D") % length:
        raise InputError(
            f"step {step!r} does not fit, expected a multiple of 5 minutes that divides a day; "
            "choose one such as 15min or 1h"
        )
    return length


def _average(frame: pd.DataFrame, length: pd.Timedelta) -> pd.DataFrame:
    """Average the observed speeds (not 0, not NaN) over longer steps, counted from midnight."""
    if length == STEP:
        return frame
    return frame.where(frame != 0).resample(length, origin="start_day").mean()
