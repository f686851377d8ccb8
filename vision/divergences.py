"""Entropies and divergences of predictions that are given as logits."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional as F


def entropy(logits: Tensor) -> Tensor:
    """Return the entropy in nats of each prediction.

    Args:
        logits: `(…, classes)`, finite.

    Returns:
        `(…)`.

    Example:
        >>> import torch
        >>> entropy(torch.zeros(2, 4)).exp()
        tensor([4., 4.])
    """
    log_p = logits.log_softmax(-1)
    return -(log_p.exp() * log_p).sum(-1)


def divergence(target: Tensor, prediction: Tensor) -> Tensor:
    """Return KL(target ‖ prediction) in nats of each pair of predictions.

    Args:
        target: logits `(…, classes)`.
        prediction: likewise.

    Returns:
        `(…)`.

    Example:
        >>> import torch
        >>> divergence(torch.tensor([[2.0, 0.0]]), torch.zeros(1, 2)).round(decimals=4)
        tensor([0.3278])
    """
    log_p, log_q = target.log_softmax(-1), prediction.log_softmax(-1)
    return F.kl_div(log_q, log_p, reduction="none", log_target=True).sum(-1)
