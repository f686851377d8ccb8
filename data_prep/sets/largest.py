"""LargeST: flow at up to 8,600 loop detectors of California, 2017 to 2021.

- Paper: Liu et al., "LargeST: A Benchmark Dataset for Large-Scale Traffic Forecasting", NeurIPS
  2023 (datasets and benchmarks), arXiv 2306.08259; code github.com/liuxu77/LargeST. Recorded by
  Caltrans' Performance Measurement System (PeMS).
- 105,120 steps of 5 minutes a year (105,408 in 2020), local time. Cell ids are the sensor ids of
  PeMS, as text.
- Sub-sets by the column District of the sensors' table: SD (San Diego, 11; 716 cells), GBA (Greater
  Bay Area, 4; 2,352), GLA (Greater Los Angeles, 7, 8 and 12; 3,834), CA (all 8,600).
- Files: `ca_his_raw_2019.h5`, a pandas frame for each year; `ca_meta.csv` with a row for each
  sensor (ID, Lat, Lng, District, County, Fwy, Lane, Type, Direction); `ca_rn_adj.npy`, the road
  graph in the order of that table. `ca_meta.csv` is needed, the graph is not.
- `flow`: vehicles in 5 minutes. NaN is missing (1.51 % of five years), 0 is data. The benchmark
  reads 2019 in steps of 15 minutes, each the rounded mean of three values (`--step 15min`). It
  writes missing values as 0 and leaves targets of 0 out of its errors (`--zero-is-missing`).
- Coordinates of the cells beside `lon` and `lat`: `district`, `county`, `fwy`, `lane`, `direction`.
- Road graph: `adjacency`, dimensions `(cell, cell_to)`, as published.
- Licence: CC BY-NC 4.0.
- Trap: 2019 of all 8,600 cells takes 7.2 GB in memory; of a sub-set, only its columns are read.
"""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np
import pandas as pd
import xarray as xr

from data_prep.base.errors import InputError, Words, no_file
from data_prep.base.limits import check_expansion
from data_prep.cube import write_read
from data_prep.readers.columns import require_columns
from data_prep.readers.decode import read_table
from data_prep.readers.npz import Header, open_npy
from data_prep.readers.resampling import step_of_multiple
from data_prep.sets.dcrnn import read_frame
from data_prep.sets.roads import common
from data_prep.sets.roads.sensors import read_locations, refuse_pickle

SOURCES: tuple[()] = ()
BY_HAND = (
    "fetch ca_his_raw_2019.h5 (or another year), ca_meta.csv and ca_rn_adj.npy by hand from "
    "https://www.kaggle.com/datasets/liuxu77/largest, which asks for an account"
)
STEP = pd.Timedelta("5min")


