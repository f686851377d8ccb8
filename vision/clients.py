"""Conversion of a partitioned image set to the federated core's training data, and of its state."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence

from data_prep.base.errors import InputError
from stforecast.federated.core.data import ClientData
from stforecast.federated.core.state import State
from vision.datasets.image_set import ImageSet
from vision.task import AMONG


def stacked_images(images: ImageSet, ids: Sequence[Tensor]) -> ClientData:
    """Stack the clients' images; clients with fewer images are padded with zeros at the end.

    The tensors are `x` `(clients, samples, channels, height, width)` uint8, and `y` (class) and
    `domain` `(clients, samples)` int64.
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
    """Return a state in which each client has the one model of the pooled data, as views."""
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


def among_own_classes(data: ClientData, n_classes: int) -> ClientData:
    """Let training predictions choose among the classes of each client's samples only.

    The data get `AMONG` `(clients, samples, classes)`, which `Classification.loss` reads.
    """
    y = data.tensors["y"]
    real = torch.arange(y.shape[1]) < data.sizes[:, None]
    own = (F.one_hot(y, n_classes).bool() & real[..., None].to(y.device)).any(1)
    among = own[:, None].expand(-1, y.shape[1], -1)
    return ClientData({**data.tensors, AMONG: among}, data.sizes, data.augment)
