"""Fitting and restoring of the configured method, federated or not, as a predictor.

Predictors are trained federated methods, reference forecasters and refitted models.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import pandas as pd

from data_prep.base.errors import InputError, Words, counted
from data_prep.notices import warn_of_oddities
from stforecast.baselines import BASELINES
from stforecast.baselines.base import Baseline
from stforecast.data.anchors import CHOSEN, LEVEL, targets
from stforecast.data.clients import Partition
from stforecast.data.clock import Calendar
from stforecast.data.cubes import Data
from stforecast.data.dates import period_warning
from stforecast.data.prepared import PreparedSeries, prepare
from stforecast.data.scaling import warn_of_wild
from stforecast.data.series import as_series
from stforecast.data.windows import target_windows
from stforecast.federated.runs.model_files import check_finite_arrays
from stforecast.federated.runs.unfinished_run import AfterRound, Checkpointer
from stforecast.forecasting import history
from stforecast.forecasting.config import Config, check_covariates, reads_target
from stforecast.forecasting.trained_method import TrainedMethod, train

log = logging.getLogger(__name__)


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

        Arguments and result are those of `stforecast.baselines.base.Baseline.predict`.
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


@dataclass(frozen=True, eq=False)
class Fitted:
    """A fitted method.

    Attributes:
        config: settings with those that were chosen on the validation part.
        data: the series, with windows of these settings.
        predictors: the predictor of each selection, `last` and `best` and those of a method's other
            models.
        rounds: table with one row per round, empty without rounds.
    """

    config: Config
    data: PreparedSeries
    predictors: dict[str, Predictor]
    rounds: pd.DataFrame

    @property
    def validation_mse(self) -> float:
        """MSE of the selected predictor on the validation part."""
        data = self.data
        y, mask = target_windows(data.learnt, data.split.validation, data.window)
        chosen = self.predictors[self.config.run.select]
        y_hat = chosen.predict(data.z, data.split.validation, data.calendar)
        return float(np.square((y_hat - y)[mask], dtype=np.float64).mean())


def prepare_series(asked: Config, data: Data) -> tuple[Config, PreparedSeries]:
    """Read, split and scale data for a fit, with settings in their steps; warn of odd values."""
    check_covariates(asked)
    series = as_series(data, asked.data.service, asked.window).ordered()
    if table := asked.window.events:
        series = series.with_events(table)
    step = series.calendar.step
    config = asked.at(step)
    if warning := period_warning(step, config.window.period):
        log.warning(warning)
    own = config.data
    prepared = prepare(
        series, config.window, own.split, own.scale, config.clients, own.outliers, config.run.seed
    )
    config = dataclasses.replace(config, window=prepared.window).for_cells(len(series.cells))
    if config.training.rounds != asked.training.rounds:
        log.info(
            "rounds: %d instead of %d for %s, see rounds_per_cell",
            config.training.rounds,
            asked.training.rounds,
            counted(len(series.cells), "cell"),
        )
    times = series.calendar.local_times(np.arange(len(series.values)))
    name = f"{series.name}: {series.service}"
    warn_of_oddities(series.values, times, series.cells, name, series.units)
    history.warn_of_constants(series, prepared.split.fit)
    history.warn_of_values_outside(series, config.data.limits(non_negative=False))
    warn_of_wild(prepared.scaler, series.values, times, series.cells, series.name)
    history.warn_of_outliers(prepared)
    check_calibration(config, prepared)
    return config, prepared


def check_calibration(config: Config, data: PreparedSeries) -> None:
    """Check that there are windows to calibrate intervals on, if the settings ask for these."""
    if config.interval.intervals != "none" and not len(data.calibration):
        raise InputError(
            f"intervals are calibrated on the validation part: split {config.data.split} has none "
            "long enough; ",
            Words("choose another {split}, or {intervals:none}"),
        )


def fit(
    config: Config,
    data: PreparedSeries,
    after_round: AfterRound | None = None,
    checkpointer: Checkpointer | None = None,
) -> Fitted:
    """Fit the configured method to the training part.

    With the target `validation`, it is fitted with each target and the one of the lowest validation
    MSE is kept, of several the first of `targets`.
    """
    if not reads_target(config.method):
        return _fit(config.with_target(LEVEL), data, after_round, checkpointer)
    if config.window.target != CHOSEN:
        return _fit(config, data, after_round, checkpointer)
    if not data.validation_targets[1].any():
        raise InputError(
            f"target is {CHOSEN!r}, but split {config.data.split} has no observed validation "
            "target; ",
            Words("choose another {split}, or a {target}"),
        )
    found = []
    for target in targets(data.calendar.step):
        with checkpointer.part(f"target-{target}") if checkpointer else nullcontext():
            found.append(_fit(config.with_target(target), data, after_round, checkpointer))
    errors = [fitted.validation_mse for fitted in found]
    best = found[int(np.argmin(np.nan_to_num(errors, nan=np.inf)))]
    log.info(
        "target: %s, by the validation MSE (%s)",
        best.config.window.target,
        ", ".join(f"{f.config.window.target} {e:.4f}" for f, e in zip(found, errors, strict=True)),
    )
    return best


def _fit(
    config: Config,
    data: PreparedSeries,
    after_round: AfterRound | None,
    checkpointer: Checkpointer | None,
) -> Fitted:
    """Fit the configured method with a given target."""
    data = dataclasses.replace(data, window=config.window)
    if config.federated:
        trained, federation = train(config, data, after_round, checkpointer)
        # The windows of the training are not cut again: what they are cut from takes gigabytes.
        data = dataclasses.replace(data)
        return Fitted(config, data, dict(trained), pd.DataFrame(federation.history()))
    baseline = fit_baseline(config, data, data.split.train, data.split.validation)
    return Fitted(config, data, {"last": baseline, "best": baseline}, pd.DataFrame())


def fit_baseline(
    config: Config, data: PreparedSeries, starts: np.ndarray, validation: np.ndarray | None = None
) -> Baseline:
    """Fit the configured reference forecaster to windows, and choose by validation windows.

    One that reads the whole series does not see the steps before the training part.
    """
    baseline = BASELINES[config.method](config.method_options, config.run.seed)
    series = data.learnt
    if not baseline.reads_windows:
        series = series.copy()
        series[: data.split.fit.start] = np.nan
    roads = data.series.adjacency
    return baseline.fit(series, starts, config.window, data.calendar, roads, validation)


def restore_predictor(
    config: Config, state: Mapping[str, np.ndarray], round: int, clients: Partition
) -> Predictor:
    """Restore a predictor from its `state`, the arrays after a round; see `from_state` of each."""
    if config.federated:
        return TrainedMethod.from_state(config, state, round, clients)
    check_finite_arrays(state)
    baseline = BASELINES[config.method]
    return baseline.from_state(state, config.window, config.method_options)
