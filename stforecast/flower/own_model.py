"""A node's own model: checked on the node's newest data before it is used, and trained alone.

The check is that of 3GPP TS 23.288 (6.2F), in which a client of federated learning tests a model
with its own data. Here no result leaves the node.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np

from data_prep.base.errors import InputError, Words, some
from stforecast.bench.statistics.estimate import with_ends
from stforecast.federated.runs.model_files import model_folder
from stforecast.forecasting.forecaster import Forecaster
from stforecast.forecasting.model import FittedModel
from stforecast.forecasting.update import begin_of, trained_until, trial_steps
from stforecast.service.scores import rounded, scores
from stforecast.service.update import FURTHER, KEPT, compare_models, trial_forecasts


def check_model(
    model: str | os.PathLike[str], data: str | os.PathLike[str], days: float, most_mase: float
) -> dict[str, Any]:
    """Return a model's errors on the last days of a node's data, and whether it is `accepted`.

    It is if its MASE over all cells is at most `most_mase`: 1 is the error of the day before.

    Raises:
        InputError: if the data are too short, or lack a cell, or no error can be computed.
    """
    fitted = FittedModel.load(Path(model), device="cpu")
    series = fitted.read(data)
    n_steps = trial_steps(fitted, series, days)
    forecasts = trial_forecasts(fitted, series, n_steps)
    found, by_cell = scores(forecasts), scores(forecasts, by_cell=True).mase
    if not np.isfinite(found.mase):
        raise InputError(
            f"{data}: no value of the last {n_steps} steps can be scored; ",
            Words("give data with readings at their end, or more {days}"),
        )
    worse = fitted.cells[by_cell > most_mase]
    return {
        "accepted": bool(found.mase <= most_mase),
        "most_mase": most_mase,
        **rounded(found),
        "steps": n_steps,
        "until": str(begin_of(series, 0)),
        "seen_in_training": bool(trained_until(fitted) >= begin_of(series, n_steps)),
        "cells": len(fitted.cells),
        "cells_worse": len(worse),
        "worse": some(worse.tolist()),
    }


def train_alone(
    model: str | os.PathLike[str], data: str | os.PathLike[str], days: float, level: float
) -> dict[str, Any]:
    """Train a node's model some rounds further on its own data; replace it if that is better.

    The last days are left out of training. The new model must have a lower MASE on them, beyond an
    interval over the days; then it learns them, too.

    Raises:
        InputError: if the data are too short, or the model was trained on the last days.
    """
    forecaster = Forecaster.load(model)
    series = forecaster.read(data)
    n_steps = trial_steps(forecaster.model_, series, days)
    begin, last = begin_of(series, n_steps), trained_until(forecaster.model_)
    if last >= begin:
        raise InputError(
            f"{data}: the model was trained until {last}, so it cannot be tried on the days from "
            f"{begin}; ",
            Words("give newer data, or fewer {days}"),
        )
    renewed = forecaster.update(data, FURTHER, days)
    both = {"champion": forecaster.model_, "challenger": renewed.model_}
    against, mase = compare_models(both, series, n_steps, level)
    won = against.high < 0
    if won:
        renewed.learn_all(series).save(model_folder(Path(model)))
    return {
        "action": FURTHER if won else KEPT,
        "mase": mase,
        **with_ends({"against_champion": against}),
        "steps": n_steps,
        "until": str(begin_of(series, 0)),
    }
