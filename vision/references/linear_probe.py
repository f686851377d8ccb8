"""Linear probe: logistic regression on frozen features.

Alain and Bengio: Understanding Intermediate Layers Using Linear Classifier Probes, 2016, arXiv
1610.01644. Its accuracy is what a linear head on the backbone can reach, and so the bound of
methods that train nothing else. The regression is scikit-learn's, with its L2 penalty, fitted by
L-BFGS until it converges.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from pydantic import PositiveFloat, PositiveInt
from torch import Tensor

from stforecast.federated.options import CheckedOptions
from vision.references.heads import HeadReference


@dataclass(frozen=True)
class LinearProbeOptions(CheckedOptions):
    """Settings of the logistic regression.

    Attributes:
        inverse_penalty: inverse of the weight of the L2 penalty, scikit-learn's C.
        iterations: largest number of steps of L-BFGS.
    """

    inverse_penalty: PositiveFloat = 0.1
    iterations: PositiveInt = 1000


class LinearProbeLocal(HeadReference):
    """Logistic regression of each client on its own images."""

    name = "linear_probe_local"
    summary = "fits a logistic regression on each client's frozen features; nothing is sent"
    Options = LinearProbeOptions
    options: LinearProbeOptions

    def head(self, features: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Fit scikit-learn's multinomial logistic regression."""
        from sklearn.linear_model import LogisticRegression  # slow to import

        found = labels.unique()
        if len(found) == 1:
            return features.new_zeros(features.shape[1], 1), features.new_zeros(1)
        model = LogisticRegression(C=self.options.inverse_penalty, max_iter=self.options.iterations)
        model.fit(features.double().cpu().numpy(), labels.cpu().numpy())
        weight, bias = (torch.from_numpy(t).to(features) for t in (model.coef_.T, model.intercept_))
        if len(found) == 2:  # The log-odds of the second class.
            weight, bias = weight * weight.new_tensor([0, 1]), bias * bias.new_tensor([0, 1])
        return weight, bias


class LinearProbe(LinearProbeLocal):
    """Logistic regression on the images of all clients."""

    name = "linear_probe"
    summary = "fits a logistic regression on all clients' frozen features, in one place"
    pooled: ClassVar[bool] = True
