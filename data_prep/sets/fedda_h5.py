"""FedDA's layout: SMS, call and Internet activity in one HDF5 file, as federated papers use it.

- Paper: Zhang, Dang, Shihada, Alouini, "Dual Attention-Based Federated Learning for Wireless
  Traffic Prediction", INFOCOM 2021, arXiv 2110.05183; code github.com/chuanting/FedDA, whose
  `trento.h5` and `milano.h5` were made from Telecom Italia's records of 2013-11-01 to 2014-01-01.
- Data sets in the file: `idx`, the start of each step in Unix **seconds** (UTC); `cell`, the ids;
  `lng` and `lat`, degrees of each cell; `sms`, `call`, `net` as (time, column), in + out summed.
- A cell's column is its **id - 1**, as FedDA's code reads it (`f["net"][()][:, cell - 1]`), so the
  arrays may be wider than `cell`. `write` uses this layout. `prepare` also accepts arrays with one
  column per entry of `cell` when the ids are too large to be positions.
- Missing activity is stored as 0, which also stands for no activity. NaN in a file stays NaN.
- Activity has no physical unit. Licence of the records: ODbL 1.0.
- Origin: `write` stores the cube's title, source and licence as attributes of the file, which
  FedDA's code ignores, and `prepare` reads them.
- Trap: FedDA's code assumes 24 steps per day, whatever their length.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pandas as pd
import xarray as xr

from data_prep.base.errors import InputError, Words, no_file
from data_prep.base.files import atomic_path, checksum
from data_prep.base.limits import check_expansion, check_size
from data_prep.cube import check_cube, make_cube, observed, step_of, write_cube
from data_prep.netcdf import hdf5_target
from data_prep.readers.hdf5 import NUMBER, open_hdf5, read_array
from data_prep.readers.origin import Origin
from data_prep.readers.resampling import check_steps
from data_prep.readers.times import check_time_zone, regular_steps

SOURCES: tuple[()] = ()
# Each service, and the variables whose sum replaces it in a cube without it.
SERVICES = {"sms": ("sms_in", "sms_out"), "call": ("call_in", "call_out"), "net": ("internet",)}
SLAB = 144
# Attributes that `write` takes from a cube, and their values for a file without them.
ORIGIN = {
    "title": "Telecom Italia activity in FedDA's layout",
    "source": "github.com/chuanting/FedDA, from doi:10.7910/DVN/EGZHFV and doi:10.7910/DVN/QLCABU",
    "license": "ODbL-1.0",
}

log = logging.getLogger(__name__)


def prepare(
    raw: Path, out: Path, *, time_zone: str = "Europe/Rome", progress: bool = False
) -> Path:
    """Turn a file in FedDA's layout into a cube.

    Args:
        raw: The file, such as trento.h5 or milano.h5.
        out: The cube to write, a .nc file.
        time_zone: IANA name of the place's time zone, for calendar features.
        progress: No effect; the file is read at once.

    Raises:
        InputError: if the file is invalid; names the file and the data set in it.
    """
    raw = Path(raw)
    check_time_zone(time_zone)
    if not raw.is_file():
        raise no_file(raw, "file in FedDA's layout", "give one such as trento.h5")
    remedy = "give HDF5 with idx, cell, lng, lat and sms, call, net, or save it again"
    with open_hdf5(raw, "in FedDA's layout", remedy) as file:
        cells = _read_cells(file, raw.name)
        times = _read_times(file, raw.name)
        lng, lat = _read_positions(file, cells, raw.name)
        origin: dict[str, Any] = {
            key: str(file.attrs.get(key, text)) for key, text in ORIGIN.items()
        }
        values = {
            service: _read_activity(file[service], len(times), cells, raw.name)
            for service in SERVICES
            if service in file
        }
    if not values:
        raise InputError(f"{raw.name}: found none of {', '.join(SERVICES)}; add one of them")
    ds = make_cube(
        values,
        times,
        cells,
        **origin,
        units="1",
        time_zone=time_zone,
        checksums={raw.name: checksum(raw)},
        lon=lng,
        lat=lat,
    )
    return write_cube(ds, out)


def write(ds: xr.Dataset, path: Path, *, fill_missing: float | None = None) -> Path:
    """Write a cube in FedDA's layout, atomically.

    Args:
        ds: a cube with integer cell ids from 1 up and UTC times. `sms`, `call` and `net` are taken
            from the cube, or summed from `sms_in + sms_out`, `call_in + call_out` and `internet`.
            A service that has neither is left out and logged.
        path: the .h5 file to write.
        fill_missing: replacement for missing values (NaN, and 0 where it means missing); FedDA
            uses 0.0. None refuses missing values.

    Raises:
        InputError: if the layout cannot hold the cube.
    """
    check_cube(ds, "the cube")
    if fill_missing is not None and not 0 <= fill_missing < np.inf:
        raise InputError(
            f"fill_missing is {fill_missing}; give a number from 0 up, or leave it out to refuse "
            "missing values"
        )
    columns = _columns_of(ds)
    services: dict[str, xr.DataArray] = {}
    for name, parts in SERVICES.items():
        if name in ds.data_vars:
            services[name] = observed(ds, name)
        elif all(part in ds.data_vars for part in parts):
            first, *others = (observed(ds, part) for part in parts)
            services[name] = sum(others, first)
    if not services:
        raise InputError(
            f"the cube holds {', '.join(map(str, ds.data_vars))}, expected a service of FedDA's "
            f"layout ({', '.join(SERVICES)}) or its parts; prepare milan or trentino"
        )
    has_positions = "lon" in ds.coords and "lat" in ds.coords
    absent = [name for name in SERVICES if name not in services]
    absent += [] if has_positions else ["lng", "lat"]
    if absent:
        log.warning("%s: without %s, which the cube does not have", path, ", ".join(absent))
    if ds.sizes["time"] > 1 and step_of(ds) != pd.Timedelta("1h"):
        log.warning("%s: step %s, but FedDA's code assumes 24 steps a day", path, step_of(ds))
    with atomic_path(path) as part, hdf5_target(part) as target, h5py.File(target, "w") as file:
        file.attrs.update({key: ds.attrs[key] for key in ORIGIN if key in ds.attrs})
        file["idx"] = ds.indexes["time"].to_numpy().astype("datetime64[s]").astype(np.int64)
        file["cell"] = columns + 1
        if has_positions:
            file["lng"], file["lat"] = ds["lon"].to_numpy(), ds["lat"].to_numpy()
        for name, data in services.items():
            _write_activity(file, name, data, columns, fill_missing)
    return Path(path)


def _read_numbers(file: h5py.File, key: str, name: str) -> np.ndarray:
    """Read one number per row; some tools save them as a column `(rows, 1)`."""
    # Each takes 64 bytes of memory while it is checked.
    values = read_array(file[key], name, 64).ravel()
    if values.dtype.kind not in "iuf" or not values.size or not np.isfinite(values).all():
        raise InputError(
            f"{name}: {key} is {values.dtype} of shape {values.shape}, expected finite numbers; "
            "save it again"
        )
    return values


def _read_cells(file: h5py.File, name: str) -> np.ndarray:
    cells = _read_numbers(file, "cell", name)
    odd = cells[(cells != np.rint(cells)) | (cells < 1) | (cells >= 2**53)]
    if odd.size:
        raise InputError(
            f"{name}: cell holds {odd[0]}, expected whole numbers from 1 up, since a cell's column "
            "is its id - 1; renumber the cells"
        )
    ids, counts = np.unique(cells, return_counts=True)
    if counts.max() > 1:
        raise InputError(
            f"{name}: cell holds {ids[counts.argmax()]} more than once; rename or merge them"
        )
    return cells.astype(np.int64)


def _read_times(file: h5py.File, name: str) -> pd.DatetimeIndex:
    idx = _read_numbers(file, "idx", name)
    # The smallest value of a time since 1970 in each unit; smaller numbers are step numbers.
    units = {"nanoseconds": 1e17, "microseconds": 1e14, "milliseconds": 9e9, "seconds": 5e8}
    for what, odd in {"begins with": idx[0], "goes up to": idx.max(), "has": idx.min()}.items():
        unit = next((unit for unit, first in units.items() if odd >= first), "step numbers")
        if unit != "seconds":
            raise InputError(
                f"{name}: idx {what} {odd}, which looks like {unit}, expected Unix seconds such as "
                "1383260400; convert it"
            )
    times = pd.to_datetime(np.rint(idx).astype(np.int64), unit="s").as_unit("ns")
    axis, at = regular_steps(times, name)
    check_steps(axis, at, Origin(name, is_file=True), allow_gaps=False)
    if not times.equals(axis):
        raise InputError(f"{name}: idx is out of order or repeats a time; sort and deduplicate it")
    return pd.DatetimeIndex(times)


def _read_positions(
    file: h5py.File, cells: np.ndarray, name: str
) -> tuple[np.ndarray | None, np.ndarray | None]:
    """Read the longitude and latitude of each cell; None if the file has neither."""
    if "lng" not in file and "lat" not in file:
        return None, None
    lng, lat = (_read_numbers(file, key, name) for key in ("lng", "lat"))
    if lng.shape != cells.shape or lat.shape != cells.shape:
        raise InputError(
            f"{name}: lng has shape {lng.shape}, lat {lat.shape} and cell {cells.shape}, expected "
            "one position per cell; save them from one table"
        )
    return lng, lat


def _read_activity(data: h5py.Dataset, n_steps: int, cells: np.ndarray, name: str) -> np.ndarray:
    """Read one service as `(time, cell)`."""
    if not isinstance(data, h5py.Dataset) or data.dtype.kind not in "iuf":
        found = data.dtype if isinstance(data, h5py.Dataset) else "a group"
        raise InputError(f"{name}: {data.name} holds {found}, expected numbers; save it again")
    width = data.shape[1] if data.ndim == 2 else 0
    by_id = cells.max() <= width
    if data.shape[:1] != (n_steps,) or not (by_id or width == len(cells)):
        raise InputError(
            f"{name}: {data.name} has shape {data.shape}, expected ({n_steps}, {len(cells)}) for "
            f"idx and cell, or {cells.max()} columns to hold each cell at its id - 1; save it again"
        )
    values = _read_columns(data, cells - 1, name) if by_id else read_array(data, name)
    wrong = np.argwhere(np.isinf(values) | (values < 0))
    if wrong.size:
        step, cell = wrong[0]
        raise InputError(
            f"{name}: {data.name} holds {values[step, cell]} at step {step}, cell {cells[cell]}, "
            "expected activity from 0 up, not scaled; save the original values"
        )
    return values


def _read_columns(data: h5py.Dataset, columns: np.ndarray, name: str) -> np.ndarray:
    """Read a subset of the columns, `(time, column)`, skipping slabs that hold none of them."""
    path, what = Path(data.file.filename), f"{name}: {data.name}"
    # A file that is nearly all zeros takes 2,048 bytes in memory per byte.
    check_expansion(NUMBER * data.size, path, what, 2048)
    check_expansion(NUMBER * data.shape[0] * len(columns), path, what)
    values = np.empty((data.shape[0], len(columns)), data.dtype)
    for slab in np.unique(columns // SLAB):
        there = columns // SLAB == slab
        values[:, there] = data[:, slab * SLAB : (slab + 1) * SLAB][:, columns[there] - slab * SLAB]
    return values


def _columns_of(ds: xr.Dataset) -> np.ndarray:
    """Return the column of each cell in the layout, `(cell,)`."""
    cells = ds.indexes["cell"]
    if cells.dtype.kind not in "iu" or cells.min() < 1:
        raise InputError(
            f"the cube's cells are {cells.dtype} such as {cells.tolist()[0]!r}, expected whole "
            "numbers from 1 up, since a cell's column in FedDA's layout is its id - 1; renumber "
            "the cells"
        )
    if ds.attrs.get("clock", "utc") != "utc":
        raise InputError(
            "the cube's clock is local, expected UTC, since FedDA's layout counts Unix seconds; "
            "prepare the data with UTC times"
        )
    return cells.to_numpy() - 1


def _write_activity(
    file: h5py.File, name: str, data: xr.DataArray, columns: np.ndarray, fill: float | None
) -> None:
    n_steps, width = data.sizes["time"], int(columns.max()) + 1
    check_size(8 * SLAB * width, f"{name}: a day of columns up to cell {width}")
    chunks = min(SLAB, n_steps), min(SLAB, width)
    written = file.create_dataset(
        name, (n_steps, width), "f8", chunks=chunks, compression="gzip", compression_opts=1
    )
    for start in range(0, n_steps, SLAB):
        part = data.isel(time=slice(start, start + SLAB))
        values = part.to_numpy().astype(np.float64)
        missing = np.isnan(values)
        if missing.any():
            if fill is None:
                step, cell = np.argwhere(missing)[0]
                raise InputError(
                    f"{name} is missing at {part.indexes['time'][step]}, cell "
                    f"{columns[cell] + 1}, but FedDA's layout cannot mark it; ",
                    Words("pass {fill_missing} to write 0 there", fill_missing=0),
                )
            values[missing] = fill
        slab = np.zeros((len(values), width))
        slab[:, columns] = values
        written[start : start + len(values)] = slab
