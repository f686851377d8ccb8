"""Adaptation of a fitted model to cells that it has not seen.

The result forecasts the cells of the given history: those that the model knows with the part that
they have, new ones with the shared part and, after some days, a personal part. Models of all cells
together forecast new ones as they are; those that are fitted to each cell by itself are fitted to
the new ones alone; those that tell their cells apart are refused.

A new client of a federated method receives what the server sent last. What clients keep to
themselves starts from its mean over the trained clients, which takes one more average of all. The
method's own local update then trains it; the shared part stays as it is, and nothing is sent. Where
nothing is shared, as with `solo`, a new client starts from the initial weights and trains for as
many rounds as the others did.

A new cell is scaled by the mean and deviation of its history. Without any reading it has the means
of those of the trained cells; a history that never changes has the mean of their deviations.
"""

from __future__ import annotations

import copy
import dataclasses
import logging
from dataclasses import dataclass

import numpy as np
import torch
from pydantic import NonNegativeFloat, NonNegativeInt
from torch import Tensor

from data_prep.base.errors import InputError, Words
from stforecast.baselines.base import Baseline
from stforecast.data.clients import Partition, one_per_cell
from stforecast.data.covariates import CovariateScaler
from stforecast.data.dates import DAY
from stforecast.data.outliers import Bounds
from stforecast.data.prepared import PreparedSeries
from stforecast.data.scaling import Scaler, fit_scaler
from stforecast.data.series import Series, cells_as_text
from stforecast.data.splits import Split
from stforecast.federated.core.method import Method, initial_state
from stforecast.federated.core.options import CheckedOptions
from stforecast.federated.core.state import Clients, Participants, State
from stforecast.federated.core.tensors import Params, Payload
from stforecast.federated.engine.sizing import pick_device
from stforecast.federated.engine.trainer import Trainer
from stforecast.federated.methods.fedavg_ft import FedAvgFT, FedAvgFTOptions
from stforecast.federated.methods.two_models import PERSONAL
from stforecast.forecasting.config import Config
from stforecast.forecasting.fit import Predictor, fit_baseline
from stforecast.forecasting.model import FittedModel
from stforecast.forecasting.new_cells import expected_week
from stforecast.forecasting.trained_method import TrainedMethod, build_method, client_samples
from stforecast.methods.mixing import EXPECTED, WEEK
from stforecast.models import MODELS
from stforecast.models.mixed import Mixed

log = logging.getLogger(__name__)

NEW = -1
"""Id of a client that the server has not seen."""


def _join(trained: TrainedMethod, data: PreparedSeries, ids: Tensor, rounds: int) -> TrainedMethod:
    """Return the method for `ids`: positions among the trained clients, followed by the new ones.

    The new are trained for `rounds` updates of what a client keeps, unless they have no windows.
    """
    if trained.config.clients == "all":
        if hasattr(MODELS[trained.config.run.model], "of_cells"):
            raise InputError(
                f"{trained.config.run.model} on pooled data distinguishes its cells, so it cannot "
                "be adapted to new ones; train it again with them"
            )
        return dataclasses.replace(trained, clients=Partition.from_labels(["all"] * len(ids)))
    if trained.config.clients != "cell":
        raise InputError(
            f"clients is {trained.config.clients!r}: only a model whose clients are single cells, "
            "or all cells in one, can be adapted; train again with the new cells"
        )
    if trained.config.run.model == Mixed.name:
        raise InputError("clients have different models; train again to choose the new cells' own")
    state, n_new = trained.snapshot, len(data.series.cells)
    n_old, method = len(state.clients), copy.copy(trained.method)
    method.training = dataclasses.replace(method.training, schedule="constant")
    everyone = torch.cat([torch.full((n_new,), NEW), torch.arange(n_old)])
    server = method.server_for(state.server, everyone)
    sizes = state.clients.sizes[:1].expand(n_new)
    received = method.broadcast(server, Participants(torch.arange(n_new), sizes, state.round))
    if not received:
        rounds = trained.config.training.rounds
    started = _started(method, state, received, n_new, trained.config)
    own = method.keeps_own or kept(method, started, received)
    if len(data.split.train) and (own or method.personalises):
        started = _trained(trained, method, data, started, server, rounds if own else 0)
    elif not received:
        raise InputError(
            f"{method.name} shares nothing, so new cells need days of history to train"
        )
    all_ids = torch.where(ids < n_old, ids, NEW)
    clients = _rows(state.clients, started, ids)
    if WEEK in received:
        week = received[WEEK][0]
        expected = expected_week(data.z, data.calendar, week.cpu().numpy())
        known = state.clients.memory.get(EXPECTED, week.new_zeros(n_old, len(week)))
        clients.memory[EXPECTED] = torch.cat([known, torch.from_numpy(expected).to(week)])[ids]
    server = method.server_for(state.server, all_ids)
    return dataclasses.replace(
        trained,
        snapshot=State(clients, server, state.round, state.seed),
        clients=one_per_cell(ids.numpy()),
        former=trained.former and _join(trained.former, data, ids, rounds),
    )


