"""Partition of cells into clients: a client holds one or more cells.

The samples of all its cells are a client's samples, ordered by time and, within a time, by cell.
Those of one time are a group (`ClientData.group_sizes`), so a batch is `batch_size` times of all
cells of the client, as in the published training of road-traffic models. Clients with unequal
numbers of cells have unequal numbers of samples: they train in different cohorts, and averages
weigh them by their samples. A model that distinguishes or connects cells identifies the cell of a
row by its place within the group.

One cell a client is one end; one client that holds all cells, which is centralised training, is the
other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from stforecast.federated.data import ClientData


@dataclass(frozen=True, eq=False)
class Cells:
    """The cells that one client holds.

    Attributes:
        n: number of cells.
        adjacency: `(n, n)` non-negative weights of the roads from row to column, or None if not
            known.
    """

    n: int = 1
    adjacency: np.ndarray | None = None


@dataclass(frozen=True, eq=False)
class Partition:
    """The client of each cell.

    Attributes:
        client_of: `(cells,)` number of each cell's client, from 0 without gaps.
        names: `(clients,)` names.
    """

    client_of: np.ndarray
    names: tuple[str, ...]

    @classmethod
    def from_labels(cls, labels: Sequence[Any] | np.ndarray) -> Partition:
        """Return the partition with a client for each label, numbered by its first cell.

        >>> Partition.from_labels(["b", "a", "b"]).client_of.tolist()
        [0, 1, 0]

        Args:
            labels: `(cells,)` name of each cell's client.
        """
        names: dict[str, int] = {}
        client_of = [names.setdefault(str(label), len(names)) for label in labels]
        return cls(np.array(client_of, dtype=np.intp), tuple(names))

    def __len__(self) -> int:
        return len(self.names)

    @property
    def by_cell(self) -> bool:
        """Whether each client is one cell."""
        return len(self) == len(self.client_of)

    @property
    def labels(self) -> list[str]:
        """Name of each cell's client."""
        return [self.names[i] for i in self.client_of]

    @property
    def sizes(self) -> np.ndarray:
        """Number of cells of each client, `(clients,)`."""
        return np.bincount(self.client_of, minlength=len(self))

    @cached_property
    def cells(self) -> list[np.ndarray]:
        """Positions of the cells of each client, in order."""
        order = np.argsort(self.client_of, kind="stable")
        return np.split(order, self.sizes.cumsum()[:-1])

    def of_clients(self, adjacency: np.ndarray | None) -> list[Cells]:
        """Return the cells of each client, with the roads between them.

        Args:
            adjacency: `(cells, cells)` weights of the roads between all cells, or None.
        """
        return [
            Cells(len(own), None if adjacency is None else adjacency[np.ix_(own, own)])
            for own in self.cells
        ]

    def join(self, data: ClientData) -> ClientData:
        """Return the samples of clients, given those of cells.

        >>> x = torch.tensor([[[1, 2], [3, 4]], [[5, 6], [7, 8]]])  # 2 cells, 2 times, 2 inputs
        >>> of_cells = ClientData({"x": x}, torch.tensor([2, 2]))
        >>> Partition.from_labels(["all", "all"]).join(of_cells).tensors["x"].tolist()
        [[[1, 2], [5, 6], [3, 4], [7, 8]]]

        Args:
            data: `(cells, times, …)`, aligned: window w begins at the same time in all cells.

        Raises:
            ValueError: if the numbers of windows differ between cells.
        """
        if self.by_cell:
            return data
        if len(data.sizes.unique()) > 1:
            raise ValueError(f"cells with {data.sizes.tolist()} windows are not aligned in time")
        groups = torch.from_numpy(self.sizes)
        sizes = groups * int(data.sizes[0])
        tensors = {name: self._joined(t, int(sizes.max())) for name, t in data.tensors.items()}
        if "sample" in tensors:
            tensors["sample"] = torch.arange(int(sizes.max())).expand(len(self), -1)
        return ClientData(tensors, sizes, data.augment, groups)

    def _joined(self, t: Tensor, samples: int) -> Tensor:
        joined = t.new_zeros(len(self), samples, *t.shape[2:])
        for row, own in zip(joined, self.cells, strict=True):
            of_client = t[torch.from_numpy(own)].transpose(0, 1).flatten(0, 1)
            row[: len(of_client)] = of_client
        return joined

    def scatter(self, forecasts: Tensor, clients: Tensor, out: Tensor) -> None:
        """Write the forecasts of clients to those of their cells.

        Args:
            forecasts: `(some clients, samples, …)`, of clients with equal numbers of cells.
            clients: `(some clients,)` their numbers.
            out: `(cells, times, …)`.
        """
        if self.by_cell:
            out[clients] = forecasts
            return
        for i, of_client in zip(clients.tolist(), forecasts, strict=True):
            own = torch.from_numpy(self.cells[i])
            out[own] = of_client.unflatten(0, (-1, len(own))).transpose(0, 1)

    def cut(self, adjacency: np.ndarray) -> dict[str, float]:
        """Count the roads between cells of different clients, which no client's model sees.

        >>> roads = np.array([[1, 0.5, 0], [0, 1, 0.5], [0, 0, 1]])
        >>> Partition.from_labels(["a", "a", "b"]).cut(roads)
        {'roads': 2, 'cut': 1, 'cut_weight': 0.5}

        Args:
            adjacency: `(cells, cells)` weights of the roads from row to column.

        Returns:
            Number of `roads`, without those from a cell to itself, of roads that are `cut`, and the
            share of these in the weight of all, `cut_weight`.
        """
        roads = np.where(np.eye(len(adjacency), dtype=bool), 0.0, adjacency)
        apart = self.client_of[:, None] != self.client_of
        total = float(roads.sum())
        return {
            "roads": int((roads > 0).sum()),
            "cut": int((roads[apart] > 0).sum()),
            "cut_weight": float(roads[apart].sum()) / total if total else 0.0,
        }


def one_per_cell(cells: Sequence[Any] | np.ndarray) -> Partition:
    """Return the partition in which each cell is a client, named by its id."""
    return Partition(np.arange(len(cells)), tuple(map(str, cells)))


def stacked(of_clients: Sequence[Mapping[str, Tensor]], like: Mapping[str, Tensor]) -> Any:
    """Stack tensors of clients, padded with zeros where a client has fewer cells.

    Args:
        of_clients: tensors `(1, …)` of each client by name.
        like: tensors of those names with the largest shapes.

    Returns:
        Name to `(clients, …)`.
    """
    padded = {name: t.new_zeros(len(of_clients), *t.shape[1:]) for name, t in like.items()}
    for i, tensors in enumerate(of_clients):
        for name, t in tensors.items():
            padded[name][i][tuple(slice(n) for n in t.shape[1:])] = t[0]
    return padded
