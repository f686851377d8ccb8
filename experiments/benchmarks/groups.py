"""Attacks on means of windows of known and secret groups: used by the benchmark `disclosure`."""

from __future__ import annotations

import numpy as np
import torch
from scipy.optimize import nnls
from torch import Tensor

from experiments.benchmarks.inversion import Victims, solved
from stforecast.methods.fedlean import calendar_basis, n_cycles
from stforecast.methods.protoridge import ProtoRidge

ALIKE = 0.1
"""Deviation of the means, as windows of equal calendar inputs cannot be distinguished."""


def by_groups(victims: Victims, guess: Tensor) -> Tensor:
    """Solve for readings of three cells from the mean windows of groups that are known.

    Nodes draw their groups in secret. This is what follows for who finds them.
    """
    assert isinstance(victims.method, ProtoRidge)
    groups = victims.method._groups(victims.cohort(), len(victims.inputs.newest))
    sent = victims.sent["prototypes"].double()
    found = [from_means(victims, shares(groups[i]), sent[i], guess[:, [i]]) for i in range(3)]
    return torch.cat(found, dim=1)


def by_secret_groups(victims: Victims, guess: Tensor, cells: int = 3) -> Tensor:
    """Solve for readings of some cells from mean windows of groups that nodes drew in secret.

    A group is the few windows whose calendar inputs have the mean that was sent: their shares are
    found by least squares without negative ones. Windows of an hour of the week in different weeks
    are as likely in it.
    """
    inputs, found = victims.inputs, []
    n, lags = inputs.steps.shape
    basis = calendar_basis(inputs.known, n_cycles(victims.data.window))
    known = torch.cat([torch.ones(n, 1, dtype=torch.float64), basis], dim=1)
    columns = [0, *range(1 + lags, lags + known.shape[1])]
    kinds, kind = known.mul(1e6).round().unique(dim=0, return_inverse=True)
    counts = torch.bincount(kind).double()
    for i, sent in enumerate(victims.sent["prototypes"][:cells].double()):
        means = sent[sent[:, 0] != 0]
        of_kinds = [nnls((kinds / 1e6).mT.numpy(), row[columns].numpy())[0] for row in means]
        weights = (torch.from_numpy(np.stack(of_kinds)) / counts)[:, kind]
        found.append(from_means(victims, weights, means, guess[:, [i]], ALIKE))
    return torch.cat(found, dim=1)


def from_means(
    victims: Victims, weights: Tensor, means: Tensor, guess: Tensor, noise: float = 1e-7
) -> Tensor:
    """Solve for a cell's readings from means of windows `(groups, inputs)` with these weights."""
    inputs, horizon = victims.inputs, victims.data.window.horizon
    lags, _, targets = inputs.means(weights, relative=True)
    places = [*range(1, 1 + len(lags)), *range(means.shape[1] - horizon, means.shape[1])]
    equations = torch.cat([lags, targets]).flatten(0, 1)
    equations = torch.cat([equations, torch.ones(1, inputs.n) / inputs.n])
    values = torch.cat([means[:, places].mT.flatten(), torch.zeros(1)])
    return solved(equations, values[:, None], guess, noise)


def shares(group: Tensor) -> Tensor:
    """Return the weight of each window in the mean of its group, `(groups, windows)`."""
    of_groups = torch.nn.functional.one_hot(group).mT.double()
    return of_groups / of_groups.sum(1, keepdim=True)
