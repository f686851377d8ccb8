"""What prototype methods share: means of features under a key, divergences, selections.

A prototype is a mean feature vector under an integer key: the class for PFPL, GLDP and FedTA, the
slot of the period for FUELS. Prototypes of N clients are one tensor `(clients, keys, d)`.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from stforecast.federated.kernels.compiler import usable
from stforecast.federated.kernels.features import add_by_key


class PrototypeMeans:
    """Running mean of the features seen under each key, without another pass over the data.

    Args:
        n_keys: keys, numbered from 0.
    """

    def __init__(self, n_keys: int) -> None:
        self.n_keys = n_keys
        self._sums: Tensor | None = None
        self._counts: Tensor | None = None

    def add(self, features: Tensor, keys: Tensor) -> None:
        """Take in a batch.

        Args:
            features: `(clients, batch, d)`; no gradient flows into the means.
            keys: `(clients, batch)`, each below `n_keys`.
        """
        n, _, d = features.shape
        if self._sums is None or self._counts is None:
            self._sums = features.new_zeros(n, self.n_keys, d)
            self._counts = features.new_zeros(n, self.n_keys)
        if usable(d, features, self._sums):
            add_by_key(features, keys, self._sums, self._counts)
            return
        member = F.one_hot(keys, self.n_keys).to(features.dtype)
        self._sums.baddbmm_(member.mT, features.detach())
        self._counts += member.sum(1)

    @property
    def counts(self) -> Tensor:
        """Samples seen under each key, `(clients, keys)` int32.

        Raises:
            ValueError: if nothing was added.
        """
        if self._counts is None:
            raise ValueError("no features were added, so there are no counts")
        return self._counts.int()

    def means(self) -> Tensor:
        """Prototypes `(clients, keys, d)`; zeros under a key that was never seen.

        Raises:
            ValueError: if nothing was added.
        """
        if self._sums is None or self._counts is None:
            raise ValueError("no features were added, so there are no prototypes")
        return self._sums / self._counts.clamp(min=1)[..., None]


BLOCK = 2**17
"""Values of a temporary in `jensen_shannon`: 1 MB in double precision, which stays in cache."""

ACCURACY = 1e-10
"""Error of the series in `jensen_shannon`; what is smaller counts as 0."""

MOST_TERMS = 32
"""Chebyshev terms up to which the series pays."""


def jensen_shannon(p: Tensor, q: Tensor) -> Tensor:
    """Jensen–Shannon divergence in nats between softmax distributions, for all pairs.

    The mixture's entropy needs `g(u, v) = m log m` with `m = (eᵘ + eᵛ)/2` for every pair and entry.
    g is smooth in u, so a Chebyshev series of a dozen terms separates it, `Σₖ Tₖ(u) cₖ(v)`, and all
    pairs become one matrix product, in bounded memory, to about 1e-10.

    Args:
        p: `(n, d)` logits: any real values, of which softmax makes a distribution.
        q: `(m, d)` likewise.

    Returns:
        `(n, m)` divergences between 0 and log 2, in double precision.

    Example:
        >>> logits = torch.tensor([[0.8, 0.2], [0.5, 0.5]]).log()
        >>> jensen_shannon(logits, logits).round(decimals=4)
        tensor([[0.0000, 0.0507],
                [0.0507, 0.0000]], dtype=torch.float64)
    """
    u, v = p.double().log_softmax(-1), q.double().log_softmax(-1)
    if not len(u) or not len(v):
        return u.new_zeros(len(u), len(v))
    low, high = float(u.min()), float(u.max())
    terms = _terms(high - low)
    if terms > MOST_TERMS:
        mixture = torch.stack([_entropy(torch.logaddexp(row, v) - math.log(2)) for row in u])
    else:
        mixture = -_separated(u, v, low, high, terms)
    divergence = mixture - (_entropy(u)[:, None] + _entropy(v)) / 2
    return divergence.where(divergence > ACCURACY, 0)


def _entropy(log_p: Tensor) -> Tensor:
    """`-Σ p log p` over the last axis; 0 where p is 0."""
    return -(log_p.exp() * log_p.clamp(min=torch.finfo(log_p.dtype).min)).sum(-1)


def _terms(width: float) -> int:
    """Chebyshev terms for `ACCURACY` on an interval of u: g's singularities lie at v ± iπ."""
    if not math.isfinite(width):
        return MOST_TERMS + 1
    reach = 2 * math.pi / max(width, 1e-3)
    return math.ceil(-math.log(ACCURACY) / math.asinh(reach)) + 2


