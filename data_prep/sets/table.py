"""Your own table: CSV, Excel, Parquet or Arrow, long (time, cell, values) or wide (time × cell).

- Files: `.csv`, `.tsv`, `.txt`, `.csv.gz` (separator `,`, `;`, `|` or tab), `.jsonl`, `.parquet`,
  `.feather`, `.arrow`, `.h5` (of pandas, in its fixed format, without texts) and, with the extra
  `excel`, `.xlsx`; or several in a folder, a `.zip` or by a pattern.
- Measurements of network elements (3GPP TS 32.435 and 32.401, Nokia's OMeS, VES events): a file or
  a folder of them, of one class of objects (`object_class`). Other formats of networks and roads
  are classes of `data_prep.readers.formats`; `stforecast list formats` lists them.
- Long: one row per (time, cell), one variable per value column. Wide: one column per cell. The time
  column of a wide table may be unnamed if it is the first, as `DataFrame.to_csv` writes it.
  Services: one column per service of a single cell, which is named like the file.
- If only one reading fits, it is taken and reported: the usual names of the columns of times and
  cells (Timestamp, Station), dates such as 23/10/2017, decimal commas. If two fit, the error says
  which option to give. `--dry-run` shows what was understood and writes nothing.
- Times: ISO 8601, or `time_format`. Times with an offset (`+01:00`, `Z`) are converted to UTC;
  those without one are interpreted by `clock`. Whole numbers are seconds since 1970, or their
  thousandths to billionths, distinguished by their size, or dates such as `20240101`; a number
  that is neither of the years 1985 to 2030 is refused. A table without times takes `start` and
  `step`.
- Missing: an empty field, `NA`, `N/A`, `NaN`, `nan`, `null`, `NIL`, `None`, `-` or `--`, an
  error of Excel such as `#DIV/0!`, or a word such as `No data`.
  Negative values are kept, but a speed of -1 where it is the only one. A cell with rows in only a
  part of the period is NaN in the rest.
- Cells: ids read as text become integers if all are whole numbers without leading zero or sign
  (not `007`), else stay text. A long table's cells are sorted; a wide table's keep their order.
  Columns such as lon and lat of a long table place the cells on a map.
- Rows may be in any order. Nothing is dropped, padded or averaged unless an option asks for it; a
  column without numbers, or of the calendar (HOUR, weekday), is left out with a notice unless
  `values` names it.
- Trap: a wall clock repeats an hour in autumn and skips one in spring. With `clock="local"` and a
  `time_zone`, times become UTC; the order of a cell's rows tells the equal hours apart. Steps that
  are even on the wall clock only, such as days, stay on it, and so do times without a `time_zone`.
- Units are converted to `units`, or refused; the licence is stored as "not stated". The cube keeps
  the file's name and SHA-256.
"""

from __future__ import annotations

import logging
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
import xarray as xr

from data_prep.cube import write_read
from data_prep.readers import reading
from data_prep.readers.open import tables_in
from data_prep.readers.options import TableOptions
from data_prep.sets.dcrnn import MetrLA, PemsBay

SOURCES: tuple[()] = ()

log = logging.getLogger(__name__)


def read(raw: Path | pd.DataFrame, **options: Any) -> xr.Dataset:
    """Read a table as a cube.

    Args:
        raw: The table, such as a .csv, .csv.gz, .xlsx, .parquet, .feather or .h5 file, or several:
            a folder, a .zip or a pattern such as 'exports/*.csv'; in Python also a frame, whose
            index is not read.
        **options: those of `TableOptions`.

    Raises:
        InputError: if the table is invalid or an option is needed; names the file and the line.
    """
    files = [] if isinstance(raw, pd.DataFrame) else tables_in(raw := Path(raw))[0]
    for known in (MetrLA, PemsBay):  # Their marks of missing values are in no table.
        if found := [file.name for file in files if file.name.lower() in known.records]:
            log.warning(
                "%s: named like the records of %s, in which 0 means missing and times are those of "
                "California; `stforecast prepare %s` reads them so, and takes the roads",
                found[0],
                known.title,
                known.name,
            )
    return reading.read(raw, TableOptions(**options))


prepare = partial(write_read, read)
Options = TableOptions
