"""Rolling evaluation: walk through the test part and refit on what has become known.

Whoever forecasts today knows yesterday. Before each day or week of the test part but the first, a
reference forecaster is fitted again, and a federated method trains some further rounds from the
state it is in, both on every window whose targets are known by then, the validation part's too. The
z-scores stay those of the training part. What a refit costs is reported beside its errors. A run
that is killed goes on after its last refit.
"""

from __future__ import annotations

import copy
import dataclasses
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch

from stforecast.config import Config
from stforecast.data.prepared import PreparedSeries
from stforecast.data.windows import Calendar
from stforecast.federated.device import pick_device
from stforecast.federated.runs.checkpoint import fingerprint
from stforecast.federated.runs.checkpointing import Checkpointer
from stforecast.federated.runs.saving import from_arrays
from stforecast.federated.state import State
from stforecast.federated.training import zero_moments
from stforecast.fitting import fit_baseline
from stforecast.predictor import Predictor
from stforecast.trained_method import TrainedMethod, federate

SPANS = {"daily": pd.Timedelta(days=1), "weekly": pd.Timedelta(days=7)}
"""Time between two refits."""

Refit = Callable[[Config, Any, PreparedSeries, np.ndarray], tuple[Any, dict[str, Any]]]
"""From settings, the latest model, the series and windows that are known to a model and what it
cost."""


@dataclass(frozen=True, eq=False)
class Rolling:
    """Models that take over from each other; a `stforecast.predictor.Predictor`.

    Attributes:
        models: the one that was trained, and then each refit of it.
        since: `(models - 1,)` first target step from which each refit forecasts, increasing.
    """

    models: Sequence[Predictor]
    since: np.ndarray

    @property
    def levels(self) -> tuple[float, ...]:
        """Levels of the quantiles that the models forecast."""
        return self.models[0].levels

    @property
    def reads_windows(self) -> bool:
        """Whether the models read the inputs of windows."""
        return self.models[0].reads_windows

    @property
    def round(self) -> int:
        """The round that the latest model is of."""
        return self.models[-1].round

    def state(self) -> dict[str, np.ndarray]:
        """What predicting needs of the latest model: a saved one forecasts what follows."""
        return self.models[-1].state()

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
    config: Config,
    fitted: Predictor,
    data: PreparedSeries,
    checkpointer: Checkpointer | None = None,
) -> tuple[Rolling, pd.DataFrame]:
    """Refit a model through the test part.

    Args:
        config: settings; `refit` is daily or weekly.
        fitted: the model that training gave.
        data: the series.
        checkpointer: keeps each refit of a federated method, and goes on after those that it has.

    Returns:
        The models, and what each refit cost: `time` from which it forecasts, `windows` it knew,
        `rounds`, `bytes_down`, `bytes_up` and `seconds`.
    """
    span, split = data.calendar.steps_in(SPANS[config.rolling.refit]), data.split
    since = np.arange(split.test[0] + span, split.test[-1] + 1, span)
    refit = _kept(checkpointer, _timed(_continue)) if config.federated else _timed(_again)
    models, costs = [fitted], []
    for cut in since:
        known = np.arange(split.train[0], cut + 1 - config.window.horizon)
        model, cost = refit(config, models[-1], data.until(cut), known)
        models.append(model)
        costs.append({"time": data.series.times[cut], "windows": len(known), **cost})
    return Rolling(models, since), pd.DataFrame(costs)


def _timed(refit: Refit) -> Refit:
    """The refit, which tells its `seconds` too."""

    def timed(*args: Any) -> tuple[Any, dict[str, Any]]:
        begin = time.perf_counter()
        model, cost = refit(*args)
        return model, {**cost, "seconds": time.perf_counter() - begin}

    return timed


def _kept(checkpointer: Checkpointer | None, refit: Refit) -> Refit:
    """The refit, done only where a run that was killed has not kept it."""
    if checkpointer is None:
        return refit

    def kept(
        config: Config, fitted: TrainedMethod, data: PreparedSeries, known: np.ndarray
    ) -> tuple[TrainedMethod, dict[str, Any]]:
        of = {"known": fingerprint({"z": torch.from_numpy(data.z)})}
        name = f"refit-{len(data.z)}"
        if found := checkpointer.load_extra(name, of):
            arrays = {name: t.numpy() for name, t in found.state.flat().items()}
            device = pick_device(config.run.device)
            snapshot = from_arrays(arrays, found.state.round, found.state.seed, device)
            return dataclasses.replace(fitted, snapshot=snapshot), found.notes
        model, cost = refit(config, fitted, data, known)
        checkpointer.save_extra(name, of, model.snapshot, cost)
        return model, cost

    return kept


def _again(
    config: Config, fitted: Predictor, data: PreparedSeries, known: np.ndarray
) -> tuple[Predictor, dict[str, Any]]:
    """A reference forecaster fitted to the windows that are known; it sends nothing."""
    return fit_baseline(config, data, known), {"rounds": 0, "bytes_down": 0, "bytes_up": 0}


def _continue(
    config: Config, fitted: TrainedMethod, data: PreparedSeries, known: np.ndarray
) -> tuple[TrainedMethod, dict[str, Any]]:
    """Further rounds on the windows that are known, and what they sent."""
    options = config.rolling
    method = copy.copy(fitted.method)
    lr = options.refit_lr or config.training.lr / 10
    method.training = dataclasses.replace(config.training, schedule="constant", lr=lr)
    federation = federate(config, method, data, train=known, validation=known[:0])
    federation.state = _resumed(fitted.snapshot, federation.state, method.training)
    for _ in range(options.refit_rounds):
        federation.run_round()
    reports = federation.reports
    cost = {
        "rounds": len(reports),
        "bytes_down": sum(r.bytes_down for r in reports),
        "bytes_up": sum(r.bytes_up for r in reports),
    }
    return dataclasses.replace(fitted, snapshot=federation.ready()), cost


def _resumed(state: State, fresh: State, training: Any) -> State:
    """The state with the sample sizes of new data; an optimiser whose moments are gone starts anew.

    The best round's state is kept without moments.
    """
    resumed = copy.deepcopy(state)
    resumed.clients.sizes = fresh.clients.sizes
    if not resumed.clients.moments:
        resumed.clients.moments = zero_moments(resumed.clients.params, training)
    return resumed
