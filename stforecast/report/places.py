"""Places of cells on a map: squares of a published grid, points, or tiles without a place."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pandas as pd
import xarray as xr

from data_prep.city.places import CITIES, City
from data_prep.sets.milan import MILAN
from data_prep.sets.trentino import TRENTINO
from stforecast.data.covariates import strongest_neighbours

KILOMETRES = 111.2
"""Length of a degree of latitude."""

N_ROADS = 2
"""Number of roads to draw from each sensor, the strongest."""

PUBLISHED = {MILAN.source: "milan", TRENTINO.source: "trentino"}
"""Cities by the source of their records."""


@dataclass(frozen=True, eq=False)
class Places:
    """Places of cells.

    Attributes:
        kind: `squares`, `points`, or `tiles` if places are unknown.
        east: `(cells,)` kilometres east of the middle; empty for tiles.
        north: `(cells,)` kilometres north of the middle.
        size: width and height of a square in kilometres.
        roads: `(roads, 2)` positions of the cells that a road joins.
        note: what the map shows, in words.
    """

    kind: Literal["squares", "points", "tiles"]
    east: np.ndarray
    north: np.ndarray
    size: tuple[float, float]
    roads: np.ndarray
    note: str


def find_places(forecasts: xr.Dataset, cube: xr.Dataset | None) -> Places:
    """Find the places of the cells of a run's forecasts; its data are None if they are gone."""
    cells = forecasts["cell"].to_numpy()
    city = _city({} if cube is None else {str(k): str(v) for k, v in cube.attrs.items()})
    if {"lon", "lat"} <= set(forecasts.coords):
        lon, lat = (forecasts[name].to_numpy().astype(float) for name in ("lon", "lat"))
    elif city is not None and cells.dtype.kind in "iu":
        row, column = np.divmod(cells - 1, city.columns)
        lon, lat = (
            start + (place + 0.5) * size
            for start, place, size in zip(city.origin, (column, row), city.size, strict=True)
        )
    else:
        return _tiles("The data have no locations: tiles are sorted by value, the highest first.")
    if not (np.isfinite(lon).all() and np.isfinite(lat).all()):
        return _tiles("Some cells have no location: tiles are sorted by value, the highest first.")
    return _on_plane(lon, lat, city, _roads(forecasts, cube))


def _tiles(note: str) -> Places:
    nothing = np.empty(0)
    return Places("tiles", nothing, nothing, (1.0, 1.0), np.empty((0, 2), dtype=int), note)


def _city(about: Mapping[str, str]) -> City | None:
    """Return the city whose published grid the cells are of, also if they are simulated."""
    source = about.get("source", "")
    simulated = [name for name in CITIES if f"city {name}," in source]
    name = PUBLISHED.get(source) or (simulated[0] if simulated else None)
    return CITIES[name] if name else None


def _on_plane(lon: np.ndarray, lat: np.ndarray, city: City | None, roads: np.ndarray) -> Places:
    """Project degrees to kilometres around the middle, which is exact enough for a city."""
    middle_lon, middle_lat = ((v.min() + v.max()) / 2 for v in (lon, lat))
    to_east = KILOMETRES * np.cos(np.radians(middle_lat))
    span = (
        f"{_degrees(lon.min(), 'EW')} to {_degrees(lon.max(), 'EW')}, "
        f"{_degrees(lat.min(), 'NS')} to {_degrees(lat.max(), 'NS')}"
    )
    width, height = city.size if city else (0.0, 0.0)
    what = "Squares of the published grid" if city else "A point for each cell"
    lines = f", with the {N_ROADS} strongest roads of each sensor as lines" if len(roads) else ""
    return Places(
        "squares" if city else "points",
        (lon - middle_lon) * to_east,
        (lat - middle_lat) * KILOMETRES,
        (width * to_east, height * KILOMETRES),
        roads,
        f"{what}{lines}; north is up, {span}.",
    )


def _degrees(value: float, signs: str) -> str:
    """Format a coordinate.

    >>> _degrees(-118.2412, "EW")
    '118.241° W'
    """
    return f"{abs(value):.3f}° {signs[int(value < 0)]}"


def _roads(forecasts: xr.Dataset, cube: xr.Dataset | None) -> np.ndarray:
    """Return the strongest roads between the tested cells, each once."""
    nothing = np.empty((0, 2), dtype=int)
    if cube is None or "adjacency" not in cube:
        return nothing
    known, cells = cube.indexes["cell"], forecasts["cell"].to_numpy()
    at = known.get_indexer(pd.Index(cells))
    if (at < 0).any():
        return nothing
    near = strongest_neighbours(cube["adjacency"].to_numpy()[np.ix_(at, at)], N_ROADS)
    ends = np.stack([np.repeat(np.arange(len(cells)), N_ROADS), near.ravel()], axis=1)
    return np.unique(np.sort(ends[ends[:, 1] >= 0], axis=1), axis=0)