def kept(method: Method, clients: Clients, received: Payload) -> list[str]:
    """Return the names of what a client trains and never sends."""
    names = [name for name in clients.params if name not in received]
    names += [name for name in clients.memory if name.startswith(PERSONAL)]
    if method.views == ("global",):
        return [name for name in names if name.startswith(method.population.model.own)]
    return names


def _started(
    method: Method, state: State, received: Payload, n_new: int, config: Config
) -> Clients:
    """Return new clients before their training."""
    device = pick_device(config.run.device)
    sizes = state.clients.sizes[:1].repeat(n_new)
    clients = initial_state(method, sizes, state.seed, device).clients
    clients.memory |= method.fitted_memory(n_new, device)
    trained = dict(state.clients.groups())
    for group, tensors in clients.groups():
        for name, t in tensors.items():
            old = trained[group].get(name, t[:0])
            if group != "memory" and name in received:
                tensors[name] = received[name].clone()
            elif received and len(old) and old.is_floating_point() and old.shape[1:] == t.shape[1:]:
                tensors[name] = old.mean(0, keepdim=True).expand_as(t).clone()
            else:
                tensors[name] = t.clone()
    return clients


def _trained(
    trained: TrainedMethod,
    method: Method,
    data: PreparedSeries,
    started: Clients,
    server: Params,
    rounds: int,
) -> Clients:
    """Train new clients for some rounds, then let them personalise."""
    run, state = trained.config.run, trained.snapshot
    share = len(data.split.train) / float(state.clients.sizes.float().mean())
    if hasattr(method, "for_share"):
        method = method.for_share(share)
    samples, _ = client_samples(method, data, data.split.train, data.split.validation)
    trainer = Trainer(
        method, samples, seed=state.seed, device=pick_device(run.device),
        cohort_size=run.cohort or None, workers=run.workers or torch.get_num_threads(),
    )  # fmt: skip
    own = dict(trainer.state.clients.groups())
    for group, tensors in started.groups():
        for name, t in tensors.items():
            if name in own[group] and own[group][name].shape == t.shape:
                own[group][name].copy_(t)
    trainer.receive(server, state.round)
    everyone = torch.arange(len(trainer))
    for _ in range(rounds):
        if failed := trainer.train(everyone).failed:
            cells = data.series.cells[sorted(failed)]
            log.warning(
                "the training of new cells, such as %s, diverged and was left out", cells[0]
            )
        trainer.state.round += 1
    return trainer.ready().clients


def _rows(old: Clients, new: Clients, ids: Tensor) -> Clients:
    """Return some of the old clients and of the new ones, without memory of samples."""

    def joined(old: Params, new: Params) -> Params:
        names = [n for n, t in old.items() if n in new and new[n].shape[1:] == t.shape[1:]]
        return {n: torch.cat([old[n], new[n].to(old[n])])[ids] for n in names}

    return Clients(
        joined(old.params, new.params),
        joined(old.buffers, new.buffers),
        {},
        torch.cat([old.sizes, new.sizes])[ids],
        joined(old.memory, new.memory),
    )


def fine_tuned(trained: TrainedMethod, epochs: int) -> TrainedMethod:
    """Return a method with one global model as `fedavg_ft`: new clients fit it, others keep it."""
    method, state = trained.method, trained.snapshot
    received = method.broadcast(state.server, state.participants())
    names = set(method.population.names)
    one_model = method.views == ("global",) and names <= received.keys()
    if trained.config.clients != "cell" or not one_model:
        raise InputError(
            f"{method.name} cannot be fine-tuned: only methods that average one global model can, "
            "such as fedavg; ",
            Words("leave out {fine_tune}"),
        )
    options = FedAvgFTOptions(personal_epochs=epochs)
    config = dataclasses.replace(trained.config, method=FedAvgFT.name, method_options=options)
    tuned = build_method(config)
    clients = dataclasses.replace(
        state.clients,
        params={n: received[n].clone() for n in method.population.parameters(1)},
        buffers={n: received[n].clone() for n in method.population.buffers(1)},
        memory={},
        moments={},
    )
    server = {name: received[name][0].clone() for name in names}
    snapshot = State(clients, server, state.round, state.seed)
    return TrainedMethod(config, tuned, snapshot, trained.clients)


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


