"""AutoARIMA: seasonal ARIMA, the orders chosen by AICc.

Hyndman and Khandakar, "Automatic time series forecasting: the forecast package for R", Journal of
Statistical Software 27(3), 2008.
"""

from __future__ import annotations

from typing import Any

from stforecast.baselines.statistical import StatisticalPeer


class AutoARIMA(StatisticalPeer):
    """Seasonal ARIMA of each cell with the orders chosen by the library.

    It is slow: a cell of 37 days of hours takes one to three minutes to fit.
    """

    name = "auto_arima"
    summary = "statsforecast's AutoARIMA of each cell: ARIMA with a daily season (slow)"
    kept = ("arma", "coef", "lambda", "sigma2", "x", "xreg")

    @staticmethod
    def build(season: int) -> Any:
        """Build the library's model."""
        from statsforecast.models import AutoARIMA as Model

        return Model(season_length=season)
