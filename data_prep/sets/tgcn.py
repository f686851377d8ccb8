"""Los-loop and SZ-taxi: road speeds as T-GCN's authors publish them.

`los_speed.csv` and `sz_speed.csv` hold a column for each road, named in the first line, and a row
for each step, without times; `los_adj.csv` and `sz_adj.csv` are matrices without a header.

Source: Zhao, Song, Zhang, Liu, Wang, Lin, Deng, Li, "T-GCN: A Temporal Graph Convolutional Network
for Traffic Prediction", IEEE T-ITS 21(9), 2020, arXiv 1811.05320; github.com/lehaifeng/T-GCN.
"""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

import numpy as np
import pandas as pd
import xarray as xr

from data_prep.base.errors import InputError
from data_prep.cube import CubeReader
from data_prep.download import File
from data_prep.readers.columns import numbers
from data_prep.readers.decode import read_table
from data_prep.readers.resampling import step_of_multiple
from data_prep.sets.roads import common
from data_prep.sets.roads.sensors import read_locations, refuse_pickle

DATA = "https://raw.githubusercontent.com/lehaifeng/T-GCN/219a2346f5bf68d54d91a948e7a41a08f9edc46b/data"
"""The authors' files at a fixed commit."""


class Tgcn(CubeReader):
    """One of the data sets; its docstring is the data sheet.

    Attributes:
        title: title of the cube.
        prefix: how its files' names begin.
        start: local time of the first step.
        step: length of the published steps.
        units: unit of the speeds.
        long_name: what the speeds are.
        time_zone: zone of the times.
    """

    title: ClassVar[str]
    prefix: ClassVar[str]
    start: ClassVar[str]
    step: ClassVar[str]
    units: ClassVar[str]
    long_name: ClassVar[str]
    time_zone: ClassVar[str]

    @classmethod
    def read(
        cls,
        raw: Path,
        *,
        adjacency: Path | None = None,
        locations: Path | None = None,
        step: str | None = None,
        zero_is_missing: bool = False,
    ) -> xr.Dataset:
        """Read the published CSV files as a cube.

        Args:
            raw: The published file of speeds, or a folder that holds it.
            adjacency: Road graph, a .csv matrix without a header in the order of the columns.
            locations: A .csv of positions (sensor_id,latitude,longitude).
            step: Length of a time step, by default as published, or a multiple that divides a day.
                Longer steps hold the mean of the speeds.
            zero_is_missing: Treat 0 as missing.

        Raises:
            InputError: if a file is invalid; names it.
        """
        length = step_of_multiple(step or cls.step, pd.Timedelta(cls.step))
        raw, name = Path(raw), f"{cls.prefix}_speed.csv"
        if raw.is_dir() and not (raw / name).exists():
            raise InputError(f"{raw}: no {name} in this folder; give the path of the file")
        path = common.find_records(raw, (name,))
        adjacency = common.given_or_beside(adjacency, path, (f"{cls.prefix}_adj.csv",))
        locations = common.given_or_beside(locations, path, ("graph_sensor_locations.csv",))
        df, origin = read_table(path)
        if df.empty:
            raise InputError(f"{path.name}: no row of speeds; download it again")
        values = np.column_stack([numbers(df[column], origin) for column in df.columns])
        times = pd.date_range(cls.start, periods=len(values), freq=cls.step)
        frame = pd.DataFrame(values, index=times, columns=df.columns.astype(str))
        common.check_readings(frame, path.name, "speed", "numbers")
        frame = common.average(frame, length, zero_is_missing=zero_is_missing)
        cells = frame.columns.to_numpy(dtype=str)
        if adjacency:
            refuse_pickle(adjacency)
        return common.road_cube(
            {"speed": frame},
            (path, adjacency, locations),
            roads=common.read_matrix_csv(adjacency, len(cells)) if adjacency else None,
            places=read_locations(locations, cells) if locations else None,
            title=cls.title,
            source="T-GCN, IEEE T-ITS 2020, arXiv 1811.05320",
            units=cls.units,
            time_zone=cls.time_zone,
            zero_is_missing=zero_is_missing,
            long_names={"speed": cls.long_name},
        )


