"""Official grid of Milan or Trentino: cell ids and the centroids of their squares.

Telecom Italia publishes the squares as GeoJSON polygons in WGS 84 degrees, with the id in the
property `cellId`. Milan's file lists them under `features`, as in the standard, Trentino's under
`trentinogrid`. Row 1 of Milan's grid is its south edge: draw it with the first row at the bottom
(`origin="lower"`).

Source: Milan doi:10.7910/DVN/QJWLFU, Trentino doi:10.7910/DVN/FZRVSX, licence ODbL.
"""

from __future__ import annotations

import gzip
import itertools
import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from data_prep.checksum import checksum
from data_prep.errors import InputError, no_file, reading
from data_prep.limits import read_bounded

FEATURE_KEYS = ("features", "trentinogrid")
REMEDY = "use the official grid file"
MAX_BYTES = 2**24
"""Bytes of a grid; Milan's has 3 million."""


@dataclass(frozen=True)
class Grid:
    """Locations of cells.

    Args:
        cells: `(cell,)` ids, ascending.
        lon: `(cell,)` longitude of the centroids, degrees east.
        lat: `(cell,)` latitude of the centroids, degrees north.
        path: the grid's file.
        checksum: `"sha256:…"` of that file.
    """

    cells: np.ndarray
    lon: np.ndarray
    lat: np.ndarray
    path: Path
    checksum: str

    def at(self, cells: np.ndarray) -> Grid:
        """Return the grid of these cells, in their order.

        Raises:
            InputError: if the grid lacks a cell.
        """
        unknown = np.setdiff1d(cells, self.cells)
        if len(unknown):
            listed = ", ".join(map(str, unknown[:5]))
            raise InputError(
                f"{self.path}: no cell {listed} ({len(unknown)} of {len(cells)} ids unknown); "
                "give the grid that belongs to the data"
            )
        i = np.searchsorted(self.cells, cells)
        return replace(self, cells=self.cells[i], lon=self.lon[i], lat=self.lat[i])


def read_grid(path: Path) -> Grid:
    """Read a grid from `.geojson` or `.geojson.gz`.

    Args:
        path: the official file.

    Returns:
        Ids and centroids, sorted by id.

    Raises:
        InputError: if the file is not a grid of cells in degrees; names the first bad feature.
    """
    features = _features(path)
    cells = np.array([_cell_id(f, i, path) for i, f in enumerate(features)])
    order = np.argsort(cells)
    cells = cells[order]
    if (cells[1:] == cells[:-1]).any():
        twice = cells[1:][cells[1:] == cells[:-1]][0]
        raise InputError(f"{path}: cellId {twice} occurs more than once; {REMEDY}")
    lon, lat = np.array([_centroid_of(f, i, path) for i, f in enumerate(features)])[order].T
    return Grid(cells, lon, lat, path, checksum(path))


def _features(path: Path) -> list[dict[str, Any]]:
    if not path.is_file():
        raise no_file(path, "grid in GeoJSON", REMEDY)
    with reading(path, "as GeoJSON", REMEDY):
        with path.open("rb") as file:
            packed = file.read(2) == b"\x1f\x8b"
        content = json.loads(read_bounded(path, MAX_BYTES, gzip.open if packed else open))
    found = list(content) if isinstance(content, dict) else type(content).__name__
    for key in FEATURE_KEYS:
        if key in found and isinstance(content[key], list) and content[key]:
            return content[key]
    raise InputError(
        f"{path}: no list of features under {' or '.join(map(repr, FEATURE_KEYS))} "
        f"(found {found}); {REMEDY}"
    )


def _cell_id(feature: Any, i: int, path: Path) -> int:
    try:
        cell = feature["properties"]["cellId"]
    except (KeyError, TypeError):
        cell = None
    if type(cell) is not int or not 0 <= cell < 2**31:
        raise InputError(
            f"{path}: feature {i} has cellId {cell!r}, expected a whole number; {REMEDY}"
        )
    return cell


def _centroid_of(feature: Any, i: int, path: Path) -> tuple[float, float]:
    geometry = feature.get("geometry")
    kind = geometry.get("type") if isinstance(geometry, dict) else geometry
    try:
        lon, lat = _centroid(geometry["coordinates"][0]) if kind == "Polygon" else (np.nan, np.nan)
    except (KeyError, IndexError, TypeError, ValueError, ArithmeticError):
        lon = lat = np.nan
    if not (-180 <= lon <= 180 and -90 <= lat <= 90):
        raise InputError(
            f"{path}: feature {i} (geometry {kind!r}) is not a polygon in degrees of longitude "
            f"and latitude; {REMEDY}"
        )
    return lon, lat


def _centroid(ring: list[list[float]]) -> tuple[float, float]:
    """Return the centroid of a closed ring of (x, y), by the shoelace formula.

    Coordinates are relative to the first corner; otherwise the products for squares of 1e-3 degrees
    at 45 degrees would lose precision.

    >>> _centroid([[45.0, 9.0], [45.0, 9.5], [46.0, 9.5], [46.0, 9.0], [45.0, 9.0]])
    (45.5, 9.25)
    """
    x0, y0 = ring[0]
    corners = [(x - x0, y - y0) for x, y in ring]
    area = x_moment = y_moment = 0.0
    for (xa, ya), (xb, yb) in itertools.pairwise(corners):
        cross = xa * yb - xb * ya
        area += cross
        x_moment += (xa + xb) * cross
        y_moment += (ya + yb) * cross
    return x0 + x_moment / (3 * area), y0 + y_moment / (3 * area)
