"""Linear: one linear map of the window to the horizon, with or without the last value subtracted.

Zeng, Chen, Zhang, Xu: Are Transformers Effective for Time Series Forecasting?, AAAI 2023, arXiv
2205.13504: `Linear` and `NLinear`. The map stands in the encoder and the intercept in the head, so
a method that shares encoders alone shares slopes and leaves each client a level of its own.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from stforecast.data.windows import WindowSpec
from stforecast.federated.layers import Stacked
from stforecast.federated.options import CheckedOptions
from stforecast.federated.population import SplitModel


@dataclass(frozen=True)
class LinearOptions(CheckedOptions):
    """Settings of the linear model.

    Attributes:
        normalise: `last`: the window's last value is subtracted from its values and added to the
            forecast (NLinear); `none`: they are read as they are (Linear).
    """

    normalise: Literal["none", "last"] = "last"


class Linear(SplitModel):
    """`y = x W + b`, or with the last value v `y = (x - v) W + v + b`.

    Args:
        window: what it reads and how far it forecasts. Calendar inputs are read as they are.
        options: whether the last value is subtracted.

    Shapes:
        encoder: `(clients, batch, window.n_inputs)` to `(clients, batch, window.horizon)`.
        head: features to `(clients, batch, window.horizon)`.
    """

    name = "linear"
    summary = "one linear map of the window to the horizon (NLinear)"
    Options = LinearOptions

    def __init__(self, window: WindowSpec, options: LinearOptions | None = None) -> None:
        options = options or LinearOptions()
        super().__init__(Slopes(window, options.normalise == "last"), Intercept(window.horizon))


class Slopes(Stacked):
    """The map W of each client `(n_inputs, horizon)`.

    Args:
        window: what is read; its last value is that of the smallest lag.
        subtract: whether the last value is subtracted, and added again.
    """

    def __init__(self, window: WindowSpec, subtract: bool) -> None:
        super().__init__()
        self.last = window.lags.index(min(window.lags)) if subtract else None
        self.n_values = window.n_inputs - window.n_known
        bound = 1 / math.sqrt(window.n_inputs)
        weight = torch.empty(1, window.n_inputs, window.horizon)
        self.weight = nn.Parameter(weight.uniform_(-bound, bound))

    def forward(self, x: Tensor) -> Tensor:
        """`(clients, batch, n_inputs)` to `(clients, batch, horizon)`."""
        if self.last is None:
            return torch.bmm(x, self.weight)
        level = x[..., self.last, None]
        values, calendar = x[..., : self.n_values], x[..., self.n_values :]
        return torch.bmm(torch.cat([values - level, calendar], dim=-1), self.weight) + level


class Intercept(Stacked):
    """What each client adds to every step of its forecasts, 0 at first."""

    def __init__(self, horizon: int) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(1, horizon))

    def forward(self, features: Tensor) -> Tensor:
        """`(clients, batch, horizon)` to the same."""
        return features + self.bias[:, None]
