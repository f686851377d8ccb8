"""Simulated slow clients, whose uploads arrive rounds after they began, and what they weigh then.

The server does not wait. A round lasts as long as a fast client takes; a slow one takes
`slow_rounds`, and is drawn for none in the meantime. What arrives in a round is averaged or mixed:

- Nguyen, Malik, Zhan, Yousefpour, Rabbat, Malek, Huba: Federated Learning with Buffered
  Asynchronous Aggregation (FedBuff), AISTATS 2022. What a slow client trained is added to the model
  of the present, so the method aggregates, as the upload of client i,

      w + s(τ) (w_i - w'),

  where w is the model that it would receive now, w' the one that it began from, and τ the number of
  rounds in between: FedBuff with a buffer of the uploads that arrive in a round. As they are
  averaged by the method, they count by samples if it says so.
- Xie, Koyejo, Gupta: Asynchronous Federated Optimization (FedAsync), 2019, arXiv 1903.03934,
  algorithm 1. The server mixes one upload after another into its model, whatever its samples:

      w ← (1 - α s(τ)) w + α s(τ) w_i,

  where τ is the number of uploads mixed since client i began. The fast clients of a round begin
  together and arrive in random order. The paper's proximal term is that of FedProx, ρ its `mu`.

The weight s(τ) is constant with a = 0, polynomial, or FedAsync's hinge.

Waiting uploads and the queue are tensors of the state, so a run that was stopped goes on alike. Who
is slow is drawn once, by the seed. Clients here train at once, only their uploads wait; so what a
client keeps is newer than what the server knows.
"""

from __future__ import annotations

import torch
from torch import Tensor

from data_prep.base.errors import InputError, Words
from stforecast.federated.core.method import Method
from stforecast.federated.core.state import State, generator
from stforecast.federated.core.tensors import Payload, joined
from stforecast.federated.core.training import Training

LATE, DUE = "late.", "late due"
"""Prefix of waiting uploads, and the round in which each client's arrives, in `received`."""

MIXED, BEGAN = "late mixed", "late began"
"""Numbers of uploads by client: how many of its own were mixed, and how many of all clients' had
been mixed when it began its latest."""

ORDER = (0, 0, 9)
"""Key of the draws of orders of arrival, distinct from others of a run, as is (0, 0, 8)."""


def check_lateness(method: Method) -> None:
    """Refuse methods whose uploads cannot arrive late or be mixed."""
    training = method.training
    if (training.slow_share or training.mixing) and method.sends.sums == "none":
        raise InputError(
            f"{method.name} averages no models, so uploads cannot arrive late or be mixed; ",
            Words("leave out {slow_share} and {mixing}"),
        )


def slow(training: Training, seed: int, n: int) -> Tensor:
    """Return which of n clients are slow, `(n,)`."""
    order = torch.randperm(n, generator=generator(seed, 0, 0, 8))
    return order.argsort() < int(training.slow_share * n)  # At least one is fast.


def free(state: State, ids: Tensor) -> Tensor:
    """Return those of the clients `ids` that do not train for an earlier round."""
    due = state.received.get(DUE)
    return ids if due is None else ids[due.cpu()[ids] < state.round]


def lateness_weight(training: Training, delay: Tensor) -> Tensor:
    """Return the weight s(τ) of uploads with these delays τ.

    >>> lateness_weight(Training(staleness=2.0), torch.tensor([0, 1, 3]))
    tensor([1.0000, 0.2500, 0.0625])
    >>> lateness_weight(Training(staleness=2.0, hinge=1), torch.tensor([0, 1, 3]))
    tensor([1.0000, 1.0000, 0.2000])
    """
    if training.hinge is None:
        return (1.0 + delay) ** -training.staleness
    return 1 / (training.staleness * (delay - training.hinge).clamp(min=0) + 1)


def shares_of(weights: Tensor) -> Tensor:
    """Return the shares `(1 + n,)` of a model and n others that are mixed into it one by one.

    The i-th mixing replaces the share `weights[i]` of what is there by the i-th other model.

    >>> shares_of(torch.tensor([0.5, 0.25]))
    tensor([0.3750, 0.3750, 0.2500])
    """
    left = (1 - weights).flip(0).cumprod(0).flip(0)
    return torch.cat([left[:1], weights * torch.cat([left[1:], left.new_ones(1)])])


