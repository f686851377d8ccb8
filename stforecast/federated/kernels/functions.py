"""Functions over many clients, forward and backward, in C: layers, contrastive losses, Adam, sums.

GRUs, with their matrix products, are written by hand because memory bandwidth limits a round: a
client's weights and activations stay in the cache from the first product to the last, and gates are
computed from a product's registers.

Images are `(clients, batch, height, width, channels)` on a CPU, float32 or float64. Libraries
rearrange an image's windows or its channels in every call; with the channels last, products read
the images as they are. Features are `(clients, batch, d)`, where d is a multiple of `LANES`;
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
from torch.nn import functional as F

from stforecast.federated.kernels.compiler import call, library, precision, usable

Weights = tuple[Tensor, Tensor, Tensor, Tensor]
"""Weights of the input `(clients, input_size, 3 hidden_size)` and of the hidden state `(clients,
hidden_size, 3 hidden_size)`, and their biases `(clients, 3 hidden_size)`; see `ClientGRU`."""


def grus_usable(xs: Sequence[Tensor], weights: Sequence[Weights]) -> bool:
    """Return whether `stacked_grus` can run on these tensors."""
    pairs = zip(xs, weights, strict=True)
    return all(usable(ws[1].shape[1], x, *ws, products=True) for x, ws in pairs)


def stacked_grus(xs: Sequence[Tensor], weights: Sequence[Weights]) -> Tensor:
    """Return the last hidden states of one-layer GRUs, `(clients, batch, sum of hidden sizes)`.

    If autocast asks for bfloat16, the factors of products with the hidden state are rounded to it,
    also in the backward pass; sums, gates and gradients stay in single precision. The inputs are
    `(clients, batch, steps, input_size)` on a CPU, float32 or float64.
    """
    return _StackedGRUs.apply(len(xs), *xs, *(w for ws in weights for w in ws))


class _StackedGRUs(Function):
    @staticmethod
    def forward(ctx: Any, n: int, *tensors: Tensor) -> Tensor:
        xs, weights = tensors[:n], [tensors[i : i + 4] for i in range(n, 5 * n, 4)]
        ctx.widths = [w_hh.shape[1] for _, w_hh, _, _ in weights]
        ctx.variant = precision(xs[0].dtype)
        states = xs[0].new_empty(*xs[0].shape[:2], sum(ctx.widths))
        parts = zip(xs, weights, states.split(ctx.widths, dim=2), strict=True)
        ctx.save_for_backward(*(t for part in parts for t in _forward(ctx.variant, *part)))
        return states

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        grad = grad if grad.stride(2) == 1 else grad.contiguous()
        saved, n = ctx.saved_tensors, len(ctx.widths)
        kept = [saved[i * len(saved) // n : (i + 1) * len(saved) // n] for i in range(n)]
        needs_x = ctx.needs_input_grad[1 : n + 1]
        d_xs, d_weights = zip(
            *(
                _backward(ctx.variant, *part, needs_x=needed)
                for *part, needed in zip(kept, grad.split(ctx.widths, dim=2), needs_x, strict=True)
            ),
            strict=True,
        )
        return None, *d_xs, *(d_w for d_ws in d_weights for d_w in d_ws)


def _forward(
    variant: torch.dtype, x: Tensor, weights: Sequence[Tensor], states: Tensor
) -> tuple[Tensor, ...]:
    """Write a GRU's last states; return what its backward pass needs."""
    clients, batch, steps, _ = x.shape
    size = states.shape[2]
    x = x if x.stride(3) == 1 else x.contiguous()
    weights = [w.contiguous() for w in weights]
    kept = x.new_empty(clients, 5 * steps - 1, batch, size)
    call("gru_forward", variant, *_inputs(x, size), *weights, kept, states, states.stride(1))
    return x, *weights, kept


def _backward(
    variant: torch.dtype, saved: Sequence[Tensor], grad: Tensor, *, needs_x: bool
) -> tuple[Tensor | None, list[Tensor]]:
    """Return the gradients of a GRU's input, if it is needed, and weights."""
    x, *weights, kept = saved
    d_x = x.new_empty(x.shape) if needs_x else None
    d_weights = [w.new_empty(w.shape) for w in weights]
    given = *_inputs(x, grad.shape[2]), *weights[:2], kept, grad, *grad.stride()[:2]
    call("gru_backward", variant, *given, d_x, *d_weights)
    return d_x, d_weights


