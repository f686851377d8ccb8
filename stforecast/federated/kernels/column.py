"""A linear layer with one output for each client, in C."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from stforecast.federated.kernels.compiler import call


def column(x: Tensor, weight: Tensor, bias: Tensor, parts: int = 1) -> Tensor:
    """Return `x W + b` for each client, where W has one column; the parts of x are summed first.

    Args:
        x: `(clients, batch, parts * width)` on a CPU, float32 or float64, where width is a multiple
            of `LANES`.
        weight: `(clients, width, 1)`.
        bias: `(clients, 1)`.
        parts: number of parts.

    Returns:
        `(clients, batch, 1)`.
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
