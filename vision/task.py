"""Image classification as a task of the federated core: its loss, comparisons and clients' data."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence

from data_prep.base.errors import InputError
from stforecast.federated.core.data import ClientData
from stforecast.federated.core.state import State
from stforecast.federated.core.tensors import Batch
from vision.datasets.image_set import ImageSet

AMONG = "among"
"""Classes that a training prediction chooses from, `(clients, samples, classes)`, if not all."""


@dataclass(frozen=True)
class Classification:
    """Predict the class `y` `(clients, batch)`; predictions are logits `(clients, batch, classes)`.

    Attributes:
        n_keys: number of classes over all clients.
        surrogate: the server's images `x` `(1, samples, …)` with their classes `y`, equally many
            of each class, or None.
    """

    n_keys: int
    surrogate: Batch | None = field(default=None, repr=False, compare=False)

    def loss(self, prediction: Tensor, batch: Batch) -> Tensor:
        """Return the mean cross-entropy of each client over its batch, among all or `AMONG`."""
        if AMONG in batch:
            prediction = prediction.masked_fill(~batch[AMONG], -torch.inf)
        return cross_entropy(prediction, batch["y"]).mean(1)

    def keys(self, batch: Batch) -> Tensor:
        """Return the class of each sample."""
        return batch["y"]

    def score(self, prediction: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return the cross-entropy and 1 for each sample."""
        loss = cross_entropy(prediction, batch["y"])
        return loss, torch.ones_like(loss)


def cross_entropy(logits: Tensor, y: Tensor) -> Tensor:
    """Return the cross-entropy in nats of each sample, of logits `(clients, batch, classes)`.

    >>> cross_entropy(torch.zeros(1, 2, 4), torch.tensor([[0, 3]])).exp()
    tensor([[4., 4.]])
    """
    return F.cross_entropy(logits.flatten(0, 1), y.flatten(), reduction="none").view(y.shape)


def entropy(logits: Tensor) -> Tensor:
    """Return the entropy in nats of each prediction, of finite logits `(…, classes)`.

    >>> entropy(torch.zeros(2, 4)).exp()
    tensor([4., 4.])
    """
    log_p = logits.log_softmax(-1)
    return -(log_p.exp() * log_p).sum(-1)


def kl_divergence(target: Tensor, prediction: Tensor) -> Tensor:
    """Return KL(target ‖ prediction) in nats of each pair of predictions, logits `(…, classes)`.

    >>> kl_divergence(torch.tensor([[2.0, 0.0]]), torch.zeros(1, 2)).round(decimals=4)
    tensor([0.3278])
    """
    log_p, log_q = target.log_softmax(-1), prediction.log_softmax(-1)
    return F.kl_div(log_q, log_p, reduction="none", log_target=True).sum(-1)


def cosines(a: Tensor, b: Tensor) -> Tensor:
    """Return the cosines `(…, n, m)` of all pairs of vectors `(…, n, d)` and `(…, m, d)`.

    >>> cosines(torch.tensor([[3.0, 4.0]]), torch.tensor([[1.0, 0.0], [0.0, 2.0]]))
    tensor([[0.6000, 0.8000]])
    """
    return F.normalize(a, dim=-1) @ F.normalize(b, dim=-1).mT


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
