"""Common standardisation of features, from the moments that clients share.

Features of a pre-trained network have a mean far from zero: the cosine of any two is large,
whatever their classes. Each client sends the mean and the logarithm of the standard deviation of
each component over its samples, `(2, d)`; the server pools them. They do not grow with the samples,
so that a robust guard can compare clients of all sizes. A lossy uplink rounds them, with 4 bits to
multiples of a seventh of the largest. In a logarithm, this changes the deviation by a factor, so no
small deviation becomes 0.
"""

from __future__ import annotations

import torch
from torch import Tensor

from stforecast.federated.core.algebra import weighted_mean

SMALLEST = 1e-3
"""Smallest standard deviation, for features that are the same in all samples."""


def moments_of(features: Tensor) -> Tensor:
    """Return means and log standard deviations `(clients, 2, d)` of `(clients, samples, d)`."""
    deviation = features.std(1, correction=0).clamp(min=SMALLEST)
    return torch.stack([features.mean(1), deviation.log()], dim=1)


def pooled_moments(moments: Tensor, sizes: Tensor) -> Tensor:
    """Return the moments `(2, d)` over the samples of all clients, of which there are `sizes`.

    >>> moments = torch.tensor([[[1.0], [0.0]], [[3.0], [0.0]]])  # Both variances are 1.
    >>> mean, log_deviation = pooled_moments(moments, torch.tensor([1, 1]))
    >>> mean, (2 * log_deviation).exp()
    (tensor([2.]), tensor([2.]))
    """
    means, log_deviations = moments.unbind(1)
    mean = weighted_mean(means, sizes)
    variance = weighted_mean((2 * log_deviations).exp() + (means - mean).square(), sizes)
    return torch.stack([mean, variance.log() / 2])


def standardised(features: Tensor, moments: Tensor) -> Tensor:
    """Return features with mean 0 and variance 1 over the samples that `moments` describe.

    >>> x = torch.tensor([[[1.0, 5.0], [3.0, 5.0]]])
    >>> standardised(x, moments_of(x))
    tensor([[[-1.,  0.],
             [ 1.,  0.]]])
    """
    mean, log_deviation = moments.unbind(1)
    return (features - mean[:, None]) * (-log_deviation).exp()[:, None]
