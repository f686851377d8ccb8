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

Prototypes = tuple[Tensor, Tensor, Tensor]
"""Prototypes to approach and prototypes to move away from, `(clients, n_keys, d)`, and the samples'
keys `(clients, batch)`; no gradient flows to them."""


def contrast(
    encoded: Tensor,
    filters: Tensor | None,
    prototypes: Prototypes | None,
    temperature: float,
    weight: float = 1.0,
) -> tuple[Tensor, Tensor]:
    """Return the features of a batch and their contrastive losses, in one pass over each client.

    With filters w, `encoded` holds the features and then as many others. With s = cosine similarity
    of feature b and other i / temperature, the first loss is the mean over a client's samples b of
    `log(e^s_bb + Σ_i w_bi e^s_bi) - s_bb`, where only filters above 0 count. If there are several
    times as many features as filters, as of several cells side by side, they are contrasted within
    each cell.

    The second loss is the mean of `attract_repel_loss` with the prototypes of the samples' keys.

    Args:
        encoded: `(clients, batch, d)`, or with filters `(clients, 2 * batch, d)`.
        filters: w, `(clients, slots, slots)`; None leaves out the first loss.
        prototypes: see `Prototypes`; None leaves out the second loss.
        temperature: positive.
        weight: factor of the second loss.

    Returns:
        The features `(clients, batch, d)`, a part of `encoded` that passes its gradient on, and the
        sum of both losses, `(clients,)`.

    Raises:
        IndexError: for a key outside 0 to n_keys - 1.
    """
    of_keys = prototypes or (None, None, None)
    return _Contrast.apply(encoded, filters, *of_keys, (float(temperature), float(weight)))


class _Contrast(Function):
    """Saves the derivatives by the similarities, as they are small; recomputes the rest."""

    @staticmethod
    def forward(
        ctx: Any,
        encoded: Tensor,
        filters: Tensor | None,
        attract: Tensor | None,
        repel: Tensor | None,
        keys: Tensor | None,
        factors: tuple[float, float],
    ) -> tuple[Tensor, Tensor]:
        given = [t if t is None else t.contiguous() for t in (encoded, filters, attract, repel)]
        clients, batch, size = encoded.shape
        cells, n_keys, stride = 1, 0, 0
        made: list[Tensor | None] = [None, None]
        if filters is not None:
            batch, slots = batch // 2, filters.shape[1]
            cells = batch // slots
            made = [filters.new_empty(clients, n, slots, slots) for n in (cells, 1)]
        if attract is not None and keys is not None:
            keys = keys if keys.stride(1) == 1 else keys.contiguous()
            n_keys, stride = attract.shape[1], keys.stride(0)
        loss = encoded.new_empty(clients)
        ctx.sizes = clients, batch // cells, cells, size, n_keys, *factors
        call("contrast_forward", loss.dtype, *ctx.sizes, *given, keys, stride, loss, *made)
        ctx.save_for_backward(*given, keys, *made)
        return encoded[:, :batch], loss

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, further: Tensor, grad: Tensor) -> tuple[Tensor | None, ...]:
        *given, keys, d_similarities, d_filters = ctx.saved_tensors
        encoded, filters = given[:2]
        stride = 0 if keys is None else keys.stride(0)
        to_encoded = encoded.new_empty(encoded.shape)
        to_filters = None if filters is None else filters.new_empty(filters.shape)
        saved = *given, keys, stride, d_similarities, d_filters
        found = grad.contiguous(), further.contiguous(), to_encoded, to_filters
        call("contrast_backward", grad.dtype, *ctx.sizes, *saved, *found)
        return to_encoded, to_filters, None, None, None, None


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
    sizes = *features.shape, sums.shape[1]
    if features.stride()[1:] != (sizes[2], 1):
        features = features.contiguous()
    keys = keys if keys.stride(1) == 1 else keys.contiguous()
    given = features, features.stride(0), keys, keys.stride(0)
    call("add_by_key", sums.dtype, *sizes, *given, sums, counts)
