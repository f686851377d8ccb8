"""Convert Los-loop and SZ-taxi to a cube.

`los_speed.csv` and `sz_speed.csv` hold a column for each road, named in the first line, and a row
for each step, without times; `los_adj.csv` and `sz_adj.csv` are matrices without a header.

Source: Zhao, Song, Zhang, Liu, Wang, Lin, Deng, Li, "T-GCN: A Temporal Graph Convolutional Network
for Traffic Prediction", IEEE T-ITS 21(9), 2020, arXiv 1811.05320; github.com/lehaifeng/T-GCN.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import xarray as xr

from data_prep.base.errors import InputError
from data_prep.readers.columns import numbers
from data_prep.readers.files import read_table
from data_prep.sets.roads import common
from data_prep.sets.roads.sensors import read_locations, refuse_pickle

DATA = "https://raw.githubusercontent.com/lehaifeng/T-GCN/219a2346f5bf68d54d91a948e7a41a08f9edc46b/data"
"""The authors' files at a fixed commit."""


@dataclass(frozen=True)
class Tgcn:
    """One of the data sets; its module uses this class's `read`.

    `prefix` begins the files' names; the first step is at the local time `start`.
    """

    title: str
    prefix: str
    start: str
    step: str
    units: str
    long_name: str
    time_zone: str

    def read(
        self,
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

        Returns:
            The cube.

        Raises:
            InputError: if a file is invalid; names it.
        """
        length = common.step_of_multiple(step or self.step, pd.Timedelta(self.step))
        path = self._find(Path(raw))
        adjacency = common.given_or_beside(adjacency, path, (f"{self.prefix}_adj.csv",))
        locations = common.given_or_beside(locations, path, ("graph_sensor_locations.csv",))
        frame = common.average(self._read_frame(path), length, zero_is_missing)
        cells = frame.columns.to_numpy(dtype=str)
        if adjacency:
            refuse_pickle(adjacency)
        return common.road_cube(
            {"speed": frame},
            (path, adjacency, locations),
            roads=common.read_matrix_csv(adjacency, len(cells)) if adjacency else None,
            places=read_locations(locations, cells) if locations else None,
            title=self.title,
            source="T-GCN, IEEE T-ITS 2020, arXiv 1811.05320",
            units=self.units,
            time_zone=self.time_zone,
            zero_is_missing=zero_is_missing,
            long_names={"speed": self.long_name},
        )

    def _find(self, raw: Path) -> Path:
        name = f"{self.prefix}_speed.csv"
        if raw.is_dir() and not (raw / name).exists():
            raise InputError(f"{raw}: no {name} in this folder; give the path of the file")
        return common.find_records(raw, (name,))

    def _read_frame(self, path: Path) -> pd.DataFrame:
        df, origin = read_table(path)
        if df.empty:
            raise InputError(f"{path.name}: no row of speeds; download it again")
        values = np.column_stack([numbers(df[column], origin) for column in df.columns])
        times = pd.date_range(self.start, periods=len(values), freq=self.step)
        frame = pd.DataFrame(values, index=times, columns=df.columns.astype(str))
        common.check_readings(frame, path.name, "speed", "numbers")
        return frame
