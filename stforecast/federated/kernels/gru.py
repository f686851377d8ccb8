"""A GRU over many clients, forward and backward, matrix products included, in C.

Written by hand, since what bounds a round is memory: a client's weights and activations stay in the
cache from the first product to the last, and the gates are made where a product leaves them.
"""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from stforecast.federated.kernels.compiler import load

VARIANTS = {
    "float": {"REAL": "float", "EXP": "exp_float", "NAME": "float"},
    "double": {"REAL": "double", "EXP": "exp", "NAME": "double"},
}
NAMES = {torch.float32: "float", torch.float64: "double"}

LANES = 16
"""The hidden size must be a multiple of this: of the widest vector of any processor."""


@cache
def library() -> ctypes.CDLL | None:
    """The compiled kernel, or None."""
    return load("gru.c", VARIANTS)


def usable(x: Tensor, hidden_size: int) -> bool:
    """Whether the kernel can run on this tensor."""
    fits = x.device.type == "cpu" and x.dtype in NAMES and hidden_size % LANES == 0
    return fits and library() is not None


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
        by_step = x.transpose(1, 2).contiguous()
        weights = [w.contiguous() for w in (w_ih, w_hh, b_ih, b_hh)]
        hidden = x.new_empty(clients, steps, batch, w_hh.shape[1])
        reset_input = torch.empty_like(hidden)
        gates = x.new_empty(clients, steps, batch, w_hh.shape[2])
        _call("gru_forward", hidden, by_step, *weights, gates, reset_input, hidden)
        ctx.save_for_backward(by_step, *weights[:2], gates, reset_input, hidden)
        return hidden[:, -1].clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        by_step, w_ih, w_hh, gates, reset_input, hidden = ctx.saved_tensors
        d_x = torch.empty_like(by_step) if ctx.needs_input_grad[0] else None
        width = w_hh.shape[2]
        d_weights = [
            torch.empty_like(w_ih),
            torch.empty_like(w_hh),
            w_hh.new_empty(len(w_hh), width),
            w_hh.new_empty(len(w_hh), width),
        ]
        kept = (w_ih, w_hh, gates, reset_input, hidden)
        _call("gru_backward", hidden, by_step, grad.contiguous(), *kept, d_x, *d_weights)
        return None if d_x is None else d_x.transpose(1, 2), *d_weights


def _call(name: str, hidden: Tensor, x: Tensor, *others: Tensor | None) -> None:
    """Call a C function with the sizes of `hidden` and `x`, and pointers to the tensors."""
    function = getattr(library(), f"{name}_{NAMES[x.dtype]}")
    clients, steps, batch, size = hidden.shape
    sizes = (ctypes.c_ssize_t(n) for n in (clients, steps, batch, x.shape[-1], size))
    pointers = (ctypes.c_void_p(None if t is None else t.data_ptr()) for t in (x, *others))
    if function(*sizes, *pointers):
        raise MemoryError(f"{name}: no memory for {clients} clients")
