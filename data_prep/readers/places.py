"""Descriptions of cells: columns of a long table, or a table of sites, `--sites`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import polars as pl
import xarray as xr
from pandas.api import types

from data_prep.base.errors import InputError, Words, counted, needing, some
from data_prep.cube import with_places
from data_prep.readers.columns import (
    CALENDAR,
    CELLS,
    LATITUDES,
    LONGITUDES,
    KeyColumns,
    has_comma,
    named,
    without_calendar,
)
from data_prep.readers.decode import read_table
from data_prep.readers.features import FEATURES, OUTLINE, as_outline, read_features, rings_of
from data_prep.readers.origin import Origin, StepLog
from data_prep.readers.table import Table, as_numbers, is_text, n_known
from data_prep.readers.units import is_service

EASTINGS = frozenset({"x", "easting", "east", "utmx", "utme", "xcoord", "coordx", "rechtswert"})
NORTHINGS = frozenset({"y", "northing", "north", "utmy", "utmn", "ycoord", "coordy", "hochwert"})

log = StepLog("places")

KEPT = ("", "time", "cell", "cell_to", "lon", "lat", "adjacency")
"""Names of a cube's own variables."""


def read_places(table: Table, cell_at: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
    """Return the longitude and latitude of each cell, `(cells,)` each; None if not known.

    `cell_at` is the position of each row's cell, `(rows,)`.
    """
    pairs = named(table.names, LONGITUDES), named(table.names, LATITUDES)
    if [len(found) for found in pairs] != [1, 1]:
        return None
    names = pairs[0][0], pairs[1][0]
    degrees = [as_numbers(table[name]).to_numpy() for name in names]
    spans = [pd.Series(d).groupby(cell_at).agg(["min", "max"]) for d in degrees]
    fixed = all((span["min"] == span["max"]).all() for span in spans)
    if not fixed or any(np.abs(d).max() > most for d, most in zip(degrees, (180, 90), strict=True)):
        both = f"columns {names[0]} and {names[1]}"
        log.warning(table.origin, f"{both} are not one place in degrees for each cell; left out")
        return None
    log.info(table.origin, f"{names[0]} and {names[1]} place the cells on a map")
    lon, lat = (span["min"].to_numpy() for span in spans)
    return lon, lat


def read_properties(table: Table, keys: Sequence[str]) -> list[str]:
    """Return the columns that have the same value in all rows of a cell.

    Such a column, for example `operator`, is kept as a coordinate of the cube. The first two `keys`
    are the columns of times and cells; those after them are no properties. Numbers are properties
    if each cell has many rows, and they differ between cells, or are one number, not 0, that is not
    named like a quantity, next to numbers that change. Many rows are 24.
    """
    if keys[1] not in table or not len(table):
        return []
    cells, ids = table.codes(keys[1])
    of_first = np.flatnonzero(cells == cells[0])
    many = len(table) >= 24 * max(1, len(ids))
    found = []
    for name in (name for name in table.names if name not in keys):
        column = table[name]
        if n_known(column[of_first]) != 1 or not _could_be_property(column):
            continue
        if table.n_unique(keys[1], name) != table.n_unique(keys[1]):
            continue
        zero = not is_text(column) and (as_numbers(column) == 0).all()
        apart = column.n_unique() > 1 or not (is_service(name) or zero)
        if is_text(column) or named([name], CELLS) or (many and apart):
            found.append(name)
    rest = [c for c in table.names if c not in (*keys, *found) and not is_text(table[c])]
    if len(keys) > 2 or any(n_known(table[c]) > 1 for c in without_calendar(rest)):
        return found
    return [n for n in found if is_text(table[n]) or (rest and table[n].n_unique() > 1)]


def _could_be_property(column: pl.Series) -> bool:
    """Return whether a column has a value in all rows, and a variable can have its name."""
    name = column.name
    usable = name.isprintable() and name not in KEPT and "/" not in name
    if not usable or column.null_count() or named([name], CALENDAR | LONGITUDES | LATITUDES):
        return False
    if not is_text(column):
        return not column.dtype.is_temporal()
    if column.dtype != pl.String:
        return False
    texts = column.unique()
    if not all(t and "\0" not in t and not has_comma(t) for t in texts):
        return False
    return not as_numbers(texts).is_not_null().any() or bool(named([name], CELLS))


class _TextsOfSites(KeyColumns):
    """Ids and degrees; 9.2W are no watts there."""

    def __contains__(self, name: object) -> bool:
        return super().__contains__(name) or bool(named([str(name)], LONGITUDES | LATITUDES))


def add_sites(ds: xr.Dataset, path: Path, crs: str | None = None) -> xr.Dataset:
    """Add the columns of a table of sites to a cube as coordinates of its cells.

    Longitude and latitude, or the coordinates of a projected system, become `lon` and `lat`. Rows
    belong to cells by the column whose values are most of the cells' ids, or of a text of each
    cell, such as the name of its site.

    Args:
        ds: a cube.
        path: a table with a row for each cell or site, or GeoJSON or GeoPackage with a feature for
            each; of polygons, the centroids are the positions, and `outline` draws them.
        crs: system of projected coordinates, such as `"EPSG:25832"`; needs the extra `maps`.

    Raises:
        InputError: if no column holds ids of the cells, or positions cannot be read.
    """
    if path.name.endswith(FEATURES):
        df, origin, own_crs = read_features(path)
        crs = crs or own_crs
    else:
        df, origin = read_table(path, text_columns=_TextsOfSites("", "cell"))
    column, ids = _find_ids(ds, df, origin)
    own = df[df[column].astype(str).isin(ids)].drop_duplicates()
    rows = own.set_index(own[column].astype(str)).drop(columns=column)
    unequal = [c for c in rows if (rows[c].groupby(level=0).nunique(dropna=False) > 1).any()]
    if unequal:
        log.warning(
            origin,
            f"{some(map(repr, unequal))} differ between rows of one {column} and are left "
            "out; give a row for each cell",
        )
    sites = rows[~rows.index.duplicated()].drop(columns=unequal).reindex(ids)
    sites.columns = sites.columns.str.replace("/", " per ")  # A path within the cube's file.
    absent = ds["cell"].to_numpy()[~np.isin(ids, rows.index)]
    if len(absent):
        log.warning(origin, f"no row for {counted(len(absent), 'cell')}: {some(absent, 5)}")
    ds = _place(ds, sites, crs, origin)
    odd = {*KEPT, *ds.variables}
    kept = [c for c in map(str, sites.columns) if c not in odd and c.isprintable()]
    if left := [c for c in sites.columns if c not in kept]:
        log.warning(origin, f"left out, as the cube has these names: {some(left)}")
    log.info(
        origin, f"{counted(len(kept), 'column')} of cells by {column!r}: {some(kept, 8) or 'none'}"
    )
    return ds.assign_coords({c: ("cell", _values(sites[c])) for c in kept})


def _find_ids(ds: xr.Dataset, df: pd.DataFrame, origin: Origin) -> tuple[str, np.ndarray]:
    """Return the column of ids, and the id of each cell, `(cells,)`."""
    texts = [c for c in ds.coords if ds[c].dims == ("cell",) and ds[c].dtype.kind in "UOi"]
    found = [
        (int(np.isin(ids, df[column].astype(str).unique()).sum()), column, ids)
        for name in sorted(map(str, texts), key=lambda name: name != "cell")
        for ids in [ds[name].to_numpy().astype(str)]
        for column in df.columns
    ]
    most, column, ids = max(found, key=lambda item: item[0])
    if not most:
        raise InputError(
            f"{origin.name}: no column has ids of the cells, such as {some(ds['cell'].values, 3)} "
            f"(its columns are {some(map(repr, df.columns), 8)}); name them as in the table of "
            "values, or ",
            Words("leave out {sites}"),
        )
    return column, ids


def _place(ds: xr.Dataset, sites: pd.DataFrame, crs: str | None, origin: Origin) -> xr.Dataset:
    """Add `lon` and `lat`, if the table has positions, and take them out of it."""
    names = [str(name) for name in sites.columns]
    degrees = named(names, LONGITUDES), named(names, LATITUDES)
    metres = named(names, EASTINGS), named(names, NORTHINGS)
    pairs = [(a[0], b[0]) for a, b in (degrees, metres) if len(a) == len(b) == 1]
    if not pairs:
        return ds
    x, y = (_coordinates(sites[name], origin) for name in pairs[0])
    for name in pairs[0]:
        del sites[name]
    outlines = sites.pop(OUTLINE).fillna("") if OUTLINE in sites else None
    if crs is not None:
        x, y = _to_degrees(x, y, crs)
        if outlines is not None:
            rings = ([ring.T for ring in rings_of(outline or "[]")] for outline in outlines)
            moved = ([np.stack(_to_degrees(a, b, crs), axis=1) for a, b in own] for own in rings)
            outlines = pd.Series([as_outline(own) for own in moved])
    if np.nanmax(np.abs(x), initial=0) > 180 or np.nanmax(np.abs(y), initial=0) > 90:
        raise InputError(
            f"{origin.name}: {pairs[0][0]} and {pairs[0][1]} are no degrees; ",
            Words("name their system, such as {crs:EPSG:25832} for UTM zone 32, or correct {crs}"),
        )
    if outlines is not None:
        about = {"long_name": "rings of longitudes and latitudes, as JSON"}
        ds = ds.assign_coords({OUTLINE: ("cell", outlines.to_numpy(dtype=str), about)})
    return with_places(ds, x, y)


def _coordinates(column: pd.Series, origin: Origin) -> np.ndarray:
    """Return coordinates as `(cells,)` numbers, NaN where empty; texts may be degrees.

    >>> _coordinates(pd.Series(["9.5W", "9°06'", None]), Origin()).tolist()
    [-9.5, 9.1, nan]
    """
    if types.is_numeric_dtype(column):
        return column.to_numpy(dtype=np.float64, na_value=np.nan)
    degrees = (
        r"""^\s*([+-]?)(\d+(?:[.,]\d+)?)\s*(?:°\s*(?:(\d+(?:[.,]\d+)?)\s*['′])?"""
        r"""\s*(?:(\d+(?:[.,]\d+)?)\s*["″])?)?\s*([NSEWO]?)\s*$"""
    )
    parts = column.astype(object).str.extract(degrees)
    numbers = parts[[1, 2, 3]].apply(lambda p: p.str.replace(",", ".").astype(float))
    if (wrong := column.notna() & numbers[1].isna()).any():
        raise InputError(
            f"{origin.name}: {column.name} is {column[wrong].iloc[0]!r}, expected degrees such as "
            "9.2; correct it"
        )
    size = numbers[1] + numbers[2].fillna(0) / 60 + numbers[3].fillna(0) / 3600
    negative = (parts[0] == "-") ^ parts[4].isin(["S", "W"])
    return np.asarray(np.where(negative, -size, size))


def _to_degrees(x: np.ndarray, y: np.ndarray, crs: str) -> tuple[np.ndarray, np.ndarray]:
    with needing("maps", Words("{crs} needs pyproj"), ", or give degrees"):
        from pyproj import Transformer
        from pyproj.exceptions import CRSError
    try:
        lon, lat = Transformer.from_crs(crs, "EPSG:4326", always_xy=True).transform(x, y)
    except CRSError as e:
        raise InputError(f"unknown system {crs!r}; ", Words("give {crs} such as EPSG:25832")) from e
    return lon, lat


def _values(column: pd.Series) -> np.ndarray:
    """Return values of each cell, `(cells,)`: numbers, or text that is empty where not known."""
    if types.is_numeric_dtype(column):
        return column.to_numpy(dtype=np.float64)
    return column.astype(object).fillna("").astype(str).to_numpy(dtype=str)
