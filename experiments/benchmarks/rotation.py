"""What is left open where all products of summed readings are known: the benchmark `disclosure`.

If the sum over cells of the products of any two readings is known, the readings are known up to a
rotation of the cells around their mean. This attack has all products exactly, as no method sends
them: it shows what the number of cells hides at best. It takes the rotation with which cells have
the variance 1 and the largest skewness, since counts of traffic are skew. Independent component
analysis looks for rotations in this way: Hyvärinen, Karhunen, Oja, Wiley 2001.
"""

from __future__ import annotations

import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from experiments.benchmarks.inversion import z_scores
from stforecast.federated.core.state import generator

STARTS, STEPS = 8, 400
"""Random rotations to start from, and steps of L-BFGS from each."""

SKEWNESS = 1e-3
"""Weight of the skewness; the variances have 1."""


def unrotated(truth: Tensor) -> Tensor:
    """Return readings `(steps, cells)`, found from their sums and products, in the best order.

    The number of cells is three or more.
    """
    mean, n = truth.mean(1, keepdim=True), truth.shape[1]
    rng = generator(0, n)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=rng, dtype=truth.dtype)

    around = torch.linalg.qr(torch.cat([torch.ones(n, 1), normal(n, n - 1)], dim=1))[0][:, 1:]
    # The attacker has these coordinates, rotated by an angle that it does not know.
    parts = (truth - mean) @ around @ torch.linalg.qr(normal(n - 1, n - 1))[0]

    def rotated(angles: Tensor) -> Tensor:
        turn = torch.zeros(n - 1, n - 1, dtype=truth.dtype)
        turn = turn.index_put(tuple(torch.triu_indices(n - 1, n - 1, 1)), angles)
        return mean + parts @ torch.matrix_exp(turn - turn.mT) @ around.mT

    def error(angles: Tensor) -> Tensor:
        found = rotated(angles)
        return (found.square().mean(0) - 1).square().sum() - SKEWNESS * found.pow(3).mean(0).sum()

    best = (torch.inf, mean)
    for _ in range(STARTS):
        angles = normal((n - 1) * (n - 2) // 2).requires_grad_()
        solver = torch.optim.LBFGS([angles], max_iter=STEPS, line_search_fn="strong_wolfe")

        def slope(angles: Tensor = angles) -> Tensor:
            found = error(angles)
            (angles.grad,) = torch.autograd.grad(found, angles)
            return found

        solver.step(slope)
        left = float(error(angles.detach()))
        best = min(best, (left, rotated(angles.detach())), key=lambda found: found[0])
    return in_order(best[1], truth)


def in_order(found: Tensor, truth: Tensor) -> Tensor:
    """Return series `(steps, cells)` in the order of the cells that they fit best."""
    like = z_scores(found).mT @ z_scores(truth)
    rows, cells = linear_sum_assignment(-like.numpy())
    ordered = torch.empty_like(found)
    ordered[:, cells] = found[:, rows]
    return ordered
