"""Clients of a run by the setting `clients`: `cell`, `all`, a file, a column or a partition.

A client holds one or more cells. The samples of all its cells are its samples, ordered by time and,
within a time, by cell. Samples of one time are a group (`ClientData.group_sizes`), so a batch is
`batch_size` times of all cells of the client, as in the published training of road-traffic models.
Clients with unequal numbers of cells have unequal numbers of samples: they train in different
cohorts, and averages weigh them by their samples. A model that distinguishes or connects cells
identifies the cell of a row by its place within the group.

One cell a client is one end; one client that holds all cells, which is centralised training, is the
other.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from data_prep.base.errors import InputError, close_to, counted, counted_span, some
from stforecast.data.events import read_texts
from stforecast.data.partition import FORMS, parse_partition
from stforecast.federated.core.data import ClientData

if TYPE_CHECKING:
    from stforecast.data.series import Series


@dataclass(frozen=True, eq=False)
class Cells:
    """The number of cells that one client holds, and what else is known of them.

    Attributes:
        n: number of cells.
        adjacency: non-negative weights `(n, n)` of the roads from row to column.
        model: the client's own model, for a federation of different ones; "" without a choice.
    """

    n: int = 1
    adjacency: np.ndarray | None = None
    model: str = ""


@dataclass(frozen=True, eq=False)
class Partition:
    """The client of each cell.

    Attributes:
        client_of: `(cells,)` number of each cell's client, from 0 without gaps.
        names: `(clients,)` names.
        models: `(clients,)` models of a federation of different ones; empty without a choice.
    """

    client_of: np.ndarray
    names: tuple[str, ...]
    models: tuple[str, ...] = ()

    @classmethod
    def from_labels(cls, labels: Sequence[Any] | np.ndarray) -> Partition:
        """Return the partition with a client for each label, numbered by its first cell.

        >>> Partition.from_labels(["b", "a", "b"]).client_of.tolist()
        [0, 1, 0]
        """
        client_of, names = pd.factorize(np.array([str(label) for label in labels], dtype=object))
        return cls(client_of, tuple(names))

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
        """Return the cells of each client, with the roads `(cells, cells)` between them."""
        models = self.models or ("",) * len(self)
        return [
            Cells(len(own), None if adjacency is None else adjacency[np.ix_(own, own)], model)
            for own, model in zip(self.cells, models, strict=True)
        ]

    def join(self, data: ClientData) -> ClientData:
        """Return the samples of clients, from samples of cells at equal times, `(cells, times, …)`.

        >>> x = torch.tensor([[[1, 2], [3, 4]], [[5, 6], [7, 8]]])  # 2 cells, 2 times, 2 inputs
        >>> of_cells = ClientData({"x": x}, torch.tensor([2, 2]))
        >>> Partition.from_labels(["all", "all"]).join(of_cells).tensors["x"].tolist()
        [[[1, 2], [5, 6], [3, 4], [7, 8]]]
        """
        if self.by_cell:
            return data
        if len(data.sizes.unique()) > 1:
            raise ValueError(f"cells with {data.sizes.tolist()} windows are not aligned in time")
        groups = torch.from_numpy(self.sizes)
        sizes = groups * int(data.sizes[0])
        samples, tensors = int(sizes.max()), {}
        for name, t in data.tensors.items():
            tensors[name] = t.new_zeros(len(self), samples, *t.shape[2:])
            for row, own in zip(tensors[name], self.cells, strict=True):
                of_client = t[torch.from_numpy(own)].transpose(0, 1).flatten(0, 1)
                row[: len(of_client)] = of_client
        if "sample" in tensors:
            tensors["sample"] = torch.arange(samples).expand(len(self), -1)
        return ClientData(tensors, sizes, data.augment, groups)

    def scatter(self, forecasts: Tensor, clients: Tensor, out: Tensor) -> None:
        """Write forecasts `(clients, samples, …)` to the array of their cells, `(cells, times, …)`.

        These clients have equal numbers of cells.
        """
        if self.by_cell:
            out[clients] = forecasts
            return
        for i, of_client in zip(clients.tolist(), forecasts, strict=True):
            own = torch.from_numpy(self.cells[i])
            out[own] = of_client.unflatten(0, (-1, len(own))).transpose(0, 1)

    def cut(self, adjacency: np.ndarray) -> dict[str, float]:
        """Count the roads `(cells, cells)` between cells of different clients, which no model sees.

        Roads from a cell to itself do not count; `cut_weight` is a share of the weight of all.

        >>> roads = np.array([[1, 0.5, 0], [0, 1, 0.5], [0, 0, 1]])
        >>> Partition.from_labels(["a", "a", "b"]).cut(roads)
        {'roads': 2, 'cut': 1, 'cut_weight': 0.5}
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
    """Stack tensors `(1, …)` of clients, padded to the largest shapes, those of `like`."""
    padded = {name: t.new_zeros(len(of_clients), *t.shape[1:]) for name, t in like.items()}
    for i, tensors in enumerate(of_clients):
        for name, t in tensors.items():
            padded[name][i][tuple(slice(n) for n in t.shape[1:])] = t[0]
    return padded


