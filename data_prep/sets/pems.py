"""PEMS03, PEMS04, PEMS07 and PEMS08: road traffic of Caltrans' detectors.

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
from pathlib import Path
from typing import ClassVar

import pandas as pd
import xarray as xr

from data_prep.base.errors import InputError
from data_prep.base.limits import read_bounded
from data_prep.cube import CubeReader
from data_prep.download import Archive
from data_prep.readers.npz import Header, read_npz
from data_prep.readers.resampling import step_of_multiple
from data_prep.sets.roads import common
from data_prep.sets.roads.sensors import read_adjacency

STEP = pd.Timedelta("5min")
CHANNELS = ("flow", "occupancy", "speed")
log = logging.getLogger(__name__)


class Pems(CubeReader):
    """One of the data sets; its docstring is the data sheet.

    Attributes:
        start: local time of the first step.
        shape: published shape `(time, sensor, channel)`.
    """

    start: ClassVar[str]
    shape: ClassVar[tuple[int, int, int]]

    @classmethod
    def read(
        cls,
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

        Raises:
            InputError: if a file is invalid; names it.
        """
        length = step_of_multiple(step, STEP)
        own, low = cls.name.upper(), cls.name
        path = common.find_records(Path(raw), (f"{own}.npz", f"{low}.npz"))
        if re.fullmatch("pems0[3478]", path.stem.lower()) and path.stem.lower() != low:
            raise InputError(
                f"{path.name}: its name is that of another data set, expected {own}.npz; use "
                f"stforecast prepare {path.stem.lower()}"
            )
        graphs = (f"{own}.csv", f"{low}.csv", "distance.csv", "distances.csv")
        adjacency = common.given_or_beside(adjacency, path, graphs)
        if adjacency is None:
            log.warning("%s: no %s beside it; the cube has no roads", path.name, graphs[0])
        ids = common.given_or_beside(ids, path, (f"{own}.txt", f"{low}.txt", "index.txt"))
        frames = cls._read_frames(path, ids)
        frames = {
            name: common.average(frame, length, zero_is_missing=zero_is_missing)
            for name, frame in frames.items()
        }
        cells = frames["flow"].columns.to_numpy(dtype=str)
        return common.road_cube(
            frames,
            (path, adjacency, ids),
            roads=read_adjacency(adjacency, cells, neighbours=True) if adjacency else None,
            title=f"{own} road traffic",
            source="Caltrans PeMS, as published with ASTGCN (AAAI 2019) and STSGCN (AAAI 2020)",
            units={"flow": "count", "occupancy": "1", "speed": "mile/hour"},
            time_zone=common.CALIFORNIA,
            zero_is_missing=zero_is_missing,
            long_names={
                "flow": "vehicles in 5 minutes",
                "occupancy": "share of the time in which a vehicle is over the detector",
                "speed": "mean speed of the vehicles",
            },
        )

    @classmethod
    def _read_frames(cls, path: Path, ids: Path | None) -> dict[str, pd.DataFrame]:
        """Return a frame `(time, sensor)` for each channel."""
        (data,) = read_npz(path, ("data",), lambda headers: cls._check(headers["data"], path))
        if data.shape != cls.shape:
            log.warning(
                "%s: data of shape %s, published is %s; taken as the first steps of these sensors",
                path.name,
                data.shape,
                cls.shape,
            )
        times = pd.date_range(cls.start, periods=len(data), freq=STEP)
        cells = _read_ids(ids, data.shape[1]) if ids else list(map(str, range(data.shape[1])))
        frames = {
            name: pd.DataFrame(data[:, :, channel], index=times, columns=cells)
            for channel, name in enumerate(CHANNELS[: data.shape[2]])
        }
        for name, frame in frames.items():
            common.check_readings(frame, path.name, name, "values")
        return frames

    @classmethod
    def _check(cls, data: Header, path: Path) -> None:
        channels = cls.shape[2]
        fits = len(data.shape) == 3 and data.shape[2] == channels and data.size
        if not fits or data.dtype.kind not in "iuf":
            raise InputError(
                f"{path.name}: data is {data.dtype} of shape {data.shape}, expected numbers (time, "
                f"sensor, channel) with {', '.join(CHANNELS[:channels])} as {cls.shape}; give the "
                f"published {cls.name.upper()}.npz"
            )


def _read_ids(path: Path, n_sensors: int) -> list[str]:
    """Read sensor ids, one on a line."""
    ids = read_bounded(path, 2**20).decode(errors="replace").split()
    odd = [i for i in ids if not i.isprintable() or "\N{REPLACEMENT CHARACTER}" in i]
    twice = [i for i, count in Counter(ids).items() if count > 1]
    if len(ids) != n_sensors or odd or twice:
        found = f"{(odd or twice)[0]!r} among them" if odd or twice else f"{len(ids)} ids"
        raise InputError(
            f"{path.name}: {found}, expected a line for each of the {n_sensors} sensors of the "
            "records, none twice; give the file of the same data set"
        )
    return ids


def _mirrored(share: str, name: str, *members: str) -> tuple[Archive]:
    """Return torch-spatiotemporal's archive, because the authors link to a shared drive only."""
    address = f"https://drive.switch.ch/index.php/s/{share}/download"
    return (Archive(address, name=f"{name}.zip", members=members),)


