"""Rolling evaluation: walk through the test part and refit on what has become known.

Whoever forecasts today knows yesterday. Before each day or week of the test part but the first, a
reference forecaster is fitted again, and a federated method trains some further rounds from the
state it is in, both on every window whose targets are known by then, the validation part's too. The
z-scores stay those of the training part. What a refit costs is reported beside its errors.
"""

from __future__ import annotations

import copy
import dataclasses
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from stforecast.baselines import BASELINES, Baseline
from stforecast.config import Config
from stforecast.federated.state import State
from stforecast.federated.training import zero_moments
from stforecast.fitted import FittedMethod, federate
from stforecast.series import Series
from stforecast.splits import Split
from stforecast.windows import Calendar

SPANS = {"daily": pd.Timedelta(days=1), "weekly": pd.Timedelta(days=7)}
"""Time between two refits."""


@dataclass(frozen=True, eq=False)
class Rolling:
    """Models that take over from each other.

    Attributes:
        models: the one that was trained, and then each refit of it.
        since: `(models - 1,)` first target step from which each refit forecasts, increasing.
    """

    models: list[Any]
    since: np.ndarray

    @property
    def levels(self) -> tuple[float, ...]:
        """Levels of the quantiles that the models forecast."""
        return getattr(self.models[0], "levels", ())

    def predict(self, series: np.ndarray, starts: np.ndarray, calendar: Calendar) -> np.ndarray:
        """Forecasts `(cells, windows, horizon)`, each by the latest model there was."""
        return self._each("predict", series, np.asarray(starts), calendar)

    def quantiles(self, series: np.ndarray, starts: np.ndarray, calendar: Calendar) -> np.ndarray:
        """Quantiles `(cells, windows, horizon, levels)`, each by the latest model there was."""
        return self._each("quantiles", series, np.asarray(starts), calendar)

    def _each(
        self, what: str, series: np.ndarray, starts: np.ndarray, calendar: Calendar
    ) -> np.ndarray:
        turn = np.searchsorted(self.since, starts, side="right")
        parts = {
            i: getattr(self.models[i], what)(series, starts[turn == i], calendar)
            for i in np.unique(turn)
        }
        first = next(iter(parts.values()))
        forecasts = np.empty((len(first), len(starts), *first.shape[2:]), first.dtype)
        for i, part in parts.items():
            forecasts[:, turn == i] = part
        return forecasts


def roll(
    config: Config, fitted: Any, series: Series, z: np.ndarray, split: Split
) -> tuple[Rolling, pd.DataFrame]:
    """Refit a model through the test part.

    Args:
        config: settings; `refit` is daily or weekly.
        fitted: the model that training gave.
        series: the data.
        z: `(steps, cells)`, z-scored, NaN where missing.
        split: its parts.

    Returns:
        The models, and what each refit cost: `time` from which it forecasts, `windows` it knew,
        `rounds`, `bytes_down`, `bytes_up` and `seconds`.
    """
    span = series.calendar.steps_in(SPANS[config.rolling.refit])
    since = np.arange(split.test[0] + span, split.test[-1] + 1, span)
    refit: Callable[..., tuple[Any, dict[str, int]]] = _continue if config.federated else _again
    models, costs = [fitted], []
    for cut in since:
        begin = time.perf_counter()
        known = np.arange(split.train[0], cut + 1 - config.window.horizon)
        model, cost = refit(config, models[-1], series, z[:cut], known)
        models.append(model)
        seconds = time.perf_counter() - begin
        costs.append({"time": series.times[cut], "windows": len(known), **cost, "seconds": seconds})
    return Rolling(models, since), pd.DataFrame(costs)


def _again(
    config: Config, fitted: Any, series: Series, z: np.ndarray, known: np.ndarray
) -> tuple[Baseline, dict[str, int]]:
    """A reference forecaster fitted to the windows that are known; it sends nothing."""
    baseline = BASELINES[config.method](config.method_options)
    baseline.fit(z, known, config.window, series.calendar)
    return baseline, {"rounds": 0, "bytes_down": 0, "bytes_up": 0}


def _continue(
    config: Config, fitted: FittedMethod, series: Series, z: np.ndarray, known: np.ndarray
) -> tuple[FittedMethod, dict[str, int]]:
    """Further rounds on the windows that are known, and what they sent."""
    options = config.rolling
    method = copy.copy(fitted.method)
    lr = options.refit_lr or config.training.lr / 10
    method.training = dataclasses.replace(config.training, schedule="constant", lr=lr)
    parts = (known, known[:0])
    federation = federate(config, method, z, parts, series.calendar, series.locations)
    federation.state = _resumed(fitted.state, federation.state, method.training)
    for _ in range(options.refit_rounds):
        federation.run_round()
    reports = federation.reports
    cost = {
        "rounds": len(reports),
        "bytes_down": sum(r.bytes_down for r in reports),
        "bytes_up": sum(r.bytes_up for r in reports),
    }
    return dataclasses.replace(fitted, state=federation.ready()), cost


def _resumed(state: State, fresh: State, training: Any) -> State:
    """The state with the sample sizes of new data; an optimiser whose moments are gone starts anew.

    The best round's state is kept without moments.
    """
    resumed = copy.deepcopy(state)
    resumed.clients.sizes = fresh.clients.sizes
    if not resumed.clients.moments:
        resumed.clients.moments = zero_moments(resumed.clients.params, training)
    return resumed
