"""Small models: one linear map of the window to the horizon, and a multilayer perceptron.

Zeng, Chen, Zhang, Xu: Are Transformers Effective for Time Series Forecasting?, AAAI 2023, arXiv
2205.13504: `Linear` and `NLinear`. The map is the encoder and the intercept the head, so a method
that shares only encoders shares the slopes and leaves each client its own level.

The perceptron's size suits a few weeks of records: with further lags and the calendar it has 3,457
parameters for 20 inputs, fewer than the values of one FUELS client's prototypes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from stforecast.data.anchors import LEVEL
from stforecast.data.window_spec import WindowSpec
from stforecast.federated.core.layers import ClientDropout, ClientLinear, Stacked, uniform
from stforecast.federated.core.options import CheckedOptions, ShareBelowOne, Width
from stforecast.federated.core.population import SplitModel


@dataclass(frozen=True)
class LinearOptions(CheckedOptions):
    """Settings of the linear model.

    Attributes:
        normalise: `last`: subtract the window's last value from its values and, if it learns
            levels, add it to the forecast (NLinear); `none`: read the values unchanged (Linear).
    """

    normalise: Literal["none", "last"] = "last"


class Linear(SplitModel):
    """`y = x W + b`, or with the last value v `y = (x - v) W + v + b`.

    Where y is a difference, `window.target`, v is subtracted but not added. Calendar inputs are
    read unchanged.

    Shapes:
        encoder: `(clients, batch, window.n_inputs)` to `(clients, batch, window.horizon)`.
        head: features to `(clients, batch, window.horizon)`.
    """

    name = "linear"
    summary = "one linear map of the window to the horizon (NLinear)"
    Options = LinearOptions
    reads_covariates: ClassVar[bool] = True

    def __init__(self, window: WindowSpec, options: LinearOptions | None = None) -> None:
        options = options or LinearOptions()
        slopes = Slopes(window, subtract=options.normalise == "last")
        super().__init__(slopes, Intercept(window.horizon))


class Slopes(Stacked):
    """The map W of each client `(n_inputs, horizon)`.

    If `subtract`, the value of the smallest lag is subtracted and, from levels, added again.
    """

    def __init__(self, window: WindowSpec, *, subtract: bool) -> None:
        super().__init__()
        self.last = window.lags.index(min(window.lags)) if subtract else None
        self.added = window.target == LEVEL
        self.n_values = window.n_readings
        bound = 1 / math.sqrt(window.n_inputs)
        self.weight = uniform(bound, window.n_inputs, window.horizon)

    def forward(self, x: Tensor) -> Tensor:
        """Map `(clients, batch, n_inputs)` to `(clients, batch, horizon)`."""
        if self.last is None:
            return torch.bmm(x, self.weight)
        level = x[..., self.last, None]
        values, calendar = x[..., : self.n_values], x[..., self.n_values :]
        y = torch.bmm(torch.cat([values - level, calendar], dim=-1), self.weight)
        return y + level if self.added else y


class Intercept(Stacked):
    """Intercept of each client and step, initially 0."""

    def __init__(self, horizon: int) -> None:
        super().__init__()
        self.in_features = horizon
        self.bias = nn.Parameter(torch.zeros(1, horizon))

    def forward(self, features: Tensor) -> Tensor:
        """Map `(clients, batch, horizon)` to the same shape."""
        return features + self.bias[:, None]


@dataclass(frozen=True)
class MLPOptions(CheckedOptions):
    """Settings of the perceptron.

    Attributes:
        hidden_size: units of the first layer.
        feature_size: units of the second layer, the width of features and prototypes.
        dropout: share of the units of both layers that training zeroes.
    """

    hidden_size: Width = 64
    feature_size: Width = 32
    dropout: ShareBelowOne = 0.0


class MLP(SplitModel):
    """Two hidden layers with SiLU, then a linear head.

    Shapes:
        encoder: `(clients, batch, window.n_inputs)` to `(clients, batch, feature_size)`.
        head: features to `(clients, batch, window.horizon)`.
    """

    name = "mlp"
    summary = "two hidden layers; reads further lags and the calendar too"
    Options = MLPOptions
    reads_covariates: ClassVar[bool] = True
    layers: ClassVar[tuple[str, ...]] = ("encoder.0", "encoder.2", "head")

    def __init__(self, window: WindowSpec, options: MLPOptions | None = None) -> None:
        options = options or MLPOptions()
        bend: nn.Module = nn.SiLU()
        if options.dropout:  # Within one module, as parameters are named by their place.
            bend = nn.Sequential(nn.SiLU(), ClientDropout(options.dropout))
        encoder = nn.Sequential(
            ClientLinear(window.n_inputs, options.hidden_size),
            bend,
            ClientLinear(options.hidden_size, options.feature_size),
            bend,
        )
        super().__init__(encoder, ClientLinear(options.feature_size, window.horizon))
