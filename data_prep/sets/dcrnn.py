"""METR-LA and PEMS-BAY: road speeds as DCRNN's authors publish them.

Source: Li, Yu, Shahabi, Liu, "Diffusion Convolutional Recurrent Neural Network: Data-Driven Traffic
Forecasting", ICLR 2018, arXiv 1707.01926.

The records are frames that pandas saved as HDF5, read without PyTables or pickle.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

import h5py
import numpy as np
import pandas as pd
import xarray as xr

from data_prep.base.errors import InputError
from data_prep.base.limits import check_expansion
from data_prep.cube import CubeReader
from data_prep.download import Archive, File
from data_prep.readers.formats.pandas_hdf5 import check_labels, find_frame, read_index, read_labels
from data_prep.readers.hdf5 import NUMBER, check_array, open_hdf5, text_of
from data_prep.readers.resampling import step_of_multiple
from data_prep.sets.roads import common
from data_prep.sets.roads.sensors import locate, read_adjacency, read_locations

STEP = pd.Timedelta("5min")

_SENSORS = (
    "https://raw.githubusercontent.com/liyaguang/DCRNN/602afd9d767d3aa1c9b3eac51710d6aeee12c227/"
    "data/sensor_graph"
)


def read_frame(path: Path, year: int, cells: np.ndarray | None = None) -> pd.DataFrame:
    """Read a frame `(time, cell)` that pandas saved with `to_hdf`, without PyTables or pickle.

    Its index has naive times, its columns text ids; `cells` names the sensors to read, in this
    order. A time outside the year is refused, since the time unit may be misread.
    """
    remedy = "give the published .h5 file, or download it again"
    with open_hdf5(path, "as a pandas HDF5 frame", remedy) as file:
        group = find_frame(file, path.name)
        if (blocks := int(group.attrs.get("nblocks", 1))) != 1:
            raise InputError(
                f"{path.name}: the frame has columns of {blocks} types, expected speeds only; save "
                "it with DataFrame.astype(float).to_hdf(path, key='df')"
            )
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
    day = 288
    check_expansion(NUMBER * day * values.shape[1], path, f"{path.name}: a day of {values.name}")
    chosen = np.empty((len(values), len(at)), values.dtype)
    for start in range(0, len(values), day):
        chosen[start : start + day] = values[start : start + day][:, at]
    return chosen


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


class Dcrnn(CubeReader):
    """One of the data sets; its docstring is the data sheet.

    Attributes:
        title: title of the cube.
        year: year of all times.
        records: published names of the file of speeds, the usual one first.
        adjacencies: the same of the road graph.
        locations: the same of the positions.
    """

    title: ClassVar[str]
    year: ClassVar[int]
    records: ClassVar[Sequence[str]]
    adjacencies: ClassVar[Sequence[str]]
    locations: ClassVar[Sequence[str]]

    @classmethod
    def read(
        cls,
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

        Raises:
            InputError: if a file is invalid; names it.
        """
        length = step_of_multiple(step, STEP)
        path = common.find_records(Path(raw), cls.records)
        adjacency = common.given_or_beside(adjacency, path, cls.adjacencies)
        locations = common.given_or_beside(locations, path, cls.locations)
        frame = read_frame(path, cls.year)
        common.check_readings(frame, path.name, "speed", "mph, 0 if missing,")
        frame = common.even_steps(frame, path.name, STEP, common.CALIFORNIA, allow_gaps=allow_gaps)
        frame = common.average(frame, length, zero_is_missing=True)
        cells = frame.columns.to_numpy(dtype=str)
        return common.road_cube(
            {"speed": frame},
            (path, adjacency, locations),
            roads=read_adjacency(adjacency, cells) if adjacency else None,
            places=read_locations(locations, cells) if locations else None,
            title=cls.title,
            source="DCRNN, ICLR 2018, arXiv 1707.01926",
            units="mile/hour",
            time_zone=common.CALIFORNIA,
            zero_is_missing=True,
            long_names={"speed": "mean speed of the vehicles"},
        )


