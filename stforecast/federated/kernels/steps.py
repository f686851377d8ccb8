"""Parts of a training step in C: Adam for many parameters, contrastive losses, and sums by key.

Features are `(clients, batch, d)` on a CPU, float32 or float64, where d is a multiple of `LANES`;
`usable` checks this.
"""

from __future__ import annotations

import ctypes
import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from stforecast.federated.kernels.compiler import call, library


class AdamKernel:
    """Steps of Adam for the same parameters, whose addresses are looked up once.

    Parameters `(clients, …)`, moving averages of gradients (`first`) and of their squares
    (`second`) and numbers of steps `(clients,)`, equal for all clients, are changed in place. A
    server's own parameters, without a client axis, have as many numbers as rows. It is `usable` if
    the kernel can run on these tensors.
    """

    def __init__(
        self,
        params: Sequence[Tensor],
        first: Sequence[Tensor],
        second: Sequence[Tensor],
        counts: Sequence[Tensor],
    ) -> None:
        groups = params, first, second, counts
        self._kept, self._dtype = groups, params[0].dtype  # Tensors whose addresses are used.
        self.usable = library() is not None and all(
            t.is_cpu
            and t.dtype == self._dtype in (torch.float32, torch.float64)
            and t.is_contiguous()
            for group in groups
            for t in group
        )
        self._rows, self._sizes = (_numbers(group) for group in (counts, params))
        self._addresses = [addresses(group) for group in groups]

    def owns(self, params: Sequence[Tensor]) -> bool:
        """Return whether these are the parameters, and none has been replaced."""
        own = self._kept[0]
        return len(own) == len(params) and all(map(operator.is_, own, params))

    def step(
        self,
        grads: Sequence[Tensor],
        *,
        lr: float,
        betas: tuple[float, float],
        eps: float,
        weight_decay: float,
    ) -> None:
        """Take a step along gradients of the parameters' strides and type."""
        params, *moments = self._addresses
        tensors: tuple[Any, ...] = self._rows, self._sizes, params, addresses(grads), *moments
        call("adam", self._dtype, len(grads), *tensors, float(lr), *betas, eps, float(weight_decay))


def _numbers(tensors: Sequence[Tensor]) -> ctypes.Array[ctypes.c_ssize_t]:
    return (ctypes.c_ssize_t * len(tensors))(*map(Tensor.numel, tensors))


def addresses(tensors: Sequence[Tensor]) -> ctypes.Array[ctypes.c_void_p]:
    """Return the addresses of tensors' first values."""
    return (ctypes.c_void_p * len(tensors))(*map(Tensor.data_ptr, tensors))


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
    """
    of_keys = prototypes or (None, None, None)
    result: tuple[Tensor, Tensor] = _Contrast.apply(
        encoded, filters, *of_keys, (float(temperature), float(weight))
    )
    return result


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
    """Add features `(clients, batch, d)` to the sums of their keys, and count them, both in place.

    No gradient flows into the sums.
    """
    sizes = *features.shape, sums.shape[1]
    if features.stride()[1:] != (sizes[2], 1):
        features = features.contiguous()
    keys = keys if keys.stride(1) == 1 else keys.contiguous()
    given = features, features.stride(0), keys, keys.stride(0)
    call("add_by_key", sums.dtype, *sizes, *given, sums, counts)