def read(
    raw: Path,
    *,
    subset: Literal["SD", "GBA", "GLA", "CA"] = "SD",
    years: str = "2019",
    meta: Path | None = None,
    adjacency: Path | None = None,
    step: str = "5min",
    zero_is_missing: bool = False,
    allow_gaps: bool = False,
) -> xr.Dataset:
    """Read LargeST's yearly files as a cube.

    Args:
        raw: The folder of the published files, or one of the yearly .h5 files.
        subset: Sensors to read: SD, GBA, GLA, or all of CA.
        years: Years to read from a folder, one after the other, such as 2018,2019.
        meta: Table of the sensors, by default ca_meta.csv beside the records.
        adjacency: Road graph, a .npy matrix in the order of that table, by default ca_rn_adj.npy
            beside the records.
        step: Length of a time step, 5 minutes or a multiple that divides a day. Longer steps hold
            the mean of what was observed, rounded to whole vehicles as in the benchmark.
        zero_is_missing: Treat 0 as missing, as the benchmark's errors do.
        allow_gaps: Leave NaN at missing time steps instead of refusing the files.

    Raises:
        InputError: if a file is invalid; names it.
    """
    length = step_of_multiple(step, STEP)
    paths = _find_years(Path(raw), years)
    first = next(iter(paths))
    table = common.given_or_beside(meta, first, ("ca_meta.csv",))
    if table is None:
        raise no_file(first.with_name("ca_meta.csv"), "table of the sensors", BY_HAND)
    adjacency = common.given_or_beside(adjacency, first, ("ca_rn_adj.npy",))
    sensors, at = _read_sensors(table, subset)
    cells = sensors["ID"].to_numpy(dtype=str)
    frame = pd.concat([read_frame(path, year, cells) for path, year in paths.items()])
    name = ", ".join(path.name for path in paths)
    common.check_readings(frame, name, "flow", "vehicles")
    frame = common.even_steps(frame, name, STEP, common.CALIFORNIA, allow_gaps=allow_gaps)
    longer = common.average(frame, length, zero_is_missing=False)
    frame = frame if longer is frame else longer.round(0)
    ds = common.road_cube(
        {"flow": frame},
        (*paths, table, adjacency),
        places=read_locations(table, cells, columns=("ID", "Lat", "Lng")),
        title=f"LargeST {subset} road traffic",
        source="LargeST, NeurIPS 2023, arXiv 2306.08259",
        license="CC BY-NC 4.0",
        units="count",
        time_zone=common.CALIFORNIA,
        zero_is_missing=zero_is_missing,
        long_names={"flow": "vehicles in 5 minutes"},
    )
    about = ("District", "County", "Fwy", "Lane", "Direction")
    known = [column for column in about if column in sensors]
    ds = ds.assign_coords({c.lower(): ("cell", sensors[c].to_numpy()) for c in known})
    return common.add_roads(ds, _read_roads(adjacency, at)) if adjacency else ds


prepare = partial(write_read, read)


def _find_years(raw: Path, years: str) -> dict[Path, int]:
    """Return the yearly files and their years, in order."""
    if raw.is_file():
        found = re.search(r"20\d\d", raw.stem)
        if found is None:
            raise InputError(f"{raw.name}: no year in its name; rename it like ca_his_raw_2019.h5")
        return {raw: int(found[0])}
    if not raw.is_dir():
        raise no_file(raw, "file or folder", BY_HAND)
    chosen = sorted({year.strip() for year in years.split(",")})
    if odd := [year for year in chosen if not re.fullmatch(r"20(1[7-9]|2[01])", year)]:
        raise InputError(
            f"years is {years!r} with {odd[0]!r}, expected some of 2017 to 2021 separated by "
            "commas; write them like 2018,2019"
        )
    paths = {raw / f"ca_his_raw_{year}.h5": int(year) for year in chosen}
    if absent := [path for path in paths if not path.is_file()]:
        remedy = Words("{}, or choose other {years}", BY_HAND)
        raise no_file(absent[0], "year of records", remedy)
    return paths


def _read_sensors(path: Path, subset: str) -> tuple[pd.DataFrame, np.ndarray]:
    """Return the rows of a sub-set in the table of all sensors, and their positions in it."""
    table, origin = read_table(path, text_columns=("ID",))
    require_columns([*table], ("ID", "Lat", "Lng", "District"), origin)
    districts = {"SD": [11], "GBA": [4], "GLA": [7, 8, 12], "CA": []}[subset]
    chosen = table["District"].isin(districts) | (not districts)
    at = np.flatnonzero(chosen)
    if not at.size:
        raise InputError(
            f"{path.name}: no sensor of {subset} (District {', '.join(map(str, districts))}) "
            f"among {len(table)} rows; ",
            Words("give the published ca_meta.csv, or choose another {subset}"),
        )
    return table.iloc[at], at


def _read_roads(path: Path, at: np.ndarray) -> np.ndarray:
    """Return the road graph among some sensors of the table, `(cell, cell_to)`."""

    def check(matrix: Header) -> None:
        square = len(matrix.shape) == 2 and matrix.shape[0] == matrix.shape[1] > at.max()
        if not square or matrix.dtype.kind not in "iuf":
            raise InputError(
                f"{path.name}: {matrix.dtype} of shape {matrix.shape}, expected numbers, a row and "
                "a column for each sensor of ca_meta.csv; give the published ca_rn_adj.npy"
            )
        check_expansion(matrix.dtype.itemsize * len(at) ** 2, path)

    refuse_pickle(path)
    return common.check_weights(open_npy(path, check)[np.ix_(at, at)], path.name)