class LosLoop(Tgcn):
    """Los-loop: speeds of METR-LA's 207 detectors in its first week, gaps filled.

    - Paper: Zhao et al., "T-GCN: A Temporal Graph Convolutional Network for Traffic Prediction",
      IEEE T-ITS 21(9), 2020, arXiv 1811.05320.
    - 2,016 steps of 5 minutes, 2012-03-01 00:00 to 2012-03-07 23:55; 207 cells. Cell ids are
      METR-LA's sensor ids, as text. T-GCN's authors filled METR-LA's gaps by linear interpolation.
    - `speed` in miles per hour, 1 to 70; no zeros.
    - Files: `los_speed.csv`, a column for each sensor and a row for each step, without times;
      `los_adj.csv`, a 207 × 207 matrix without a header.
    - Road graph: `adjacency`, dimensions `(cell, cell_to)`, as published: symmetric, 2,833 entries,
      1 on the diagonal. It is not METR-LA's matrix.
    - Positions: METR-LA's `graph_sensor_locations.csv`, if it is beside the speeds.
    - Licence: none stated by the publishers.
    - Trap: the filled gaps make this another task than METR-LA; errors of the two cannot be
      compared.
    """

    name = "los-loop"
    title = "Los-loop road speeds"
    prefix = "los"
    start = "2012-03-01"
    step = "5min"
    units = "mile/hour"
    long_name = "mean speed of the vehicles"
    time_zone = "America/Los_Angeles"
    SOURCES = (
        File(
            f"{DATA}/los_speed.csv",
            "los_speed.csv",
            "sha256:7b732d86ae32b2930595becba28aff39dacbfb2197e250fc0332e1744ce2cbf4",
        ),
        File(
            f"{DATA}/los_adj.csv",
            "los_adj.csv",
            "sha256:7a6eb41e10677992b5af50f5ab187c6c05c5c3a92cb973950cfddbf857361e76",
        ),
    )


class SZTaxi(Tgcn):
    """SZ-taxi: speeds of taxis on 156 main roads of Luohu, Shenzhen, January 2015.

    - Paper: Zhao et al., "T-GCN: A Temporal Graph Convolutional Network for Traffic Prediction",
      IEEE T-ITS 21(9), 2020, arXiv 1811.05320.
    - 2,976 steps of 15 minutes, 2015-01-01 00:00 to 2015-01-31 23:45, Asia/Shanghai; 156 cells.
      Cell ids are the publisher's road ids, as text.
    - `speed`: mean speed of the taxis on the road. Its unit is not stated, so it is `"1"` in the
      cube.
    - Files: `sz_speed.csv`, a column for each road and a row for each step, without times;
      `sz_adj.csv`, a 156 × 156 matrix of 0 and 1 without a header.
    - Road graph: `adjacency`, dimensions `(cell, cell_to)`, as published: 532 roads that meet, none
      on the diagonal, not symmetric.
    - Positions are not published. Licence: none stated by the publishers.
    - Trap: whether 0 means "no taxi" is not stated; zeros stay zeros, as in the paper's errors,
      unless `--zero-is-missing` is given.
    """

    name = "sz-taxi"
    title = "SZ-taxi road speeds"
    prefix = "sz"
    start = "2015-01-01"
    step = "15min"
    units = "1"
    long_name = "mean speed of the taxis, in a unit that is not stated"
    time_zone = "Asia/Shanghai"
    SOURCES = (
        File(f"{DATA}/sz_speed.csv", "sz_speed.csv"),
        File(
            f"{DATA}/sz_adj.csv",
            "sz_adj.csv",
            "sha256:4e40e865b29d73df8404f6cc4c1a0c5ba55aa575aef97a4e9ce4fcd30aad16d6",
        ),
    )
