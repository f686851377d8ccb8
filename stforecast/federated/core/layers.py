"""Stacked layers: every parameter has a leading client axis, so N clients are one batched product.

They belong to the core because models of series and models of images use them. Parameters are
created with a client axis of length 1; `Population` expands it. A `Chain` of ordinary convolutions
runs for all clients of a cohort at once in the compiled kernels; within it, images are `(clients,
batch, height, width, channels)`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from stforecast.federated.kernels.compiler import usable
from stforecast.federated.kernels.functions import (
    Weights,
    grus_usable,
    linear_column,
    relu_pool,
    stacked_convolution,
    stacked_grus,
)


class Stacked(nn.Module):
    """Base of the layers whose parameters have a client axis; `Population` requires it."""


class ClientLinear(Stacked):
    """`nn.Linear` for each client: `y = x W + b`.

    Args:
        in_features: width of the input, or of each of its parts.
        out_features: width of the output.
        parts: parts of the input that are summed first.

    Shapes:
        x: `(clients, batch, parts * in_features)`; returns `(clients, batch, out_features)`.
    """

    def __init__(self, in_features: int, out_features: int, parts: int = 1) -> None:
        super().__init__()
        self.parts = parts
        bound = 1 / math.sqrt(in_features)
        self.weight = uniform(bound, in_features, out_features)
        self.bias = uniform(bound, out_features)

    def forward(self, x: Tensor) -> Tensor:
        """Apply each client's own layer."""
        weight, bias = self.weight, self.bias
        if weight.shape[2] == 1 and usable(weight.shape[1], x, weight, bias):
            return linear_column(x, weight, bias, self.parts)
        if self.parts > 1:
            x = x.unflatten(-1, (self.parts, -1)).sum(-2)
        if weight.shape[2] == 1:  # Batched products of libraries are slow for one column.
            return (x * weight.mT).sum(-1, keepdim=True) + bias.unsqueeze(1)
        return torch.baddbmm(bias.unsqueeze(1), x, weight)


class ClientLayerNorm(Stacked):
    """`nn.LayerNorm` over the last axis for each client.

    Args:
        width: size of the last axis.

    Shapes:
        x: `(clients, batch, width)`; returns the same.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1, width))
        self.bias = nn.Parameter(torch.zeros(1, width))

    def forward(self, x: Tensor) -> Tensor:
        """Normalise each sample, then apply each client's own scale and shift."""
        normal = F.layer_norm(x, x.shape[-1:])
        return torch.addcmul(self.bias[:, None], normal, self.weight[:, None])


class ClientDropout(nn.Module):
    """`nn.Dropout` for each client, with masks from the client's own generator.

    So no number depends on which clients train together, on which node or in which thread. Outside
    of `Population.drawing`, masks come from torch's global generator.

    Args:
        p: share of the values that training zeroes, in [0, 1).

    Shapes:
        x: `(clients, batch, …)`; returns the same.

    Attributes:
        generators: one for each client; none outside of `Population.drawing`.
    """

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p
        self.generators: Sequence[torch.Generator] = ()

    def forward(self, x: Tensor) -> Tensor:
        """Zero a random share of the values in training, and scale up the others."""
        if not self.training or not self.generators:
            return F.dropout(x, self.p, self.training)
        # Pinned memory, so that the copy to a GPU does not wait for what it still computes.
        kept = torch.empty(x.shape, pin_memory=x.is_cuda)
        for own, generator in zip(kept, self.generators, strict=True):
            own.bernoulli_(1 - self.p, generator=generator)
        return x * kept.div_(1 - self.p).to(x.device, non_blocking=True).to(x.dtype)


