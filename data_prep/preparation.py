"""How a cube was prepared, kept in its attributes, to open later records in the same way."""

from __future__ import annotations

import json
import logging
import os
import tempfile
from collections.abc import Mapping
from inspect import signature
from pathlib import Path
from typing import Any

import h5py
import pandas as pd
import xarray as xr

from data_prep import DATA_SETS, options_of
from data_prep.base.errors import InputError, Words, reading
from data_prep.cube import open_cube
from data_prep.readers.origin import FIRST, NAMED

ATTRIBUTE = "preparation"
"""Attribute of a cube that names its data set and the options of its `prepare`, as JSON."""

log = logging.getLogger(__name__)


def as_attribute(
    data_set: str, options: Mapping[str, Any], found: Mapping[str, Any] | None = None
) -> dict[str, str]:
    """Return the attribute that says how a cube was prepared, and what was found in its records.

    Options of the first file's cells are left out, as later records have the same cells.
    """
    of_first = {"raw", "out", "cells", "sample", "seed", "grid", "sites", "crs"}
    of_first |= {"spread", "progress"}
    kept = {n: v for n, v in options.items() if v is not None and n not in of_first}
    about = {**(found or {}), "data_set": data_set, "options": kept}
    return {ATTRIBUTE: json.dumps(about, sort_keys=True)}


def preparation_of(cube: xr.Dataset) -> dict[str, Any]:
    """Return what `as_attribute` noted; empty if the cube does not say.

    Raises:
        InputError: if the attribute is damaged.
    """
    remedy = "prepare the cube again"
    with reading(cube.encoding.get("source", "the cube"), f"at {ATTRIBUTE}", remedy):
        found = json.loads(cube.attrs.get(ATTRIBUTE, "{}"))
        if not found:
            return {}
        return {**found, "options": {**found["options"]}, "cell": cube["cell"].to_numpy()[0].item()}


def open_again(
    records: str | os.PathLike[str] | pd.DataFrame, preparation: Mapping[str, Any]
) -> xr.Dataset:
    """Open later records as the first ones were: a cube as it is, others by their preparation.

    Missing rows are left NaN, with a warning, since nobody may be there to allow it.

    Args:
        records: path of a cube, or of records like those that were prepared; or such a table.
        preparation: result of `preparation_of`, not empty.

    Raises:
        InputError: if the records cannot be read in this way.
    """
    if not isinstance(records, pd.DataFrame):
        records = Path(records)
        if records.suffix == ".nc" or (records.is_file() and h5py.is_hdf5(records)):
            return open_cube(records)
    data_set, options = DATA_SETS.find(preparation["data_set"]), dict(preparation["options"])
    if options.get("units") == "1":  # As earlier versions noted where none was given.
        del options["units"]
    if "start" in options:
        name = records if isinstance(records, Path) else "the DataFrame"
        raise InputError(
            f"{name}: the times of the first table were counted from {options['start']}, so those "
            "of a later one are not known; give a table with times, or a cube"
        )
    if "allow_gaps" in options:
        options["allow_gaps"] = True
    whose = Words("stforecast prepare {}", preparation["data_set"]).typed
    first = FIRST.set(preparation)
    token = NAMED.set(f" (an option of `{whose}`, whose cube can be given instead)")
    try:
        return _opened(records, data_set, options, preparation["cell"])
    except InputError as e:
        usual = signature(options_of(data_set)).parameters
        chosen = preparation["options"].items()
        given = {n: v for n, v in chosen if n not in usual or v != usual[n].default}
        file = Path("records.csv") if isinstance(records, pd.DataFrame) else records
        given = {"raw": file, **given, "out": f"{file.stem}.nc"}
        how = Words(" ".join([whose, *(f"{{{name}}}" for name in given)]), **given).typed
        raise InputError(
            e,
            " (it was read as the first records were; with other options, prepare it, and give the "
            f"cube: {how})",
        ) from e
    finally:
        NAMED.reset(token)
        FIRST.reset(first)


def _opened(
    records: Path | pd.DataFrame, data_set: Any, options: dict[str, Any], cell: Any
) -> xr.Dataset:
    if read := getattr(data_set, "read", None):
        cube: xr.Dataset = read(records, **options)
        # A table of services is of one cell, which is named like its first file.
        of_one = options.get("layout") == "services"
        return cube.assign_coords(cell=[cell]) if of_one else cube
    with tempfile.TemporaryDirectory() as folder:
        made = data_set.prepare(records, Path(folder) / "records.nc", **options)
        with open_cube(made) as ds:
            return ds.load().drop_encoding()  # It names a file that is gone.
