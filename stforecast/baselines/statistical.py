"""Statistical models of single cells, from the library statsforecast.

- Garza et al., "StatsForecast: lightning fast forecasting with statistical and econometric models",
  PyCon 2022.
- AutoARIMA, its orders chosen by AICc: Hyndman and Khandakar, "Automatic time series forecasting:
  the forecast package for R", Journal of Statistical Software 27(3), 2008.
- AutoETS, its form chosen by AICc: Hyndman et al., "A state space framework for automatic
  forecasting using exponential smoothing methods", International Journal of Forecasting 18(3),
  2002.
- MSTL, a decomposition by LOESS: Bandara, Hyndman and Bergmeir, "MSTL: a seasonal-trend
  decomposition algorithm for time series with multiple seasonal patterns", arXiv 2107.13462.
"""

from __future__ import annotations

import json
import multiprocessing
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Self

import numpy as np
import pandas as pd

from data_prep.base.errors import InputError
from stforecast.baselines.base import Arrays, Peer, PeerOptions
from stforecast.data.clock import Calendar, day_slots
from stforecast.data.dates import DAY
from stforecast.federated.core.options import Workers


@dataclass(frozen=True)
class StatisticalOptions(PeerOptions):
    """Options of a statistical model.

    Attributes:
        n_jobs: number of processes that fit and forecast cells; 0 uses all cores. With 1 no process
            is started; with more, a script of your own needs `if __name__ == "__main__":`.
    """

    n_jobs: Workers = 1


class StatisticalPeer(Peer):
    """One model of statsforecast for each cell, with a season of a day.

    It is fitted once, to the cell's training part. A forecast applies the fitted parameters to the
    whole history before the window (the library's `forward`), from the first step at the same time
    of day as the first training step. Gaps are filled with the cell's last reading. A history of
    less than two days is lengthened with the training mean.

    The time limit is checked after every cell, however long a cell takes; with more than one
    process, they are ended as soon as it is reached.

    Attributes:
        model: name of the library's class.
        kept: entries of its fitted model that `forward` reads.
    """

    package = "statsforecast"
    learned = ("models",)
    of_cells: ClassVar[Mapping[str, int]] = {"models": 0}
    Options = StatisticalOptions
    model: ClassVar[str]
    kept: ClassVar[tuple[str, ...]]

    @classmethod
    def build(cls, season: int) -> Any:
        """Build the library's model with a season of that many steps."""
        from statsforecast import models

        return getattr(models, cls.model)(season_length=season)

    @staticmethod
    def fitted_part(model: Any) -> Any:
        """Return the part of the library's model whose `model_` the state keeps."""
        return model

    def _learn(self, series: np.ndarray, starts: np.ndarray, calendar: Calendar) -> Arrays:
        season = calendar.steps_in(DAY)
        past = _filled(series[: starts.max() + self.spec.horizon])
        about = {
            "season": season,
            "slot": _slot(calendar),
            "cells": self._each(partial(_fit, type(self), season), list(past.T)),
        }
        text = json.dumps(
            about,
            default=lambda v: {"array": v.tolist()} if isinstance(v, np.ndarray) else v.item(),
        )
        return {"models": np.frombuffer(text.encode(), np.uint8)}

    def _forecast(self, series: np.ndarray, starts: np.ndarray, calendar: Calendar) -> np.ndarray:
        about = json.loads(
            self.arrays["models"].tobytes(),
            object_hook=lambda d: np.array(d["array"]) if d.keys() == {"array"} else d,
        )
        self._check_cells(series, len(about["cells"]))
        season = about["season"]
        first = (about["slot"] - _slot(calendar)) % season
        forecast = partial(_forward, type(self), season, starts - first, self.spec.horizon)
        cells = zip(about["cells"], _filled(series)[first:].T, strict=True)
        return np.stack(self._each(forecast, list(cells)))

    def joined(self, new: Self, ids: np.ndarray) -> Self:
        """Refuse to join models whose histories may begin at different times of the day."""
        raise InputError(
            f"{self.name} fits each cell by itself; give a history of the new cells alone, and "
            "forecast the others with the model that they have"
        )

    def _each(self, work: Callable[[Any], Any], cells: Sequence[Any]) -> list[Any]:
        """Do the work for every cell."""
        done: list[Any] = []
        if self.config.n_jobs == 1:
            for cell in cells:
                done.append(work(cell))
                self.limit.check(len(done), len(cells), "cells")
            return done
        n_jobs = min(self.config.n_jobs or os.cpu_count() or 1, len(cells))
        # Leaving the context ends the processes, whatever they are doing.
        with multiprocessing.get_context("spawn").Pool(n_jobs) as pool:
            results = pool.imap(work, cells)
            while len(done) < len(cells):
                try:
                    done.append(results.next(timeout=self.limit.left))
                except multiprocessing.TimeoutError:
                    self.limit.check(len(done), len(cells), "cells")
        return done


