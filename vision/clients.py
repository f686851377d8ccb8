"""Conversion of a partitioned image set to the federated core's training data, and of its state."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from data_prep.errors import InputError
from stforecast.federated.data import ClientData
from stforecast.federated.state import State
from vision.datasets.image_set import ImageSet


def client_data(images: ImageSet, ids: Sequence[Tensor]) -> ClientData:
    """Stack the clients' images; clients with fewer images are padded with zeros at the end.

    Args:
        images: the set.
        ids: `(n,)` ids of each client's images, e.g. `Partition.train`.

    Returns:
        `x` `(clients, samples, channels, height, width)` uint8, and `y` (class) and `domain`
        `(clients, samples)` int64.

    Raises:
        InputError: if there is no client.
    """
    if not ids:
        raise InputError(f"{images.name}: no clients; give the ids of at least one")
    named = {"x": images.images, "y": images.labels, "domain": images.domains}
    tensors = {
        name: pad_sequence([values[i] for i in ids], batch_first=True)
        for name, values in named.items()
    }
    return ClientData(tensors, torch.tensor([len(i) for i in ids]))


def for_everyone(state: State, n_clients: int) -> State:
    """Return the state in which each client has the model of the only one, as views.

    Args:
        state: state of a method that pools the data.
        n_clients: number of clients that predict.
    """
    one = state.clients
    params, buffers, memory = (
        {name: t.expand(n_clients, *t.shape[1:]) for name, t in group.items()}
        for group in (one.params, one.buffers, one.memory)
    )
    sizes = one.sizes.expand(n_clients)
    clients = dataclasses.replace(
        one, params=params, buffers=buffers, memory=memory, moments={}, sizes=sizes
    )
    return dataclasses.replace(state, clients=clients)