class PEMS03(Pems):
    """PEMS03: flow at 358 loop detectors of Caltrans' district 3, 2018.

    - Paper: Song, Lin, Guo, Wan, "Spatial-Temporal Synchronous Graph Convolutional Networks"
      (STSGCN), AAAI 2020; recorded by Caltrans' Performance Measurement System (PeMS).
    - 26,208 steps of 5 minutes, 2018-09-01 00:00 to 2018-11-30 23:55 local time; 358 detectors.
    - Files: `PEMS03.npz` with `data` (26208, 358, 1), `PEMS03.csv` (from,to,distance) and
      `PEMS03.txt`, the sensors' ids in the order of the records. `PEMS03.csv` uses these ids.
      Without them, cells are numbered from 0, which does not fit the distances.
    - `flow`: vehicles in 5 minutes.
    - Gaps were filled by the publishers. Zeros stay zeros; most papers leave targets of 0 out of
      their errors, for which `--zero-is-missing` is meant.
    - Road graph: `adjacency`, dimensions `(cell, cell_to)`: 1 where the list has a road from `cell`
      to `cell_to`, and on the diagonal, as in ASTGCN; STSGCN also takes the way back.
    - Positions and licence are not published.
    - Trap: every day has 288 steps, also 2018-11-04, on which the clocks were set back. Steps are
      even local times, never localised: the cube's `clock` is `"local"`.
    """

    name, start, shape = "pems03", "2018-09-01", (26208, 358, 1)
    SOURCES = _mirrored("z4cMrY19EMN7AZA", "pems03", "pems03.npz", "distances.csv", "index.txt")


class PEMS04(Pems):
    """PEMS04: flow, occupancy and speed at 307 loop detectors of Caltrans' district 4, 2018.

    - Paper: Guo, Lin, Feng, Song, Wan, "Attention Based Spatial-Temporal Graph Convolutional
      Networks for Traffic Flow Forecasting" (ASTGCN), AAAI 2019; recorded by Caltrans' Performance
      Measurement System (PeMS).
    - 16,992 steps of 5 minutes, 2018-01-01 00:00 to 2018-02-28 23:55 local time; 307 detectors.
    - Files: `PEMS04.npz` with `data` (16992, 307, 3) and `PEMS04.csv` (from,to,cost), whose sensors
      are numbered from 0 in the order of the records. Cell ids are these numbers, as text.
    - `flow`: vehicles in 5 minutes. `occupancy`: share of the time. `speed`: miles per hour.
    - Gaps were filled by the publishers. Zeros stay zeros; most papers leave targets of 0 out of
      their errors, for which `--zero-is-missing` is meant.
    - Road graph: `adjacency`, dimensions `(cell, cell_to)`: 1 where the list has a road from `cell`
      to `cell_to`, and on the diagonal, as in ASTGCN; STSGCN also takes the way back.
    - Positions and licence are not published.
    """

    name, start, shape = "pems04", "2018-01-01", (16992, 307, 3)
    SOURCES = _mirrored("6nMenRqUe0i6nt8", "pems04", "pems04.npz", "distance.csv")


class PEMS07(Pems):
    """PEMS07: flow at 883 loop detectors of Caltrans' district 7, 2017.

    - Paper: Song, Lin, Guo, Wan, "Spatial-Temporal Synchronous Graph Convolutional Networks"
      (STSGCN), AAAI 2020; recorded by Caltrans' Performance Measurement System (PeMS).
    - 28,224 steps of 5 minutes from 2017-05-01 00:00 local time; 883 detectors.
    - Files: `PEMS07.npz` with `data` (28224, 883, 1) and `PEMS07.csv` (from,to,cost), whose sensors
      are numbered from 0 in the order of the records. Cell ids are these numbers, as text.
    - `flow`: vehicles in 5 minutes.
    - Gaps were filled by the publishers. Zeros stay zeros; most papers leave targets of 0 out of
      their errors, for which `--zero-is-missing` is meant.
    - Road graph: `adjacency`, dimensions `(cell, cell_to)`: 1 where the list has a road from `cell`
      to `cell_to`, and on the diagonal, as in ASTGCN; STSGCN also takes the way back.
    - Positions and licence are not published.
    - Trap: the papers give the period as 2017-05-01 to 2017-08-31, 123 days, but there are steps
      for 98. Times are counted from the first day, so dates and weekdays may be wrong after an
      unknown gap.
    """

    name, start, shape = "pems07", "2017-05-01", (28224, 883, 1)
    SOURCES = _mirrored("rLQzOhOFF2jIBAk", "pems07", "pems07.npz", "distance.csv")


class PEMS08(Pems):
    """PEMS08: flow, occupancy and speed at 170 loop detectors of Caltrans' district 8, 2016.

    - Paper: Guo, Lin, Feng, Song, Wan, "Attention Based Spatial-Temporal Graph Convolutional
      Networks for Traffic Flow Forecasting" (ASTGCN), AAAI 2019; recorded by Caltrans' Performance
      Measurement System (PeMS).
    - 17,856 steps of 5 minutes, 2016-07-01 00:00 to 2016-08-31 23:55 local time; 170 detectors.
    - Files: `PEMS08.npz` with `data` (17856, 170, 3) and `PEMS08.csv` (from,to,cost), whose sensors
      are numbered from 0 in the order of the records. Cell ids are these numbers, as text.
    - `flow`: vehicles in 5 minutes. `occupancy`: share of the time. `speed`: miles per hour.
    - Gaps were filled by the publishers. Zeros stay zeros; most papers leave targets of 0 out of
      their errors, for which `--zero-is-missing` is meant.
    - Road graph: `adjacency`, dimensions `(cell, cell_to)`: 1 where the list has a road from `cell`
      to `cell_to`, and on the diagonal, as in ASTGCN; STSGCN also takes the way back.
    - Positions and licence are not published.
    """

    name, start, shape = "pems08", "2016-07-01", (17856, 170, 3)
    SOURCES = _mirrored("X0nkiDgb8oacOD0", "pems08", "pems08.npz", "distance.csv")
