"""MSTL: decomposition into trend and season by LOESS.

Bandara, Hyndman and Bergmeir, "MSTL: a seasonal-trend decomposition algorithm for time series with
multiple seasonal patterns", arXiv 2107.13462.
"""

from __future__ import annotations

from typing import Any

from stforecast.baselines.statistical import StatisticalPeer


class MSTL(StatisticalPeer):
    """Each cell's season by LOESS, repeated, and the rest by exponential smoothing.

    The season is decomposed anew from each window's history; the smoothing of the rest keeps its
    fitted parameters.
    """

    name = "mstl"
    summary = "statsforecast's MSTL of each cell: a daily season by LOESS, the rest by ETS"
    kept = ("components", "m", "n_params", "par")

    @staticmethod
    def build(season: int) -> Any:
        """Build the library's model with its default smoothing, which models must not share."""
        from statsforecast.models import MSTL as Model
        from statsforecast.models import AutoETS

        return Model(season_length=season, trend_forecaster=AutoETS(model="ZZN"))

    @staticmethod
    def fitted_part(model: Any) -> Any:
        """Return the model of the trend."""
        return model.trend_forecaster
