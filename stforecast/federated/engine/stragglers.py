"""Semi-asynchronous rounds: simulated slow clients, whose uploads arrive rounds after they began.

Nguyen, Malik, Zhan, Yousefpour, Rabbat, Malek, Huba: Federated Learning with Buffered Asynchronous
Aggregation (FedBuff), AISTATS 2022. The server does not wait. A round lasts as long as a fast
client takes; a slow one takes `slow_rounds`, and is drawn for none in the meantime. What it trained
then is added to the model of the present, so the method aggregates, as the upload of client i,

    w + (1 + τ)^(-a) (w_i - w'),

where w is the model that it would receive now, w' the one that it began from, and τ the number of
rounds in between: FedBuff with a buffer of the uploads that arrive in a round. As they are averaged
by the method, they count by samples if it says so.

Differences and the queue are tensors of the state, so a run that was stopped goes on alike. Who is
slow is drawn once, by the seed. Clients here train at once, only their uploads wait; so what a
client keeps is newer than what the server knows.
"""

from __future__ import annotations

import torch
from torch import Tensor

from data_prep.base.errors import InputError, Words
from stforecast.federated.core.method import Method
from stforecast.federated.core.state import Participants, State, generator
from stforecast.federated.core.tensors import Payload, joined
from stforecast.federated.core.training import Training

LATE, DUE = "late.", "late due"
"""Prefix of waiting differences, and the round in which each client's arrives, in `received`."""

SLOW = (0, 0, 8)
"""Key of the draw of slow clients, distinct from all others of a run."""


def check_lateness(method: Method) -> None:
    """Refuse methods whose uploads cannot arrive late."""
    if method.training.slow_share and method.sums == "none":
        raise InputError(
            Words("{slow_share}", slow_share=method.training.slow_share),
            f" needs a method that averages models, and {method.name} does not; leave it out",
        )


def slow(training: Training, seed: int, n: int) -> Tensor:
    """Return which of n clients are slow, `(n,)`."""
    order = torch.randperm(n, generator=generator(seed, *SLOW))
    return order.argsort() < int(training.slow_share * n)  # At least one is fast.


def free(state: State, ids: Tensor) -> Tensor:
    """Return those of the clients `ids` that do not train for an earlier round."""
    due = state.received.get(DUE)
    return ids if due is None else ids[due.cpu()[ids] < state.round]


def arrived(method: Method, state: State, ids: Tensor, upload: Payload) -> tuple[Tensor, Payload]:
    """Keep the uploads of slow clients; return those of fast ones and what arrives in this round.

    Args:
        method: the method.
        state: the state before the aggregation; its `received` changes.
        ids: `(n,)` increasing ids of the clients that trained.
        upload: their uploads.
    """
    training = method.training
    if not training.slow_share or training.slow_rounds == 1:
        return ids, upload
    late = slow(training, state.seed, len(state.clients))[ids]
    if late.any():
        _keep(method, state, ids[late], {name: t[late] for name, t in upload.items()})
    prompt = {name: t[~late] for name, t in upload.items()}
    if DUE not in state.received:
        return ids[~late], prompt
    now = (state.received[DUE].cpu() == state.round).nonzero().flatten()
    present = method.broadcast(state.server, _as_participants(state, now))
    weight = training.slow_rounds**-training.staleness
    moved = {n: _moved(present[n], state.received[LATE + n][now], weight) for n in upload}
    return joined([(ids[~late], prompt), (now, moved)])


def _keep(method: Method, state: State, ids: Tensor, upload: Payload) -> None:
    """Store how the uploads differ from what their clients received, and when they arrive."""
    began = method.broadcast(state.server, _as_participants(state, ids))
    if further := sorted(upload.keys() - (began.keys() & {*method.population.names})):
        raise InputError(
            f"{method.name} also sends {', '.join(further)}, which is no model that could arrive "
            "late; ",
            Words("leave out {slow_share}"),
        )
    n, received = len(state.clients), state.received
    if DUE not in received:
        received[DUE] = torch.full((n,), -1)
    received[DUE][ids] = state.round + method.training.slow_rounds - 1
    for name, t in upload.items():
        if LATE + name not in received:
            received[LATE + name] = t.new_zeros(n, *t.shape[1:])
        received[LATE + name][ids] = t - began[name]


def _moved(present: Tensor, difference: Tensor, weight: float) -> Tensor:
    """Return a model moved by a difference; counters, which are integers, by all of it."""
    if present.is_floating_point():
        return torch.add(present, difference, alpha=weight)
    return present + difference


def _as_participants(state: State, ids: Tensor) -> Participants:
    return Participants(ids, state.clients.sizes[ids], state.round)
