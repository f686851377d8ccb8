"""Renewal of a fitted model with a newer history: calibrated, trained further, or trained anew.

The last steps of the history are a trial. No renewed model is trained on them: they show whether it
forecasts better than the model in use, and calibrate its bounds. The first half of the trial is
what is known when the second begins, see `stforecast.intervals.calibration`.
"""

from __future__ import annotations

import dataclasses
from typing import Literal

import numpy as np
import pandas as pd

from data_prep.base.errors import InputError, Words
from stforecast.data.dates import DAY
from stforecast.data.prepared import PreparedSeries
from stforecast.data.series import Series
from stforecast.data.splits import Split, training_start
from stforecast.forecasting.evaluate import Evaluation
from stforecast.forecasting.model import FittedModel
from stforecast.forecasting.rolling import Refit, fit_again, go_on

How = Literal["calibrated", "trained further", "trained anew"]
"""Ways to renew a model."""

LEAST_HORIZONS = 4
"""Length of a trial in horizons, at least: its first half must hold windows before the second."""


def trial_steps(model: FittedModel, series: Series, days: float) -> int:
    """Return the steps of a trial of about so many days, before which the model can be trained.

    Raises:
        InputError: if the history is too short for it.
    """
    horizon = model.config.window.horizon
    n_steps = max(round(days * (DAY / model.step)), LEAST_HORIZONS * horizon)
    needed = n_steps + model.reach + horizon
    if len(series.values) < needed:
        raise InputError(
            f"{series.name} has {len(series.values)} steps, a trial of {n_steps} steps needs "
            f"{needed}; ",
            Words("give a longer history, or fewer {days} (trial_days of service.toml)"),
        )
    return n_steps


def begin_of(series: Series, n_steps: int) -> pd.Timestamp:
    """Return the local time at which the last steps begin; of none, at which the series ends."""
    return series.calendar.local_times(np.array([len(series.values) - n_steps]))[0]


def trained_until(model: FittedModel) -> pd.Timestamp:
    """Return the local time of the last step that the model was trained on."""
    return pd.Timestamp(model.trained_on.get("last", "1970-01-01"))


def in_trial(model: FittedModel, series: Series, n_steps: int) -> PreparedSeries:
    """Return a history whose validation and test part are the halves of a trial."""
    n, horizon = len(series.values), model.config.window.horizon
    begin, half = n - n_steps, n - n_steps // 2
    starts = np.arange(max(begin, model.reach), n - horizon + 1)
    validation, test = starts[starts < half], starts[starts >= half]
    split = Split(starts[:0], validation, test, slice(0, max(begin, 1)))
    return model.prepared(series, split)


def calibrated(model: FittedModel, series: Series, n_steps: int) -> FittedModel:
    """Return the model with bounds calibrated on the last steps of a history.

    They narrow at most halfway from those before, see `Calibration.renewed`.
    """
    if not model.config.has_intervals:
        return model
    data = in_trial(model, series, n_steps)
    newer = Evaluation(dataclasses.replace(model, calibration=None), data).calibration()
    before = model.calibration
    return dataclasses.replace(model, calibration=before.renewed(newer) if before else newer)


def with_bounds_of(older: FittedModel, model: FittedModel) -> FittedModel:
    """Return a model trained anew with older bounds of cells of which it saw too few errors."""
    own, known = model.calibration, older.calibration
    if not (own and known) or not np.array_equal(model.cells, older.cells):
        return model
    unit = (older.scaler.std / model.scaler.std).reshape(-1, 1, 1)
    return dataclasses.replace(model, calibration=own.completed(known, unit))


def trained_further(model: FittedModel, series: Series, n_steps: int) -> FittedModel:
    """Return the model after some rounds from its present weights, on all but the last steps.

    Shared and personal parts go on; the scaling stays. A forecaster without rounds is fitted again.
    If no step is left out, its bounds stay those that were calibrated before.
    """
    stop, config, window = len(series.values) - n_steps, model.config, model.config.window
    local_times = series.calendar.local_times(np.arange(len(series.values)))
    first = training_start(local_times, model.step, window)(range(stop))
    known = np.arange(first, stop + 1 - window.horizon)
    if not len(known):
        raise InputError(
            f"{series.name}: no window to train on before the last {n_steps} steps; ",
            Words("give a longer history, or fewer {days} (trial_days of service.toml)"),
        )
    split = Split(known, known[:0], known[:0], slice(0, stop))
    data = model.prepared(series, split).until(stop)
    train: Refit = go_on if config.federated else fit_again
    trained, _ = train(config, model.latest, data, known)
    about = {**model.trained_on, "last": str(local_times[stop - 1])}
    further = dataclasses.replace(model, predictor=trained, trained_on=about)
    return calibrated(further, series, n_steps) if n_steps else further


def split_before(series: Series, n_steps: int) -> str:
    """Return the split whose test part is a trial, with a validation part of half its length."""
    n, half = len(series.values), n_steps // 2
    return f"time:{n - n_steps - half}/{n},{half}/{n},{n_steps}/{n}"
