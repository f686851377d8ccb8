"""AutoETS: exponential smoothing, the form chosen by AICc.

Hyndman et al., "A state space framework for automatic forecasting using exponential smoothing
methods", International Journal of Forecasting 18(3), 2002.
"""

from __future__ import annotations

from typing import Any

from stforecast.baselines.statistical import StatisticalPeer


class AutoETS(StatisticalPeer):
    """Exponential smoothing of each cell with error, trend and season chosen by the library.

    Z-scores have both signs, so multiplicative forms are never chosen.
    """

    name = "auto_ets"
    summary = "statsforecast's AutoETS of each cell: exponential smoothing with a daily season"
    kept = ("components", "m", "n_params", "par")

    @staticmethod
    def build(season: int) -> Any:
        """Build the library's model."""
        from statsforecast.models import AutoETS as Model

        return Model(season_length=season)
