"""One service of a cube, as forecasters read it: plain arrays with a calendar."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import xarray as xr

from data_prep.cube import check_cube, observed, open_cube
from data_prep.errors import InputError
from data_prep.table import from_frame
from stforecast.windows import Calendar

Data = xr.Dataset | pd.DataFrame | str | os.PathLike[str]
"""A cube, a wide table (time × cell) or the path of a cube."""


@dataclass(frozen=True, eq=False)
class Series:
    """Values of one service.

    Attributes:
        values: `(steps, cells)` float64 in `units`, NaN where nothing was recorded.
        cells: `(cells,)` ids.
        times: `(steps,)` start of each step, on the cube's clock.
        calendar: the place's wall clock.
        service: name of the variable.
        units: its unit.
        name: what to call the data in a table: the file's stem, or its title.
    """

    values: np.ndarray
    cells: np.ndarray
    times: pd.DatetimeIndex
    calendar: Calendar
    service: str
    units: str
    name: str

    def select(self, cells: np.ndarray) -> Series:
        """The series of some cells, in their order.

        Raises:
            InputError: naming the cells that are not there.
        """
        position = pd.Index(self.cells).get_indexer(pd.Index(cells))
        if (position < 0).any():
            absent = np.asarray(cells)[position < 0]
            raise InputError(
                f"{self.name}: {len(absent)} of the {len(cells)} cells that the model was fitted "
                f"on are missing, e.g. {absent[0]}; give the history of all of them"
            )
        return Series(
            self.values[:, position],
            np.asarray(cells),
            self.times,
            self.calendar,
            self.service,
            self.units,
            self.name,
        )


def as_series(data: Data, service: str | None = None) -> Series:
    """Take one service out of data of any accepted kind.

    Args:
        data: a cube, a wide table (time × cell) or the path of a cube.
        service: the variable; may be None if the cube has one only.

    Raises:
        InputError: if it is no cube, or listing the services if none or a wrong one is named.
    """
    if isinstance(data, pd.DataFrame):
        data, name = from_frame(data), "table"
    elif isinstance(data, xr.Dataset):
        data = check_cube(data, "the data set")
        name = str(data.attrs.get("title", "cube"))
    else:
        name = Path(data).stem
        data = open_cube(data)
    variables = [str(v) for v, a in data.data_vars.items() if set(a.dims) == {"time", "cell"}]
    if service is None and len(variables) > 1:
        raise InputError(
            f"{name} has several services; choose one with --service: {', '.join(variables)}"
        )
    service = service or variables[0]
    values = observed(data, service)
    return Series(
        values=values.to_numpy().astype(np.float64, copy=False),
        cells=data.indexes["cell"].to_numpy(),
        times=pd.DatetimeIndex(data.indexes["time"]),
        calendar=Calendar.from_cube(data),
        service=service,
        units=str(values.attrs.get("units", "1")),
        name=name,
    )
