"""N-HiTS: stacked MLPs that read and forecast at several rates.

Challu et al., "N-HiTS: neural hierarchical interpolation for time series forecasting", AAAI 2023.
"""

from __future__ import annotations

from stforecast.baselines.neural import NeuralPeer


class NHITS(NeuralPeer):
    """neuralforecast's NHITS, 1,000 training steps by default."""

    name = "nhits"
    summary = "neuralforecast's N-HiTS, stacked MLPs at several rates, of all cells together"
    model = "NHITS"
