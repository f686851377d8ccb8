"""Choice of the cells of a table to keep or to leave out: `--cells`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from data_prep.errors import InputError, close_to

ALL_BUT = "not:"


def keep_cells(text: str, cells: Sequence[Any] | pd.Index, name: str) -> np.ndarray:
    """Return which cells to keep, `(cells,)` bool.

    Args:
        text: ids and ranges of whole numbers, separated by commas; after `not:`, those to
            leave out.
        cells: the ids, integers or text.
        name: name of the table in errors.

    Raises:
        InputError: if an id is unknown, with a suggestion, or no cell is left.

    >>> keep_cells("not:1-2", [1, 2, 3], "a.csv")
    array([False, False,  True])
    """
    known = {str(cell): cell for cell in cells}
    chosen: set[Any] = set()
    for part in text.removeprefix(ALL_BUT).split(","):
        chosen |= _among(part.strip(), known, name)
    named = np.array([cell in chosen for cell in cells])
    kept = ~named if text.startswith(ALL_BUT) else named
    if not kept.any():
        raise InputError(f"{name}: --cells {text!r} leaves no cell; leave out fewer")
    return kept


def _among(part: str, known: dict[str, Any], name: str) -> set[Any]:
    if part in known:
        return {known[part]}
    span = re.fullmatch(r"(\d{1,18})\s*-\s*(\d{1,18})", part)
    if span:
        low, high = int(span[1]), int(span[2])
        found = {c for c in known.values() if isinstance(c, int | np.integer) and low <= c <= high}
        if found:
            return found
    raise InputError(
        f"{name}: no cell {part!r} among its {len(known)} cells, such as {next(iter(known))!r}"
        f"{close_to(part, known)}; correct --cells"
    )
