"""Dual LSTM: one stacked LSTM over the closeness window, one over the periodic window (FedDA).

Zhang, Dang, Shihada, Alouini: Dual Attention-Based Federated Learning for Wireless Traffic
Prediction, INFOCOM 2021, arXiv 2110.05183. Sizes, dropout and the sum of the two hidden states are
those of the released code; its two fusion weights, which nothing reads, are left out.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from data_prep.errors import InputError
from stforecast.federated.layers import ClientLSTM
from stforecast.federated.options import check_options
from stforecast.federated.population import SplitModel
from stforecast.models.dual_gru import DualGRUOptions, FusionHead
from stforecast.windows import WindowSpec


@dataclass(frozen=True)
class DualLSTMOptions:
    """Settings of the dual LSTM; the defaults are those of FedDA's code.

    Attributes:
        hidden_size: cells of each layer; features are twice as wide.
        num_layers: layers of each LSTM.
        dropout: share of the values between two layers that training zeroes, in [0, 1).
    """

    hidden_size: int = 64
    num_layers: int = 2
    dropout: float = 0.2

    def __post_init__(self) -> None:
        """Refuse values outside their range."""
        check_options(self, positive=("hidden_size", "num_layers"))
        if not 0 <= self.dropout < 1:
            raise InputError(f"dropout is {self.dropout}; it must be in [0, 1)")


class DualLSTM(SplitModel):
    """Forecasts from `closeness` recent and `periods` periodic values.

    Args:
        window: what it reads: `closeness` recent values and `periods` periodic ones; where one is
            0, its LSTM is left out.
        options: sizes.

    Raises:
        InputError: if the windows have other inputs besides.

    Shapes:
        encoder: `(clients, batch, closeness + periods)` to `(clients, batch, 2 hidden_size)`.
        head: features to `(clients, batch, horizon)`.
    """

    name = "dual_lstm"
    summary = "two stacked LSTMs, for the recent and for the periodic window (FedDA)"
    Options = DualLSTMOptions

    def __init__(self, window: WindowSpec, options: DualLSTMOptions | None = None) -> None:
        options = options or DualLSTMOptions()
        if window.n_inputs > len(window.lags):
            raise InputError(
                "dual_lstm reads closeness and periods only; leave out extra_lags and calendar, or "
                "take --model mlp"
            )
        encoder = DualLSTMEncoder(window.closeness, window.periods, options)
        fusion = DualGRUOptions(options.hidden_size, fusion="sum")
        super().__init__(encoder, FusionHead(encoder.n_parts, fusion, window.horizon))


class DualLSTMEncoder(nn.Module):
    """Last hidden states of the LSTMs' top layers, side by side."""

    def __init__(self, closeness: int, periods: int, options: DualLSTMOptions) -> None:
        super().__init__()
        self.sizes = [size for size in (closeness, periods) if size]
        self.n_parts = len(self.sizes)
        sizes = (1, options.hidden_size, options.num_layers, options.dropout)
        self.closeness = ClientLSTM(*sizes) if closeness else None
        self.periodic = ClientLSTM(*sizes) if periods else None

    def forward(self, x: Tensor) -> Tensor:
        """`(clients, batch, inputs)` to `(clients, batch, parts * hidden_size)`."""
        parts = x.unsqueeze(-1).split(self.sizes, dim=2)
        lstms = [lstm for lstm in (self.closeness, self.periodic) if lstm is not None]
        return torch.cat([lstm(part) for lstm, part in zip(lstms, parts, strict=True)], dim=-1)
