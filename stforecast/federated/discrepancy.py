"""Distance between two samples of features."""

from __future__ import annotations

import torch
from torch import Tensor

KERNELS = 5
"""Gaussian kernels of `mmd`, each twice as wide as the one before."""


def mmd(x: Tensor, y: Tensor) -> Tensor:
    """Return the squared maximum mean discrepancy of two samples with a sum of Gaussian kernels.

    The middle one of the `KERNELS` is as wide as the mean squared distance between all points.

    Args:
        x: `(clients, n, d)`.
        y: `(clients, n, d)`.

    Returns:
        `(clients,)`, 0 where the samples are the same.
    """
    n = x.shape[1]
    points = torch.cat([x, y], dim=1)
    # From differences: |x|² + |y|² - 2xy would lose all precision for close points.
    exact = "donot_use_mm_for_euclid_dist"
    distance = torch.cdist(points, points, compute_mode=exact).square()
    width = distance.detach().sum((1, 2), keepdim=True) / (2 * n * (2 * n - 1))
    width = width.clamp(min=torch.finfo(width.dtype).tiny)
    scales = [2.0 ** (i - KERNELS // 2) for i in range(KERNELS)]
    kernel = torch.stack([(-distance / (width * scale)).exp() for scale in scales]).sum(0)
    within = kernel[:, :n, :n] + kernel[:, n:, n:]
    between = kernel[:, :n, n:] + kernel[:, n:, :n]
    return (within - between).mean((1, 2))
