"""GLFC's memory of former tasks on each client, and samples that it sends as gradients.

The memory is of limited size. It holds features of a frozen backbone, which never change, so this
is equivalent to storing the images, without augmentation. Each class, including those of the
present task, keeps the same number of samples: those nearest to its mean.

Prototype samples are sent to the proxy server as gradients (Dong et al., CVPR 2022, see
`vision.methods.glfc`). A client feeds a single sample into a small encoding network, which all
clients share, and sends the gradient of the cross-entropy. The proxy server reconstructs the sample
from it. In the paper the samples are images, the network is convolutional, and the proxy searches
by L-BFGS for the image whose gradient is nearest to the uploaded one. Here the samples are frozen
features, and the first layer is linear: for one sample x its gradient is G = x δᵀ, where δ is the
gradient of its bias. So x = G δ / δᵀδ minimises the paper's objective, with value 0. More hidden
units would give the same result, so there is one. As in the paper, the label is the only class with
a negative gradient at the last layer's bias, p - y.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from stforecast.federated.core.layers import ClientLinear
from stforecast.federated.core.population import Network
from stforecast.federated.core.prototypes import PrototypeMeans, by_key
from stforecast.federated.core.tensors import Params, with_axes
from vision.task import cross_entropy

EMPTY = -1
"""Class of an empty place."""


def empty_memory(n_clients: int, size: int, width: int, device: torch.device) -> Params:
    """Return an empty memory: features, their classes, and their rank within the class."""
    nothing = torch.full((n_clients, size), EMPTY, device=device)
    return {
        "exemplar.feature": torch.zeros(n_clients, size, width, device=device),
        "exemplar.class": nothing,
        "exemplar.rank": nothing.clone(),
    }


def remember(
    memory: Params, features: Tensor, classes: Tensor, n_classes: int, limit: Tensor
) -> None:
    """Add samples and reduce the memory to `limit / known classes` samples of each class, in place.

    Features are `(clients, samples, d)`. At most `limit` `(clients,)` samples are kept, at least
    one of each class if there is room.
    """
    old = memory["exemplar.class"]
    size, present = old.shape[1], F.one_hot(classes, n_classes).any(1)
    again = present.gather(1, old.clamp(min=0)) & (old != EMPTY)
    kept = old.masked_fill(again, EMPTY)
    known = F.one_hot(kept + 1, n_classes + 1)[..., 1:].any(1) | present
    room = limit.clamp(max=size) // known.sum(1).clamp(min=1)
    room = room.clamp(min=1)
    joined = {
        "exemplar.feature": torch.cat([memory["exemplar.feature"], features], dim=1),
        "exemplar.class": torch.cat([kept, classes], dim=1),
        "exemplar.rank": torch.cat(
            [memory["exemplar.rank"], ranks(features, classes, n_classes)], dim=1
        ),
    }
    stays = (joined["exemplar.class"] != EMPTY) & (joined["exemplar.rank"] < room[:, None])
    order = stays.int().argsort(dim=1, descending=True, stable=True)[:, :size]
    joined["exemplar.class"] = joined["exemplar.class"].masked_fill(~stays, EMPTY)
    for name, t in joined.items():
        index = order if t.ndim == 2 else order[..., None].expand(-1, -1, t.shape[2])
        memory[name].copy_(t.gather(1, index))


def ranks(features: Tensor, classes: Tensor, n_classes: int) -> Tensor:
    """Rank samples within their classes by distance from the class's mean, from 0.

    >>> features = torch.tensor([[[0.0], [4.0], [2.5], [9.0]]])
    >>> ranks(features, torch.tensor([[0, 0, 0, 1]]), 2)
    tensor([[2, 1, 0, 0]])
    """
    means = PrototypeMeans(n_classes)
    means.add(features, classes)
    distance = (features - by_key(means.means(), classes)).square().sum(-1)
    order = distance.argsort(dim=1, stable=True)
    member = F.one_hot(classes.gather(1, order), n_classes)
    before = (member.cumsum(1) - member).gather(2, classes.gather(1, order)[..., None])[..., 0]
    return torch.empty_like(before).scatter_(1, order, before)


def draw_samples(memory: Params, allowed: Tensor, uniform: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Draw samples of `allowed` classes `(clients, n_classes)` with replacement.

    Returns:
        Features `(clients, n, d)`, classes `(clients, n)`, and `(clients,)` whether there are any;
        features and classes of clients without samples are undefined.
    """
    classes = memory["exemplar.class"]
    fits = (classes != EMPTY) & allowed.gather(1, classes.clamp(min=0))
    order = fits.int().argsort(dim=1, descending=True, stable=True)
    count = fits.sum(1)
    place = (uniform.to(classes.device) * count[:, None]).long()
    index = order.gather(1, place)
    features = memory["exemplar.feature"]
    wide = index[..., None].expand(-1, -1, features.shape[2])
    return features.gather(1, wide), classes.gather(1, index).clamp(min=0), count > 0


