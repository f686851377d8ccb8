"""Published grids of cells, and a block of cells around a city's centre."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from data_prep.base.files import atomic_path


@dataclass(frozen=True)
class City:
    """A published grid whose ids count row by row from the south-west.

    Args:
        tag: abbreviation of the city in file names.
        grid: name of the grid's file.
        features: key of the feature list in it.
        columns: cells in a row.
        rows: number of rows.
        n_cells: cells of the published data set, the maximum that can be simulated.
        centre: id of the cell in the city's centre.
        origin: longitude and latitude in degrees of the grid's south-west corner.
        size: size of a cell, in degrees of longitude and latitude.
    """

    tag: str
    grid: str
    features: str
    columns: int
    rows: int
    n_cells: int
    centre: int
    origin: tuple[float, float]
    size: tuple[float, float]


# Origins and sizes fit the published polygons; Trentino's grid is tilted and fits near Trento.
CITIES = {
    "milan": City(
        "mi", "milano-grid.geojson", "features", 100, 100, 10_000, 5060,
        (9.0115, 45.3567), (0.003006, 0.002115),
    ),
    "trentino": City(
        "tn", "trentino-grid.geojson", "trentinogrid", 117, 98, 6_575, 5200,
        (10.4486, 45.6699), (0.012950, 0.008990),
    ),
}  # fmt: skip


def block(place: City, n_cells: int) -> np.ndarray:
    """Return the ids of a nearly square block around the centre, ascending, `(cell,)`."""
    columns = min(math.ceil(math.sqrt(n_cells)), place.columns)
    rows = math.ceil(n_cells / columns)
    row, column = divmod(place.centre - 1, place.columns)
    south = min(max(row - rows // 2, 0), place.rows - rows)
    west = min(max(column - columns // 2, 0), place.columns - columns)
    y, x = np.divmod(np.arange(n_cells), columns)
    return (south + y) * place.columns + west + x + 1


def zones(place: City, ids: np.ndarray, only: str = "") -> np.ndarray:
    """Return the kind of each cell, a quarter each, or the `only` one.

    The centre, nightlife south-west of it, industry in the south-east corner; the rest is suburb.
    """
    if only:
        return np.full(len(ids), only, dtype="<U10")
    y, x = np.divmod(ids - 1, place.columns)
    row, column = divmod(place.centre - 1, place.columns)
    reach = math.sqrt(len(ids)) / 3
    foci = {
        "centre": (row, column),
        "nightlife": (row - reach, column - reach),
        "industrial": (y.min(), x.max()),
    }
    kinds = np.full(len(ids), "suburb", dtype="<U10")
    for kind, (to_y, to_x) in foci.items():
        distance = np.hypot(y - to_y, x - to_x)
        distance[kinds != "suburb"] = np.inf
        kinds[np.argsort(distance, kind="stable")[: math.ceil(len(ids) / 4)]] = kind
    return kinds


def write_grid(path: Path, place: City, ids: np.ndarray) -> None:
    """Write the cells' outlines in the publisher's format."""
    corners = np.array([(0, 1), (1, 1), (1, 0), (0, 0), (0, 1)])
    features = []
    for number, cell in enumerate(ids.tolist()):
        south_west = divmod(cell - 1, place.columns)[::-1]
        ring = np.round(place.origin + np.add(south_west, corners) * place.size, 6)
        features.append(
            {
                "type": "Feature",
                "id": number,
                "properties": {"cellId": cell},
                "geometry": {"type": "Polygon", "coordinates": [ring.tolist()]},
            }
        )
    with atomic_path(path) as part:
        part.write_text(json.dumps({"type": "FeatureCollection", place.features: features}))
