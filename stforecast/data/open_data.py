"""Data as a cube: a file that `stforecast prepare` wrote, or a table."""

from __future__ import annotations

import os
from typing import Any

import pandas as pd
import xarray as xr

from data_prep.errors import InputError, choose, for_python
from data_prep.tabular.frames import TableOptions, from_frame
from stforecast.data.series import as_cube

OPTIONS = ("units", "time_zone", "clock", "zero_is_missing", "allow_gaps", "duplicates", "title")
"""Options of a table."""


@for_python
def open_cube(
    data: xr.Dataset | pd.DataFrame | str | os.PathLike[str], *, name: str = "value", **options: Any
) -> xr.Dataset:
    """Open a cube, or make one of a table.

    Args:
        data: path of a cube, which is opened lazily; or a DataFrame with a row for each time and a
            column for each cell.
        name: name of the variable of a table.
        **options: of a table, as for `stforecast prepare table`: `units`, `time_zone` (IANA name),
            `clock` ("utc" or "local", what times without a zone mean), `zero_is_missing`,
            `allow_gaps`, `duplicates` ("error", "sum" or "mean") and `title`.

    Returns:
        A data set with dimensions (time, cell).

    Raises:
        InputError: if the data are invalid, an option is unknown, or a cube is given options.

    >>> times = pd.DatetimeIndex(["2024-01-01 00:00", "2024-01-01 01:00", "2024-01-01 03:00"])
    >>> table = pd.DataFrame({"a": [1.0, 2.0, 4.0]}, times)
    >>> open_cube(table, allow_gaps=True, units="MB")["value"].to_numpy().ravel().tolist()
    [1.0, 2.0, nan, 4.0]
    """
    if not isinstance(data, pd.DataFrame):
        if options:
            raise InputError(f"{min(options)} is an option of tables; a cube has its own")
        return as_cube(data)[0]
    if unknown := options.keys() - set(OPTIONS):
        raise choose("option of open_cube", min(unknown), OPTIONS)
    return from_frame(data, name=name, options=TableOptions(**options))
