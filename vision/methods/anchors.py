"""Functions for FedTA's anchors and prototypes: choice, fixing, mixing, contrast, selection.

Yu et al., CVPR 2025, arXiv 2412.18355, section 4.2 and Eq. 4, 5, 9 and 10; see
`vision.methods.fedta`.

Features are standardised by moments that the clients share. Those of a pre-trained network have a
mean far from zero: the cosine of any two is large, whatever their classes. Each client sends the
mean and the logarithm of the standard deviation of each component over its samples, `(2, d)`; the
server pools them. They do not grow with the samples, so that a robust guard can compare clients of
all sizes. A lossy uplink rounds them, with 4 bits to multiples of a seventh of the largest. In a
logarithm, this changes the deviation by a factor, so no small deviation becomes 0.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from stforecast.federated.core.state import Cohort
from stforecast.federated.core.tensors import Params, weighted_mean
from vision.task import cosines

UNKNOWN = -1e9
"""Logit of classes without a prototype: their softmax is 0, and gradients are always finite."""


def no_anchor_chosen(n_clients: int, n_anchors: int, device: torch.device) -> Params:
    """Return the clients' memory of their anchors before the first task.

    `anchor.chosen` `(clients, anchors)` is whether samples of the present task choose an anchor,
    `anchor.fixed` whether those of a former one did, `anchor.task` `(clients,)` counts from 0.
    """
    nothing = torch.zeros(n_clients, n_anchors, dtype=torch.bool, device=device)
    task = torch.full((n_clients,), -1, device=device)
    return {"anchor.chosen": nothing, "anchor.fixed": nothing.clone(), "anchor.task": task}


def begin_task(cohort: Cohort) -> Params:
    """Fix the chosen anchors of clients whose task begins; return copies of anchors and keys."""
    memory = cohort.memory
    new = memory["anchor.task"] != cohort.stage
    memory["anchor.fixed"] |= memory["anchor.chosen"] & new[:, None]
    memory["anchor.task"].fill_(cohort.stage)
    names = ("anchor.values", "anchor.keys")  # Their rows are fixed after a task.
    return {name: cohort.params[name].detach().clone() for name in names}


def held(cohort: Cohort, before: Mapping[str, Tensor]) -> Params:
    """Return anchors and keys with the fixed ones as they were before."""
    fixed = cohort.memory["anchor.fixed"][..., None]
    return {name: torch.where(fixed, t, cohort.params[name]) for name, t in before.items()}


def chosen_anchors(features: Tensor, keys: Tensor) -> Tensor:
    """Return indices of the anchors of the nearest keys to F_out, `(clients, batch, 1)` (Eq. 4)."""
    return cosines(features, keys).argmax(-1, keepdim=True)


def mix(features: Tensor, anchors: Tensor, params: Mapping[str, Tensor], how: str) -> Tensor:
    """Return F_TA, the mix of features and their anchors, `(clients, batch, 2d)`, or d for `add`.

    The others are `interleave` (f₀, a₀, f₁, a₁, …) and `random`, in the order `anchor.order`
    `(clients, 2d)` of `params`.

    >>> f, a = torch.tensor([[[1, 2]]]), torch.tensor([[[3, 4]]])
    >>> mix(f, a, {}, "interleave")
    tensor([[[1, 3, 2, 4]]])
    """
    if how == "add":
        return features + anchors
    if how == "interleave":
        return torch.stack([features, anchors], dim=-1).flatten(-2)
    joined = torch.cat([features, anchors], dim=-1)
    order = params["anchor.order"][:, None].expand(-1, joined.shape[1], -1)
    return joined.gather(-1, order)


def consistency_loss(
    features: Tensor, classes: Tensor, prototypes: Tensor, known: Tensor, temperature: float
) -> Tensor:
    """Return the contrastive loss of features and global prototypes, both normalised (Eq. 5).

    Features F_TA are `(clients, batch, width)`, prototypes `(clients, n_classes, width)`. The loss
    `(clients,)` is the mean over the batch; samples of a class that is not `known` count as 0.
    """
    logits = cosines(features, prototypes) / temperature
    shares = logits.masked_fill(~known[:, None], UNKNOWN).log_softmax(-1)
    own = shares.gather(-1, classes[..., None])[..., 0]
    return -torch.where(known.gather(1, classes), own, 0.0).mean(1)


def prototype_scores(features: Tensor, prototypes: Tensor, known: Tensor) -> Tensor:
    """Return cosines with prototypes `(clients, batch, n_classes)`; -inf if a class has none."""
    return cosines(features, prototypes).masked_fill(~known[:, None], -torch.inf)


def selected_prototypes(local: Tensor, holders: Tensor) -> tuple[Tensor, Tensor]:
    """Select for each class the local prototype least similar to all others (Eq. 9 and 10).

    Returns:
        `(n_classes, width)`, and the average similarity of each, `(n_classes,)`: infinite for a
        class that no client has. Two prototypes of one class, or one and itself, have similarity 1.
    """
    label = holders.nonzero()[:, 1]
    rows = local[holders]
    similarity = cosines(rows[None], rows[None])[0]
    same = label[:, None] == label
    averages = torch.full(holders.shape, torch.inf, dtype=local.dtype, device=local.device)
    averages[holders] = similarity.masked_fill(same, 1.0).mean(1)
    lowest, who = averages.min(0)
    return local[who, torch.arange(len(who), device=local.device)], lowest


def mean_prototypes(local: Tensor, holders: Tensor) -> Tensor:
    """Return the plain mean of the clients' prototypes, `(n_classes, width)`; zeros without any."""
    weight = holders.to(local.dtype)
    total = torch.einsum("nc,ncd->cd", weight, local)
    return total / weight.sum(0).clamp(min=1)[:, None]


def moments_of(features: Tensor) -> Tensor:
    """Return means and log standard deviations `(clients, 2, d)` of `(clients, samples, d)`."""
    # Features that are the same in all samples get a small deviation.
    deviation = features.std(1, correction=0).clamp(min=1e-3)
    return torch.stack([features.mean(1), deviation.log()], dim=1)


def pooled_moments(moments: Tensor, sizes: Tensor) -> Tensor:
    """Return the moments `(2, d)` over the samples of all clients, of which there are `sizes`.

    >>> moments = torch.tensor([[[1.0], [0.0]], [[3.0], [0.0]]])  # Both variances are 1.
    >>> mean, log_deviation = pooled_moments(moments, torch.tensor([1, 1]))
    >>> mean, (2 * log_deviation).exp()
    (tensor([2.]), tensor([2.]))
    """
    means, log_deviations = moments.unbind(1)
    mean = weighted_mean(means, sizes)
    variance = weighted_mean((2 * log_deviations).exp() + (means - mean).square(), sizes)
    return torch.stack([mean, variance.log() / 2])


def standardised(features: Tensor, moments: Tensor) -> Tensor:
    """Return features with mean 0 and variance 1 over the samples that `moments` describe.

    >>> x = torch.tensor([[[1.0, 5.0], [3.0, 5.0]]])
    >>> standardised(x, moments_of(x))
    tensor([[[-1.,  0.],
             [ 1.,  0.]]])
    """
    mean, log_deviation = moments.unbind(1)
    return (features - mean[:, None]) * (-log_deviation).exp()[:, None]
