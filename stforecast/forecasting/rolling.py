"""Refits on newer data, before the test part, within it or after it.

A reference forecaster is fitted again, and a federated method trains some further rounds from its
current state, both on every window whose targets are known by then, including those of the
validation part. With `once`, that is before the test part; with `final`, also after it, for the
forecast of what follows; with `daily` and `weekly`, before each day or week of it except the first.
The scaling stays that of the training part, and bounds are calibrated on the errors of the model
before. The costs of refits are reported with the errors. A killed run resumes after its last refit.
"""

from __future__ import annotations

import copy
import dataclasses
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import torch

from stforecast.baselines.base import Baseline
from stforecast.data.clock import Calendar
from stforecast.data.prepared import PreparedSeries
from stforecast.federated.engine.sizing import pick_device
from stforecast.federated.engine.trainer import Trainer
from stforecast.federated.nodes.received import server_alone
from stforecast.federated.runs.checkpoint import fingerprint
from stforecast.federated.runs.model_files import from_arrays
from stforecast.federated.runs.unfinished_run import Checkpointer
from stforecast.federated.uploads.uplink import Sent, count_uploads
from stforecast.forecasting.config import Config
from stforecast.forecasting.fit import Predictor, fit_baseline
from stforecast.forecasting.new_cells import expected_week
from stforecast.forecasting.trained_method import (
    TrainedMethod,
    build_method,
    cells_of_clients,
    federate,
    trainers,
)
from stforecast.methods.mixing import EXPECTED, WEEK

SPANS = {"daily": pd.Timedelta(days=1), "weekly": pd.Timedelta(days=7)}
"""Time between two refits within the test part."""

Refit = Callable[[Config, Any, PreparedSeries, np.ndarray], tuple[Any, dict[str, Any]]]
"""Function of the settings, the latest model, the series and the known windows; returns the
refitted model and its costs."""


@dataclass(frozen=True, eq=False)
class Rolling:
    """A model and its successive refits; a `stforecast.forecasting.fit.Predictor`.

    Attributes:
        models: the trained model, then each refit of it.
        since: `(models - 1,)` first target step of each refit in the fitted data, increasing.
        start: time of step 0 of these data; another history may begin later.
    """

    models: Sequence[Predictor]
    since: np.ndarray
    start: pd.Timestamp

    @property
    def levels(self) -> tuple[float, ...]:
        """Levels of the quantiles that the models forecast."""
        return self.models[0].levels

    @property
    def reads_windows(self) -> bool:
        """True if the models read the inputs of windows."""
        return self.models[0].reads_windows

    @property
    def round(self) -> int:
        """Round of the latest model."""
        return self.models[-1].round

    def state(self) -> dict[str, np.ndarray]:
        """Return the state of the latest model, since a saved one forecasts after the data."""
        return self.models[-1].state()

    def of_cells(self, some: slice) -> Rolling:
        """Return what forecasts some cells, see `TrainedMethod.of_cells`."""
        of_some = [m.of_cells(some) if isinstance(m, TrainedMethod) else m for m in self.models]
        return dataclasses.replace(self, models=of_some)

    def release(self) -> None:
        """Take what models hold in files out of the memory, until it is read again."""
        for model in self.models:
            if isinstance(model, TrainedMethod):
                model.release()

    def predict(self, series: np.ndarray, starts: np.ndarray, calendar: Calendar) -> np.ndarray:
        """Forecast `(cells, windows, horizon)`, each window by the latest model at its start."""
        return self._each("predict", series, np.asarray(starts), calendar)

    def quantiles(self, series: np.ndarray, starts: np.ndarray, calendar: Calendar) -> np.ndarray:
        """Forecast quantiles `(cells, windows, horizon, levels)` as in `predict`."""
        return self._each("quantiles", series, np.asarray(starts), calendar)

    def _each(
        self, what: str, series: np.ndarray, starts: np.ndarray, calendar: Calendar
    ) -> np.ndarray:
        later = round((calendar.start - self.start) / calendar.step)
        turn = np.searchsorted(self.since, starts + later, side="right")
        parts = {
            i: getattr(self.models[i], what)(series, starts[turn == i], calendar)
            for i in np.unique(turn)
        }
        first = next(iter(parts.values()))
        if len(parts) == 1:
            return np.asarray(first)
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
    """Refit a model as the settings say; return the models, and the costs of each refit."""
    since = cuts(config.rolling.refit, data)
    models, costs = [fitted], []
    with trainers(config, len(data.clients)) as make_trainer:
        further = _kept(checkpointer, _timed(partial(go_on, make_trainer=make_trainer)))
        refit = further if config.federated else _timed(fit_again)
        for cut in since:
            known = known_windows(data, cut)
            model, cost = refit(config, models[-1], data.until(cut), known)
            models.append(model)
            time = data.series.times[cut - 1] + data.calendar.step
            costs.append({"time": time, "windows": len(known), **cost})
    return Rolling(models, since, data.calendar.start), pd.DataFrame(costs)