def _inputs(x: Tensor, size: int) -> tuple[int | Tensor, ...]:
    """Return the first arguments of both passes: sizes, the input and its strides."""
    clients, batch, steps, inputs = x.shape
    return clients, steps, batch, inputs, size, x, *x.stride()[:3]


def stacked_convolution(x: Tensor, weight: Tensor, bias: Tensor | None, padding: int) -> Tensor:
    """Return the convolution of each client's images with its own weights, at a stride of 1.

    Args:
        x: `(clients, batch, height, width, in)`.
        weight: `(clients, out, in, side, side)`.
        bias: `(clients, out)`, or None.
        padding: zeros around an image.

    Returns:
        `(clients, batch, height + 2 padding - side + 1, width + 2 padding - side + 1, out)`.
    """
    padded = F.pad(x, (0, 0, *[padding] * 4)) if padding else x
    return _Convolution.apply(padded, weight, bias)


class _Convolution(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        x, weight = x.contiguous(), weight.contiguous()
        bias = bias if bias is None else bias.contiguous()
        clients, batch, height, width, _ = x.shape
        out, side = weight.shape[1], weight.shape[3]
        y = x.new_empty(clients, batch, height - side + 1, width - side + 1, out)
        call("convolution_forward", x.dtype, *x.shape, side, out, x, weight, bias, y)
        ctx.save_for_backward(x, weight)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        out, side = weight.shape[1], weight.shape[3]
        d_x = x.new_empty(x.shape) if ctx.needs_input_grad[0] else None
        d_weight = weight.new_empty(weight.shape)
        d_bias = x.new_empty(len(x), out) if ctx.needs_input_grad[2] else None
        made = d_x, d_weight, d_bias
        given = x, weight, grad.contiguous()
        call("convolution_backward", x.dtype, *x.shape, side, out, *given, *made)
        return made


def relu_pool(x: Tensor) -> Tensor:
    """Return the maximum of 2 × 2 pixels and 0, `(clients, batch, height/2, width/2, channels)`."""
    return _ReluPool.apply(x)


class _ReluPool(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        x = x.contiguous()
        clients, batch, height, width, channels = x.shape
        y = x.new_empty(clients, batch, height // 2, width // 2, channels)
        call("relu_pool_forward", x.dtype, clients * batch, height, width, channels, x, y)
        ctx.save_for_backward(x, y)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        x, y = ctx.saved_tensors
        clients, batch, height, width, channels = x.shape
        d_x, sizes = x.new_empty(x.shape), (clients * batch, height, width, channels)
        call("relu_pool_backward", x.dtype, *sizes, x, y, grad.contiguous(), d_x)
        return d_x


def linear_column(x: Tensor, weight: Tensor, bias: Tensor, parts: int = 1) -> Tensor:
    """Return `x W + b` for each client, where W has one column; the parts of x are summed first.

    Values x are `(clients, batch, parts * width)` on a CPU, float32 or float64, where width is a
    multiple of `LANES`; W is `(clients, width, 1)`, b `(clients, 1)`.
    """
    return _Column.apply(x, weight, bias, parts)


class _Column(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, parts: int) -> Tensor:
        x = x if x.stride(2) == 1 else x.contiguous()
        weight, bias = weight.contiguous(), bias.contiguous()
        clients, batch, _ = x.shape
        ctx.sizes = clients, batch, parts, weight.shape[1]
        y = x.new_empty(clients, batch, 1)
        call("column_forward", x.dtype, *ctx.sizes, x, *x.stride()[:2], weight, bias, y)
        ctx.save_for_backward(x, weight, bias)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, bias = ctx.saved_tensors
        found = x.new_empty(x.shape), weight.new_empty(weight.shape), bias.new_empty(bias.shape)
        given = x, *x.stride()[:2], weight, grad.contiguous()
        call("column_backward", x.dtype, *ctx.sizes, *given, *found)
        return *found, None


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
        self._rows, self._sizes = (
            (ctypes.c_ssize_t * len(group))(*map(Tensor.numel, group)) for group in (counts, params)
        )
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
    factors = float(temperature), float(weight)
    return _Contrast.apply(encoded, filters, *of_keys, factors)


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
