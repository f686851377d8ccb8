"""Dual LSTM: one stacked LSTM over the closeness window, one over the periodic window (FedDA).

Zhang, Dang, Shihada, Alouini: Dual Attention-Based Federated Learning for Wireless Traffic
Prediction, INFOCOM 2021, arXiv 2110.05183. Sizes, dropout and the sum of the two hidden states are
those of the released code; its two unused fusion weights are left out.
"""

from __future__ import annotations

from dataclasses import dataclass

from stforecast.data.window_spec import WindowSpec
from stforecast.federated.layers import ClientLSTM
from stforecast.federated.options import CheckedOptions, Depth, ShareBelowOne, Width
from stforecast.federated.population import SplitModel
from stforecast.models.dual import DualEncoder, FusionHead


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
