"""Frozen protocols: data, test targets and metrics, for forecasts of any tool.

A forecast may use every value up to its origin, also for training. Milan has no leaderboard, so
`milan88` is our own; `metr-la` is BasicTS's (Liang et al., Exploring Progress in Multivariate
Time Series Forecasting, TKDE 2024): its split, masked metrics, at 15, 30 and 60 minutes.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from types import MappingProxyType

import numpy as np
import xarray as xr

from data_prep.base.errors import InputError, Words
from data_prep.cube import local_time, observed
from stforecast.data.cubes import open_cube

LEVELS = (0.05, 0.25, 0.5, 0.75, 0.95)
"""Levels of the quantiles that are scored; the forecast itself has 0.5."""


@dataclass(frozen=True)
class ProtocolTask:
    """Test targets of a protocol, counted in steps of the data.

    Attributes:
        steps: steps ahead that are scored; the files of a task have these.
        first: the first forecast's target of step 1.
        every: steps from one origin to the next.
        count: number of origins.
    """

    steps: tuple[int, ...]
    first: int
    every: int
    count: int

    @property
    def targets(self) -> np.ndarray:
        """Places of the targets in time, `(origins, steps)`."""
        begins = self.first + self.every * np.arange(self.count)
        return begins[:, None] + np.array(self.steps) - 1


@dataclass(frozen=True)
class Protocol:
    """A frozen protocol.

    Attributes:
        name: its name.
        service: variable of the cube.
        shape: steps and cells of the cube.
        tasks: its tasks by name.
        metrics: names of its metrics, the first of which ranks; those without "raw_" are of
            z-scores, by the mean and the deviation of a cell's values before the first target.
        by_step: whether each step ahead is scored by itself.
        prepare: command that makes the cube.
        checksum: CRC-32 of the values; None where only the publisher has them.
    """

    name: str
    service: str
    shape: tuple[int, int]
    tasks: Mapping[str, ProtocolTask]
    metrics: tuple[str, ...]
    prepare: Words
    by_step: bool = False
    checksum: int | None = None

    @property
    def published(self) -> Path:
        """File of the sums of our own rows."""
        folder = Path(str(resources.files("stforecast"))) / "configs" / "protocols"
        return folder / f"{self.name}.csv"

    def read(self, path: Path) -> xr.DataArray:
        """Read the values `(time, cell)` of a cube, with local times; NaN where missing.

        Raises:
            InputError: if they are not the protocol's.
        """
        again = "; prepare it with: "
        with open_cube(path) as cube:
            if self.service not in cube:
                raise InputError(f"{path}: no service {self.service!r}{again}", self.prepare)
            found = observed(cube, self.service).load()
            found = found.assign_coords(time=local_time(cube), cell=found["cell"].astype(str))
            found.attrs["time_zone"] = str(cube.attrs.get("time_zone", "UTC"))
        if found.shape != self.shape:
            size, wanted = (
                " steps × ".join(map(str, shape)) for shape in (found.shape, self.shape)
            )
            raise InputError(f"{path}: {size} cells, {self.name} has {wanted}{again}", self.prepare)
        if self.checksum not in (None, zlib.crc32(found.to_numpy().tobytes())):
            raise InputError(f"{path}: other values than those of {self.name}{again}", self.prepare)
        return found

    def task_of(self, steps: np.ndarray, source: str) -> str:
        """Return the name of the task that has these steps ahead."""
        for name, task in self.tasks.items():
            if np.array_equal(np.unique(steps), task.steps):
                return name
        known = "; ".join(f"{n}: {', '.join(map(str, t.steps))}" for n, t in self.tasks.items())
        listed = ", ".join(map(str, np.unique(steps)[:30])) or "missing, as there are no rows"
        raise InputError(
            f"{source}: steps ahead are {listed}; a file has those of a task ({known})"
        )


HOURS = 24
_OF_62_DAYS = MappingProxyType(
    {
        "one hour": ProtocolTask((1,), 44 * HOURS, 1, 18 * HOURS),
        "one day": ProtocolTask(tuple(range(1, HOURS + 1)), 44 * HOURS, HOURS, 18),
    }
)
"""The last 18 of 62 days: each hour from the hour before, and each day from the midnight before."""

_SCORES = ("mse", "mae", "pinball")

PROTOCOLS = {
    protocol.name: protocol
    for protocol in (
        Protocol(
            "milan88", "records", (1488, 88), _OF_62_DAYS, _SCORES,
            Words(
                "stforecast prepare table {raw:milan-records-88cells-62days.csv.gz} {clock:local} "
                "{time_zone:Europe/Rome} {name:records} {out:milan88.nc}"
            ),
            checksum=2_905_509_740,
        ),
        Protocol(
            "milan10000", "internet", (1488, 10_000), _OF_62_DAYS, _SCORES,
            Words("stforecast prepare milan {raw:raw/} {step:1h} {out:milan10000.nc}"),
        ),
        Protocol(  # BasicTS's test part: windows of 12 + 12 in the last fifth of the steps.
            "metr-la", "speed", (34_272, 207), {"hour": ProtocolTask((3, 6, 12), 27430, 1, 6831)},
            ("raw_mae", "raw_rmse", "raw_mape"),
            Words("stforecast prepare metr-la {raw:metr-la.h5} {out:metr-la.nc}"),
            by_step=True,
        ),
    )
}  # fmt: skip
"""All protocols by name."""