class ClientGRU(Stacked):
    """One-layer `nn.GRU` for each client that returns the last hidden state.

    The gates and their order (reset, update, new) are those of `torch.nn.GRU`; the weights are
    stored transposed, `(in, 3 hidden)`, so that a step is one batched product. The first step skips
    the hidden product, since h₀ = 0.

    Args:
        input_size: values per time step.
        hidden_size: width of the hidden state.

    Shapes:
        x: `(clients, batch, steps, input_size)`; returns `(clients, batch, hidden_size)`.
    """

    def __init__(self, input_size: int, hidden_size: int) -> None:
        super().__init__()
        bound = 1 / math.sqrt(hidden_size)
        self.weight_ih = uniform(bound, input_size, 3 * hidden_size)
        self.weight_hh = uniform(bound, hidden_size, 3 * hidden_size)
        self.bias_ih = uniform(bound, 3 * hidden_size)
        self.bias_hh = uniform(bound, 3 * hidden_size)

    @property
    def weights(self) -> Weights:
        """Weights and biases of the input and of the hidden state."""
        return self.weight_ih, self.weight_hh, self.bias_ih, self.bias_hh

    def forward(self, x: Tensor) -> Tensor:
        """Run over the steps and return the last hidden state."""
        if grus_usable([x], [self.weights]):
            return stacked_grus([x], [self.weights])
        clients, batch, steps, _ = x.shape
        by_step = x.transpose(1, 2).reshape(clients, steps * batch, -1)
        inputs = torch.baddbmm(self.bias_ih.unsqueeze(1), by_step, self.weight_ih).to(x.dtype)
        first, *rest = inputs.view(clients, steps, batch, -1).unbind(1)
        bias = self.bias_hh.unsqueeze(1)
        hidden = _gru_step(first, bias, None)
        for step in rest:
            recurrent = torch.baddbmm(bias, hidden, self.weight_hh).to(x.dtype)
            hidden = _gru_step(step, recurrent, hidden)
        return hidden


def side_by_side(networks: Sequence[nn.Module], xs: Sequence[Tensor]) -> Tensor:
    """Apply each network to its input `(clients, batch, …)`; concatenate along the last axis."""
    weights = [n.weights for n in networks if isinstance(n, ClientGRU)]
    if len(weights) == len(networks) and grus_usable(xs, weights):
        return stacked_grus(xs, weights)
    return torch.cat([n(x) for n, x in zip(networks, xs, strict=True)], dim=-1)


def _gru_step(inputs: Tensor, recurrent: Tensor, hidden: Tensor | None) -> Tensor:
    size = inputs.shape[-1] // 3
    gates = torch.sigmoid(inputs[..., : 2 * size] + recurrent[..., : 2 * size])
    reset, update = gates.chunk(2, dim=-1)
    new = torch.tanh(torch.addcmul(inputs[..., 2 * size :], reset, recurrent[..., 2 * size :]))
    return new - update * new if hidden is None else torch.lerp(new, hidden, update)


