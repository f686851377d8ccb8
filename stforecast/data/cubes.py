"""Data of any accepted kind as a cube: a cube, a table (time × cell), or the path of either."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pandas as pd
import xarray as xr

from data_prep import cube as cube_files
from data_prep.base.errors import InputError, Words, choose
from data_prep.base.files import path_of
from data_prep.readers.hdf5 import holds_frame
from data_prep.readers.options import TableOptions
from data_prep.readers.times import counts_rows

Data = xr.Dataset | pd.DataFrame | str | os.PathLike[str]
"""A cube, a table (long, or time × cell), or the path of a cube or of a table."""


def open_cube(data: Data, *, name: str = "value", **options: Any) -> xr.Dataset:
    """Open a cube, or make one of a table.

    Args:
        data: path of a cube, which is opened lazily; of a table (.csv, .xlsx, .parquet, …), or
            of several: a folder, a .zip or a pattern; a cube; or a DataFrame. Times may be its
            index, with a column for each cell, or one of its columns, as in the table of a file.
        name: name of the variable of a wide table.
        **options: of a table, as for `stforecast prepare table`; options of a DataFrame with times
            as index are `units`, `time_zone` (IANA name), `clock` ("utc" or "local", what times
            without a zone mean), `zero_is_missing`, `allow_gaps`, `duplicates` ("error", "sum" or
            "mean"), `title`, `resample` and `agg` ("sum", "mean" or "increase").

    Returns:
        A data set with dimensions (time, cell).

    Raises:
        InputError: if the data are invalid, an option is unknown, or a cube is given options.

    >>> times = pd.DatetimeIndex(["2024-01-01 00:00", "2024-01-01 01:00", "2024-01-01 03:00"])
    >>> table = pd.DataFrame({"a": [1.0, 2.0, 4.0]}, times)
    >>> open_cube(table, allow_gaps=True, units="MB")["value"].to_numpy().ravel().tolist()
    [1.0, 2.0, nan, 4.0]
    """
    data = path_of(data) if isinstance(data, str) else data
    if isinstance(data, pd.DataFrame) and isinstance(data.index, pd.MultiIndex):
        levels = ", ".join(map(repr, data.index.names))
        raise InputError(
            f"the DataFrame has an index of {data.index.nlevels} levels ({levels}), expected times "
            "alone; give df.reset_index(), a row for each time and cell"
        )
    if isinstance(data, pd.DataFrame) and isinstance(units := data.attrs.get("units"), str):
        options.setdefault("units", units)
    if isinstance(data, pd.DataFrame) and not counts_rows(data):
        known = ["units", "time_zone", "clock", "zero_is_missing", "allow_gaps", "duplicates"]
        _check_options(options, [*known, "title", "resample", "agg"])
        title = options.pop("title", "A table")
        given = TableOptions(**options)
        if given.of_events:
            raise InputError(
                f"agg {given.agg} takes a table in which each row is an event, but times are "
                "the index; give df.reset_index()"
            )
        from data_prep.readers.steps import from_frame  # Polars takes a while to import.

        return from_frame(data, name=name, options=given, title=title)
    if is_table(data):
        from data_prep.sets.table import read

        _check_options(options, [field.name for field in dataclasses.fields(TableOptions)])
        table = data if isinstance(data, pd.DataFrame) else Path(str(data))
        return read(table, name=name, **options)
    if options:
        raise InputError(f"{min(options)} is an option of tables; a cube has its own")
    if isinstance(data, str | os.PathLike):
        return cube_files.open_cube(data)
    if isinstance(data, xr.Dataset):
        return cube_files.check_cube(data, name_of(data))
    raise InputError(_not_data(data))


def _check_options(options: dict[str, Any], known: list[str]) -> None:
    if unknown := options.keys() - set(known):
        raise choose("option of open_cube", min(unknown), known)


def is_table(data: object) -> bool:
    """Return whether data are a table: a DataFrame, or the path of one or several by its name."""
    if not isinstance(data, str | os.PathLike):
        return isinstance(data, pd.DataFrame)
    path = os.fspath(data)
    if path.endswith(".nc"):
        return False
    from data_prep.readers.formats import names_table, tables_among  # slow to import

    if Path(path).is_dir():
        return bool(tables_among(Path(path).iterdir()))
    return names_table(path) and (not h5py.is_hdf5(path) or holds_frame(Path(path)))


def name_of(data: Data) -> str:
    """Return the name of data in messages."""
    if isinstance(data, pd.DataFrame):
        return "the table"
    if isinstance(data, xr.Dataset):
        return str(data.attrs.get("title", "the data set"))
    return str(data)


def _not_data(thing: object) -> str:
    """Describe what is no data, and how to make a table of it."""
    expected = (
        "expected a DataFrame (a row for each time, a column for each cell), a cube or a path"
    )
    kind = f"{type(thing).__module__.partition('.')[0]} {type(thing).__name__}"
    kind = f"data is of type {kind.removeprefix('builtins ')}"
    if thing is None:
        return f"data is None, {expected}"
    if isinstance(thing, pd.Series):
        return f"{kind}, {expected}; make one of a single cell by series.to_frame('cell')"
    if isinstance(thing, np.ndarray | list | tuple | dict):
        first = next(iter(thing.values()), ()) if isinstance(thing, dict) else thing
        return (
            f"{kind} without times, {expected}; make one by pd.DataFrame(data, "
            f"index=pd.date_range('2024-01-01', periods={len(first) if np.ndim(first) else 0}, "
            "freq='1h')) with your own start and step"
        )
    if isinstance(thing, xr.DataArray):
        return f"{kind}, {expected}; make one by array.to_dataset(name='traffic')"
    if hasattr(thing, "to_pandas"):
        return f"{kind}, {expected}; make one by data.to_pandas()"
    return f"{kind}, {expected}"


def choose_service(cube: xr.Dataset, service: str | None, name: str) -> str:
    """Return the named service, or the only one."""
    services = cube_files.services_of(cube)
    if service is None and len(services) > 1:
        remedy = Words("choose one with {service}: ")
        raise InputError(f"{name} has several services; ", remedy, ", ".join(services))
    if service is not None and service not in services:
        raise InputError(f"{name}: {choose('service', service, services)}")
    return service or services[0]
