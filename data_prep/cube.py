"""The cube: traffic as an `xarray.Dataset` with dimensions `(time, cell)`, stored as netCDF4.

There is one variable per service (`internet`, `sms`, …) or `speed`. The coordinates are `time`
(start of the step), `cell` (the publisher's id) and, where known, `lon` and `lat` of each cell. The
attributes are:

- of the data set: `title`, `source`, `license`, `source_checksums` (JSON, file name to checksum),
  `prepared_by` (the command, if one made it), `time_zone` (an IANA name) and `clock`: `"utc"`
  (times are UTC) or `"local"` (times are the wall clock of `time_zone`, never adjusted for
  daylight saving, as METR-LA publishes them);
- of each variable: `units`, `long_name` and `zero_is_missing` (1 where a 0 means "not recorded").

NaN always means missing. `observed` also turns the zeros that mean missing into NaN.

A cube that is larger than memory is written one chunk of time steps at a time. The result equals
that of `write_cube`, but without compression: the last digits of summed activity are random, so
deflate saves only a sixth and takes longer than reading a raw day.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextvars import ContextVar
from pathlib import Path
from typing import Any, ClassVar

import h5py
import numpy as np
import pandas as pd
import xarray as xr

from data_prep.base.errors import InputError, choose, no_file, reading
from data_prep.base.files import atomic_path
from data_prep.base.limits import ALLOWANCE, check_expansion, check_size
from data_prep.download import Source
from data_prep.netcdf import dump, dump_blocks, netcdf_target, open_netcdf
from data_prep.notices import warn_of_oddities
from data_prep.readers.columns import LARGEST
from data_prep.readers.hdf5 import open_hdf5
from data_prep.readers.times import CLOCKS, to_wall, zone_name

PREPARED_BY: ContextVar[str] = ContextVar("PREPARED_BY", default="")
"""The command that is making cubes."""

INDEXED = 64
"""Bytes of memory for each entry of an axis, including its index."""


def make_cube(
    values: Mapping[str, np.ndarray],
    time: pd.DatetimeIndex | np.ndarray,
    cell: np.ndarray,
    *,
    title: str,
    source: str,
    license: str,
    units: str | Mapping[str, str],
    time_zone: str = "UTC",
    clock: str = "utc",
    zero_is_missing: bool = False,
    long_names: Mapping[str, str] | None = None,
    checksums: Mapping[str, str] | None = None,
    lon: np.ndarray | None = None,
    lat: np.ndarray | None = None,
) -> xr.Dataset:
    """Build a cube from arrays, and check it.

    Args:
        values: variable name to array of shape `(time, cell)`, in `units`; NaN where missing.
        time: `(time,)` start of each step, without a zone: UTC if `clock="utc"`.
        cell: `(cell,)` ids, integers or strings.
        title: title of the data.
        source: origin of the data, a DOI or an address.
        license: licence of the data.
        units: unit of every variable, or of each by name; `"1"` for none, as for activity.
        time_zone: IANA name of the place's zone, for calendar features.
        clock: `"utc"` or `"local"` (see the module's docstring).
        zero_is_missing: whether 0 means "not recorded".
        long_names: variable name to a readable name.
        checksums: source file name to checksum, e.g. `"sha256:…"`.
        lon: `(cell,)` longitude in degrees east.
        lat: `(cell,)` latitude in degrees north.

    Raises:
        InputError: if shapes, times or ids are invalid.
    """
    ds = xr.Dataset(
        {name: (("time", "cell"), array) for name, array in values.items()},
        coords={"time": _naive(time, clock), "cell": np.asarray(cell)},
        attrs={
            "Conventions": "CF-1.11",
            "title": title,
            "source": source,
            "license": license,
            "source_checksums": json.dumps(dict(checksums or {}), sort_keys=True),
            "prepared_by": PREPARED_BY.get(),
            "time_zone": time_zone,
            "clock": clock,
        },
    )
    for name in values:
        ds[name].attrs = {
            "units": units if isinstance(units, str) else units[name],
            "long_name": (long_names or {}).get(name, name),
            "zero_is_missing": int(zero_is_missing),
        }
    ds["time"].attrs = {"standard_name": "time", "long_name": "start of the time step"}
    ds["cell"].attrs = {"long_name": "cell id as published"}
    return check_cube(with_places(ds, lon, lat), "the cube")


def _naive(time: pd.DatetimeIndex | np.ndarray, clock: str) -> np.ndarray:
    """Return the times of a cube as dates without a zone."""
    if np.issubdtype(np.asarray(time).dtype, np.number):
        raise InputError(f"the cube: its times are {np.asarray(time).dtype}, expected dates")
    if clock == "local" and getattr(time, "tz", None) is not None:
        raise InputError(
            "the cube: its times have a zone, expected those of a wall clock; pass "
            "time.tz_localize(None), or leave out clock"
        )
    return np.asarray(time, dtype="datetime64[ns]")


def with_places(ds: xr.Dataset, lon: np.ndarray | None, lat: np.ndarray | None) -> xr.Dataset:
    """Add the places of a cube's cells, `(cell,)` each, in degrees east and north, if known."""
    if lon is None and lat is None:
        return ds
    if lon is None or lat is None:
        raise InputError("the cube: only one of lon and lat is given; give both, or none")
    return ds.assign_coords(
        lon=("cell", lon, {"standard_name": "longitude", "units": "degrees_east"}),
        lat=("cell", lat, {"standard_name": "latitude", "units": "degrees_north"}),
    )


def check_cube(ds: xr.Dataset, origin: str) -> xr.Dataset:
    """Return `ds` if it is a valid cube; errors call it `origin`, usually its path."""
    remedy = "write one with `stforecast prepare`"
    for dim in ("time", "cell"):
        if dim not in ds.dims or dim not in ds.coords:
            raise InputError(
                f"{origin}: no dimension {dim!r} with a coordinate (found {dict(ds.sizes)}), "
                f"a cube has (time, cell); {remedy}"
            )
        if ds.sizes[dim] == 0:
            raise InputError(f"{origin}: dimension {dim!r} is empty; {remedy}")
    _check_times(ds, origin, remedy)
    _check_variables(ds, origin, remedy)
    cells = ds.indexes["cell"]
    if cells.has_duplicates:
        raise InputError(f"{origin}: cell {cells[cells.duplicated()][0]} occurs more than once")
    if cells.hasnans:
        raise InputError(f"{origin}: coordinate 'cell' has empty entries; {remedy}")
    if str(ds.attrs.get("clock", "utc")) not in CLOCKS:
        raise choose(f"clock in {origin}", str(ds.attrs["clock"]), CLOCKS)
    if zone_name(str(ds.attrs.get("time_zone", "UTC"))) is None:
        raise InputError(
            f"{origin}: unknown time zone {ds.attrs['time_zone']!r}, expected an IANA name such as "
            f"Europe/Rome; {remedy}"
        )
    return ds


def _check_times(ds: xr.Dataset, origin: str, remedy: str) -> None:
    times = ds.indexes["time"]
    if not isinstance(times, pd.DatetimeIndex):
        raise InputError(f"{origin}: coordinate 'time' holds {times.dtype}, not dates; {remedy}")
    if times.hasnans:
        raise InputError(f"{origin}: coordinate 'time' has empty entries; {remedy}")
    gaps = np.diff(times.to_numpy())
    if len(gaps) and not (gaps == gaps[0]).all():
        i = int(np.argmax(gaps != gaps[0]))
        raise InputError(
            f"{origin}: time steps are not even: {times[i]} to {times[i + 1]} is "
            f"{pd.Timedelta(gaps[i])}, the first step is {pd.Timedelta(gaps[0])}; fill the time "
            "axis and leave NaN where nothing was recorded"
        )
    if len(gaps) and gaps[0] <= np.timedelta64(0):
        raise InputError(f"{origin}: time does not increase at {times[1]}; sort and deduplicate it")


def _check_variables(ds: xr.Dataset, origin: str, remedy: str) -> None:
    variables = {name: v for name, v in ds.data_vars.items() if set(v.dims) == {"time", "cell"}}
    if not variables:
        raise InputError(f"{origin}: no variable with dimensions (time, cell); {remedy}")
    for name, v in variables.items():
        if v.dtype.kind not in "iuf":
            raise InputError(f"{origin}: {name} holds {v.dtype}, expected numbers; {remedy}")
        if str(v.attrs.get("zero_is_missing", 0)) not in ("0", "1"):
            raise InputError(
                f"{origin}: {name} has zero_is_missing {v.attrs['zero_is_missing']!r}, expected 0 "
                f"or 1; {remedy}"
            )


def check_finite(
    values: np.ndarray, name: str, time: pd.Index, cell: np.ndarray, origin: object
) -> None:
    """Refuse values `(time, cell)` that are infinite, or larger than `LARGEST`."""
    wrong = (values > LARGEST) | (values < -LARGEST)
    if wrong.any():
        step, at = np.argwhere(wrong)[0]
        raise InputError(
            f"{origin}: {name} is {values[step, at]:g} at {time[step]}, cell {cell[at]}, expected "
            f"at most {LARGEST:g}, or nothing where it is missing; correct the source records, or "
            "state them in a larger unit"
        )


def open_cube(path: str | os.PathLike[str]) -> xr.Dataset:
    """Open a cube lazily: values are read when they are used.

    Raises:
        InputError: if the file does not exist, is not netCDF4 or is not a cube.
    """
    path = Path(path)
    if not path.is_file():
        raise no_file(path, "cube", "write one with `stforecast prepare`")
    if not h5py.is_hdf5(path):
        from data_prep.readers.formats import names_table  # slow to import

        if names_table(path.name):
            how = "`stforecast prepare table` makes one"
            raise InputError(f"{path}: a table, expected a cube; {how}")
    remedy = "write a cube with `stforecast prepare`"
    with open_hdf5(path, "as netCDF4", remedy) as file:
        check_axes(file, path)
    with reading(path, "as netCDF4", remedy):
        file = open_netcdf(path, decode_timedelta=False)
        # xarray does not write that a name with a space is one of a coordinate.
        ds = file.set_coords([name for name, v in file.data_vars.items() if v.dims == ("cell",)])
        ds.set_close(file.close)
        return check_cube(ds, str(path))


def check_axes(file: h5py.File, path: Path) -> None:
    """Refuse axes that would take far more memory than the file's size justifies.

    xarray reads and indexes the axes when it opens a file, and makes an index of a dimension that
    has none; it reads other arrays on use.
    """
    datasets = [item for item in file.values() if isinstance(item, h5py.Dataset)]
    size = 0
    for item in datasets:
        longest = max(item.shape, default=0)
        check_expansion(longest * INDEXED, path, f"{path}: {item.name.lstrip('/')}")
    for item in (item for item in datasets if item.ndim == 1):
        size += item.size * max(INDEXED, item.dtype.itemsize)
        check_expansion(size, path, f"{path}: {item.name.lstrip('/')}")
        # Texts may be as long as the file, and equal ones may be stored only once.
        length, n_at_once = 0, max(1, ALLOWANCE // path.stat().st_size)
        for start in range(0, item.size if item.dtype.kind == "O" else 0, n_at_once):
            length += sum(len(text) for text in item[start : start + n_at_once])
            check_expansion(length, path, f"{path}: {item.name}")


def check_values(values: xr.DataArray, origin: str) -> None:
    """Check that an array of an open file can be read at once, in the memory of the machine."""
    n_bytes, what = 16 * values.size, f"{origin}: {values.name}"
    if "source" in values.encoding:
        check_expansion(n_bytes // 2, Path(values.encoding["source"]), what)
    check_size(n_bytes, what)


def write_cube(ds: xr.Dataset, path: str | os.PathLike[str]) -> Path:
    """Write a cube as netCDF4, atomically."""
    path = Path(path)
    encoding = {str(name): {"zlib": True, "complevel": 1, "shuffle": True} for name in ds.data_vars}
    for name, v in check_cube(ds, str(path)).data_vars.items():
        if v.dims == ("time", "cell"):
            time, cell = ds.indexes["time"], ds["cell"].to_numpy()
            check_finite(v.to_numpy(), str(name), time, cell, path)
    with atomic_path(path) as part, netcdf_target(part) as target:
        dump(ds, target, encoding)
    return path


def write_read(
    read: Callable[..., xr.Dataset], raw: Path, out: Path, *, progress: bool = False, **options: Any
) -> Path:
    """Write what a data set's `read` returns for its records and options, for its `prepare`."""
    ds = read(raw, **options)
    if ds.sizes["time"] < 2:
        raise InputError(f"{raw}: its records have a single time step; give those of two or more")
    warn_of_services(ds, raw)
    return write_cube(ds, out)


def warn_of_services(ds: xr.Dataset, raw: Path) -> None:
    """Log what is likely wrong with the values of each service that were read from `raw`."""
    for name in services_of(ds):
        values, units = observed(ds, name).to_numpy(), str(ds[name].attrs.get("units", "1"))
        warn_of_oddities(values, local_time(ds), ds["cell"].to_numpy(), f"{raw}: {name}", units)


class CubeReader:
    """A data set whose `read` returns its records as a cube; its `prepare` writes it.

    Attributes:
        name: its name, such as `"metr-la"`; empty for a base class.
        SOURCES: its official files.
    """

    name: ClassVar[str] = ""
    SOURCES: ClassVar[tuple[Source, ...]] = ()
    read: ClassVar[Callable[..., xr.Dataset]]

    @classmethod
    def prepare(cls, raw: Path, out: Path, **options: Any) -> Path:
        """Write the cube that `read` returns, a .nc file; see `write_read`."""
        return write_read(cls.read, raw, out, **options)


def step_of(ds: xr.Dataset) -> pd.Timedelta:
    """Return the length of a time step.

    Raises:
        InputError: if there is only one step.
    """
    times = ds.indexes["time"]
    if len(times) < 2:
        raise InputError("the cube has a single time step; at least two are needed")
    return pd.Timedelta(times[1] - times[0])


def observed(ds: xr.Dataset, variable: str) -> xr.DataArray:
    """Return the values of one variable `(time, cell)`, NaN where nothing was recorded."""
    names = services_of(ds)
    if variable not in names:
        raise choose("service", variable, names)
    values = ds[variable].transpose("time", "cell")
    return values.where(values != 0) if values.attrs.get("zero_is_missing", 0) else values


def local_time(ds: xr.Dataset) -> pd.DatetimeIndex:
    """Return the local wall clock at each step, `(time,)`, without a zone."""
    times = pd.DatetimeIndex(ds.indexes["time"])
    if ds.attrs.get("clock", "utc") == "local":
        return times
    return to_wall(times, ds.attrs.get("time_zone", "UTC"))


def services_of(ds: xr.Dataset) -> list[str]:
    """Return the names of the variables `(time, cell)`, in the cube's order."""
    variables = ds.variables  # An item of `data_vars` looks at all others.
    return [str(n) for n in ds.data_vars if {*variables[n].dims} == {"time", "cell"}]


def write_chunks(
    description: xr.Dataset,
    chunks: Iterable[tuple[int, Mapping[str, np.ndarray]]],
    path: str | os.PathLike[str],
    *,
    steps_per_chunk: int,
) -> Path:
    """Write a cube atomically from a description and chunks of values.

    Args:
        description: a cube with all its times, cells and attributes. Its values are ignored; use
            broadcast scalars, which take no memory.
        chunks: pairs of the first time step and the values of each variable from there on,
            `(step, cell)`; steps that no chunk covers become NaN.
        path: file to write.
        steps_per_chunk: time steps of a chunk in the file, ideally those of a chunk of values.
    """
    path = Path(path)
    check_cube(description, str(path))
    names = [str(name) for name, v in description.data_vars.items() if v.dims == ("time", "cell")]
    times, cells = description.indexes["time"], description["cell"].to_numpy()
    n_chunks = -(-len(cells) // 1024)
    shape = (min(steps_per_chunk, len(times)), -(-len(cells) // n_chunks))

    def checked() -> Iterator[tuple[int, Mapping[str, np.ndarray]]]:
        for first, values in chunks:
            for name in names:
                check_finite(values[name], name, times[first:], cells, path)
            yield first, values

    with atomic_path(path) as part, netcdf_target(part) as f:
        dump_blocks(description, dict.fromkeys(names, shape), checked(), f)
    return path
