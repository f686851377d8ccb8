"""Official grid of Milan or Trentino: cell ids and the centroids of their squares.

Telecom Italia publishes the squares as GeoJSON polygons in WGS 84 degrees, with the id in the
property `cellId`. Milan's file lists them under `features`, as in the standard, Trentino's under
`trentinogrid`. Row 1 of Milan's grid is its south edge: draw it with the first row at the bottom
(`origin="lower"`).

Source: Milan doi:10.7910/DVN/QJWLFU, Trentino doi:10.7910/DVN/FZRVSX, licence ODbL.

The cells to keep are all that occur, a list such as `1-100,5060`, or a random sample.
"""

from __future__ import annotations

import gzip
import json
import random
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from data_prep.base.errors import InputError, no_file, reading
from data_prep.base.files import checksum
from data_prep.base.limits import read_bounded
from data_prep.readers.cells import keep_cells
from data_prep.readers.features import centroid

FEATURE_KEYS = ("features", "trentinogrid")
REMEDY = "use the official grid file"


@dataclass(frozen=True)
class CellGrid:
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

    def at(self, cells: np.ndarray) -> CellGrid:
        """Return the grid of these cells, in their order."""
        unknown = np.setdiff1d(cells, self.cells)
        if len(unknown):
            listed = ", ".join(map(str, unknown[:5]))
            raise InputError(
                f"{self.path}: no cell {listed} ({len(unknown)} of {len(cells)} ids unknown); "
                "give the grid that belongs to the data"
            )
        i = np.searchsorted(self.cells, cells)
        return replace(self, cells=self.cells[i], lon=self.lon[i], lat=self.lat[i])


def read_grid(path: Path) -> CellGrid:
    """Read ids and centroids, sorted by id, from `.geojson` or `.geojson.gz`."""
    features = _features(path)
    cells = np.array([_cell_id(f, i, path) for i, f in enumerate(features)])
    order = np.argsort(cells)
    cells = cells[order]
    if (cells[1:] == cells[:-1]).any():
        twice = cells[1:][cells[1:] == cells[:-1]][0]
        raise InputError(f"{path}: cellId {twice} occurs more than once; {REMEDY}")
    lon, lat = np.array([_centroid_of(f, i, path) for i, f in enumerate(features)])[order].T
    return CellGrid(cells, lon, lat, path, checksum(path))


def _features(path: Path) -> list[Any]:
    if not path.is_file():
        raise no_file(path, "grid in GeoJSON", REMEDY)
    with reading(path, "as GeoJSON", REMEDY):
        with path.open("rb") as file:
            packed = file.read(2) == b"\x1f\x8b"
        # Milan's grid has 3 million bytes.
        content = json.loads(read_bounded(path, 2**24, gzip.open if packed else open))
    found = list(content) if isinstance(content, dict) else type(content).__name__
    for key in FEATURE_KEYS:
        if key in found and isinstance(content[key], list) and content[key]:
            return list(content[key])
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
    lon = lat = np.nan
    if kind == "Polygon":
        with suppress(KeyError, IndexError, TypeError, ValueError, ArithmeticError):
            lon, lat = centroid([np.array(geometry["coordinates"][0])])
    if not (-180 <= lon <= 180 and -90 <= lat <= 90):
        raise InputError(
            f"{path}: feature {i} (geometry {kind!r}) is not a polygon in degrees of longitude "
            f"and latitude; {REMEDY}"
        )
    return lon, lat


@dataclass(frozen=True)
class Selection:
    """A user's selection of the cells of a data set: a list, see `keep_cells`, or a sample."""

    name: str
    cells: str | None = None
    sample: int | None = None
    seed: int = 1

    def __post_init__(self) -> None:
        if self.cells is not None and self.sample is not None:
            raise InputError("cells and sample are both given, expected at most one; drop one")

    def check(self, known: np.ndarray) -> None:
        """Refuse unknown ids before any data are read."""
        if self.cells is not None:
            keep_cells(self.cells, known, self.name)

    def choose(self, occurring: np.ndarray, grid: np.ndarray | None = None) -> np.ndarray:
        """Return the ids to keep, ascending; a sample is one of the whole grid, if known."""
        if self.cells is not None:
            kept = keep_cells(self.cells, occurring, self.name)
            return np.asarray(occurring[kept])
        if self.sample is not None:
            return sample_cells(occurring if grid is None else grid, self.sample, self.seed)
        return occurring


def sample_cells(known: np.ndarray, n: int, seed: int) -> np.ndarray:
    """Draw cells as FedDA's code does: `sorted(random.sample(ids, n))` after seeding.

    C. Zhang, S. Dang, B. Shihada, M.-S. Alouini, "Dual attention-based federated learning for
    wireless traffic prediction", INFOCOM 2021; code: github.com/chuanting/FedDA.
    """
    if not 0 < n <= len(known):
        raise InputError(f"sample: cannot draw {n} cells; choose from 1 to {len(known)}")
    ids = sorted(int(cell) for cell in known)
    return np.array(sorted(random.Random(seed).sample(ids, n)))
