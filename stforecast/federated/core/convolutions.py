"""Chains of convolutions that run for all clients of a cohort at once, in the compiled kernels.

Within a chain, images are `(clients, batch, height, width, channels)`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from stforecast.federated.kernels.compiler import usable
from stforecast.federated.kernels.functions import relu_pool, stacked_convolution

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
    steps: list[Step] = [*layers[:start], _channels_behind]
    flat, pooled = False, False
    for layer, after in zip(layers[start:], [*layers[start + 1 :], None], strict=True):
        if pooled:
            pooled = False
            continue
        pooled = isinstance(layer, nn.ReLU) and _halves(after) and not flat
        step = relu_pool if pooled else _step(layer, flat)
        if step is None:
            return None
        steps.append(step)
        flat = flat or isinstance(layer, nn.Flatten)
    return steps if flat else [*steps, _channels_first]


def _step(layer: nn.Module, flat: bool) -> Step | None:
    """Return the function of a layer on images, or on vectors if they are flat already."""
    if isinstance(layer, nn.ReLU):
        return F.relu
    if flat:
        return partial(_linear, layer) if isinstance(layer, nn.Linear) else None
    if isinstance(layer, nn.Conv2d):
        return partial(_convolution, layer) if _is_plain(layer) else None
    if isinstance(layer, nn.BatchNorm2d):
        kept = layer.track_running_stats and layer.momentum is not None
        return partial(_batch_norm, layer) if kept else None
    if isinstance(layer, nn.GroupNorm):
        return partial(_group_norm, layer)
    whole = isinstance(layer, nn.Flatten) and (layer.start_dim, layer.end_dim) == (1, -1)
    return _flatten if whole else None


def _is_plain(layer: nn.Conv2d) -> bool:
    side, padding = layer.kernel_size[0], layer.padding
    square = layer.kernel_size == (side, side) and padding in [(n, n) for n in range(side)]
    ones = layer.stride == layer.dilation == (1, 1) and layer.groups == 1
    return square and ones and layer.padding_mode == "zeros"


def _halves(layer: nn.Module | None) -> bool:
    return isinstance(layer, nn.MaxPool2d) and repr(layer) == repr(nn.MaxPool2d(2))


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


def _flatten(x: Tensor) -> Tensor:
    return _channels_first(x).flatten(2)


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


def _channels_behind(x: Tensor) -> Tensor:
    return x.movedim(2, -1)


def _channels_last(images: Sequence[Tensor]) -> Tensor:
    """Stack the clients' images `(batch, channels, height, width)`."""
    rows = [own.movedim(1, -1) for own in images]
    return rows[0].unsqueeze(0) if len(rows) == 1 else torch.stack(rows)
