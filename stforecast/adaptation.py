"""Adaptation of a fitted forecaster to cells that it has not seen.

The result forecasts the cells of the given history: those that the model knows with the part that
they have, new ones with the shared part and, after some days, a personal part
(`stforecast.new_clients`). Forecasters of all cells together forecast new ones as they are; those
that are fitted to each cell by itself are fitted to the new ones alone; those that tell their cells
apart are refused.

A new cell is scaled by the mean and deviation of its history. Without any reading it has the means
of those of the trained cells; a history that never changes has the mean of their deviations.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import numpy as np
import torch
from pydantic import NonNegativeFloat, NonNegativeInt

from data_prep.base.errors import InputError, Words
from stforecast.baselines.base import Baseline
from stforecast.config import Config
from stforecast.data.clients import one_per_cell
from stforecast.data.covariates import CovariateScaler
from stforecast.data.dates import DAY
from stforecast.data.prepared import PreparedSeries
from stforecast.data.scaling import Scaler, fit_scaler
from stforecast.data.series import Series
from stforecast.data.splits import Split
from stforecast.federated.core.options import CheckedOptions
from stforecast.fitting import fit_baseline
from stforecast.forecast_tables import reach
from stforecast.new_clients import fine_tuned, join
from stforecast.predictor import Predictor
from stforecast.rolling import Rolling
from stforecast.saved_forecaster import SavedForecaster
from stforecast.trained_method import TrainedMethod


@dataclass(frozen=True)
class AdaptOptions(CheckedOptions):
    """How new cells are trained.

    Attributes:
        days: days at the end of the history whose targets train a new cell's personal part; 0
            forecasts from the shared part at once.
        rounds: rounds of local training of a cell's personal part, such as the head of FedRep.
        fine_tune: epochs in which each new cell fits the global model to its own data, for methods
            that average one model; the result is a model of `fedavg_ft`.
    """

    days: NonNegativeFloat = 3.0
    rounds: NonNegativeInt = 10
    fine_tune: NonNegativeInt = 0


def adapt(model: SavedForecaster, series: Series, options: AdaptOptions) -> SavedForecaster:
    """Return a model of the cells of a history.

    Args:
        model: the fitted model.
        series: the history, of cells that the model knows and of others.
        options: how new cells are trained.

    Raises:
        InputError: if no cell is new, the history is too short, or the method cannot be adapted.
    """
    known = np.isin(series.cells, model.cells)
    if known.all():
        raise InputError(
            f"{series.name}: the model knows all of its {len(known)} cells, so there is nothing to "
            "adapt; forecast with the model as it is"
        )
    ids = np.empty(len(known), dtype=int)
    positions = {cell: i for i, cell in enumerate(model.cells.tolist())}
    ids[known] = [positions[cell] for cell in series.cells[known].tolist()]
    ids[~known] = len(model.cells) + np.arange((~known).sum())
    data = new_cells(model, series.select(series.cells[~known]), options.days)
    config, predictor = _adapted(model, data, ids, options)
    clients = predictor.clients if isinstance(predictor, TrainedMethod) else None
    non_negative = model.non_negative and not (data.series.values < 0).any()
    scaler = _joined_scaler(model, data.scaler, ids)
    calibration = model.calibration
    if calibration is not None:
        calibration = calibration.joined(ids)
    return dataclasses.replace(
        model, config=config, cells=series.cells, scaler=scaler, predictor=predictor,
        calibration=calibration, non_negative=non_negative, adapted=True,
        clients=clients or one_per_cell(series.cells),
    )  # fmt: skip


def new_cells(model: SavedForecaster, series: Series, days: float) -> PreparedSeries:
    """Return the series of new cells, scaled, with the last days as training part.

    Steps before the history count as missing, so each target of these days is a training target.

    Args:
        model: the fitted model.
        series: history of the new cells alone.
        days: days of training.

    Raises:
        InputError: if the history is shorter than the days, or these than the horizon.
    """
    config, n_steps = model.config, round(days * (DAY / model.step))
    held, horizon = len(series.values), config.window.horizon
    if n_steps > held:
        raise InputError(
            f"{series.name} has {held / (DAY / model.step):.3g} days, but days is {days:g}; ",
            Words("give a longer history or fewer {days}"),
        )
    if 0 < n_steps < horizon:
        raise InputError(
            f"days is {days:g}, less than the {horizon} steps that the model forecasts; ",
            Words("give more {days}, or 0 for none"),
        )
    scaler = _scaler(model, series)
    if series.covariates:
        whole, known = slice(0, held), model.scaler.covariates
        of_covariates = CovariateScaler.fit(series.covariates, whole, like=known)
        scaler = dataclasses.replace(scaler, covariates=of_covariates)
    if model.predictor.reads_windows:
        series = series.preceded(max(0, reach(model) - held + n_steps))
    elif n_steps:
        series = series.since(held - n_steps)
    end = len(series.values)
    starts = np.arange(end - n_steps, end - horizon + 1) if n_steps else np.arange(0)
    split = Split(starts, starts[:0], starts[:0], slice(end - n_steps, end))
    z, clients = scaler.transform(series.values), one_per_cell(series.cells)
    return PreparedSeries(series, config.window, split, scaler, z, clients)


def _scaler(model: SavedForecaster, series: Series) -> Scaler:
    """Return the scaler of new cells; see the module's docstring."""
    if model.config.data.scale == "global":
        return model.scaler
    values, n_cells = series.values, len(series.cells)
    mean, std = (np.full(n_cells, v.mean()) for v in (model.scaler.mean, model.scaler.std))
    seen = ~np.isnan(values).all(axis=0)
    if seen.any():
        own = fit_scaler(values[:, seen], slice(0, len(values)))
        changes = np.nanmax(values[:, seen], axis=0) > np.nanmin(values[:, seen], axis=0)
        mean[seen], std[seen] = own.mean, np.where(changes, own.std, std[seen])
    return dataclasses.replace(model.scaler, mean=mean, std=std, covariates=None)


