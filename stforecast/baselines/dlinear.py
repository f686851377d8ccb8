"""DLinear: one linear layer for the trend and one for the rest.

Zeng et al., "Are transformers effective for time series forecasting?", AAAI 2023.
"""

from __future__ import annotations

from stforecast.baselines.neural import NeuralPeer


class DLinear(NeuralPeer):
    """neuralforecast's DLinear, 5,000 training steps by default."""

    name = "dlinear"
    summary = "neuralforecast's DLinear, two linear layers, of all cells together"
    model = "DLinear"