def _fit(kind: type[StatisticalPeer], season: int, values: np.ndarray) -> dict[str, Any]:
    """Fit the model of one cell and return what forecasting needs of it."""
    model = kind.build(season).fit(values)
    fitted = kind.fitted_part(model).model_
    return {name: fitted[name] for name in kind.kept}


def _forward(
    kind: type[StatisticalPeer],
    season: int,
    starts: np.ndarray,
    horizon: int,
    cell: tuple[dict[str, Any], np.ndarray],
) -> np.ndarray:
    """Forecast the windows of one cell, `(windows, horizon)`."""
    parameters, values = cell
    model = kind.build(season)
    kind.fitted_part(model).model_ = {"fit": None, **parameters}
    y_hat = []
    for past in (values[: max(start, 0)] for start in starts):
        # A short history is lengthened with zeros before it, by whole seasons.
        seasons = -(-max(0, 2 * season + 1 - len(past)) // season)
        past = np.concatenate([np.zeros(seasons * season), past])
        y_hat.append(model.forward(y=past, h=horizon)["mean"])
    return np.stack(y_hat)


def _filled(series: np.ndarray) -> np.ndarray:
    """Fill gaps with the last reading, and those before the first one with the mean, 0.0."""
    return pd.DataFrame(series).ffill().fillna(0.0).to_numpy(np.float64)


def _slot(calendar: Calendar) -> int:
    """Return the steps from local midnight to step 0."""
    times = calendar.local_times(np.array([0]))
    return int(day_slots(times, calendar.steps_in(DAY), calendar.step)[0])


class AutoARIMA(StatisticalPeer):
    """Seasonal ARIMA of each cell with the orders chosen by the library.

    It is slow: a cell of 37 days of hours takes one to three minutes to fit.
    """

    name = "auto_arima"
    summary = "statsforecast's AutoARIMA of each cell: ARIMA with a daily season (slow)"
    model = "AutoARIMA"
    kept = ("arma", "coef", "lambda", "sigma2", "x", "xreg")


class AutoETS(StatisticalPeer):
    """Exponential smoothing of each cell with error, trend and season chosen by the library.

    Z-scores have both signs, so multiplicative forms are never chosen.
    """

    name = "auto_ets"
    summary = "statsforecast's AutoETS of each cell: exponential smoothing with a daily season"
    model = "AutoETS"
    kept = ("components", "m", "n_params", "par")


class MSTL(StatisticalPeer):
    """Each cell's season by LOESS, repeated, and the rest by exponential smoothing.

    The season is decomposed again from each window's history; the smoothing of the rest keeps its
    fitted parameters.
    """

    name = "mstl"
    summary = "statsforecast's MSTL of each cell: a daily season by LOESS, the rest by ETS"
    kept = ("components", "m", "n_params", "par")

    @classmethod
    def build(cls, season: int) -> Any:
        """Build the library's model with its default smoothing, which models must not share."""
        from statsforecast import models

        trend = models.AutoETS(model="ZZN")
        return models.MSTL(season_length=season, trend_forecaster=trend)

    @staticmethod
    def fitted_part(model: Any) -> Any:
        """Return the model of the trend."""
        return model.trend_forecaster
