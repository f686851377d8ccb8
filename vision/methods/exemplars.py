"""Exemplar memory of limited size for frozen features of former tasks, on each client.

Features of a frozen backbone never change, so storing them is equivalent to storing the images,
without augmentation. Each class, including those of the present task, keeps the same number of
samples: those nearest to its mean.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from stforecast.federated.population import Params
from stforecast.federated.prototypes import PrototypeMeans, by_key

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
    """Add samples and reduce the memory to `limit / known classes` samples of each class.

    Args:
        memory: result of `empty_memory`, changed in place.
        features: `(clients, samples, d)`.
        classes: `(clients, samples)`.
        n_classes: number of classes over all clients.
        limit: `(clients,)` samples to keep, at most the memory's size; at least one of each class
            is kept if there is room.
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

    Args:
        features: `(clients, samples, d)`.
        classes: `(clients, samples)`.
        n_classes: number of classes over all clients.

    Example:
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


def draw(memory: Params, allowed: Tensor, uniform: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Draw samples of some classes with replacement.

    Args:
        memory: result of `empty_memory`.
        allowed: `(clients, n_classes)` classes to draw from.
        uniform: `(clients, n)` numbers in [0, 1).

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
