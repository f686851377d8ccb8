"""Forecasting as the federated core's task: masked errors, keyed by slot of the period."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from stforecast.federated.data import Batch, ClientData
from stforecast.federated.options import check_options
from stforecast.windows import Windows


@dataclass(frozen=True)
class LossOptions:
    """What training minimises; rounds are always judged by the squared error.

    Attributes:
        loss: `mse`, squared error (FUELS, Eq. 14), or `huber`, which is squared up to huber_delta
            and linear beyond, so that bursts of traffic weigh less.
        huber_delta: in z-scores, positive.
    """

    loss: Literal["mse", "huber"] = "mse"
    huber_delta: float = 0.5

    def __post_init__(self) -> None:
        """Refuse values outside their range."""
        check_options(self, positive=("huber_delta",))


@dataclass(frozen=True)
class ForecastTask:
    """Predict `y` `(clients, batch, horizon)` where `mask` is True.

    Attributes:
        n_keys: slots of the period.
        options: what training minimises.
    """

    n_keys: int
    options: LossOptions = LossOptions()

    def loss(self, prediction: Tensor, batch: Batch) -> Tensor:
        """Mean loss of each client over its observed targets."""
        if self.options.loss == "mse":
            total, count = self.score(prediction, batch)
        else:
            error = F.huber_loss(
                prediction, batch["y"], reduction="none", delta=self.options.huber_delta
            )
            total, count = torch.where(batch["mask"], error, 0.0).sum(-1), batch["mask"].sum(-1)
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
