"""Read a table as a cube: the steps in the order of use."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pandas as pd
import xarray as xr

from data_prep.base.errors import InputError
from data_prep.base.files import checksum
from data_prep.preparation import as_attribute
from data_prep.readers import cells, frames, layout, time_parts
from data_prep.readers.events import ask_for_events
from data_prep.readers.exports import files_of, read_export
from data_prep.readers.options import TableOptions
from data_prep.readers.sites import add_sites


def read(raw: Path | pd.DataFrame, options: TableOptions) -> xr.Dataset:
    """Read a table, or several, as a cube."""
    table = read_export(raw, options)
    name, files = table.origin.name, [] if isinstance(raw, pd.DataFrame) else files_of(raw)
    checksums = {file.name: checksum(file) for file in files}
    about = {"title": f"Table {name}", "source": name, "checksums": checksums}
    table = time_parts.apply(table.with_(about=about), options)
    table = layout.apply(table, options)
    table = cells.apply(table, options).packed()
    try:
        cube = frames.apply(table, options)
    except InputError as e:
        given = table.decided.get("cell", options.cell)
        events = None if options.resampling else ask_for_events(e, table, given)
        raise events or e from (e if events else None)
    cube = cube if options.cells else cells.without_totals(cube, table.origin)
    decided = dataclasses.replace(options, **table.decided)
    cube = cube.assign_attrs(as_attribute("table", dataclasses.asdict(decided)))
    return add_sites(cube, Path(options.sites), options.crs) if options.sites else cube