log = logging.getLogger(__name__)


def check_clients(text: str) -> None:
    """Refuse a text that cannot say what the clients are."""
    if not text:
        raise InputError(f"clients is {text!r}; give {FORMS}")
    parse_partition(text)


def partition_cells(
    text: str, series: Series, n_steps: int | None = None, seed: int = 0
) -> Partition:
    """Return the client of each cell of a series, by the setting `clients`.

    Partitions that read values read the first `n_steps`; those that draw numbers use the `seed`.
    """
    check_clients(text)
    if text == "cell":
        return one_per_cell(series.cells)
    if text == "all":
        return Partition.from_labels(["all"] * len(series.cells))
    if partitioner := parse_partition(text):
        known = dataclasses.replace(series, values=series.values[:n_steps])
        return Partition.from_labels(partitioner.split(known, seed))
    if text.endswith(".csv"):
        return _owners(Path(text), series)
    return Partition.from_labels(column_of(series, text))


def _owners(path: Path, series: Series) -> Partition:
    """Read the client of each cell from a file with `cell`, `client` and, maybe, `model`."""
    remedy = "give a CSV file with a line cell,client and then one line for each cell"
    table = read_texts(path, "file of clients", ("cell", "client"), remedy)
    owners = dict(zip(table["cell"], table["client"], strict=True))
    cells = [str(cell) for cell in series.cells]
    if unknown := [cell for cell in owners if cell not in set(cells)]:
        raise InputError(
            f"{path}: {counted(len(unknown), 'cell')} that {series.name} does not have: "
            f"{some(unknown)}; remove {'its line' if len(unknown) == 1 else 'their lines'}"
        )
    if absent := [cell for cell in cells if cell not in owners]:
        raise InputError(
            f"{path}: no line for {counted(len(absent), 'cell')} of {series.name}: "
            f"{some(absent)}; each cell belongs to a client"
        )
    partition = Partition.from_labels(_named([owners[cell] for cell in cells], cells, str(path)))
    if "model" not in table:
        return partition
    chosen = table.groupby("client")["model"].unique()
    for client, models in chosen.items():
        if len(models) > 1 or "" in models:
            found = " and ".join(map(repr, models))
            raise InputError(
                f"{path}: client {client} has the model {found}; name one in its lines"
            )
    models = tuple(str(chosen[name][0]) for name in partition.names)
    return dataclasses.replace(partition, models=models)


def column_of(series: Series, name: str) -> list[str]:
    """Return the client of each cell by a column of the cube that has one value a cell."""
    known = series.columns
    if name not in known:
        has = f"its columns are {some(sorted(known))}" if known else "it has no columns by cell"
        raise InputError(
            f"clients is {name!r}, which is not a column of {series.name}: {has}"
            f"{close_to(name, known)}; give {FORMS}"
        )
    values = [None if pd.isna(v) else v for v in known[name].tolist()]
    return _named(values, series.cells, f"{series.name}, column {name!r}")


def _named(names: Sequence[Any], cells: Sequence[Any] | np.ndarray, origin: str) -> list[str]:
    """Refuse a cell whose client has no name."""
    texts = ["" if name is None else str(name) for name in names]
    if "" in texts:
        raise InputError(f"{origin}: cell {cells[texts.index('')]} has no client; give it a name")
    return texts


def say(clients: Partition, series: Series) -> None:
    """Log the numbers of cells of clients, and the roads that are cut between them."""
    if clients.by_cell or len(clients) == 1:
        return
    low, middle, high = np.percentile(clients.sizes, [0, 50, 100])
    text = f"{len(clients)} clients of {counted_span(int(low), int(high), 'cell')}"
    text += f", the median of {middle:g}" if low < high else ""
    if series.adjacency is not None:
        roads = clients.cut(series.adjacency)
        text += (
            f"; they cut {roads['cut']:,} of {roads['roads']:,} roads "
            f"({roads['cut_weight']:.1%} of the weight)"
        )
    log.info("%s: %s", series.name, text)