ENCODING = "encoding."
"""Prefix of the names of the encoding network's tensors."""


def encoding_network(width: int, n_classes: int) -> Network:
    """Build the network whose gradients represent features of this width."""
    return Network(
        ENCODING,
        partial(ClientLinear, width, 1),
        nn.Sigmoid,
        partial(ClientLinear, 1, n_classes),
    )


def representatives(
    features: Tensor, classes: Tensor, n_classes: int, most: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Select the sample nearest to the class's mean for at most `most` classes.

    Returns:
        Samples `(clients, most, d)`, their classes `(clients, most)`, `EMPTY` where a client has
        fewer, and the standard deviation of each class's features `(clients, most, d)`.

    >>> features = torch.tensor([[[0.0], [4.0], [2.5], [9.0]]])
    >>> representatives(features, torch.tensor([[2, 2, 2, 0]]), 3, 5)[:2]
    (tensor([[[9.0000],
             [2.5000],
             [0.0000]]]), tensor([[ 0,  2, -1]]))
    """
    first = ranks(features, classes, n_classes) == 0
    holds = F.one_hot(classes, n_classes).bool() & first[..., None]
    present = holds.any(1)
    chosen = present.int().argsort(dim=1, descending=True, stable=True)[:, :most]
    there = present.gather(1, chosen)
    index = holds.int().argmax(1).gather(1, chosen)
    samples = features.gather(1, index[..., None].expand(-1, -1, features.shape[2]))
    means, squares = PrototypeMeans(n_classes), PrototypeMeans(n_classes)
    means.add(features, classes)
    squares.add(features.square(), classes)
    variance = (squares.means() - means.means().square()).clamp(min=0)
    spread = by_key(variance.sqrt(), chosen)
    return samples * there[..., None], chosen.masked_fill(~there, EMPTY), spread


def gradients_of(
    network: Network, tensors: Mapping[str, Tensor], features: Tensor, labels: Tensor
) -> Params:
    """Return the encoding network's gradient of the cross-entropy of each single sample.

    By name they are `(clients, n, …)`, zeros where there is no sample: its label is `EMPTY`.
    """
    n = labels.shape[1]
    alone = {
        name: tensors[name].repeat_interleave(n, dim=0).requires_grad_()
        for name in network.parameters
    }
    y = labels.clamp(min=0).view(-1, 1)
    logits = network(alone, features.reshape(len(y), 1, -1), training=True)
    gradients = torch.autograd.grad(cross_entropy(logits, y).sum(), list(alone.values()))
    sent = labels != EMPTY
    return {
        name: g.view(*labels.shape, *g.shape[1:]) * with_axes(sent, g.ndim + 1)
        for name, g in zip(alone, gradients, strict=True)
    }


def rebuilt(gradients: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
    """Reconstruct features `(clients, n, d)` from gradients, and labels, `EMPTY` if not sent."""
    weight, bias = gradients[f"{ENCODING}0.weight"], gradients[f"{ENCODING}0.bias"]
    last = gradients[f"{ENCODING}2.bias"]
    square = bias.square().sum(-1, keepdim=True)
    features = (weight @ bias[..., None])[..., 0] / square.where(square > 0, 1.0)
    return features, last.argmin(-1).masked_fill(~last.any(-1), EMPTY)