def note_begun(training: Training, state: State, ids: Tensor) -> None:
    """Note how many uploads were mixed when the clients `ids` began to train."""
    if training.mixing:
        for name in (MIXED, BEGAN):
            state.received.setdefault(name, torch.zeros(len(state.clients), dtype=torch.long))
        state.received[BEGAN][ids] = state.received[MIXED].sum()


def arrived(method: Method, state: State, ids: Tensor, upload: Payload) -> tuple[Tensor, Payload]:
    """Keep the uploads of slow clients; return those of fast ones and what arrives in this round.

    `ids` are increasing. `received` of the state, which is that before the aggregation, changes.
    """
    training = method.training
    late = slow(training, state.seed, len(state.clients))[ids] & (training.slow_rounds > 1)
    if training.slow_share or training.mixing:
        check_only_model(method, state, ids, upload)
    if late.any():
        _keep(method, state, ids[late], {name: t[late] for name, t in upload.items()})
    if late.any() or DUE in state.received:
        now = (state.received[DUE].cpu() == state.round).nonzero().flatten()
        due = {name: state.received[LATE + name][now] for name in upload}
        if not training.mixing:
            due = moved(method, state, now, due, training.slow_rounds - 1)
        prompt = {name: t[~late] for name, t in upload.items()}
        ids, upload = joined([(ids[~late], prompt), (now, due)])
    return ids, _mixed(method, state, ids, upload) if training.mixing and len(ids) else upload


def check_only_model(method: Method, state: State, ids: Tensor, upload: Payload) -> None:
    """Refuse uploads of the clients `ids` that are more than a model."""
    began = method.broadcast(state.server, state.participants(ids))
    if further := sorted(upload.keys() - (began.keys() & {*method.population.names})):
        raise InputError(
            f"{method.name} also sends {', '.join(further)}, which is no model that could arrive "
            "late or be mixed; ",
            Words("leave out {slow_share} and {mixing}"),
        )


def _keep(method: Method, state: State, ids: Tensor, upload: Payload) -> None:
    """Store uploads, or how they differ from what their clients received, and when they arrive."""
    n, received = len(state.clients), state.received
    received.setdefault(DUE, torch.full((n,), -1))
    received[DUE][ids] = state.round + method.training.slow_rounds - 1
    began = method.broadcast(state.server, state.participants(ids))
    for name, t in upload.items():
        if LATE + name not in received:
            received[LATE + name] = t.new_zeros(n, *t.shape[1:])
        received[LATE + name][ids] = t if method.training.mixing else t - began[name]


def _mixed(method: Method, state: State, ids: Tensor, upload: Payload) -> Payload:
    """Return, as the upload of each client, the model into which all were mixed in turn."""
    order = torch.randperm(len(ids), generator=generator(state.seed, *ORDER, state.round))
    mixed, began = state.received[MIXED], state.received[BEGAN].cpu()
    delay = int(mixed.sum()) + torch.arange(len(ids)) - began[ids[order]]
    weights = method.training.mixing * lateness_weight(method.training, delay.double())
    left, *_ = shares = shares_of(weights)
    state.received[MIXED] = mixed.index_add(0, ids, torch.ones_like(ids))
    present = method.broadcast(state.server, state.participants(ids))
    models = {}
    for name, t in upload.items():
        last = t[order[-1]]
        if t.is_floating_point():
            parts = torch.tensordot(shares[1:].to(t), t[order.to(t.device)], 1)
            last = float(left) * present[name][0] + parts
        models[name] = last.expand_as(t)
    return models


def moved(method: Method, state: State, ids: Tensor, differences: Payload, delay: int) -> Payload:
    """Return w + s(τ) (w_i - w') for clients that are τ rounds late; counters move by all of it.

    Args:
        method: the method.
        state: the present state, with the server's w.
        ids: `(n,)` ids of the clients.
        differences: w_i - w', by which they changed the model that they began from.
        delay: τ.
    """
    present = method.broadcast(state.server, state.participants(ids))
    weight = float(lateness_weight(method.training, torch.tensor(delay)))
    return {
        name: torch.add(present[name], t, alpha=weight if t.is_floating_point() else 1)
        for name, t in differences.items()
    }
