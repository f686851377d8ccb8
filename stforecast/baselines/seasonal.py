"""Base class of seasonal forecasters, which repeat observations from whole seasons ago."""

from __future__ import annotations

from abc import abstractmethod

import numpy as np
import pandas as pd

from data_prep.errors import InputError
from stforecast.baselines.base import Baseline
from stforecast.data.windows import Calendar


class SeasonalNaive(Baseline):
    """The latest observed value a whole number of seasons before the target."""

    reads_windows = False

    @abstractmethod
    def _season(self, calendar: Calendar) -> int:
        """Return the length of a season in steps."""

    def _forecast(self, series: np.ndarray, starts: np.ndarray, calendar: Calendar) -> np.ndarray:
        season = self._season(calendar)
        if starts.min() < season:
            raise InputError(
                f"{self.name}: needs {season} steps of history, step {starts.min()} has fewer; "
                "forecast later steps or choose another baseline"
            )
        return repeat_season(series, starts, self.spec.horizon, season)


def repeat_season(series: np.ndarray, starts: np.ndarray, horizon: int, season: int) -> np.ndarray:
    """Repeat the latest observed value a whole number of seasons before each target.

    Args:
        series: `(steps, cells)`, z-scored, NaN where missing.
        starts: `(windows,)` first target steps, at least one season after the first.
        horizon: steps of a forecast.
        season: steps of a season.

    Returns:
        `(cells, windows, horizon)`, 0.0 where nothing was observed before.
    """
    phase = np.arange(len(series)) % season
    latest = pd.DataFrame(series).groupby(phase).ffill().fillna(0.0).to_numpy()
    ahead = np.arange(horizon)
    steps = starts[:, None] + ahead - season * (ahead // season + 1)
    return np.moveaxis(latest[steps], -1, 0)
