"""What a node adds up over its own clients before anything leaves it.

A server that needs only sums of uploads (`Method.sums`) computes the same from the mean upload of
each node's clients, weighted as it would weigh them. So a node sends this mean, and its clients'
uploads stay on it. Where the server needs each upload by itself, or these are quantised one by one,
they leave as they are.

A node trusts its clients, but one with a broken meter could move the sum of all. So a client's
upload counts with a norm of `FARTHEST_NORM` times that of the node's median client at most. Under
secure aggregation nobody else can bound it.
"""

from __future__ import annotations

import logging

import torch
from torch import Tensor

from stforecast.federated.core.method import Method
from stforecast.federated.core.tensors import Like, Payload, client_sums, with_axes
from stforecast.federated.uploads.uplink import Uplink

log = logging.getLogger(__name__)

FARTHEST_NORM = 10.0
"""Largest norm of a client's upload, as a multiple of the median client's, or node's."""


def adds_up(method: Method, uplink: Uplink) -> bool:
    """Return whether nodes send their clients' mean upload instead of each client's.

    Mixing takes one upload after another, and bits are those of a client's own quantisation.
    """
    return method.sends.sums != "none" and uplink.bits == 32 and not method.training.mixing


def summand_weights(sums: str, sizes: Tensor) -> Tensor:
    """Return the clients' weights `(clients,)` in double precision, see `Method.sums`."""
    return (sizes if sums == "samples" else torch.ones_like(sizes)).double()


def weighted_sums(upload: Payload, weights: Tensor) -> Payload:
    """Return the sums over the client axis, weighted by `weights` `(clients,)`."""
    return {
        name: torch.tensordot(weights.to(t.device), t.double(), dims=1).cpu()
        for name, t in upload.items()
    }


def means_of(sums: Payload, like: Like, weight: float) -> Payload:
    """Return the mean upload as that of one client `(1, …)`, in the uploads' types."""
    means = {}
    for name, (dtype, *_) in like.items():
        mean, kind = sums[name] / weight, getattr(torch, dtype)
        mean = mean if kind.is_floating_point else mean.round()
        means[name] = mean.to(kind)[None]
    return means


def rows_with_mean(means: Payload, sizes: Tensor, *, grows: bool = False) -> Payload:
    """Return rows of a node's clients `(clients, …)` with this mean `(1, …)`.

    They are equal; or, where an upload `grows` with a client's samples, in proportion to `sizes`
    `(clients,)`.
    """
    if not grows:
        return {name: t.expand(len(sizes), *t.shape[1:]) for name, t in means.items()}
    shares = sizes / sizes.double().mean()
    return {name: (t * with_axes(shares, t.ndim)).to(t) for name, t in means.items()}


def bounded(upload: Payload, sizes: Tensor, *, grows: bool) -> tuple[Payload, list[int]]:
    """Return uploads `(clients, …)` with bounded norms, and the rows that were bounded.

    Where an upload `grows` with a client's samples, its norm per sample counts. Fewer than three
    clients cannot be compared, and integers stay as they are.
    """
    values = {name: t for name, t in upload.items() if t.is_floating_point()}
    if len(sizes) < 3 or not values:
        return upload, []
    norms = client_sums(t.double().square() for t in values.values()).sqrt().cpu()
    norms = norms / sizes.cpu() if grows else norms
    most = FARTHEST_NORM * float(norms.median())
    far = (norms > most) & (most > 0)
    if not far.any():
        return upload, []
    factor = torch.where(far, most / norms, 1.0)
    scaled = {n: (t * with_axes(factor.to(t.device), t.ndim)).to(t) for n, t in values.items()}
    return {**upload, **scaled}, far.nonzero().flatten().tolist()