def known_windows(data: PreparedSeries, cut: int) -> np.ndarray:
    """Return the first target steps of all windows since the training part that end by a step."""
    return np.arange(data.split.train[0], cut + 1 - data.window.horizon)


def cuts(refit: str, data: PreparedSeries) -> np.ndarray:
    """Return the steps before which a model is refitted, increasing."""
    split = data.split
    if refit in SPANS:
        span = data.calendar.steps_in(SPANS[refit])
        return np.arange(split.test[0] + span, split.test[-1] + 1, span)
    before = [split.test[0]] if len(split.validation) else []  # Without one, nothing is new.
    return np.array([*before, *([len(data.z)] if refit == "final" else [])], dtype=int)


def _timed(refit: Refit) -> Refit:
    """Wrap a refit so that it also reports its `seconds`."""

    def timed(*args: Any) -> tuple[Any, dict[str, Any]]:
        begin = time.perf_counter()
        model, cost = refit(*args)
        return model, {**cost, "seconds": time.perf_counter() - begin}

    return timed


def _kept(checkpointer: Checkpointer | None, refit: Refit) -> Refit:
    """Wrap a refit so that a resumed run loads it if it was saved."""
    if checkpointer is None:
        return refit

    def kept(
        config: Config, fitted: TrainedMethod, data: PreparedSeries, known: np.ndarray
    ) -> tuple[TrainedMethod, dict[str, Any]]:
        of = {"known": fingerprint({"z": torch.from_numpy(data.z)})}
        name = f"refit-{len(data.z)}"
        if found := checkpointer.load_extra(name, of):
            sends = found.notes["bytes_up"] > 0
            count_uploads(Sent(config.uplink, found.notes["rounds"] * sends))
            arrays = {name: t.numpy() for name, t in found.state.flat().items()}
            device = pick_device(config.run.device)
            snapshot = from_arrays(arrays, found.state.round, found.state.seed, device)
            return fitted.refitted(snapshot), found.notes
        model, cost = refit(config, fitted, data, known)
        checkpointer.save_extra(name, of, model.snapshot, cost)
        return model, cost

    return kept


def fit_again(
    config: Config, fitted: Baseline, data: PreparedSeries, known: np.ndarray
) -> tuple[Predictor, dict[str, Any]]:
    """Fit a reference forecaster to the known windows; it sends nothing."""
    config = dataclasses.replace(config, method_options=fitted.options_of_refit)
    return fit_baseline(config, data, known), {"rounds": 0, "bytes_down": 0, "bytes_up": 0}


def go_on(
    config: Config,
    fitted: TrainedMethod,
    data: PreparedSeries,
    known: np.ndarray,
    make_trainer: Callable[..., Trainer] = Trainer,
) -> tuple[TrainedMethod, dict[str, Any]]:
    """Train further rounds on the known windows; return the method and its traffic.

    A saved model lacks what prediction does not need: copies of the shared model are received
    again, other memory and the optimiser begin anew. The clients of a node go on among themselves.
    """
    options, snapshot = config.rolling, fitted.snapshot
    own = build_method(config, cells_of_clients(config, data)) if fitted.of_node else None
    method = copy.copy(own or fitted.method)
    method.training = config.training.further
    federation = federate(config, method, data, known, known[:0], make_trainer)
    if own:
        server = server_alone(method, federation.state, snapshot.server)
        snapshot = dataclasses.replace(snapshot, server=server)
    state = federation.state = federation.trainer.with_new_samples(snapshot)
    if method.sums_first:
        state.round = 0
        federation.run_round()
        state.round = fitted.round
    for _ in range(options.refit_rounds):
        federation.run_round()
    ready, reports = federation.ready(), federation.reports
    if EXPECTED in (memory := fitted.snapshot.clients.memory):
        # A cell that was new also reads its later readings; they may all be in a trial.
        week, before = ready.server[WEEK], memory[EXPECTED]
        now = torch.from_numpy(expected_week(data.z, data.calendar, week.cpu().numpy()))
        renewed = before.any(dim=1, keepdim=True) & now.to(before).any(dim=1, keepdim=True)
        ready.clients.memory[EXPECTED] = torch.where(renewed, now.to(before), before)
    cost = {
        "rounds": len(reports),
        "bytes_down": sum(r.bytes_down for r in reports),
        "bytes_up": sum(r.bytes_up for r in reports),
    }
    return fitted.refitted(ready, own), cost
