"""Operations on features in C: contrastive losses with their gradients, and sums by key.

Features are `(clients, batch, d)` on a CPU, float32 or float64, where d is a multiple of `LANES`;
`usable` checks this.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from stforecast.federated.kernels.compiler import call


def filtered_contrast(
    features: Tensor, others: Tensor, filters: Tensor, temperature: float
) -> Tensor:
    """Return the contrast of each feature with its positive and all negatives, weighted by filters.

    With s = cosine similarity / temperature, the mean over a client's samples b of
    `log(e^s_bb + Σ_i w_bi e^s_bi) - s_bb`, where only filters w above 0 count.

    Args:
        features: `(clients, batch, d)`.
        others: `(clients, batch, d)`; the one of the same index is the positive.
        filters: w, `(clients, batch, batch)`.
        temperature: positive.

    Returns:
        `(clients,)`.
    """
    return _FilteredContrast.apply(features, others, filters, float(temperature))


class _FilteredContrast(Function):
    """Saves the derivatives by the similarities, as they are small."""

    @staticmethod
    def forward(
        ctx: Any, features: Tensor, others: Tensor, filters: Tensor, temperature: float
    ) -> Tensor:
        clients, batch, size = features.shape
        features, others, filters = _by_client(features), _by_client(others), filters.contiguous()
        loss, along = features.new_empty(clients), features.new_empty(clients, 2, batch)
        d_similarities, d_filters = (filters.new_empty(filters.shape) for _ in range(2))
        ctx.sizes = clients, batch, size, temperature
        pairs = features, features.stride(0), others, others.stride(0)
        made = loss, d_similarities, d_filters, along
        call("filtered_forward", loss.dtype, *ctx.sizes, *pairs, filters, *made)
        ctx.save_for_backward(features, others, d_similarities, d_filters, along)
        return loss

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        features, others, d_similarities, d_filters, along = ctx.saved_tensors
        d_features, d_others = (t.new_empty(t.shape) for t in (features, others))
        pairs = features, features.stride(0), others, others.stride(0)
        given = d_similarities, along, grad.contiguous()
        call("filtered_backward", grad.dtype, *ctx.sizes, *pairs, *given, d_features, d_others)
        return d_features, d_others, d_filters * grad[:, None, None], None


def attract_repel(
    features: Tensor, attract: Tensor, repel: Tensor, keys: Tensor, temperature: float
) -> Tensor:
    """Return a client's mean of `attract_repel_loss` with the prototypes of the samples' keys.

    Args:
        features: `(clients, batch, d)`.
        attract: prototypes to approach, `(clients, n_keys, d)`; no gradient flows to them.
        repel: prototypes to move away from, `(clients, n_keys, d)`; no gradient flows to them.
        keys: `(clients, batch)`.
        temperature: positive.

    Returns:
        `(clients,)`.

    Raises:
        IndexError: for a key outside 0 to n_keys - 1.
    """
    return _AttractRepel.apply(features, attract, repel, keys, float(temperature))


class _AttractRepel(Function):
    """Saves its inputs and recomputes the similarities in the backward pass."""

    @staticmethod
    def forward(
        ctx: Any, features: Tensor, attract: Tensor, repel: Tensor, keys: Tensor, temperature: float
    ) -> Tensor:
        features, loss = _by_client(features), features.new_empty(len(features))
        given = [t.contiguous() for t in (attract, repel, keys)]
        ctx.sizes = *features.shape, attract.shape[1], temperature
        call(
            "attract_repel_forward",
            loss.dtype,
            *ctx.sizes,
            features,
            features.stride(0),
            *given,
            loss,
        )
        ctx.save_for_backward(features, *given)
        return loss

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        features, *given = ctx.saved_tensors
        d_features = features.new_empty(features.shape)
        given = features, features.stride(0), *given, grad.contiguous(), d_features
        call("attract_repel_backward", grad.dtype, *ctx.sizes, *given)
        return d_features, None, None, None, None


def add_by_key(features: Tensor, keys: Tensor, sums: Tensor, counts: Tensor) -> None:
    """Add each feature to the sum of its key, and count it.

    Args:
        features: `(clients, batch, d)`; no gradient flows into the sums.
        keys: `(clients, batch)`.
        sums: `(clients, n_keys, d)`, dense, changed in place.
        counts: `(clients, n_keys)`, dense, changed in place.

    Raises:
        IndexError: for a key outside 0 to n_keys - 1.
    """
    features, keys = _by_client(features.detach()), keys.contiguous()
    sizes = *features.shape, sums.shape[1]
    call("add_by_key", sums.dtype, *sizes, features, features.stride(0), keys, sums, counts)


def _by_client(t: Tensor) -> Tensor:
    """Return the tensor, copied unless each client's values are contiguous."""
    return t if t[0].is_contiguous() else t.contiguous()
