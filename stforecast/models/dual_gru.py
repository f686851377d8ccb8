"""Dual GRU: one GRU over the closeness window, one over the periodic window (FUELS, Eq. 2).

Liu et al., AAAI 2025, arXiv 2404.03702, section 3.1 and appendix D.1; the encoder follows FedDA
(Zhang et al., INFOCOM 2021).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from data_prep.errors import InputError
from stforecast.federated.layers import ClientGRU, ClientLinear
from stforecast.federated.options import check_options
from stforecast.federated.population import SplitModel
from stforecast.windows import WindowSpec


@dataclass(frozen=True)
class DualGRUOptions:
    """Settings of the dual GRU.

    Attributes:
        hidden_size: cells of each GRU; features are twice as wide.
        fusion: `sum`: the head reads the sum of the two hidden states, which gives the 100,737
            parameters of the paper's Table 1; `concat`: it reads the features, as the paper's
            text says (100,865).
    """

    hidden_size: int = 128
    fusion: Literal["sum", "concat"] = "sum"

    def __post_init__(self) -> None:
        """Refuse values outside their range."""
        check_options(self, positive=("hidden_size",))


class DualGRU(SplitModel):
    """Forecasts from `closeness` recent and `periods` periodic values.

    Args:
        window: what it reads: `closeness` recent values and `periods` periodic ones; where one is
            0, its GRU is left out.
        options: sizes.

    Raises:
        InputError: if the windows have other inputs besides.

    Shapes:
        encoder: `(clients, batch, closeness + periods)` to `(clients, batch, 2 hidden_size)`.
        head: features to `(clients, batch, horizon)`.
    """

    name = "dual_gru"
    summary = "one GRU for the recent window, one for the periodic window (FUELS, FedDA)"
    Options = DualGRUOptions

    def __init__(self, window: WindowSpec, options: DualGRUOptions | None = None) -> None:
        options = options or DualGRUOptions()
        if window.n_inputs > len(window.lags):
            raise InputError(
                "dual_gru reads closeness and periods only; leave out extra_lags and calendar, or "
                "take --model mlp"
            )
        encoder = DualGRUEncoder(window.closeness, window.periods, options.hidden_size)
        super().__init__(encoder, FusionHead(encoder.n_parts, options, window.horizon))


class DualGRUEncoder(nn.Module):
    """Last hidden states of the GRUs, side by side (Eq. 2)."""

    def __init__(self, closeness: int, periods: int, hidden_size: int) -> None:
        super().__init__()
        self.sizes = [size for size in (closeness, periods) if size]
        self.n_parts = len(self.sizes)
        self.closeness = ClientGRU(1, hidden_size) if closeness else None
        self.periodic = ClientGRU(1, hidden_size) if periods else None

    def forward(self, x: Tensor) -> Tensor:
        """`(clients, batch, inputs)` to `(clients, batch, parts * hidden_size)`."""
        parts = x.unsqueeze(-1).split(self.sizes, dim=2)
        grus = [gru for gru in (self.closeness, self.periodic) if gru is not None]
        return torch.cat([gru(part) for gru, part in zip(grus, parts, strict=True)], dim=-1)


class FusionHead(nn.Module):
    """Fully connected layer on the sum of the parts, or on all of them."""

    def __init__(self, n_parts: int, options: DualGRUOptions, horizon: int) -> None:
        super().__init__()
        self.n_summed = n_parts if options.fusion == "sum" else 1
        self.linear = ClientLinear(options.hidden_size * n_parts // self.n_summed, horizon)

    def forward(self, features: Tensor) -> Tensor:
        """`(clients, batch, features)` to `(clients, batch, horizon)`."""
        fused = features.unflatten(-1, (self.n_summed, -1)).sum(-2)
        return self.linear(fused)