class ClientLSTM(Stacked):
    """`nn.LSTM` for each client that returns the last hidden state of the top layer.

    The gates and their order (input, forget, cell, output) and the parameters' names are those of
    `torch.nn.LSTM`; the weights are stored transposed, `(in, 4 hidden)`, so that a step is one
    batched product. The first step skips the hidden product, since h₀ = c₀ = 0.

    Args:
        input_size: values per time step.
        hidden_size: width of the hidden state.
        num_layers: number of stacked LSTM layers, at least 1.
        dropout: share of the values between two layers that training zeroes, in [0, 1).

    Shapes:
        x: `(clients, batch, steps, input_size)`; returns `(clients, batch, hidden_size)`.
    """

    def __init__(
        self, input_size: int, hidden_size: int, num_layers: int = 1, dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.num_layers, self.dropout = num_layers, dropout
        bound, gates = 1 / math.sqrt(hidden_size), 4 * hidden_size
        for layer in range(num_layers):
            width = hidden_size if layer else input_size
            setattr(self, f"weight_ih_l{layer}", uniform(bound, width, gates))
            setattr(self, f"weight_hh_l{layer}", uniform(bound, hidden_size, gates))
            setattr(self, f"bias_ih_l{layer}", uniform(bound, gates))
            setattr(self, f"bias_hh_l{layer}", uniform(bound, gates))

    def forward(self, x: Tensor) -> Tensor:
        """Run over the steps, layer by layer, and return the last hidden state."""
        states = self._layer(0, x.transpose(1, 2))
        for layer in range(1, self.num_layers):
            between = F.dropout(torch.stack(states, dim=1), self.dropout, self.training)
            states = self._layer(layer, between)
        return states[-1]

    def _layer(self, layer: int, values: Tensor) -> list[Tensor]:
        """Return hidden states after each step of `values` `(clients, steps, batch, in)`."""
        clients, steps, batch, _ = values.shape
        weight_ih, weight_hh, bias_ih, bias_hh = (
            getattr(self, f"{name}_l{layer}")
            for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
        )
        bias = (bias_ih + bias_hh).unsqueeze(1)
        inputs = torch.baddbmm(bias, values.reshape(clients, steps * batch, -1), weight_ih)
        first, *rest = inputs.view(clients, steps, batch, -1).unbind(1)
        hidden, cell = _lstm_step(first, None)
        states = [hidden]
        for step in rest:
            hidden, cell = _lstm_step(torch.baddbmm(step, hidden, weight_hh), cell)
            states.append(hidden)
        return states


def _lstm_step(gates: Tensor, cell: Tensor | None) -> tuple[Tensor, Tensor]:
    into, forget, new, out = gates.chunk(4, dim=-1)
    fresh = torch.sigmoid(into) * torch.tanh(new)
    cell = fresh if cell is None else torch.addcmul(fresh, torch.sigmoid(forget), cell)
    return torch.sigmoid(out) * torch.tanh(cell), cell


def uniform(bound: float, *shape: int) -> nn.Parameter:
    """Return a parameter `(1, *shape)`, drawn uniformly within ± `bound`."""
    return nn.Parameter(torch.empty(1, *shape).uniform_(-bound, bound))


Step = Callable[[Tensor], Tensor]


class Chain:
    """A sequence of convolutions, normalisations, ReLU, 2 × 2 pooling and linear layers.

    Layers that work on tensors of any shape (`any_shape = True`) may come first. The `steps` are
    functions to apply one after the other, none if a layer is of another kind. The module is that
    of one client; its parameters have a client axis while a population runs.

    Shapes:
        x: `(clients, batch, channels, height, width)`; returns what the module returns for one
            client, with a leading client axis.

    >>> len(Chain(nn.Sequential(nn.Conv2d(1, 16, 3), nn.ReLU(), nn.Flatten())).steps)
    4
    >>> Chain(nn.Sequential(nn.Conv2d(1, 16, 3, stride=2))).steps
    []
    """

    def __init__(self, module: nn.Module) -> None:
        layers = list(module) if isinstance(module, nn.Sequential) else []
        self._convolutions = [m for m in layers if isinstance(m, nn.Conv2d)]
        self.steps = _steps(layers) or []

    def usable(self, x: Tensor) -> bool:
        """Return whether the kernels can run on these images, which need no gradient."""
        weights = [m.weight for m in self._convolutions]
        fit = bool(self.steps) and x.is_cpu and not x.requires_grad
        return fit and all(usable(w.shape[1], *weights) for w in weights)

    def __call__(self, x: Tensor) -> Tensor:
        """Apply the layers, each client's with its own parameters and statistics."""
        for step in self.steps:
            x = step(x)
        return x


def _steps(layers: list[nn.Module]) -> list[Step] | None:
    """Return the functions that compute these layers; None if one is not known."""
    start = next((i for i, m in enumerate(layers) if not getattr(m, "any_shape", False)), 0)
    if not layers or not isinstance(layers[start], nn.Conv2d):
        return None
    steps: list[Step] = [*layers[:start], partial(torch.movedim, source=2, destination=-1)]
    flat, pooled, halves = False, False, repr(nn.MaxPool2d(2))
    for layer, after in zip(layers[start:], [*layers[start + 1 :], None], strict=True):
        if pooled:
            pooled = False
            continue
        pooled = isinstance(layer, nn.ReLU) and repr(after) == halves and not flat
        step = relu_pool if pooled else _step(layer, flat=flat)
        if step is None:
            return None
        steps.append(step)
        flat = flat or isinstance(layer, nn.Flatten)
    return steps if flat else [*steps, _channels_first]


def _step(layer: nn.Module, *, flat: bool) -> Step | None:
    """Return the function of a layer on images, or on vectors if they are flat already."""
    if isinstance(layer, nn.ReLU):
        return F.relu
    if flat:
        return partial(_linear, layer) if isinstance(layer, nn.Linear) else None
    if isinstance(layer, nn.Conv2d):
        side, padding = layer.kernel_size[0], layer.padding
        plain = layer.kernel_size == (side, side) and padding in [(n, n) for n in range(side)]
        plain = plain and layer.stride == layer.dilation == (1, 1) and layer.groups == 1
        plain = plain and layer.padding_mode == "zeros"
        return partial(_convolution, layer) if plain else None
    if isinstance(layer, nn.BatchNorm2d):
        kept = layer.track_running_stats and layer.momentum is not None
        return partial(_batch_norm, layer) if kept else None
    if isinstance(layer, nn.GroupNorm):
        return partial(_group_norm, layer)
    whole = isinstance(layer, nn.Flatten) and (layer.start_dim, layer.end_dim) == (1, -1)
    return _flat if whole else None


def _convolution(layer: nn.Conv2d, x: Tensor) -> Tensor:
    return stacked_convolution(x, layer.weight, layer.bias, int(layer.padding[0]))


def _linear(layer: nn.Linear, x: Tensor) -> Tensor:
    product: Tensor = _Product.apply(x, layer.weight)
    return product if layer.bias is None else product + layer.bias.unsqueeze(1)


class _Product(Function):
    """`x Wᵀ` for each client.

    Autograd would return the weights' gradient transposed, and the optimiser copy it.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return torch.bmm(x, weight.mT)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor]:
        x, weight = ctx.saved_tensors
        d_x = torch.bmm(grad, weight) if ctx.needs_input_grad[0] else None
        return d_x, torch.bmm(grad.mT, x)


def _batch_norm(layer: nn.BatchNorm2d, x: Tensor) -> Tensor:
    if layer.training and layer.num_batches_tracked is not None:
        layer.num_batches_tracked.add_(1)
    given = _channels_first(x), layer.running_mean, layer.running_var, layer.weight, layer.bias
    settings: Any = {"training": layer.training, "momentum": layer.momentum, "eps": layer.eps}
    normed = [F.batch_norm(*own, **settings) for own in _rows(len(x), *given)]
    return _channels_last(normed)


def _group_norm(layer: nn.GroupNorm, x: Tensor) -> Tensor:
    rows = _rows(len(x), _channels_first(x), layer.weight, layer.bias)
    normed = [F.group_norm(own, layer.num_groups, w, b, layer.eps) for own, w, b in rows]
    return _channels_last(normed)


def _rows(clients: int, *tensors: Tensor | None) -> list[tuple[Any, ...]]:
    """Return each client's values of all tensors, which may be missing."""
    nothing = [None] * clients
    return list(zip(*(nothing if t is None else t.unbind() for t in tensors), strict=True))


def _channels_first(x: Tensor) -> Tensor:
    return x.movedim(-1, 2)


def _flat(x: Tensor) -> Tensor:
    return _channels_first(x).flatten(2)


def _channels_last(images: Sequence[Tensor]) -> Tensor:
    """Stack the clients' images `(batch, channels, height, width)`."""
    rows = [own.movedim(1, -1) for own in images]
    return rows[0].unsqueeze(0) if len(rows) == 1 else torch.stack(rows)
