"""Common standardisation of features, from sums that clients can share.

Features of a pre-trained network have a mean far from zero: the cosine of any two is large,
whatever their classes. Each client sends the sum and the sum of squares of each component over its
samples, `(2, d)`; the server adds them, and broadcasts the totals with the number of samples.
"""

from __future__ import annotations

import torch
from torch import Tensor

SMALLEST = 1e-6
"""Smallest variance, for features that are the same in all samples."""


def sums_of(features: Tensor) -> Tensor:
    """Return the sums of features and of their squares, `(clients, 2, d)`.

    Args:
        features: `(clients, samples, d)`.
    """
    return torch.stack([features.sum(1), features.square().sum(1)], dim=1)


def standardised(features: Tensor, sums: Tensor, count: Tensor) -> Tensor:
    """Return features with mean 0 and variance 1 over the samples that `sums` are of.

    Args:
        features: `(clients, samples, d)`.
        sums: `(clients, 2, d)`.
        count: `(clients,)` number of samples, at least one.

    Example:
        >>> x = torch.tensor([[[1.0, 5.0], [3.0, 5.0]]])
        >>> standardised(x, sums_of(x), torch.tensor([2]))
        tensor([[[-1.,  0.],
                 [ 1.,  0.]]])
    """
    mean, square = (sums / count.view(-1, 1, 1)).unbind(1)
    deviation = (square - mean.square()).clamp(min=SMALLEST).sqrt()
    return (features - mean[:, None]) / deviation[:, None]
