"""Base class of seasonal forecasters, which repeat observations from whole seasons ago."""

from __future__ import annotations

from abc import abstractmethod

import numpy as np

from data_prep.errors import InputError
from stforecast.baselines.base import Baseline
from stforecast.data.anchors import repeat_season
from stforecast.data.clock import Calendar


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
        return repeat_season(series, starts, self.spec.horizon, season, calendar)
