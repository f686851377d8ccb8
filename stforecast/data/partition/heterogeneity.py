"""How much clients differ: divergences of their mean weeks and of the levels of their cells."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from stforecast.data.partition.base import level_classes, mean_weeks

if TYPE_CHECKING:
    from stforecast.data.clients import Partition
    from stforecast.data.series import Series

N_LEVELS = 5
"""Classes of equal size, from low to high means, in which cells are counted."""


class Heterogeneity(NamedTuple):
    """Divergences of clients and what they are computed from.

    A divergence is the mean over clients of the Jensen-Shannon divergence between the client's
    distribution and the mean of all clients' distributions, in bits: 0 if clients are equal, at
    most 1. Clients of few cells differ by chance, too: compare with `iid:N`.

    Attributes:
        weeks: `(clients, slots)` mean week of each client's cells, each cell's week divided by
            its sum, or by the sum of its distances from its lowest value if one is negative.
        counts: `(clients, 5)` number of cells in each class of levels.
    """

    weeks: np.ndarray
    counts: np.ndarray

    @classmethod
    def of(cls, series: Series, clients: Partition) -> Heterogeneity:
        """Measure the clients of a series, which is to be cut to the training part."""
        weeks = mean_weeks(series)
        if (weeks < 0).any():
            weeks = weeks - weeks.min(axis=1, keepdims=True)
        total = weeks.sum(axis=1, keepdims=True)
        # A cell without any traffic has an even week.
        weeks = np.where(total > 0, weeks / np.where(total > 0, total, 1.0), 1 / weeks.shape[1])
        classes = np.eye(N_LEVELS)[level_classes(series, N_LEVELS)]
        of_clients = [weeks[own].mean(axis=0) for own in clients.cells]
        return cls(np.stack(of_clients), np.stack([classes[own].sum(0) for own in clients.cells]))

    def bits(self) -> dict[str, float]:
        """Return the divergences of mean weeks (`profiles`) and of levels (`levels`)."""
        shares = self.counts / self.counts.sum(axis=1, keepdims=True)
        return {"profiles": mean_divergence(self.weeks), "levels": mean_divergence(shares)}


def mean_divergence(p: np.ndarray) -> float:
    """Return the mean Jensen-Shannon divergence of rows from the mean of all rows, in bits.

    >>> mean_divergence(np.array([[1.0, 0.0], [1.0, 0.0]]))
    0.0
    """
    from scipy.stats import entropy  # slow to import

    q = np.broadcast_to(p.mean(axis=0), p.shape)
    middle = (p + q) / 2
    found = entropy(p, middle, base=2, axis=1) + entropy(q, middle, base=2, axis=1)
    return float(found.mean() / 2)
