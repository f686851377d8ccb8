"""Base class of the partitions of cells, and the mean weeks that some of them compare."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pandas as pd
import torch

from data_prep.base.errors import InputError
from stforecast.data.dates import DAY
from stforecast.federated.core.options import CheckedOptions
from stforecast.federated.core.state import generator

if TYPE_CHECKING:
    from stforecast.data.series import Series


@dataclass(frozen=True)
class CellPartitioner(CheckedOptions, ABC):
    """Division of the cells of a series among clients.

    A kind of partition is a subclass in its own file with a `name`. Its fields are its settings:
    `--clients dirichlet:8:concentration=0.1`.
    """

    name: ClassVar[str] = ""
    drawn: ClassVar[bool] = True
    """Whether it depends on the run's seed or on the values of the training part."""

    @abstractmethod
    def deal(self, series: Series, rng: torch.Generator) -> Sequence[Any] | np.ndarray:
        """Return the name or the number of each cell's client, `(cells,)`, all of one kind.

        Args:
            series: the training part; `values` are `(steps, cells)` in the data's units, NaN where
                missing.
            rng: generator of all random draws.
        """

    def split(self, series: Series, seed: int) -> list[str]:
        """Return the name of each cell's client, `(cells,)`; the same seed gives the same.

        Clients without names are numbered in the order of their first cells.

        Raises:
            InputError: if the division is impossible; gives the numbers.
        """
        dealt = list(self.deal(series, generator(seed, 4, 0, 0)))  # The key that images have.
        if len(dealt) != len(series.cells):
            raise InputError(
                f"partition {self.name}: deal returned {len(dealt)} clients, expected one for each "
                f"of {len(series.cells)} cells"
            )
        if all(isinstance(client, int | np.integer) for client in dealt):
            return [f"client {number + 1}" for number in pd.factorize(np.array(dealt))[0]]
        return [str(client) for client in dealt]


def mean_weeks(series: Series) -> np.ndarray:
    """Return the mean of each hour of the week, `(cells, 168)` in the data's units.

    Steps longer than an hour have fewer slots, steps outside the series have the cell's mean.
    """
    times = series.calendar.local_times(np.arange(len(series.values)))
    per_day = max(1, min(24, DAY // series.calendar.step))
    slots = times.day_of_week * per_day + times.hour * per_day // 24
    weeks = (
        pd.DataFrame(series.values).groupby(np.asarray(slots)).mean().reindex(range(7 * per_day))
    )
    return weeks.fillna(levels(series)).to_numpy().T


def levels(series: Series) -> pd.Series:
    """Return the mean of each cell, `(cells,)` in the data's units; 0 without a value."""
    return pd.DataFrame(series.values).mean().fillna(0.0)


def level_classes(series: Series, n: int) -> np.ndarray:
    """Return the class of each cell by its mean, `(cells,)`, from low (0) to high.

    The classes are of equal size, up to one cell.
    """
    rank = levels(series).rank(method="first").to_numpy() - 1
    return (rank * n // len(rank)).astype(np.int64)
