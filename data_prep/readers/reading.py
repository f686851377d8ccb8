"""Read a table as a cube: the steps in the order of use.

1. `open`: files, members of a zip, sheets of a workbook; each is a part.
2. `decode`: a part by its format, see `readers.formats`, which for texts and sheets finds the
   `head`: titles, names, units above the data.
3. `rows`: times across become rows; rows that are no records are left out; the columns of times.
4. `numbers` and their units: decimal marks, thousands, units after numbers and in columns.
5. `join`: several tables become one, whose columns `names` names.
6. `times`, in `time_columns`: one column of times, of its parts or counted.
7. `layout`: the other columns: cells, values, services; `flags` that spoil values.
8. `cells`: ids, units of columns, `--cells`.
9. `steps`: even steps in time and missing values: a cube.
10. `places`: a table of sites.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pandas as pd
import xarray as xr

from data_prep.base.errors import InputError
from data_prep.base.files import checksum
from data_prep.preparation import as_attribute
from data_prep.readers import (
    cells,
    decode,
    flags,
    join,
    layout,
    names,
    numbers,
    open,
    places,
    rows,
    steps,
    time_columns,
)
from data_prep.readers.events import ask_for_events
from data_prep.readers.formats import Part
from data_prep.readers.options import TableOptions
from data_prep.readers.origin import Origin
from data_prep.readers.table import Table, from_pandas, without_nan


def read(raw: Path | pd.DataFrame, options: TableOptions) -> xr.Dataset:
    """Read a table, or several, as a cube."""
    table, given = _one_table(raw, options), options
    options = options.of_joined
    table = time_columns.apply(table, options)
    found = {"decimal": table.mark, "ends": bool(table.ends)}
    table = flags.apply(layout.apply(table, options))
    table = cells.apply(table, options).packed()
    try:
        cube = steps.apply(table, options)
    except InputError as e:
        given = table.decided.get("cell", options.cell)
        events = None if options.resampling else ask_for_events(e, table, given)
        raise events or e from (e if events else None)
    cube = cube if options.cells else cells.without_totals(cube, table.origin)
    decided = dataclasses.replace(given, **table.decided)
    cube = cube.assign_attrs(as_attribute("table", dataclasses.asdict(decided), found))
    return places.add_sites(cube, Path(options.sites), options.crs) if options.sites else cube


def _one_table(raw: Path | pd.DataFrame, options: TableOptions) -> Table:
    """Return the table of all parts; with decimal commas, they are read again as texts."""
    files: list[Path] = []
    parts: list[Part] = []
    if isinstance(raw, pd.DataFrame):
        decode.refuse_unread((), options)
        columns, origin = without_nan(from_pandas(raw)), Origin()
        tables = rows.apply([Table(columns, origin, origin.name, as_text=True)], options)
    else:
        files, parts = open.apply(raw, options)
        tables = rows.apply(decode.apply(parts, options), options)
    mark = numbers.decide_decimal(tables, options.decimal, options.keys)
    if mark == "comma" and not all(table.as_text for table in tables):
        options = dataclasses.replace(options, decimal=mark)
        tables = rows.apply(decode.apply(parts, options), options)
    tables = [numbers.apply(table, mark, options) for table in tables]
    known = mark if mark == "comma" or any(map(numbers.has_fractions, tables)) else ""
    table = join.apply(tables, "" if isinstance(raw, pd.DataFrame) else raw.name, options)
    table = names.apply(table, options)
    name, checksums = table.origin.name, {file.name: checksum(file) for file in files}
    about = {"title": f"Table {name}", "source": name, "checksums": checksums}
    return table.with_(about=about, mark=known)