def _joined_scaler(model: SavedForecaster, new: Scaler, ids: np.ndarray) -> Scaler:
    old, covariates = model.scaler, None
    if old.covariates and new.covariates:
        covariates = old.covariates.joined(new.covariates, ids)
    if model.config.data.scale == "global":
        return dataclasses.replace(old, covariates=covariates)
    mean, std = np.append(old.mean, new.mean)[ids], np.append(old.std, new.std)[ids]
    return dataclasses.replace(old, mean=mean, std=std, covariates=covariates)


def _adapted(
    model: SavedForecaster, data: PreparedSeries, ids: np.ndarray, options: AdaptOptions
) -> tuple[Config, Predictor]:
    """Return the settings and the predictor of the cells `ids`."""
    predictor = model.predictor
    if isinstance(predictor, Rolling):
        predictor = predictor.models[-1]
    if isinstance(predictor, TrainedMethod):
        if options.fine_tune:
            if not options.days:
                raise InputError(
                    Words("fine_tune needs days of history; give {days}, or leave it out")
                )
            predictor = fine_tuned(predictor, options.fine_tune)
        joined = join(predictor, data, torch.from_numpy(ids), options.rounds)
        return joined.config, joined
    if options.fine_tune:
        raise InputError(
            f"{model.config.method} is not trained in rounds; ", Words("leave out {fine_tune}")
        )
    assert isinstance(predictor, Baseline)
    return model.config, _adapted_baseline(predictor, model.config, data, ids)


def _adapted_baseline(
    baseline: Baseline, config: Config, data: PreparedSeries, ids: np.ndarray
) -> Baseline:
    if baseline.knows_cells:
        raise InputError(
            f"{baseline.name} distinguishes its cells, so it cannot be adapted to new ones; fit it "
            "again with them"
        )
    if not baseline.of_cells:
        return baseline
    if not len(data.split.train):
        raise InputError(
            f"{baseline.name} fits each cell by itself, so new cells need days of history; ",
            Words("give {days}"),
        )
    fitted = fit_baseline(config, data, data.split.train)
    n_new = len(data.series.cells)
    only_new = len(ids) == n_new
    return fitted if only_new else baseline.joined(fitted, ids)
