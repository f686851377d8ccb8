"""Places and other properties of cells, from columns of a long table."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import numpy as np
import pandas as pd

from data_prep.tabular.advice import has_comma
from data_prep.tabular.columns import is_text
from data_prep.tabular.names import LATITUDES, LONGITUDES, named
from data_prep.tabular.origin import Origin

log = logging.getLogger(__name__)

KEPT = ("", "time", "cell", "cell_to", "lon", "lat", "adjacency")
"""Names of a cube's own variables."""


def read_places(
    df: pd.DataFrame, cell_at: np.ndarray, origin: Origin
) -> tuple[np.ndarray, np.ndarray] | None:
    """Return the longitude and latitude of each cell, `(cells,)` each; None if not known.

    Args:
        df: a long table, perhaps with a column such as `lon` and one such as `lat`.
        cell_at: `(rows,)` position of each row's cell.
        origin: location of the rows, for the notice.
    """
    columns = [c for c in df.columns if isinstance(c, str)]
    pairs = named(columns, LONGITUDES), named(columns, LATITUDES)
    if [len(found) for found in pairs] != [1, 1]:
        return None
    degrees = [pd.to_numeric(df[found[0]], errors="coerce").to_numpy(float) for found in pairs]
    spans = [pd.Series(d).groupby(cell_at).agg(["min", "max"]) for d in degrees]
    fixed = all((span["min"] == span["max"]).all() for span in spans)
    if not fixed or any(np.abs(d).max() > most for d, most in zip(degrees, (180, 90), strict=True)):
        log.warning(
            "%s: columns %s and %s are not one place in degrees for each cell; left out",
            origin.name, pairs[0][0], pairs[1][0],
        )  # fmt: skip
        return None
    log.info("%s: %s and %s place the cells on a map", origin.name, pairs[0][0], pairs[1][0])
    lon, lat = (span["min"].to_numpy() for span in spans)
    return lon, lat


def read_properties(df: pd.DataFrame, keys: Sequence[str]) -> dict[str, pd.Series]:
    """Return the columns of text that have the same value in all rows of a cell.

    Such a column, for example `operator`, is kept as a coordinate of the cube.

    Args:
        df: a long table.
        keys: its columns of times and cells, in this order, and others that are not properties.

    Returns:
        Name to a series of the values, with the cells as index.
    """
    if keys[1] not in df:
        return {}
    found = {}
    for name in df.columns:
        column = df[name]
        if name in keys or not _could_be_property(name, column):
            continue
        by_cell = column.groupby(df[keys[1]].to_numpy())
        if (by_cell.nunique() == 1).all():
            found[name] = by_cell.first()
    return found


def _could_be_property(name: object, column: pd.Series) -> bool:
    """Return whether a column holds text in all rows, and a variable can have its name."""
    usable = isinstance(name, str) and name.isprintable() and name not in KEPT and "/" not in name
    if not usable or not len(column) or not is_text(column):
        return False
    texts = column.unique()
    return all(
        isinstance(t, str) and t and "\0" not in t and not has_comma(t) for t in texts
    ) and bool(pd.to_numeric(pd.Series(texts), errors="coerce").isna().all())
