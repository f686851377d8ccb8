"""Convert PEMS03, PEMS04, PEMS07 and PEMS08 to a cube.

The records are one array `data` in a .npz, `(time, sensor, channel)`; the roads are a .csv of
neighbours, `from,to,cost` or `from,to,distance`. Sensors are numbered from 0; PEMS03 has a file of
their ids.

Sources: Guo, Lin, Feng, Song, Wan, "Attention Based Spatial-Temporal Graph Convolutional Networks
for Traffic Flow Forecasting" (ASTGCN), AAAI 2019: PEMS04 and PEMS08; Song, Lin, Guo, Wan,
"Spatial-Temporal Synchronous Graph Convolutional Networks" (STSGCN), AAAI 2020: all four.
"""

from __future__ import annotations

import logging
import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import xarray as xr

from data_prep.base.errors import InputError
from data_prep.base.files import checksum
from data_prep.base.limits import read_bounded
from data_prep.cube import make_cube
from data_prep.readers.npz import Header, read_npz
from data_prep.sets.roads.common import (
    CALIFORNIA,
    Release,
    add_roads,
    average,
    check_values,
    find_records,
    given_or_beside,
    step_length,
    values_of,
)
from data_prep.sets.roads.sensors import read_adjacency

STEP = pd.Timedelta("5min")
CHANNELS = ("flow", "occupancy", "speed")
UNITS = {"flow": "count", "occupancy": "1", "speed": "mile/hour"}
LONG_NAMES = {
    "flow": "vehicles in 5 minutes",
    "occupancy": "share of the time in which a vehicle is over the detector",
    "speed": "mean speed of the vehicles",
}
NAMED = re.compile(r"pems0[3478]")
MAX_IDS = 2**20
"""Maximum bytes of a file of sensor ids."""

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Pems(Release):
    """One of the data sets; its module uses this class's `read` and `prepare`.

    Args:
        name: its name, such as `"PEMS04"`.
        start: local time of the first step.
        shape: published shape `(time, sensor, channel)`.
    """

    name: str
    start: str
    shape: tuple[int, int, int]

    def read(
        self,
        raw: Path,
        *,
        adjacency: Path | None = None,
        ids: Path | None = None,
        step: str = "5min",
        zero_is_missing: bool = False,
    ) -> xr.Dataset:
        """Read the published .npz as a cube.

        Args:
            raw: The published .npz file, or a folder that holds it.
            adjacency: Road graph, a .csv of distances (from,to,cost) or a .npz (sensor_id,
                adjacency).
            ids: A text file of the sensors' ids in the order of the records, one on a line. Without
                one they are numbered from 0.
            step: Length of a time step, 5 minutes or a multiple that divides a day. Longer steps
                hold the mean of what was observed in their 5 minutes.
            zero_is_missing: Treat 0 as missing, as the masked errors of most papers do.

        Returns:
            The cube.

        Raises:
            InputError: if a file is invalid; names it.
        """
        length = step_length(step, STEP)
        own, low = self.name, self.name.lower()
        path = find_records(Path(raw), (f"{own}.npz", f"{low}.npz"))
        if NAMED.fullmatch(path.stem.lower()) and path.stem.lower() != low:
            raise InputError(
                f"{path.name}: its name is that of another data set, expected {own}.npz; use "
                f"stforecast prepare {path.stem.lower()}"
            )
        graphs = (f"{own}.csv", f"{low}.csv", "distance.csv", "distances.csv")
        adjacency = given_or_beside(adjacency, path, graphs)
        if adjacency is None:
            log.warning("%s: no %s beside it; the cube has no roads", path.name, graphs[0])
        ids = given_or_beside(ids, path, (f"{own}.txt", f"{low}.txt", "index.txt"))
        frames = self._read_frames(path, ids)
        frames = {n: average(f, length, zero_is_missing) for n, f in frames.items()}
        flow = frames["flow"]
        cells = flow.columns.to_numpy(dtype=str)
        ds = make_cube(
            values_of(frames),
            pd.DatetimeIndex(flow.index),
            cells,
            title=f"{self.name} road traffic",
            source="Caltrans PeMS, as published with ASTGCN (AAAI 2019) and STSGCN (AAAI 2020)",
            license="not stated by the publishers",
            units=UNITS,
            time_zone=CALIFORNIA,
            clock="local",
            zero_is_missing=zero_is_missing,
            long_names=LONG_NAMES,
            checksums={p.name: checksum(p) for p in (path, adjacency, ids) if p},
        )
        return add_roads(ds, read_adjacency(adjacency, cells, neighbours=True)) if adjacency else ds

    def _read_frames(self, path: Path, ids: Path | None) -> dict[str, pd.DataFrame]:
        """Return a frame `(time, sensor)` for each channel."""
        (data,) = read_npz(path, ("data",), lambda headers: self._check(headers["data"], path))
        if data.shape != self.shape:
            log.warning(
                "%s: data of shape %s, published is %s; taken as the first steps of these sensors",
                path.name, data.shape, self.shape,
            )  # fmt: skip
        times = pd.date_range(self.start, periods=len(data), freq=STEP)
        cells = _read_ids(ids, data.shape[1]) if ids else list(map(str, range(data.shape[1])))
        frames = {
            name: pd.DataFrame(data[:, :, channel], index=times, columns=cells)
            for channel, name in enumerate(CHANNELS[: data.shape[2]])
        }
        for name, frame in frames.items():
            check_values(frame, path.name, name, "values")
        return frames

    def _check(self, data: Header, path: Path) -> None:
        channels = self.shape[2]
        fits = len(data.shape) == 3 and data.shape[2] == channels and data.size
        if not fits or data.dtype.kind not in "iuf":
            raise InputError(
                f"{path.name}: data is {data.dtype} of shape {data.shape}, expected numbers (time, "
                f"sensor, channel) with {', '.join(CHANNELS[:channels])} as {self.shape}; give the "
                f"published {self.name}.npz"
            )


def _read_ids(path: Path, n_sensors: int) -> list[str]:
    """Read sensor ids, one on a line."""
    ids = read_bounded(path, MAX_IDS).decode(errors="replace").split()
    odd = [i for i in ids if not i.isprintable() or "\N{REPLACEMENT CHARACTER}" in i]
    twice = [i for i, count in Counter(ids).items() if count > 1]
    if len(ids) != n_sensors or odd or twice:
        found = f"{(odd or twice)[0]!r} among them" if odd or twice else f"{len(ids)} ids"
        raise InputError(
            f"{path.name}: {found}, expected a line for each of the {n_sensors} sensors of the "
            "records, none twice; give the file of the same data set"
        )
    return ids
