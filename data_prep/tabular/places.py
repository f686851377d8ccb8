"""Longitude and latitude of cells, from columns of a long table."""

from __future__ import annotations

import logging

import numpy as np
import pandas as pd

from data_prep.tabular.names import LATITUDES, LONGITUDES, named
from data_prep.tabular.origin import Origin

log = logging.getLogger(__name__)


def read_places(
    df: pd.DataFrame, cell_at: np.ndarray, n_cells: int, origin: Origin
) -> tuple[np.ndarray, np.ndarray] | None:
    """Return the longitude and latitude of each cell, `(cells,)` each; None if not known.

    Args:
        df: a long table, perhaps with a column such as `lon` and one such as `lat`.
        cell_at: `(rows,)` position of each row's cell.
        n_cells: number of cells.
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
