"""Parts of label-conditional generators: draws of labels and noise, and a normalised layer."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from stforecast.federated.core.layers import Stacked


def draw_labels(counts: Tensor, uniform: Tensor) -> Tensor:
    """Draw labels `(clients, batch)` in proportion to counts `(clients, classes)`.

    Uniform numbers in [0, 1) decide. Each row of counts has a positive one.

    >>> draw_labels(torch.tensor([[0, 1, 3, 0]]), torch.tensor([[0.0, 0.24, 0.25, 0.99]]))
    tensor([[1, 1, 2, 2]])
    """
    edges = counts.long().cumsum(1)
    places = (uniform.double().to(counts.device) * edges[:, -1:]).long()
    return torch.searchsorted(edges, places, right=True)


def normal(generators: Sequence[torch.Generator], *shape: int) -> Tensor:
    """Draw standard normal numbers `(n, *shape)`, with one generator for each client."""
    return torch.stack([torch.randn(shape, generator=g) for g in generators])


def condition(values: Tensor, labels: Tensor, n_classes: int) -> Tensor:
    """Append one-hot labels to values `(clients, batch, d)`; gives `(clients, batch, d + n)`."""
    return torch.cat([values, F.one_hot(labels, n_classes).to(values)], dim=-1)


class NormedLinear(Stacked):
    """Stacked `nn.Linear` without bias and `nn.BatchNorm1d`, `(clients, batch, features)`.

    The shift of the normalisation is the bias; a bias before it would have no gradient.
    """

    running_mean: Tensor
    running_var: Tensor

    def __init__(self, in_features: int, out_features: int) -> None:
        super().__init__()
        bound = 1 / math.sqrt(in_features)
        weight = torch.empty(1, in_features, out_features).uniform_(-bound, bound)
        self.weight = nn.Parameter(weight)
        self.scale = nn.Parameter(torch.ones(1, out_features))
        self.shift = nn.Parameter(torch.zeros(1, out_features))
        self.register_buffer("running_mean", torch.zeros(1, out_features))
        self.register_buffer("running_var", torch.ones(1, out_features))

    def forward(self, x: Tensor) -> Tensor:
        """Apply each client's layer; in training the running statistics are updated in place."""
        clients, batch, _ = x.shape
        mapped = torch.bmm(x, self.weight)
        y = F.batch_norm(
            mapped.transpose(0, 1).reshape(batch, -1),  # Each client has its own channels.
            self.running_mean.reshape(-1),
            self.running_var.reshape(-1),
            self.scale.reshape(-1),
            self.shift.reshape(-1),
            training=self.training,
        )
        return y.view(batch, clients, -1).transpose(0, 1)
