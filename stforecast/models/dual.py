"""Parts of the dual models: recurrent networks over both parts of a window, and a head.

Dual GRU: one GRU over the closeness window, one over the periodic window (FUELS, Eq. 2).

Liu et al., AAAI 2025, arXiv 2404.03702, section 3.1 and appendix D.1; the encoder follows FedDA
(Zhang et al., INFOCOM 2021).

Dual LSTM: one stacked LSTM over the closeness window, one over the periodic window (FedDA).

Zhang, Dang, Shihada, Alouini: Dual Attention-Based Federated Learning for Wireless Traffic
Prediction, INFOCOM 2021, arXiv 2110.05183. Sizes, dropout and the sum of the two hidden states are
those of the released code; its two unused fusion weights are left out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from torch import Tensor, nn

from data_prep.base.errors import InputError, Words
from stforecast.data.window_spec import WindowSpec
from stforecast.federated.core.layers import ClientGRU, ClientLinear, ClientLSTM, side_by_side
from stforecast.federated.core.options import CheckedOptions, Depth, ShareBelowOne, Width
from stforecast.federated.core.population import SplitModel


class DualEncoder(nn.Module):
    """Last hidden states over the closeness and over the periodic window, side by side.

    Args:
        window: input steps; the network of `closeness` or `periods` is left out if it is 0.
        make: builds a recurrent network `(clients, batch, steps, 1)` to `(clients, batch, hidden)`.
        reader: name of the model, for the error.

    Raises:
        InputError: if the windows have other inputs.
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
    """Fully connected layer on the sum of the parts, or on all of them.

    Attributes:
        in_features: size of the features.
    """

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
            text says (100,865).
    """

    hidden_size: Width = 128
    fusion: Literal["sum", "concat"] = "sum"


class DualGRU(SplitModel):
    """Two GRUs, over `closeness` recent and over `periods` periodic values.

    Args:
        window: input steps; the GRU of `closeness` or `periods` is left out if it is 0.
        options: sizes.

    Raises:
        InputError: if the windows have other inputs.

    Shapes:
        encoder: `(clients, batch, closeness + periods)` to `(clients, batch, 2 hidden_size)`.
        head: features to `(clients, batch, horizon)`.
    """

    name = "dual_gru"
    summary = "one GRU for the recent window, one for the periodic window (FUELS, FedDA)"
    Options = DualGRUOptions

    def __init__(self, window: WindowSpec, options: DualGRUOptions | None = None) -> None:
        options = options or DualGRUOptions()
        encoder = DualEncoder(window, lambda: ClientGRU(1, options.hidden_size), reader=self.name)
        super().__init__(
            encoder,
            FusionHead(encoder.n_parts, options.hidden_size, options.fusion, window.horizon),
        )


@dataclass(frozen=True)
class DualLSTMOptions(CheckedOptions):
    """Settings of the dual LSTM; the defaults are those of FedDA's code.

    Attributes:
        hidden_size: hidden units of each layer; features are twice as wide.
        num_layers: layers of each LSTM.
        dropout: dropout rate between two layers.
    """

    hidden_size: Width = 64
    num_layers: Depth = 2
    dropout: ShareBelowOne = 0.2


class DualLSTM(SplitModel):
    """Two stacked LSTMs, over `closeness` recent and over `periods` periodic values.

    Args:
        window: input steps; the LSTM of `closeness` or `periods` is left out if it is 0.
        options: sizes.

    Raises:
        InputError: if the windows have other inputs.

    Shapes:
        encoder: `(clients, batch, closeness + periods)` to `(clients, batch, 2 hidden_size)`.
        head: features to `(clients, batch, horizon)`.
    """

    name = "dual_lstm"
    summary = "two stacked LSTMs, for the recent and for the periodic window (FedDA)"
    Options = DualLSTMOptions

    def __init__(self, window: WindowSpec, options: DualLSTMOptions | None = None) -> None:
        options = options or DualLSTMOptions()
        sizes = (1, options.hidden_size, options.num_layers, options.dropout)
        encoder = DualEncoder(window, lambda: ClientLSTM(*sizes), reader=self.name)
        super().__init__(
            encoder, FusionHead(encoder.n_parts, options.hidden_size, "sum", window.horizon)
        )
