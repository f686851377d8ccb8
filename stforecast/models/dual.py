"""Dual models: one recurrent network over the closeness window, one over the periodic window.

The dual GRU is FUELS's (Eq. 2; Liu et al., AAAI 2025, arXiv 2404.03702, section 3.1 and
appendix D.1). The dual LSTM is FedDA's (Zhang, Dang, Shihada, Alouini: Dual Attention-Based
Federated Learning for Wireless Traffic Prediction, INFOCOM 2021, arXiv 2110.05183). Its sizes,
dropout and the sum of the two hidden states are as in the released code; its two unused fusion
weights are left out.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from torch import Tensor, nn

from data_prep.base.errors import InputError, Words
from stforecast.data.window_spec import WindowSpec
from stforecast.federated.core.layers import ClientGRU, ClientLinear, ClientLSTM, side_by_side
from stforecast.federated.core.options import CheckedOptions, Depth, ShareBelowOne, Width
from stforecast.federated.core.population import SplitModel


class DualEncoder(nn.Module):
    """Last hidden states over the closeness and over the periodic window, side by side.

    `make` builds a recurrent network `(clients, batch, steps, 1)` to `(clients, batch, hidden)`;
    the network of `closeness` or `periods` is left out if this is 0.
    """

    def __init__(self, window: WindowSpec, make: Callable[[], nn.Module], reader: str) -> None:
        super().__init__()
        if window.n_inputs > window.closeness + window.periods:
            raise InputError(
                f"{reader} reads closeness and periods only; ",
                Words("leave out extra_lags, calendar and holidays, or take {model:mlp}"),
            )
        self.sizes = [size for size in (window.closeness, window.periods) if size]
        self.n_parts = len(self.sizes)
        self.closeness = make() if window.closeness else None
        self.periodic = make() if window.periods else None

    def forward(self, x: Tensor) -> Tensor:
        """Map `(clients, batch, inputs)` to `(clients, batch, parts * hidden)`."""
        parts = x.unsqueeze(-1).split(self.sizes, dim=2)
        networks = [n for n in (self.closeness, self.periodic) if n is not None]
        return side_by_side(networks, parts)


class FusionHead(nn.Module):
    """Fully connected layer on the sum of the parts, or on all of them."""

    def __init__(
        self, n_parts: int, hidden_size: int, fusion: Literal["sum", "concat"], horizon: int
    ) -> None:
        super().__init__()
        self.in_features = hidden_size * n_parts
        n_summed = n_parts if fusion == "sum" else 1
        self.linear = ClientLinear(self.in_features // n_summed, horizon, n_summed)

    def forward(self, features: Tensor) -> Tensor:
        """Map `(clients, batch, features)` to `(clients, batch, horizon)`."""
        return self.linear(features)


@dataclass(frozen=True)
class DualGRUOptions(CheckedOptions):
    """Settings of the dual GRU.

    Attributes:
        hidden_size: hidden units of each GRU; features are twice as wide.
        fusion: `sum`: the head reads the sum of the two hidden states, which gives the 100,737
            parameters of the paper's Table 1; `concat`: it reads the features, as the paper's
            text has (100,865).
    """

    hidden_size: Width = 128
    fusion: Literal["sum", "concat"] = "sum"


class Dual(SplitModel):
    """Two recurrent networks, over `closeness` recent and over `periods` periodic values.

    Shapes:
        encoder: `(clients, batch, closeness + periods)` to `(clients, batch, 2 hidden_size)`.
        head: features to `(clients, batch, horizon)`.
    """

    def __init__(self, window: WindowSpec, options: Any = None) -> None:
        options = options or self.Options()
        encoder = DualEncoder(window, lambda: self.network(options), reader=self.name)
        sizes = encoder.n_parts, options.hidden_size
        super().__init__(encoder, FusionHead(*sizes, options.fusion, window.horizon))

    @staticmethod
    @abstractmethod
    def network(options: Any) -> nn.Module:
        """Build a recurrent network `(clients, batch, steps, 1)` to `(clients, batch, hidden)`."""


class DualGRU(Dual):
    """Two GRUs, over `closeness` recent and over `periods` periodic values."""

    name = "dual_gru"
    summary = "one GRU for the recent window, one for the periodic window (FUELS, FedDA)"
    Options = DualGRUOptions

    @staticmethod
    def network(options: DualGRUOptions) -> nn.Module:
        """Build a GRU."""
        return ClientGRU(1, options.hidden_size)


@dataclass(frozen=True)
class DualLSTMOptions(CheckedOptions):
    """Settings of the dual LSTM; the defaults are as in FedDA's code.

    Attributes:
        hidden_size: hidden units of each layer; features are twice as wide.
        num_layers: layers of each LSTM.
        dropout: dropout rate between two layers.
    """

    hidden_size: Width = 64
    num_layers: Depth = 2
    dropout: ShareBelowOne = 0.2
    fusion: ClassVar[Literal["sum"]] = "sum"


class DualLSTM(Dual):
    """Two stacked LSTMs, over `closeness` recent and over `periods` periodic values."""

    name = "dual_lstm"
    summary = "two stacked LSTMs, for the recent and for the periodic window (FedDA)"
    Options = DualLSTMOptions

    @staticmethod
    def network(options: DualLSTMOptions) -> nn.Module:
        """Build a stacked LSTM."""
        return ClientLSTM(1, options.hidden_size, options.num_layers, options.dropout)
