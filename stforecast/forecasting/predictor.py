"""Protocol of predictors: trained federated methods, reference forecasters, refitted models."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from stforecast.data.clock import Calendar


class Predictor(Protocol):
    """Forecasts windows of z-scored series."""

    @property
    def levels(self) -> tuple[float, ...]:
        """Levels of the quantiles that it forecasts; none if it forecasts one value."""
        ...

    @property
    def reads_windows(self) -> bool:
        """True if it reads the inputs of windows, False if it reads the whole series before."""
        ...

    @property
    def round(self) -> int:
        """Round of its state; 0 if it was fitted without rounds."""
        ...

    def predict(self, series: np.ndarray, starts: np.ndarray, calendar: Calendar) -> np.ndarray:
        """Forecast windows, each from the steps before it; of quantiles, the median.

        Args:
            series: `(steps, cells)`, z-scored, NaN where missing.
            starts: `(windows,)` first target steps; may be the step just after the series.
            calendar: the series' wall clock.

        Returns:
            `(cells, windows, horizon)` float32, z-scored.
        """
        ...

    def quantiles(self, series: np.ndarray, starts: np.ndarray, calendar: Calendar) -> np.ndarray:
        """Forecast quantiles by increasing level, `(cells, windows, horizon, levels)`.

        Without levels the last axis holds the forecast alone.
        """
        ...

    def state(self) -> dict[str, np.ndarray]:
        """Return the learned state that prediction needs, as plain arrays."""
        ...
