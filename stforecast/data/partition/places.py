"""Partitions of cells by their places: districts and tiles."""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import pandas as pd
import torch
from pydantic import PositiveInt

from data_prep.base.errors import InputError, Words, counted
from stforecast.data.partition.base import CellPartitioner

if TYPE_CHECKING:
    from stforecast.data.series import Series

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class KMeansOfPlaces(CellPartitioner):
    """Districts of nearby cells, by k-means on their locations.

    Attributes:
        clients: number of districts.
    """

    name: ClassVar[str] = "kmeans"
    drawn: ClassVar[bool] = False

    clients: PositiveInt

    def deal(self, series: Series, rng: torch.Generator) -> list[str]:
        """Return the district of each cell, which does not depend on the run's seed."""
        return [f"district {i + 1}" for i in pd.factorize(districts(series, self.clients))[0]]


def districts(series: Series, n: int) -> np.ndarray:
    """Return the number of each cell's cluster of places, `(cells,)`, by k-means."""
    from sklearn.cluster import KMeans

    places = places_of(series)
    if n > (different := len(np.unique(places, axis=0))):
        raise InputError(
            f"clients is kmeans:{n}, but {series.name} has cells at {different} places; give "
            "fewer districts"
        )
    found: np.ndarray = KMeans(n, n_init=10, random_state=0).fit_predict(places)
    return found


@dataclass(frozen=True)
class Grid(CellPartitioner):
    """Tiles of the area, in rows and columns of equal height and width.

    Attributes:
        tiles: rows and columns, such as 4x4. Tiles without cells are left out.
    """

    name: ClassVar[str] = "grid"
    drawn: ClassVar[bool] = False

    tiles: str

    def __post_init__(self) -> None:
        """Refuse a text that gives no rows and columns."""
        super().__post_init__()
        numbers = re.fullmatch(r"(\d{1,6})x(\d{1,6})", self.tiles)
        if not (numbers and all(map(int, numbers.groups()))):
            raise InputError(f"tiles is {self.tiles!r}, expected rows and columns such as 4x4")

    def deal(self, series: Series, rng: torch.Generator) -> list[str]:
        """Return the tile of each cell; row 1 is in the north, column 1 in the west."""
        n_rows, n_columns = map(int, self.tiles.split("x"))
        places = places_of(series)
        low, high = places.min(axis=0), places.max(axis=0)
        share = (places - low) / np.where(high > low, high - low, 1.0)
        column, row = (
            np.minimum((part * n).astype(int), n - 1)
            for part, n in ((share[:, 0], n_columns), (1 - share[:, 1], n_rows))
        )
        tiles = [f"tile {r + 1}-{c + 1}" for r, c in zip(row, column, strict=True)]
        if empty := n_rows * n_columns - len(set(tiles)):
            log.info(
                "%s: %d of %d tiles have no cell and are left out, so there are %s",
                series.name,
                empty,
                n_rows * n_columns,
                counted(len(set(tiles)), "client"),
            )
        return tiles


def places_of(series: Series) -> np.ndarray:
    """Return `(cells, 2)` places on a plane: degrees of latitude, to the east and to the north."""
    if series.locations is None:
        raise InputError(
            f"{series.name} has no locations, which kmeans, grid and by=place need; ",
            Words("prepare it with the place of each cell, or give a file of {clients}"),
        )
    lost = ~np.isfinite(series.locations).all(axis=1)
    if lost.any():
        raise InputError(
            f"{series.name}: cell {series.cells[lost][0]} has no location, which kmeans, grid and "
            "by=place need; ",
            Words("add it, or give a file of {clients}"),
        )
    east, north = series.locations.T
    return np.stack([east * np.cos(np.radians(north.mean())), north], axis=1)
