"""What published sets of road detectors share: files, even steps, and the cube with its roads."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr

from data_prep.base.errors import InputError, Words, check_regular, in_minutes, no_file
from data_prep.base.files import checksum
from data_prep.cube import make_cube
from data_prep.readers.columns import numbers
from data_prep.readers.decode import read_table
from data_prep.readers.options import TableOptions
from data_prep.readers.origin import Origin
from data_prep.readers.resampling import check_steps
from data_prep.readers.times import regular_steps

log = logging.getLogger(__name__)


def find_records(raw: Path, names: Sequence[str]) -> Path:
    """Return the file of records: the one given, or the one in the folder given.

    That one has a published name, the usual one first, or is the only other file of the same
    ending.
    """
    if raw.is_file():
        return raw
    if not raw.is_dir():
        raise no_file(raw, "file or folder", f"give {names[0]}, or the folder that holds it")
    suffix = Path(names[0]).suffix
    found = sorted(raw.glob(f"*{suffix}"))
    official = [path for path in found if path.name in names]
    if len(found) == 1 or official:
        path = (official or found)[0]
        check_regular(path, "file of records", f"put {names[0]} itself there")
        return path
    listed = ", ".join(path.name for path in found) or f"no {suffix} file"
    raise InputError(
        f"{raw}: found {listed}, expected {names[0]}; give the path of the one to read"
    )


def given_or_beside(given: Path | None, records: Path, names: Sequence[str]) -> Path | None:
    """Return the path given, else the first file of a published name beside the records, if any."""
    if given is not None:
        if not Path(given).is_file():
            raise no_file(Path(given), "file", f"give one such as {names[0]}")
        return Path(given)
    beside = [path for name in names if os.path.lexists(path := records.parent / name)]
    if not beside:
        return None
    check_regular(beside[0], "file", "put the file itself there, or remove this one")
    log.info("%s: found beside %s and used", beside[0].name, records.name)
    return beside[0]


def add_roads(ds: xr.Dataset, weights: np.ndarray) -> xr.Dataset:
    """Add proximities `(cell, cell_to)` from 0 up, in the order of the cells, as `adjacency`."""
    attributes = {"units": "1", "long_name": "road proximity from cell to cell_to"}
    other_end = ("cell_to", ds["cell"].to_numpy(), {"long_name": "cell that a road leads to"})
    return ds.assign(adjacency=(("cell", "cell_to"), weights, attributes)).assign_coords(
        cell_to=other_end
    )


def road_cube(
    frames: Mapping[str, pd.DataFrame],
    files: Iterable[Path | None],
    *,
    roads: np.ndarray | None = None,
    places: tuple[np.ndarray, np.ndarray] | None = None,
    license: str = "not stated by the publishers",
    **about: Any,
) -> xr.Dataset:
    """Return the cube of values `(time, cell)` on a local clock, in double precision.

    It was read from the `files`, of which some may be absent. Roads are as for `add_roads`, places
    longitudes and latitudes, and `about` is as for `make_cube`.
    """
    first = next(iter(frames.values()))
    lon, lat = places or (None, None)
    ds = make_cube(
        {name: frame.to_numpy(dtype=np.float64) for name, frame in frames.items()},
        pd.DatetimeIndex(first.index),
        first.columns.to_numpy(dtype=str),
        clock="local",
        license=license,
        checksums={path.name: checksum(path) for path in files if path},
        lon=lon,
        lat=lat,
        **about,
    )
    return ds if roads is None else add_roads(ds, roads)


def read_matrix_csv(path: Path, n_cells: int) -> np.ndarray:
    """Read proximities `(cell, cell)`, in the records' order, from a CSV file without header."""
    df, origin = read_table(path, options=TableOptions(no_header=True))
    if df.shape != (n_cells, n_cells):
        raise InputError(
            f"{path.name}: {df.shape[0]} × {df.shape[1]} values, expected {n_cells} × {n_cells} "
            "for the columns of the records; give the graph that belongs to them"
        )
    matrix = np.column_stack([numbers(df[column], origin) for column in df.columns])
    return check_weights(matrix, path.name)


def check_weights(matrix: np.ndarray, name: str) -> np.ndarray:
    """Return proximities if they are finite and not negative."""
    if not (np.isfinite(matrix) & (matrix >= 0)).all():
        raise InputError(
            f"{name}: adjacency holds values that are negative or not finite, expected finite "
            "numbers from 0 up; save it again"
        )
    return matrix


CALIFORNIA = "America/Los_Angeles"
"""Time zone of the detectors of Caltrans."""


def average(frame: pd.DataFrame, length: pd.Timedelta, *, zero_is_missing: bool) -> pd.DataFrame:
    """Average the observed values `(time, cell)` over longer steps, counted from midnight.

    NaN where nothing was observed. The frame itself is returned if its steps have this length.
    """
    if len(frame) > 1 and frame.index[1] - frame.index[0] == length:
        return frame
    known = frame.where(frame != 0) if zero_is_missing else frame
    return known.resample(length, origin="start_day").mean()


def even_steps(
    frame: pd.DataFrame, name: str, base: pd.Timedelta, zone: str, *, allow_gaps: bool
) -> pd.DataFrame:
    """Put values `(time, cell)` at local times on even steps, NaN in the steps that have no row.

    Steps that the clocks of the zone skip are no gaps; other missing steps are refused, unless
    `allow_gaps`.
    """
    times = pd.DatetimeIndex(frame.index)
    backwards = np.flatnonzero(np.diff(times) <= np.timedelta64(0))
    if backwards.size:
        row = int(backwards[0])
        raise InputError(
            f"{name}: {times[row + 1]} follows {times[row]}, expected increasing times without "
            "repeats; sort the frame and drop duplicates"
        )
    axis, at = regular_steps(times, name)
    rows = np.append(at, _skipped(axis, at, zone, name))
    check_steps(axis, rows, Origin(name, is_file=True), allow_gaps)
    if len(axis) > 1 and axis[1] - axis[0] != base:
        raise InputError(
            f"{name}: time steps of {in_minutes(axis[1] - axis[0])}, expected {in_minutes(base)}; ",
            Words("give the published file and choose longer steps with {step}"),
        )
    return frame if len(axis) == len(times) else frame.reindex(axis)


def _skipped(axis: pd.DatetimeIndex, at: np.ndarray, zone: str, name: str) -> np.ndarray:
    """Return the positions of missing steps that the clocks skip when summer time begins."""
    absent = np.setdiff1d(np.arange(len(axis)), at)
    local = axis[absent].tz_localize(
        zone, ambiguous=np.ones(len(absent), dtype=bool), nonexistent="NaT"
    )
    skipped = absent[local.isna()]
    if skipped.size:
        log.info(
            "%s: no row in %d steps from %s, which the clocks skip; left as NaN",
            name,
            len(skipped),
            axis[skipped[0]],
        )
    return skipped


def check_readings(frame: pd.DataFrame, name: str, what: str, unit: str) -> None:
    """Refuse negative and infinite values `(time, cell)`; NaN is accepted."""
    values = frame.to_numpy()
    wrong = np.argwhere((values < 0) | np.isinf(values))
    if wrong.size:
        row, column = wrong[0]
        raise InputError(
            f"{name}: {what} {values[row, column]} at {frame.index[row]}, sensor "
            f"{frame.columns[column]}, expected {unit} from 0 up; correct it, or save NaN where it "
            "is missing"
        )
