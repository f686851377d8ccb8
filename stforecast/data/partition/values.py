"""Partitions of cells by chance: Dirichlet within classes, and IID."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import torch
from pydantic import PositiveFloat, PositiveInt

from data_prep.base.errors import InputError, some
from stforecast.data.partition.base import CellPartitioner, level_classes, mean_weeks
from stforecast.data.partition.places import districts
from stforecast.federated.core.dirichlet import dirichlet_counts

if TYPE_CHECKING:
    from stforecast.data.series import Series


@dataclass(frozen=True)
class Dirichlet(CellPartitioner):
    """Classes of cells, each divided in proportions from a Dirichlet distribution.

    Clients differ in their shares of the classes and in their number of cells; see
    `stforecast.federated.core.dirichlet.dirichlet_counts` for the sources.

    Attributes:
        clients: number of clients.
        concentration: similarity of the clients, α: at 100 every client has nearly the shares of
            all cells, at 0.1 most of its cells are of one class.
        by: classes of the cells: level (equally many cells from low to high means), shape (k-means
            of mean weeks without their level and amplitude), place (k-means of locations), a column
            of the cube, such as operator, or none, so that clients differ in size only: the
            quantity skew of Li et al., ICDE 2022, arXiv 2102.02079.
        classes: number of classes of level, shape and place.
        min_cells: smallest number of cells of a client. All proportions are drawn again until each
            client has as many, at most 200 times.
    """

    name: ClassVar[str] = "dirichlet"

    clients: PositiveInt
    concentration: PositiveFloat = 0.5
    by: str = "level"
    classes: PositiveInt = 5
    min_cells: PositiveInt = 1

    def deal(self, series: Series, rng: torch.Generator) -> np.ndarray:
        """Draw proportions until all clients have enough cells, then divide each class."""
        _, class_of, sizes = np.unique(
            self._classes(series), return_inverse=True, return_counts=True
        )
        numbers, of = np.random.default_rng(rng.initial_seed()), f"cells of {series.name}"
        smallest = "min_cells", self.min_cells
        counts = dirichlet_counts(sizes, self.clients, self.concentration, smallest, numbers, of)
        client_of = np.empty(len(class_of), dtype=np.int64)
        for label, of_clients in enumerate(counts):
            members = numbers.permutation(np.flatnonzero(class_of == label))
            client_of[members] = np.repeat(np.arange(self.clients), of_clients)
        return client_of

    def _classes(self, series: Series) -> np.ndarray:
        """Return the class of each cell, `(cells,)`."""
        if self.by == "level":
            return level_classes(series, self.classes)
        if self.by == "place":
            return districts(series, self.classes)
        if self.by == "shape":
            return shape_classes(series, self.classes)
        if self.by == "none":
            return np.zeros(len(series.cells), dtype=np.int64)
        if self.by not in series.columns:
            raise InputError(
                f"by is {self.by!r}; give level, shape, place, none or a column of {series.name}: "
                f"{some(sorted(series.columns)) or 'it has none'}"
            )
        return series.columns[self.by].astype(str)


def shape_classes(series: Series, n: int) -> np.ndarray:
    """Return the cluster of each cell's mean week, `(cells,)`, by k-means; at most one per cell."""
    from sklearn.cluster import KMeans

    weeks = mean_weeks(series)
    weeks = weeks - weeks.mean(axis=1, keepdims=True)
    spread = weeks.std(axis=1, keepdims=True)
    shapes = weeks / np.where(spread > 0, spread, 1.0)
    n = min(n, len(np.unique(shapes.round(9), axis=0)))
    found: np.ndarray = KMeans(n, n_init=10, random_state=0).fit_predict(shapes.round(9))
    return found


@dataclass(frozen=True)
class IID(CellPartitioner):
    """Even division of shuffled cells; clients differ by at most one cell.

    Attributes:
        clients: number of clients.
    """

    name: ClassVar[str] = "iid"

    clients: PositiveInt

    def deal(self, series: Series, rng: torch.Generator) -> np.ndarray:
        """Shuffle the cells and divide them evenly."""
        n = len(series.cells)
        if n < self.clients:
            raise InputError(f"{series.name} has {n} cells for {self.clients} clients; give fewer")
        return (torch.randperm(n, generator=rng) % self.clients).numpy()
