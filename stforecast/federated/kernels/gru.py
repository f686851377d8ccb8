"""A GRU over many clients, forward and backward, with its element-wise part in C."""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from stforecast.federated.kernels.compiler import load

VARIANTS = {
    "float": {"REAL": "float", "EXP": "expf", "NAME": "float"},
    "double": {"REAL": "double", "EXP": "exp", "NAME": "double"},
}
NAMES = {torch.float32: "float", torch.float64: "double"}


@cache
def library() -> ctypes.CDLL | None:
    """The compiled kernel, or None."""
    return load("gru.c", VARIANTS)


def usable(x: Tensor) -> bool:
    """Whether the kernel can run on this tensor."""
    return x.device.type == "cpu" and x.dtype in NAMES and library() is not None


def stacked_gru(x: Tensor, w_ih: Tensor, w_hh: Tensor, b_ih: Tensor, b_hh: Tensor) -> Tensor:
    """Last hidden state of a one-layer GRU for each client; see `ClientGRU`.

    Args:
        x: `(clients, batch, steps, input_size)` on a CPU, float32 or float64.
        w_ih: `(clients, input_size, 3 hidden_size)`.
        w_hh: `(clients, hidden_size, 3 hidden_size)`.
        b_ih: `(clients, 3 hidden_size)`.
        b_hh: `(clients, 3 hidden_size)`.

    Returns:
        `(clients, batch, hidden_size)`.
    """
    return _StackedGRU.apply(x, w_ih, w_hh, b_ih, b_hh)


class _StackedGRU(torch.autograd.Function):
    """Keeps the gates of every step, `(clients, steps, batch, …)`, for the way back."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, w_ih: Tensor, w_hh: Tensor, b_ih: Tensor, b_hh: Tensor
    ) -> Tensor:
        clients, batch, steps, _ = x.shape
        size = w_hh.shape[1]
        by_step = x.transpose(1, 2).reshape(clients, steps * batch, -1)
        inputs = torch.baddbmm(b_ih.unsqueeze(1), by_step, w_ih).view(clients, steps, batch, -1)
        gates = torch.empty_like(inputs)
        hidden = x.new_empty(clients, steps, batch, size)
        reset_input = torch.empty_like(hidden)
        recurrent = b_hh.unsqueeze(1).repeat(1, batch, 1)
        bias = b_hh.unsqueeze(1)
        for t in range(steps):
            if t:
                torch.baddbmm(bias, hidden[:, t - 1], w_hh, out=recurrent)
            previous = hidden[:, t - 1] if t else None
            written = (gates[:, t], reset_input[:, t], hidden[:, t])
            _call("gru_forward", hidden.shape, inputs[:, t], recurrent, previous, *written)
        ctx.save_for_backward(by_step, w_ih, w_hh, gates, reset_input, hidden)
        return hidden[:, -1].clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        by_step, w_ih, w_hh, gates, reset_input, hidden = ctx.saved_tensors
        steps = hidden.shape[1]
        grad = grad.clone(memory_format=torch.contiguous_format)
        d_input, d_recurrent = torch.empty_like(gates), torch.empty_like(gates)
        for t in reversed(range(steps)):
            read = (gates[:, t], reset_input[:, t], hidden[:, t - 1] if t else None)
            _call("gru_backward", hidden.shape, grad, *read, d_input[:, t], d_recurrent[:, t])
            if t:
                grad.baddbmm_(d_recurrent[:, t], w_hh.mT)
        d_in = d_input.flatten(1, 2)
        before = hidden[:, :-1].flatten(1, 2)
        return (
            _by_sample(torch.bmm(d_in, w_ih.mT), steps) if ctx.needs_input_grad[0] else None,
            torch.bmm(by_step.mT, d_in),
            torch.bmm(before.mT, d_recurrent[:, 1:].flatten(1, 2)),
            d_in.sum(1),
            d_recurrent.flatten(1, 2).sum(1),
        )


def _by_sample(by_step: Tensor, steps: int) -> Tensor:
    """`(clients, steps batch, size)` to `(clients, batch, steps, size)`."""
    return by_step.unflatten(1, (steps, -1)).transpose(1, 2)


def _call(name: str, shape: torch.Size, *tensors: Tensor | None) -> None:
    clients, steps, batch, size = shape
    first = next(t for t in tensors if t is not None)
    function = getattr(library(), f"{name}_{NAMES[first.dtype]}")
    sizes = (ctypes.c_ssize_t(n) for n in (clients, steps, batch, size))
    pointers = (ctypes.c_void_p(None if t is None else t.data_ptr()) for t in tensors)
    function(*sizes, *pointers)
