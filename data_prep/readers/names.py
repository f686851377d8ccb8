"""Name the columns of a table by a second one, `--names`: counters have numbers or codes."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

from data_prep.base.errors import InputError, Words, counted, some
from data_prep.readers.decode import read_part
from data_prep.readers.formats import Part
from data_prep.readers.options import TableOptions
from data_prep.readers.origin import StepLog
from data_prep.readers.table import Table

log = StepLog("units")


class Names(NamedTuple):
    """Names and units of counters by their codes; of some, no unit is known."""

    names: dict[str, str]
    units: dict[str, str]

    def code(self, name: str) -> str:
        """Return the code of a name, or the name itself; an index stays."""
        own, *index = re.split(r"(?=\[)", name, maxsplit=1)
        return "".join([next((c for c, n in self.names.items() if n == own), own), *index])


def read_names(path: Path) -> Names:
    """Read a table of codes in the first column, names in the second, and perhaps a column `unit`.

    Raises:
        InputError: if it cannot be read, or has one column.
    """
    texts = TableOptions(decimal="comma")  # Codes such as 0815 stay as they are.
    columns = read_part(Part(path.name, path), texts, ()).columns
    if columns.width < 2:
        raise InputError(
            f"{path.name}: one column, expected codes of counters in the first and names in the "
            "second; save it with both"
        )
    known = columns.filter(columns[:, 0].is_not_null() & columns[:, 1].is_not_null())
    codes, names, *_ = ([str(v).strip() for v in column] for column in known.iter_columns())
    unit = next((c for c in columns.columns if c.strip().lower() in ("unit", "units")), None)
    units = known[unit].to_list() if unit else []
    return Names(
        dict(zip(codes, names, strict=True)),
        {c: str(u).strip() for c, u in zip(codes, units, strict=False) if u},
    )


def apply(table: Table, options: TableOptions) -> Table:
    """Return a table whose columns have the names that the table of names gives them.

    An index or a unit after a code stays, as in `bins[3]` or `1526726657 (kbit)`.

    Raises:
        InputError: if it names none of the columns, or two with the same name.
    """
    if options.names is None:
        return table
    path = Path(options.names)
    names, units = read_names(path)
    given = {c: re.split(r"(?=\[|\s*[(（])", c, maxsplit=1) for c in table.names}
    new = {c: "".join([names[code], *rest]) for c, (code, *rest) in given.items() if code in names}
    if not new:
        raise InputError(
            f"{path.name}: its first column holds none of the columns of {table.origin.name}, "
            f"which are {some(map(repr, table.names), 6)}, but {some(map(repr, names), 3)}; ",
            Words("give the table of these counters, or leave out {names}"),
        )
    named = [new.get(c, c) for c in table.names]
    if twice := {name for name in named if named.count(name) > 1}:
        raise InputError(
            f"{path.name}: several columns of {table.origin.name} would be {min(twice)!r}; give "
            "each counter a name of its own"
        )
    log.info(table.origin, f"{counted(len(new), 'column')} named by {path.name}: {some(new, 3)}")
    own = {c: units[code] for c, (code, *_) in given.items() if code in units}
    return table.with_(units={**table.units, **own}).rename(new)
