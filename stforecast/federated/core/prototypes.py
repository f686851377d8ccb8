"""Building blocks of prototype methods: means of features by key, divergences, losses.

A prototype is the mean feature vector of an integer key: the class for PFPL, GLDP and FedTA, the
slot of the period for FUELS. Prototypes of N clients are one tensor `(clients, keys, d)`.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from stforecast.federated.core.method import Method, Task
from stforecast.federated.core.state import Cohort, ServerState
from stforecast.federated.core.tensors import Batch
from stforecast.federated.kernels.compiler import usable
from stforecast.federated.kernels.functions import add_by_key


class PrototypeMeans:
    """Running mean of the features of each key, without another pass over the data."""

    def __init__(self, n_keys: int) -> None:
        self.n_keys = n_keys
        self._sums: Tensor | None = None
        self._counts: Tensor | None = None

    def add(self, features: Tensor, keys: Tensor) -> None:
        """Add features `(clients, batch, d)`, without gradient, of keys `(clients, batch)`."""
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
        """Number of samples of each key, `(clients, keys)` int32.

        Raises:
            ValueError: if nothing was added.
        """
        if self._counts is None:
            raise ValueError("no features were added, so there are no counts")
        return self._counts.int()

    def means(self) -> Tensor:
        """Return the prototypes `(clients, keys, d)`; zeros for a key without samples.

        Raises:
            ValueError: if nothing was added.
        """
        if self._sums is None or self._counts is None:
            raise ValueError("no features were added, so there are no prototypes")
        return self._sums / self._counts.clamp(min=1)[..., None]


def key_counts(task: Task, cohort: Cohort) -> Tensor:
    """Count the training samples of each key on each client, `(clients, keys)` int32."""
    size = int(cohort.data.sizes[0])
    keys = task.keys({name: t[:, :size] for name, t in cohort.data.tensors.items()})
    return F.one_hot(keys, task.n_keys).sum(1).int()


def encoded(method: Method, cohort: Cohort, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
    """Return a batch's features, their keys, and the task's loss `(clients,)`.

    In the last local epoch, it adds the features to `means_of_last_epoch`. The cohort trains for
    all epochs of the run.
    """
    features, keys = method.population.encode(cohort.state, batch["x"]), method.task.keys(batch)
    if cohort.last_epoch:
        means = cohort.scratch.setdefault("means", PrototypeMeans(method.task.n_keys))
        means.add(features, keys)
    return features, keys, method.task_loss(cohort, features, batch)


def means_of_last_epoch(cohort: Cohort) -> PrototypeMeans:
    """Return what `encoded` added in this round."""
    means: PrototypeMeans = cohort.scratch["means"]
    return means


ACCURACY = 1e-10
"""Error of the series in `jensen_shannon`; smaller divergences count as 0."""


def jensen_shannon(p: Tensor, q: Tensor | None = None) -> Tensor:
    """Return the Jensen–Shannon divergence in nats of all pairs of softmax distributions.

    The mixture's entropy needs `g(u, v) = m log m` with `m = (eᵘ + eᵛ)/2` for every pair and entry.
    g is symmetric and smooth, so about six features `f` of one value separate it,
    `g(u, v) = Σᵣ ± fᵣ(u) fᵣ(v)`, to about 1e-10, and all pairs become one matrix product.

    Args:
        p: `(n, d)` logits.
        q: `(m, d)` logits; by default p, which takes half as long and is exactly symmetric.

    Returns:
        `(n, m)` divergences between 0 and log 2, in double precision.

    >>> logits = torch.tensor([[0.8, 0.2], [0.5, 0.5]]).log()
    >>> jensen_shannon(logits).round(decimals=4)
    tensor([[0.0000, 0.0507],
            [0.0507, 0.0000]], dtype=torch.float64)
    """
    u = p.double().log_softmax(-1)
    v = u if q is None else q.double().log_softmax(-1)
    if not len(u) or not len(v):
        return u.new_zeros(len(u), len(v))
    low, high = min(float(u.min()), float(v.min())), max(float(u.max()), float(v.max()))
    # Chebyshev terms for `ACCURACY`: g's singularities in u lie at v ± iπ.
    reach = 2 * math.pi / max(high - low, 1e-3)
    terms = -math.log(ACCURACY) / math.asinh(reach) if math.isfinite(high - low) else math.inf
    if terms > 126:  # The series would be slower.
        mixture = torch.stack([_entropy(torch.logaddexp(row, v) - math.log(2)) for row in u])
    else:
        mixture = -_Separation(low, high, math.ceil(terms) + 2, u.device).sums(u, v)
    of_u = _entropy(u)
    of_v = of_u if v is u else _entropy(v)
    divergence = mixture - (of_u[:, None] + of_v) / 2
    return divergence.where(divergence > ACCURACY, 0)


def _entropy(log_p: Tensor) -> Tensor:
    """Return `-Σ p log p` over the last axis; terms with p = 0 are 0."""
    return -(log_p.exp() * log_p.clamp(min=torch.finfo(log_p.dtype).min)).sum(-1)


class _Separation:
    """`g(u, v) = Σᵣ ± fᵣ(u) fᵣ(v)` on a square: a Chebyshev series in both, diagonalised."""

    in_cache = 2**18
    """Values of a temporary that should stay in cache: 2 MB in double precision."""
    in_memory = 2**22
    """Values of one side's features in memory at a time: 32 MB."""
    block = 64
    """Smallest number of rows of the blocks in which a symmetric product is computed."""

    def __init__(self, low: float, high: float, terms: int, device: torch.device) -> None:
        self._middle = (low + high) / 2
        self._half = max((high - low) / 2, torch.finfo(torch.float64).tiny)
        orders = torch.arange(terms, dtype=torch.float64, device=device)
        angles = (orders + 0.5) * math.pi / terms
        at_nodes = (self._middle + self._half * angles.cos()).exp()
        m = (at_nodes[:, None] + at_nodes) / 2
        to_series = (orders[:, None] * angles).cos() * 2 / terms
        to_series[0] /= 2
        weights, vectors = torch.linalg.eigh(to_series @ m.mul(m.log()) @ to_series.mT)
        kept = weights.abs() > ACCURACY / 100 * weights.abs().max()
        self._negative = int((weights[kept] < 0).sum())  # Their eigenvalues come first.
        self._combine = (vectors * weights.abs().sqrt())[:, kept].mT.contiguous()

    def sums(self, u: Tensor, v: Tensor) -> Tensor:
        """Return Σ g(u, v) over the last axis of `(n, d)` and `(m, d)`, for all pairs: `(n, m)`."""
        total, rank = u.new_zeros(len(u), len(v)), len(self._combine)
        width = max(1, self.in_memory // (rank * max(len(u), len(v))))
        for some_u, some_v in zip(u.split(width, dim=1), v.split(width, dim=1), strict=True):
            of_u = self._features(some_u)
            of_v = of_u if v is u else self._features(some_v)
            for part, sign in ((slice(self._negative), -1), (slice(self._negative, None), 1)):
                ours, theirs = (f[:, part].flatten(1) for f in (of_u, of_v))
                # Of a symmetric product, blocks of rows up to the diagonal.
                rows = max(self.block, math.ceil(len(u) / 8)) if v is u else len(u)
                for start in range(0, len(u), rows):
                    end = start + rows
                    columns = end if v is u else len(v)
                    total[start:end, :columns].addmm_(
                        ours[start:end], theirs[:columns].mT, alpha=sign
                    )
        return total.tril() + total.tril(-1).mT if v is u else total

    def _features(self, u: Tensor) -> Tensor:
        """Return the features `(n, rank, d)` of each value of `(n, d)`."""
        (rank, terms), (n, width) = self._combine.shape, u.shape
        found = u.new_empty(n, rank, width)
        rows = max(1, self.in_cache // (terms * width))
        room = u.new_empty(rows, terms, width)
        for some, out in zip(u.split(rows), found.split(rows), strict=True):
            polynomials = room[: len(some)]
            one, t, *others = polynomials.unbind(1)
            one.fill_(1)
            torch.div(some - self._middle, self._half, out=t)
            before, last, twice = one, t, 2 * t
            for polynomial in others:
                torch.mul(twice, last, out=polynomial).sub_(before)
                before, last = last, polynomial
            torch.matmul(self._combine, polynomials, out=out)
        return found


def weighted_prototypes(prototypes: Tensor, weights: Tensor) -> Tensor:
    """Return mixtures of the clients' prototypes `(clients, keys, d)`, `(receivers, keys, d)`.

    The rows of `weights` `(receivers, clients)` are divided by their sum; zeros give zeros.
    """
    share = weights / weights.sum(1, keepdim=True).clamp(min=torch.finfo(weights.dtype).tiny)
    return (share @ prototypes.flatten(1)).view(-1, *prototypes.shape[1:])


def key_means(prototypes: Tensor, weights: Tensor) -> Tensor:
    """Return the mean prototype of each key over the clients, `(keys, d)`; 0 without weights.

    The prototypes are `(clients, keys, d)`, the weights `(clients, keys)`: whole or truth values.

    >>> prototypes = torch.tensor([[[1.0], [5.0]], [[4.0], [6.0]]])
    >>> key_means(prototypes, torch.tensor([[2, 0], [1, 0]]))
    tensor([[2.],
            [0.]])
    """
    weights = weights.to(prototypes.dtype)
    shares = weights / weights.sum(0).clamp(min=1)
    return torch.einsum("nk,nkd->kd", shares, prototypes)


def global_prototypes(server: ServerState, prototypes: Tensor, weights: Tensor) -> ServerState:
    """Return the `prototypes` that `key_means` gives, and which keys are `known`, `(keys,)`.

    A key without weight keeps its prototype in the server's former state, if it has one there.
    """
    mean, known = key_means(prototypes, weights), (weights > 0).any(0)
    if "prototypes" in server:
        mean = torch.where(known[:, None], mean, server["prototypes"])
        known = known | server["known"]
    return {"prototypes": mean, "known": known}


def by_key(prototypes: Tensor, keys: Tensor) -> Tensor:
    """Return the prototype `(clients, n_keys, d)` of each sample's key, `(clients, batch, d)`."""
    return prototypes.gather(1, keys[..., None].expand(-1, -1, prototypes.shape[-1]))


def instance_distance(features: Tensor, keys: Tensor, prototypes: Tensor, known: Tensor) -> Tensor:
    """Return the mean squared error of features to the prototypes of their keys, `(clients,)`.

    The mean is over batch and features. A sample whose key has no prototype counts as 0: `known`
    `(clients, n_keys)` says which have one. Features are `(clients, batch, d)`.
    """
    error = (features - by_key(prototypes, keys)).square().mean(-1)
    return torch.where(known.gather(1, keys), error, 0.0).mean(1)


def batch_distance(
    features: Tensor,
    keys: Tensor,
    prototypes: Tensor,
    known: Tensor,
    weight: Literal["keys", "samples"],
) -> Tensor:
    """Return the mean squared error of a batch's mean features of each key to the prototypes.

    The mean is over features and the keys of the batch, which weigh the same, or by their numbers
    of `samples`. The arguments are those of `instance_distance`.
    """
    member = F.one_hot(keys, known.shape[1]).to(features.dtype)
    count = member.sum(1)
    means = member.mT @ features / count.clamp(min=1)[..., None]
    error = (means - prototypes).square().mean(-1)
    share = count if weight == "samples" else (count > 0).to(count)
    return (torch.where(known, error, 0.0) * share).sum(1) / share.sum(1)


def nearest_prototype(features: Tensor, prototypes: Tensor, known: Tensor) -> Tensor:
    """Return logits of the nearest prototype: negative squared distances.

    They are `(clients, batch, n_keys)`; a key without a prototype, which is not `known`, has -inf.
    Features are `(clients, batch, d)`.

    >>> prototypes = torch.tensor([[[0.0, 0.0], [3.0, 4.0], [9.0, 9.0]]])
    >>> known = torch.tensor([[True, True, False]])
    >>> nearest_prototype(torch.tensor([[[3.0, 3.0]]]), prototypes, known).round().tolist()
    [[[-18.0, -1.0, -inf]]]
    """
    # The default mode computes by products, which cancel where features are far from 0.
    distance = torch.cdist(features, prototypes, compute_mode="donot_use_mm_for_euclid_dist")
    squared = distance.square()
    return (-squared).masked_fill(~known[:, None], -torch.inf)


def attract_repel_loss(
    features: Tensor, attract: Tensor, repel: Tensor, temperature: float
) -> Tensor:
    """Return a contrastive loss between a prototype that attracts and one that repels.

    `-log(e^{a/τ} / (e^{a/τ} + e^{b/τ}))` for cosine similarities a and b, written as
    `softplus((b - a)/τ)`, which does not overflow at τ = 0.02. A sample with no prototype on either
    side (a row of zeros) has loss 0. Features and prototypes are `(clients, batch, d)`, the losses
    `(clients, batch)`.
    """
    known = attract.any(-1) & repel.any(-1)
    features = F.normalize(features, dim=-1)
    gap = (features * (F.normalize(repel, dim=-1) - F.normalize(attract, dim=-1))).sum(-1)
    return torch.where(known, F.softplus(gap / temperature), gap.new_zeros(()))
