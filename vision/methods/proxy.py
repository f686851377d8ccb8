"""Prototype samples of GLFC, sent to its proxy server as gradients.

Dong et al.: Federated Class-Incremental Learning, CVPR 2022, arXiv 2203.11473; see
`vision.methods.glfc`.

A client feeds a single sample into a small encoding network, which all clients share, and sends the
gradient of the cross-entropy. The proxy server reconstructs the sample from it. In the paper the
samples are images, the network is convolutional, and the proxy searches by L-BFGS for the image
whose gradient is nearest to the uploaded one. Here the samples are frozen features, and the first
layer is linear: for one sample x its gradient is G = x δᵀ, where δ is that of its bias. So
x = G δ / δᵀδ minimises the paper's objective, with value 0. More hidden units would give the same
result, so there is one. As in the paper, the label is the only class with a negative gradient at
the last layer's bias, p - y.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from stforecast.federated.algebra import with_axes
from stforecast.federated.layers import ClientLinear
from stforecast.federated.networks import Network
from stforecast.federated.population import Params
from stforecast.federated.prototypes import PrototypeMeans, by_key
from vision.methods.exemplars import EMPTY, ranks
from vision.task import cross_entropy

ENCODING = "encoding."

HIDDEN = 1
"""Hidden units of the encoding network."""


def encoding_network(width: int, n_classes: int) -> Network:
    """Build the network whose gradients represent features of this width."""
    return Network(
        ENCODING,
        lambda: nn.Sequential(
            ClientLinear(width, HIDDEN), nn.Sigmoid(), ClientLinear(HIDDEN, n_classes)
        ),
    )


def representatives(
    features: Tensor, classes: Tensor, n_classes: int, most: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Select the sample of each class that is nearest to the class's mean.

    Args:
        features: `(clients, samples, d)`.
        classes: `(clients, samples)`.
        n_classes: number of classes over all clients.
        most: largest number of classes per client; further classes are left out.

    Returns:
        Samples `(clients, most, d)`, their classes `(clients, most)`, `EMPTY` where a client has
        fewer, and the standard deviation of each class's features `(clients, most, d)`.

    Example:
        >>> features = torch.tensor([[[0.0], [4.0], [2.5], [9.0]]])
        >>> representatives(features, torch.tensor([[2, 2, 2, 0]]), 3, 5)[:2]
        (tensor([[[9.0000],
                 [2.5000],
                 [0.0000]]]), tensor([[ 0,  2, -1]]))
    """
    first = ranks(features, classes, n_classes) == 0
    holds = F.one_hot(classes, n_classes).bool() & first[..., None]
    present = holds.any(1)
    chosen = present.int().argsort(dim=1, descending=True, stable=True)[:, :most]
    there = present.gather(1, chosen)
    index = holds.int().argmax(1).gather(1, chosen)
    samples = features.gather(1, index[..., None].expand(-1, -1, features.shape[2]))
    means, squares = PrototypeMeans(n_classes), PrototypeMeans(n_classes)
    means.add(features, classes)
    squares.add(features.square(), classes)
    variance = (squares.means() - means.means().square()).clamp(min=0)
    spread = by_key(variance.sqrt(), chosen)
    return samples * there[..., None], chosen.masked_fill(~there, EMPTY), spread


def gradients_of(
    network: Network, tensors: Mapping[str, Tensor], features: Tensor, labels: Tensor
) -> Params:
    """Return the encoding network's gradient of the cross-entropy of each single sample.

    Args:
        network: network of `encoding_network`.
        tensors: its parameters `(clients, …)`.
        features: `(clients, n, d)`.
        labels: `(clients, n)`, `EMPTY` for samples that are not sent.

    Returns:
        By name `(clients, n, …)`, zeros where there is no sample.
    """
    n = labels.shape[1]
    alone = {
        name: tensors[name].repeat_interleave(n, dim=0).requires_grad_()
        for name in network.parameters
    }
    y = labels.clamp(min=0).view(-1, 1)
    logits = network(alone, features.reshape(len(y), 1, -1), training=True)
    gradients = torch.autograd.grad(cross_entropy(logits, y).sum(), list(alone.values()))
    sent = labels != EMPTY
    return {
        name: g.view(*labels.shape, *g.shape[1:]) * with_axes(sent, g.ndim + 1)
        for name, g in zip(alone, gradients, strict=True)
    }


def rebuilt(gradients: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
    """Reconstruct samples from their gradients.

    Args:
        gradients: result of `gradients_of`.

    Returns:
        Features `(clients, n, d)` and their labels `(clients, n)`, `EMPTY` where none was sent.
    """
    weight, bias = gradients[f"{ENCODING}0.weight"], gradients[f"{ENCODING}0.bias"]
    last = gradients[f"{ENCODING}2.bias"]
    square = bias.square().sum(-1, keepdim=True)
    features = (weight @ bias[..., None])[..., 0] / square.where(square > 0, 1.0)
    return features, last.argmin(-1).masked_fill(~last.any(-1), EMPTY)