class MetrLA(Dcrnn):
    """METR-LA: speeds of 207 loop detectors on the highways of Los Angeles County, 2012.

    - Paper: Li, Yu, Shahabi, Liu, "Diffusion Convolutional Recurrent Neural Network: Data-Driven
      Traffic Forecasting", ICLR 2018, arXiv 1707.01926; recorded by the highway detectors that
      Jagadish et al., "Big Data and Its Technical Challenges", CACM 57(7), 2014, describe.
    - 34,272 steps of 5 minutes, 2012-03-01 00:00 to 2012-06-27 23:55; 207 cells (detectors). Cell
      ids are the publisher's sensor ids, as text.
    - `speed` in miles per hour. **0 means missing** (8.11 %); zeros are kept as published and
      marked by `zero_is_missing`.
    - Road graph: `adjacency`, dimensions `(cell, cell_to)`: DCRNN's Gaussian kernel of the directed
      road distance from `cell` to `cell_to`, 1 on the diagonal, 0 below the threshold 0.1.
    - Licence: none stated by the publishers, who share the data for research.
    - Trap: times are Los Angeles wall-clock times without daylight saving: steps stay even through
      the change on 2012-03-11. They must not be localised, so the cube's `clock` is `"local"`.
    - Trap: some copies have interpolated gaps; they hold no zeros and pose a different task.
    - Trap: `adj_mx.pkl` is a pickle, which can run any code when it is loaded; it is never read.
    """

    name = "metr-la"
    title = "METR-LA road speeds"
    year = 2012
    records = ("metr-la.h5", "metr_la.h5")
    adjacencies = ("metr-la-adjacency.npz", "distances_la_2012.csv", "distances_la.csv")
    locations = ("graph_sensor_locations.csv", "sensor_locations_la.csv")
    # The mirror of torch-spatiotemporal, because DCRNN's authors link to shared drives only.
    SOURCES = (
        Archive(
            "https://drive.switch.ch/index.php/s/Z8cKHAVyiDqkzaG/download",
            members=("metr_la.h5", "distances_la.csv", "sensor_locations_la.csv"),
        ),
    )


class PemsBay(Dcrnn):
    """PEMS-BAY: speeds of 325 loop detectors on the highways of the Bay Area, 2017.

    - Paper: Li, Yu, Shahabi, Liu, "Diffusion Convolutional Recurrent Neural Network: Data-Driven
      Traffic Forecasting", ICLR 2018, arXiv 1707.01926, from Caltrans' Performance Measurement
      System.
    - Steps of 5 minutes, 2017-01-01 00:00 to 2017-06-30 23:55; 325 cells (detectors). Cell ids are
      the publisher's sensor ids, as text. The layout is that of METR-LA.
    - `speed` in miles per hour. **0 means missing**; zeros are kept as published and marked by
      `zero_is_missing`. 0.02 % are missing (torch-spatiotemporal).
    - Road graph: `adjacency`, dimensions `(cell, cell_to)`: DCRNN's Gaussian kernel of the directed
      road distance from `cell` to `cell_to`, 1 on the diagonal, 0 below the threshold 0.1.
    - Licence: none stated by the publishers, who share the data for research.
    - Trap: the file has 52,116 rows for 181 days of 288 steps (52,128). The difference is an hour,
      as long as the one that the clocks skip on 2017-03-12. Steps of a skipped hour are NaN and
      need no `--allow-gaps`; other missing rows do. The cube's `clock` is `"local"`.
    - Trap: `distances_bay_2017.csv` and `graph_sensor_locations_bay.csv` have no header; their
      columns are from, to, cost and sensor_id, latitude, longitude.
    - Trap: `adj_mx_bay.pkl` is a pickle, which can run any code when it is loaded; it is never
      read.
    """

    name = "pems-bay"
    title = "PEMS-BAY road speeds"
    year = 2017
    records = ("pems-bay.h5", "pems_bay.h5")
    adjacencies = ("pems-bay-adjacency.npz", "distances_bay_2017.csv", "distances_bay.csv")
    locations = ("graph_sensor_locations_bay.csv", "sensor_locations_bay.csv")
    # The records from the mirror of torch-spatiotemporal, because DCRNN's authors link to shared
    # drives only; the sensors from the authors, at a fixed commit.
    SOURCES = (
        Archive(
            "https://drive.switch.ch/index.php/s/5NPcgGFAIJ4oFcT/download",
            name="pems_bay.zip",
            members=("pems_bay.h5",),
        ),
        File(
            f"{_SENSORS}/distances_bay_2017.csv",
            "distances_bay_2017.csv",
            "sha256:e5feed06bfa1ba4c554a946d0e03d99f2018365eec5a8f28fd8504dea9d082b5",
        ),
        File(
            f"{_SENSORS}/graph_sensor_locations_bay.csv",
            "graph_sensor_locations_bay.csv",
            "sha256:276ee01059610774d4e59572507f7e32eaac21f1f5882fcd9e3d7d426a4b7a6c",
        ),
    )
