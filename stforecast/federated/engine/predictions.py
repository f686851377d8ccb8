"""Predictions of clients, in batches of samples."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import torch
from torch import Tensor

from stforecast.federated.core.data import ClientData
from stforecast.federated.core.method import Method
from stforecast.federated.core.state import Participants, State
from stforecast.federated.core.tensors import Batch, take

COHORT = 16
"""Default number of clients that predict together."""

Way = Literal["own", "averaged"]
"""Which model of a client predicts if its method averages models: `own` is the client's model after
its latest local training; in `averaged`, the averaged parts of that model are the server's."""

ROWS_ON_CPU = 128
"""Samples of a client predicted at once on a CPU: activations then stay in cache."""

ROWS_ON_GPU = 4096
"""The same on a GPU, which needs large products."""


@torch.no_grad()
def predictions(
    method: Method,
    state: State,
    data: ClientData,
    *,
    view: str | None = None,
    cohort_size: int = COHORT,
    way: Way | None = None,
) -> Iterator[tuple[Batch, Tensor]]:
    """Yield batches `(some clients, some samples, …)` with predictions, clients in order.

    Each client predicts from its own state and the server's latest message.

    Args:
        method: the method.
        state: its state, on one device.
        data: samples of all clients, on that device.
        view: one of the method's `views`; by default the first.
        cohort_size: largest number of clients that predict together.
        way: model of a client that predicts; by default the one that the method chooses.
    """
    for ids in data.cohorts(cohort_size):
        yield from predictions_of(method, state, data, ids, view, way)


def predictions_of(
    method: Method,
    state: State,
    data: ClientData,
    ids: Tensor,
    view: str | None = None,
    way: Way | None = None,
    rows: Tensor | None = None,
) -> Iterator[tuple[Batch, Tensor]]:
    """Yield the same as `predictions`, for the clients `ids` together.

    Where `data` are of some clients only, `rows` are their places in it.
    """
    method.population.train(False)
    clients = state.clients
    on_cpu = all(t.device.type == "cpu" for t in data.tensors.values())
    at_once = ROWS_ON_CPU if on_cpu else ROWS_ON_GPU
    own = take({**clients.params, **clients.buffers, **clients.memory}, ids)
    payload = method.broadcast(state.server, Participants(ids, clients.sizes[ids], state.round))
    averaged = payload.keys() & (clients.params.keys() | clients.buffers.keys())
    if way == "averaged":
        own |= {name: payload[name] for name in averaged}
    elif way == "own":
        payload = {name: t for name, t in payload.items() if name not in averaged}
    some = data.take(ids if rows is None else rows)
    for batch in some.chunks(at_once * min(some.group, COHORT)):
        yield batch, method.predict(own, payload, batch["x"], view or method.views[0])
