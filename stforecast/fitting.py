"""Fitting and restoring of the configured method, federated or not."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import pandas as pd

from stforecast.baselines import BASELINES
from stforecast.baselines.base import Baseline
from stforecast.config import Config
from stforecast.data.prepared import PreparedSeries
from stforecast.federated.runs.checkpointing import Checkpointer
from stforecast.federated.runs.saving import check_finite
from stforecast.federated.server import RoundReport
from stforecast.predictor import Predictor
from stforecast.trained_method import TrainedMethod, train


def fit(
    config: Config,
    data: PreparedSeries,
    after_round: Callable[[RoundReport], None] | None = None,
    checkpointer: Checkpointer | None = None,
) -> tuple[dict[str, Predictor], pd.DataFrame]:
    """Fit the configured method to the training part.

    Args:
        config: settings.
        data: the series.
        after_round: called with each round's report.
        checkpointer: writes checkpoints and resumes from the newest one.

    Returns:
        The predictor of each selection, `last` and `best` and those of a method's other models; and
        a table with one row per round, empty without rounds.
    """
    if config.federated:
        trained, federation = train(config, data, after_round, checkpointer)
        return dict(trained), pd.DataFrame(federation.history())
    baseline = fit_baseline(config, data, data.split.train)
    return {"last": baseline, "best": baseline}, pd.DataFrame()


def fit_baseline(config: Config, data: PreparedSeries, starts: np.ndarray) -> Baseline:
    """Fit the configured reference forecaster to the windows with these first target steps.

    One that reads the whole series does not see the steps before the training part.
    """
    baseline = BASELINES[config.method](config.method_options, config.run.seed)
    series = data.z
    if not baseline.reads_windows:
        series = series.copy()
        series[: data.split.fit.start] = np.nan
    return baseline.fit(series, starts, config.window, data.calendar)


def restore(config: Config, state: Mapping[str, np.ndarray], round: int, n_cells: int) -> Predictor:
    """Restore a predictor from its `state`.

    Args:
        config: settings that it was fitted with.
        state: arrays returned by its `state`.
        round: round of the state.
        n_cells: number of cells it was fitted on.

    Raises:
        InputError: if the state does not fit the settings.
    """
    if config.federated:
        return TrainedMethod.from_state(config, state, round, n_cells)
    check_finite(state)
    baseline = BASELINES[config.method]
    return baseline.from_state(state, config.window, config.method_options)