def adapt(model: FittedModel, series: Series, options: AdaptOptions) -> FittedModel:
    """Return a model of the cells of a history, some of which the model knows."""
    names = cells_as_text(series.cells)
    known = names.isin(cells_as_text(model.cells))
    if known.all():
        raise InputError(
            f"{series.name}: the model knows all of its {len(known)} cells, so there is nothing to "
            "adapt; forecast with the model as it is"
        )
    ids = np.empty(len(known), dtype=int)
    ids[known] = cells_as_text(model.cells).get_indexer(names[known])
    ids[~known] = len(model.cells) + np.arange((~known).sum())
    data = _new_cells(model, series.select(series.cells[~known]), options.days)
    config, predictor = _adapted(model, data, ids, options)
    clients = predictor.clients if isinstance(predictor, TrainedMethod) else None
    non_negative = model.non_negative and not (data.believed < 0).any()
    scaler = _joined_scaler(model, data.scaler, ids)
    calibration = model.calibration and model.calibration.joined(ids)
    return dataclasses.replace(
        model, config=config, cells=series.cells, scaler=scaler, predictor=predictor,
        calibration=calibration, non_negative=non_negative, adapted=True,
        clients=clients or one_per_cell(series.cells),
    )  # fmt: skip


def _new_cells(model: FittedModel, series: Series, days: float) -> PreparedSeries:
    """Return the series of new cells alone, scaled, with the last days as training part.

    Steps before the history count as missing, so each target of these days is a training target.
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
        series = series.preceded(max(0, model.reach - held + n_steps))
    elif n_steps:
        series = series.since(held - n_steps)
    end = len(series.values)
    starts = np.arange(end - n_steps, end - horizon + 1) if n_steps else np.arange(0)
    split = Split(starts, starts[:0], starts[:0], slice(end - n_steps, end))
    z, clients = scaler.transform(series.values), one_per_cell(series.cells)
    return PreparedSeries(series, config.window, split, scaler, z, clients)


def _scaler(model: FittedModel, series: Series) -> Scaler:
    """Return the scaler of new cells; see the module's docstring."""
    values, n_cells, bounds = series.values, len(series.cells), None
    if model.scaler.bounds is not None:
        bounds = Bounds.of(values, model.scaler.bounds.day)
        values = bounds.believed(values)
    if model.config.data.scale == "global":
        return dataclasses.replace(model.scaler, bounds=bounds)
    mean, std = (np.full(n_cells, v.mean()) for v in (model.scaler.mean, model.scaler.std))
    seen = ~np.isnan(values).all(axis=0)
    if seen.any():
        own = fit_scaler(values[:, seen], slice(0, len(values)))
        changes = np.nanmax(values[:, seen], axis=0) > np.nanmin(values[:, seen], axis=0)
        mean[seen], std[seen] = own.mean, np.where(changes, own.std, std[seen])
    return dataclasses.replace(model.scaler, mean=mean, std=std, covariates=None, bounds=bounds)


def _joined_scaler(model: FittedModel, new: Scaler, ids: np.ndarray) -> Scaler:
    old, covariates = model.scaler, None
    if old.covariates and new.covariates:
        covariates = old.covariates.joined(new.covariates, ids)
    if old.bounds is not None and new.bounds is not None:
        old = dataclasses.replace(old, bounds=old.bounds.joined(new.bounds, ids))
    if model.config.data.scale == "global":
        return dataclasses.replace(old, covariates=covariates)
    mean, std = np.append(old.mean, new.mean)[ids], np.append(old.std, new.std)[ids]
    return dataclasses.replace(old, mean=mean, std=std, covariates=covariates)


def _adapted(
    model: FittedModel, data: PreparedSeries, ids: np.ndarray, options: AdaptOptions
) -> tuple[Config, Predictor]:
    """Return the settings and the predictor of the cells `ids`."""
    predictor = model.latest
    if isinstance(predictor, TrainedMethod):
        if options.fine_tune:
            if not options.days:
                raise InputError(
                    Words("fine_tune needs days of history; give {days}, or leave it out")
                )
            predictor = fine_tuned(predictor, options.fine_tune)
        joined = _join(predictor, data, torch.from_numpy(ids), options.rounds)
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
    only_new = len(ids) == len(data.series.cells)
    return fitted if only_new else baseline.joined(fitted, ids)
