"""PatchTST: a transformer on patches of each series.

Nie et al., "A time series is worth 64 words: long-term forecasting with transformers", ICLR 2023.
"""

from __future__ import annotations

from stforecast.baselines.neural import NeuralPeer


class PatchTST(NeuralPeer):
    """neuralforecast's PatchTST, 5,000 training steps by default, which take hours on few cores."""

    name = "patchtst"
    summary = "neuralforecast's PatchTST, a transformer on patches, of all cells together (slow)"
    model = "PatchTST"
