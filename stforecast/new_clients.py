"""Clients that join a trained method: its shared part, and a personal part of their own.

A new client receives what the server sent last. What clients keep to themselves starts from its
mean over the clients that were trained, which takes one more average of all, and is then trained by
the method's own local update; the shared part stays as it is, and nothing is sent. Where nothing is
shared, as with `solo`, a new client starts from the initial weights and trains for as many rounds
as the others did.
"""

from __future__ import annotations

import copy
import dataclasses
import logging

import torch
from torch import Tensor

from data_prep.base.errors import InputError, Words
from stforecast.config import Config
from stforecast.data.clients import Partition, one_per_cell
from stforecast.data.prepared import PreparedSeries
from stforecast.federated.core.method import Method, Participants, initial_state
from stforecast.federated.core.population import Params
from stforecast.federated.core.state import Clients, State
from stforecast.federated.engine.sizing import pick_device
from stforecast.federated.engine.trainer import Trainer
from stforecast.federated.methods.fedavg_ft import FedAvgFT, FedAvgFTOptions
from stforecast.federated.methods.two_models import PERSONAL
from stforecast.federated.uploads.payload import Payload
from stforecast.models import MODELS
from stforecast.trained_method import TrainedMethod, build_method, client_samples

log = logging.getLogger(__name__)

NEW = -1
"""Id of a client that the server has not seen."""


def join(trained: TrainedMethod, data: PreparedSeries, ids: Tensor, rounds: int) -> TrainedMethod:
    """Return the method for some of its clients and for new ones.

    Args:
        trained: the trained method.
        data: the new clients' series; without training windows they are not trained.
        ids: `(clients,)` of the result: position among the trained clients, followed by the new.
        rounds: local updates of what a new client keeps to itself.

    Raises:
        InputError: if the model tells cells apart, or nothing is shared and there are no windows.
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
    server = method.server_for(state.server, all_ids)
    return dataclasses.replace(
        trained,
        snapshot=State(clients, server, state.round, state.seed),
        clients=one_per_cell(ids.numpy()),
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
    trained = dict(state.clients.groups())
    for group, tensors in clients.groups():
        for name, t in tensors.items():
            old = trained[group].get(name, t[:0])
            if group != "memory" and name in received:
                tensors[name] = received[name].clone()
            elif received and len(old) and _alike(t, old):
                tensors[name] = old.mean(0, keepdim=True).expand_as(t).clone()
            else:
                tensors[name] = t.clone()
    return clients


def _alike(t: Tensor, old: Tensor) -> bool:
    """Return whether a client's tensor can be a mean of those of others."""
    return old.is_floating_point() and old.shape[1:] == t.shape[1:]


def _trained(
    trained: TrainedMethod, method: Method, data: PreparedSeries, started: Clients,
    server: Params, rounds: int,
) -> Clients:  # fmt: skip
    """Train new clients for some rounds, then let them personalise."""
    run, state = trained.config.run, trained.snapshot
    share = len(data.split.train) / float(state.clients.sizes.float().mean())
    method = method.for_share(share)
    samples, _ = client_samples(method, data, data.split.train, data.split.validation)
    trainer = Trainer(
        method, samples, seed=state.seed, device=pick_device(run.device),
        cohort_size=run.cohort or None, workers=run.workers or torch.get_num_threads(),
    )  # fmt: skip
    own = dict(trainer.state.clients.groups())
    for group, tensors in started.groups():
        for name, t in tensors.items():
            if own[group][name].shape == t.shape:
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
    """Return some of the old clients and of the new ones.

    Memory whose shape follows the samples is of training only and left out.
    """

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
    """Return the method as `fedavg_ft`, whose new clients fit the global model to their data.

    The clients that were trained keep the global model.

    Args:
        trained: a method with one global model.
        epochs: epochs of fine-tuning.

    Raises:
        InputError: if it has no global model, or one without such parameters.
    """
    method, state = trained.method, trained.snapshot
    everyone = Participants(torch.arange(len(state.clients)), state.clients.sizes, state.round)
    received = method.broadcast(state.server, everyone)
    names = set(method.population.names)
    if (
        trained.config.clients != "cell"
        or method.views != ("global",)
        or not names <= received.keys()
    ):
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
