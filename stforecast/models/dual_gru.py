"""Dual GRU: one GRU over the closeness window, one over the periodic window (FUELS, Eq. 2).

Liu et al., AAAI 2025, arXiv 2404.03702, section 3.1 and appendix D.1; the encoder follows FedDA
(Zhang et al., INFOCOM 2021).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from stforecast.data.window_spec import WindowSpec
from stforecast.federated.layers import ClientGRU
from stforecast.federated.options import CheckedOptions, Width
from stforecast.federated.population import SplitModel
from stforecast.models.dual import DualEncoder, FusionHead


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
