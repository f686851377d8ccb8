"""Forecasting as the federated core's task: masked squared error, keyed by slot of the period."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from stforecast.federated.data import Batch, ClientData
from stforecast.windows import Windows


@dataclass(frozen=True)
class ForecastTask:
    """Predict `y` `(clients, batch, horizon)` where `mask` is True.

    Attributes:
        n_keys: slots of the period.
    """

    n_keys: int

    def loss(self, prediction: Tensor, batch: Batch) -> Tensor:
        """Mean squared error of each client over its observed targets (FUELS, Eq. 14)."""
        total, count = self.score(prediction, batch)
        return total.sum(1) / count.sum(1).clamp(min=1)

    def keys(self, batch: Batch) -> Tensor:
        """Slot of the period of each sample's first target."""
        return batch["slot"]

    def score(self, prediction: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        """Squared error and number of observed targets of each sample."""
        error = torch.where(batch["mask"], prediction - batch["y"], 0.0)
        return error.square().sum(-1), batch["mask"].sum(-1)


def client_data(windows: Windows, locations: np.ndarray | None = None) -> ClientData:
    """Windows as samples of clients: every cell is a client with the same number of windows.

    Args:
        windows: of all cells.
        locations: `(cells, 2)` longitude and latitude, which each sample then has as `location`.
    """
    clients, samples = windows.x.shape[:2]
    tensors = {
        "x": torch.from_numpy(windows.x),
        "x_next": torch.from_numpy(windows.x_next),
        "y": torch.from_numpy(windows.y),
        "mask": torch.from_numpy(windows.mask),
        "slot": torch.from_numpy(windows.slot).long().expand(clients, -1),
        "sample": torch.arange(samples).expand(clients, -1),
    }
    if locations is not None:
        where = torch.from_numpy(locations).float()
        tensors["location"] = where[:, None].expand(clients, samples, 2)
    return ClientData(tensors, torch.full((clients,), samples))
