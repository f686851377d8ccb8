"""The attack on means of windows of secret groups: used by the benchmark `disclosure`."""

from __future__ import annotations

import numpy as np
import torch
from scipy.optimize import nnls
from torch import Tensor

from experiments.benchmarks.inversion import Victims, solved
from stforecast.methods.fedlean import calendar_basis, n_cycles

ALIKE = 0.1
"""Deviation of the means, as windows of equal calendar inputs cannot be told apart."""


def by_secret_groups(victims: Victims, guess: Tensor, cells: int = 3) -> Tensor:
    """Solve for readings of some cells from mean windows of groups that nodes drew in secret.

    A group is the few windows whose calendar inputs have the mean that was sent: their shares are
    found by least squares without negative ones. Windows of an hour of the week in different weeks
    are as likely in it.
    """
    inputs, horizon = victims.inputs, victims.data.window.horizon
    n, lags = inputs.steps.shape
    basis = calendar_basis(inputs.known, n_cycles(victims.data.window))
    known = torch.cat([torch.ones(n, 1, dtype=torch.float64), basis], dim=1)
    columns = [0, *range(1 + lags, lags + known.shape[1])]
    kinds, kind = known.mul(1e6).round().unique(dim=0, return_inverse=True)
    counts = torch.bincount(kind).double()
    sent, found = victims.sent["prototypes"].double(), []
    places = [*range(1, 1 + lags), *range(sent.shape[2] - horizon, sent.shape[2])]
    for i in range(cells):
        means = sent[i][sent[i, :, 0] != 0]
        of_kinds = [nnls((kinds / 1e6).mT.numpy(), row[columns].numpy())[0] for row in means]
        weights = (torch.from_numpy(np.stack(of_kinds)) / counts)[:, kind]
        of_lags, _, targets = inputs.means(weights, relative=True)
        equations = torch.cat([of_lags, targets]).flatten(0, 1)
        equations = torch.cat([equations, torch.ones(1, inputs.n) / inputs.n])
        values = torch.cat([means[:, places].mT.flatten(), torch.zeros(1)])
        found.append(solved(equations, values[:, None], guess[:, [i]], ALIKE))
    return torch.cat(found, dim=1)
