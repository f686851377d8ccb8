"""Convert the records that DCRNN's authors publish, METR-LA and PEMS-BAY, to a cube.

Source: Li, Yu, Shahabi, Liu, "Diffusion Convolutional Recurrent Neural Network: Data-Driven Traffic
Forecasting", ICLR 2018, arXiv 1707.01926.

They are frames that pandas saved as HDF5, read without PyTables or pickle.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import h5py
import numpy as np
import pandas as pd
import xarray as xr

from data_prep.base.errors import InputError
from data_prep.base.limits import check_expansion
from data_prep.readers.hdf5 import NUMBER, check_array, open_hdf5, text_of
from data_prep.readers.pandas_hdf5 import (
    check_labels,
    find_frame,
    read_index,
    read_labels,
)
from data_prep.sets.roads import common
from data_prep.sets.roads.sensors import locate, read_adjacency, read_locations

DAY = 288
"""Rows to read at a time if only some columns are wanted."""


def read_frame(path: Path, year: int, cells: np.ndarray | None = None) -> pd.DataFrame:
    """Read a frame `(time, cell)` that pandas saved with `to_hdf`, without PyTables or pickle.

    Its index has naive times, its columns text ids; `cells` names the sensors to read, in this
    order. A time outside the year is refused, since the time unit may be misread.
    """
    remedy = "give the published .h5 file, or download it again"
    with open_hdf5(path, "as a pandas HDF5 frame", remedy) as file:
        group = _find_speeds(file, path.name)
        # block0_items labels the values; pandas may order the frame's axis0 differently.
        columns, values = group["axis0"], group["block0_values"]
        items = group.get("block0_items", columns)
        for labels in (columns, items):
            check_labels(labels, path.name)
        check_array(group["axis1"], path.name, NUMBER)
        if cells is None:
            check_array(values, path.name, NUMBER)
        shape = group["axis1"].size, items.size
        if values.shape != shape or values.dtype.kind not in "fiu" or not values.size:
            raise InputError(
                f"{path.name}: block0_values is {values.dtype} of shape {values.shape}, expected "
                f"numbers of shape {shape} (axis1, axis0), at least one; download it again"
            )
        known = read_labels(items, path.name)
        if odd := set(read_labels(columns, path.name)) ^ set(known):
            raise InputError(
                f"{path.name}: axis0 and block0_items name different sensors ({min(odd)} is in one "
                "of them only), expected the same; download it again"
            )
        times = _read_times(group["axis1"], year, path.name)
        if cells is None:
            return pd.DataFrame(values[()], index=times, columns=known)
        at = locate(cells, known, path.name)
        return pd.DataFrame(_read_columns(values, at, path), index=times, columns=list(cells))


def _read_columns(values: h5py.Dataset, at: Sequence[int], path: Path) -> np.ndarray:
    """Read some columns `(time, column)`, a day at a time: the file may be larger than memory."""
    what = f"{path.name}: {len(at)} columns of {values.name}"
    check_expansion(NUMBER * len(values) * len(at), path, what)
    check_expansion(NUMBER * DAY * values.shape[1], path, f"{path.name}: a day of {values.name}")
    chosen = np.empty((len(values), len(at)), values.dtype)
    for start in range(0, len(values), DAY):
        chosen[start : start + DAY] = values[start : start + DAY][:, at]
    return chosen


def _find_speeds(file: h5py.File, name: str) -> h5py.Group:
    group = find_frame(file, name)
    blocks = int(group.attrs.get("nblocks", 1))
    if blocks != 1:
        raise InputError(
            f"{name}: the frame has columns of {blocks} types, expected speeds only; save it with "
            "DataFrame.astype(float).to_hdf(path, key='df')"
        )
    return group


def _read_times(axis: h5py.Dataset, year: int, name: str) -> pd.DatetimeIndex:
    kind, zone = (text_of(axis.attrs.get(key, "")) for key in ("kind", "tz"))
    if zone:
        raise InputError(
            f"{name}: {axis.name} has the zone {zone!r}, expected datetime64 without one; give the "
            "published file"
        )
    times = read_index(axis, name)
    years = times.astype("datetime64[Y]").astype(int) + 1970
    if (years != year).any():
        raise InputError(
            f"{name}: {axis.name} read as {kind!r} has the year {years[years != year][0]}, "
            f"expected {year}; give the records of that year, or save the file again if its "
            "attribute 'kind' names the wrong unit"
        )
    return pd.DatetimeIndex(times.astype("datetime64[ns]"))


STEP = pd.Timedelta("5min")


@dataclass(frozen=True)
class Dcrnn:
    """One of the two data sets; its module uses this class's `read`.

    Files have several published names, the usual one first.
    """

    title: str
    year: int
    records: Sequence[str]
    adjacencies: Sequence[str]
    locations: Sequence[str]

    def read(
        self,
        raw: Path,
        *,
        adjacency: Path | None = None,
        locations: Path | None = None,
        step: str = "5min",
        allow_gaps: bool = False,
    ) -> xr.Dataset:
        """Read the pandas HDF5 file as a cube.

        Args:
            raw: The published .h5 file, or a folder that holds it.
            adjacency: Road graph, a .npz (sensor_id, adjacency) or a .csv of distances
                (from,to,cost).
            locations: A .csv of sensor positions (sensor_id,latitude,longitude).
            step: Length of a time step, 5 minutes or a multiple that divides a day. Longer steps
                hold the mean of their observed speeds, NaN if there are none.
            allow_gaps: Leave NaN at missing time steps instead of refusing the file.

        Returns:
            The cube.

        Raises:
            InputError: if a file is invalid; names it.
        """
        length = common.step_of_multiple(step, STEP)
        path = common.find_records(Path(raw), self.records)
        adjacency = common.given_or_beside(adjacency, path, self.adjacencies)
        locations = common.given_or_beside(locations, path, self.locations)
        frame = read_frame(path, self.year)
        common.check_readings(frame, path.name, "speed", "mph, 0 if missing,")
        frame = common.even_steps(frame, path.name, STEP, common.CALIFORNIA, allow_gaps)
        frame = common.average(frame, length, zero_is_missing=True)
        cells = frame.columns.to_numpy(dtype=str)
        return common.road_cube(
            {"speed": frame},
            (path, adjacency, locations),
            roads=read_adjacency(adjacency, cells) if adjacency else None,
            places=read_locations(locations, cells) if locations else None,
            title=self.title,
            source="DCRNN, ICLR 2018, arXiv 1707.01926",
            units="mile/hour",
            time_zone=common.CALIFORNIA,
            zero_is_missing=True,
            long_names={"speed": "mean speed of the vehicles"},
        )
