"""Pooled data: all cells as one client, for centralised training.

A sample is one time of every cell: inputs `(1, windows, cells * n_inputs)` hold the cells' windows
side by side, targets likewise. The federated core then trains a single client with a wide task: a
step is an ordinary step on the pooled batch, and nothing is sent. The wrapped model reads rows
`(1, batch * cells, n_inputs)`, cells fastest, so a model for one client works unchanged, and a
model that distinguishes or connects cells can identify the cell of each row.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from torch import Tensor, nn

from data_prep.errors import InputError
from stforecast.federated.data import ClientData
from stforecast.federated.population import SplitModel
from stforecast.federated.training import Training
from stforecast.federated.uploads.uplink import Uplink


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


def pool(data: ClientData) -> ClientData:
    """Pool the samples of all cells into those of one client.

    >>> import torch
    >>> x = torch.tensor([[[1, 2], [3, 4]], [[5, 6], [7, 8]]])  # 2 cells, 2 windows, 2 inputs
    >>> pool(ClientData({"x": x}, torch.tensor([2, 2]))).tensors["x"].tolist()
    [[[1, 2, 5, 6], [3, 4, 7, 8]]]

    Args:
        data: `(cells, windows, …)`, aligned in time: window w begins at the same step everywhere.

    Raises:
        ValueError: if the numbers of windows differ between cells.
    """
    if len(data.sizes.unique()) > 1:
        raise ValueError(f"cells with {data.sizes.tolist()} windows are not aligned in time")
    tensors = {
        # Tensors without a third axis, such as the slot of the period, are equal in all cells.
        name: t[:1] if t.ndim == 2 else t.transpose(0, 1).flatten(1)[None]
        for name, t in data.tensors.items()
    }
    return ClientData(tensors, data.sizes[:1])


def unpool(forecasts: Tensor, n_cells: int) -> Tensor:
    """Split forecasts of the pooled client, `(1, windows, cells * horizon, …)`, by cell.

    Returns:
        `(cells, windows, horizon, …)`.
    """
    return forecasts[0].unflatten(1, (n_cells, -1)).transpose(0, 1)


def check_pooled(method: str, uplink: Uplink, training: Training) -> None:
    """Refuse settings that have no effect without communication.

    Raises:
        InputError: naming the method.
    """
    if uplink != Uplink():
        raise InputError(
            f"{method} pools the data, so there are no uploads to round, noise or code: leave out "
            "those options"
        )
    if training.participation < 1:
        raise InputError(
            f"{method} pools the data, so all cells take part: leave out --participation"
        )


class Pooled(SplitModel):
    """Wrapper that applies a model to every cell of pooled samples.

    Args:
        model: model of rows `(1, batch * cells, n_inputs)`.
        n_inputs: number of inputs of one cell's window.

    Shapes:
        encoder: `(1, batch, cells * n_inputs)` to `(1, batch, cells, d)`.
        head: features to `(1, batch, cells * horizon)`.
    """

    def __init__(self, model: SplitModel, n_inputs: int) -> None:
        super().__init__(_EncodeCells(model.encoder, n_inputs), _DecodeCells(model.head))


class _EncodeCells(nn.Module):
    def __init__(self, model: nn.Module, n_inputs: int) -> None:
        super().__init__()
        self.model, self.n_inputs = model, n_inputs

    def forward(self, x: Tensor) -> Tensor:
        rows = x.unflatten(-1, (-1, self.n_inputs)).flatten(1, 2)
        features: Tensor = self.model(rows)
        return features.unflatten(1, (x.shape[1], -1))


class _DecodeCells(nn.Module):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, features: Tensor) -> Tensor:
        forecasts: Tensor = self.model(features.flatten(1, 2))
        return forecasts.unflatten(1, features.shape[1:3]).flatten(2, 3)
