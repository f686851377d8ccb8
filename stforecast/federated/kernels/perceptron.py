"""An epoch of a perceptron with two hidden layers for many clients, in C."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from stforecast.federated.kernels.compiler import LANES, call, library
from stforecast.federated.kernels.functions import addresses

Layers = Sequence[Tensor]
"""Weights `(clients, in, out)` and biases `(clients, out)` of three layers, in turn, or moments."""


@dataclass(frozen=True)
class EpochKernel:
    """Settings of an epoch.

    Attributes:
        batch: samples of a batch.
        full: whether to leave out a last batch that is smaller.
        used: number of inputs that the network reads, the first ones; others count as 0.
        readings: number of inputs, the first ones, that are relative to the newest reading.
        newest: place of that one, which stays as it is.
        delta: threshold of the Huber loss.
        dropout: share of the units of both layers that are zeroed, below 1.
    """

    batch: int
    full: bool
    used: int
    readings: int
    newest: int
    delta: float
    dropout: float

    def batches(self, samples: int) -> int:
        """Return the number of batches of so many samples."""
        return samples // self.batch if self.full else math.ceil(samples / self.batch)

    def run(
        self,
        samples: Mapping[str, Tensor],
        order: Tensor,
        seeds: Tensor,
        params: Layers,
        moments: Mapping[str, Layers],
        *,
        lr: float,
        betas: tuple[float, float],
        eps: float,
    ) -> Tensor:
        """Train all clients by Adam; return the loss of each batch, `(clients, batches)`.

        Args:
            samples: `x` `(clients, samples, inputs)`; `known`, which is added to the output, `y`
                and the bool `mask`, `(clients, samples, outputs)`; maybe padded at the end.
            order: `(clients, samples)` order of the samples, without padding.
            seeds: `(clients, 2)` int64, of 32 bits each, from which the units to drop follow.
            params: changed in place.
            moments: `exp_avg` and `exp_avg_sq` like the parameters and `steps` `(clients,)` of
                each, changed in place.
            lr: learning rate.
            betas: decay of both moments.
            eps: what is added to the denominator.
        """
        clients, n_samples = order.shape
        x, known, y, mask = (
            samples[name][:, :n_samples].contiguous() for name in ("x", "known", "y", "mask")
        )
        inputs = x.shape[2]
        hidden, features, outputs = (params[i].shape[2] for i in (0, 2, 4))
        losses = x.new_empty(clients, self.batches(n_samples))
        sizes = (ctypes.c_ssize_t * 9)(
            n_samples, self.batch, inputs, self.used, self.readings, self.newest, hidden, features,
            outputs,
        )  # fmt: skip
        groups = params, *(moments[name] for name in ("exp_avg", "exp_avg_sq", "steps"))
        call(
            "perceptron_epoch", x.dtype, *losses.shape, sizes, x, order.contiguous(), known, y,
            mask, seeds.to(torch.uint32).contiguous(), *map(addresses, groups),
            float(self.dropout), float(self.delta), float(lr), *map(float, betas), float(eps),
            losses,
        )  # fmt: skip
        return losses


def epoch_usable(params: Layers, moments: Mapping[str, Layers]) -> bool:
    """Return whether the kernel can train these parameters."""
    tensors = [*params, *(t for layers in moments.values() for t in layers)]
    fit = all(params[i].shape[2] % LANES == 0 for i in (0, 2))
    fit = fit and all(t.is_cpu and t.dtype == torch.float32 for t in tensors)
    fit = fit and all(t.is_contiguous() for t in tensors)
    return fit and library() is not None