def _separated(u: Tensor, v: Tensor, low: float, high: float, terms: int) -> Tensor:
    """`Σ_d g(u_id, v_jd)` of all pairs, `(n, m)`, by Chebyshev series in u on [low, high]."""
    orders = torch.arange(terms, dtype=u.dtype, device=u.device)
    angles = (orders + 0.5) * math.pi / terms
    middle, half = (low + high) / 2, max((high - low) / 2, torch.finfo(u.dtype).tiny)
    half_nodes = (middle + half * angles.cos()).exp() / 2
    to_series = (orders[:, None] * angles).cos() * 2 / terms
    to_series[0] /= 2
    total = u.new_zeros(len(u), len(v))
    width = max(1, BLOCK // (terms * max(len(u), len(v))))
    for some_u, some_v in zip(u.split(width, dim=1), v.split(width, dim=1), strict=True):
        m = half_nodes[:, None] + some_v.exp()[:, None] / 2
        series = to_series.expand(len(v), -1, -1) @ m.mul_(m.log())
        polynomials = _chebyshev((some_u - middle) / half, terms)
        total.addmm_(polynomials.flatten(1), series.flatten(1).mT)
    return total


def _chebyshev(t: Tensor, terms: int) -> Tensor:
    """`T₀(t), T₁(t), …` of `(n, d)` values, `(n, terms, d)`."""
    polynomials = [torch.ones_like(t), t]
    while len(polynomials) < terms:
        polynomials.append(2 * t * polynomials[-1] - polynomials[-2])
    return torch.stack(polynomials[:terms], dim=1)


def weighted_prototypes(prototypes: Tensor, weights: Tensor) -> Tensor:
    """Mixtures of the clients' prototypes, one for each receiver.

    Args:
        prototypes: `(clients, keys, d)`.
        weights: `(receivers, clients)`; rows are divided by their sum, a row of zeros gives zeros.

    Returns:
        `(receivers, keys, d)`.
    """
    share = weights / weights.sum(1, keepdim=True).clamp(min=torch.finfo(weights.dtype).tiny)
    return (share @ prototypes.flatten(1)).view(-1, *prototypes.shape[1:])


def by_key(prototypes: Tensor, keys: Tensor) -> Tensor:
    """The prototype of each sample's key.

    Args:
        prototypes: `(clients, n_keys, d)`.
        keys: `(clients, batch)`.

    Returns:
        `(clients, batch, d)`.
    """
    return prototypes.gather(1, keys[..., None].expand(-1, -1, prototypes.shape[-1]))


def instance_distance(features: Tensor, keys: Tensor, prototypes: Tensor, known: Tensor) -> Tensor:
    """Mean squared error of features to the prototypes of their keys, over batch and features.

    A sample whose key has no prototype counts as 0.

    Args:
        features: `(clients, batch, d)`.
        keys: `(clients, batch)`.
        prototypes: `(clients, n_keys, d)`.
        known: `(clients, n_keys)` whether there is a prototype.

    Returns:
        `(clients,)`.
    """
    error = (features - by_key(prototypes, keys)).square().mean(-1)
    return torch.where(known.gather(1, keys), error, 0.0).mean(1)


def nearest_prototype(features: Tensor, prototypes: Tensor, known: Tensor) -> Tensor:
    """Scores of which the largest is that of the nearest prototype: minus squared distances.

    Args:
        features: `(clients, batch, d)`.
        prototypes: `(clients, n_keys, d)`.
        known: `(clients, n_keys)` whether there is a prototype; others score -inf.

    Returns:
        `(clients, batch, n_keys)`.

    Example:
        >>> prototypes = torch.tensor([[[0.0, 0.0], [3.0, 4.0], [9.0, 9.0]]])
        >>> known = torch.tensor([[True, True, False]])
        >>> nearest_prototype(torch.tensor([[[3.0, 3.0]]]), prototypes, known).round().tolist()
        [[[-18.0, -1.0, -inf]]]
    """
    squared = torch.cdist(features, prototypes).square()
    return (-squared).masked_fill(~known[:, None], -torch.inf)


def attract_repel_loss(
    features: Tensor, attract: Tensor, repel: Tensor, temperature: float
) -> Tensor:
    """Contrastive loss that pulls features to one prototype and pushes them from another.

    `-log(e^{a/τ} / (e^{a/τ} + e^{b/τ}))` for cosine similarities a and b, written as
    `softplus((b - a)/τ)`, which does not overflow at τ = 0.02. A sample with no prototype on either
    side (a row of zeros) has loss 0.

    Args:
        features: `(clients, batch, d)`.
        attract: `(clients, batch, d)` prototype to approach.
        repel: `(clients, batch, d)` prototype to leave.
        temperature: τ.

    Returns:
        `(clients, batch)`.
    """
    known = attract.any(-1) & repel.any(-1)
    features = F.normalize(features, dim=-1)
    gap = (features * (F.normalize(repel, dim=-1) - F.normalize(attract, dim=-1))).sum(-1)
    return torch.where(known, F.softplus(gap / temperature), gap.new_zeros(()))
