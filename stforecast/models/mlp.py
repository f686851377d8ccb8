"""Multilayer perceptron: a small model that reads all inputs of a window.

Its size suits a few weeks of records: with further lags and the calendar it has 3,457 parameters
for 20 inputs, fewer than the values of one FUELS client's prototypes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import nn

from stforecast.data.window_spec import WindowSpec
from stforecast.federated.layers import ClientDropout, ClientLinear
from stforecast.federated.options import CheckedOptions, ShareBelowOne, Width
from stforecast.federated.population import SplitModel


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

    Args:
        window: input and target steps.
        options: sizes.

    Shapes:
        encoder: `(clients, batch, window.n_inputs)` to `(clients, batch, feature_size)`.
        head: features to `(clients, batch, window.horizon)`.
    """

    name = "mlp"
    summary = "two hidden layers; reads further lags and the calendar too"
    Options = MLPOptions
    reads_covariates: ClassVar[bool] = True

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
