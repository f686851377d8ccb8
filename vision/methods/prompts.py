"""What prompt methods share: pools of prompts with keys, the choice among them, classes of a task.

L2P's pool (Wang et al., CVPR 2022, arXiv 2112.08654, section 4.1): a prompt is chosen by the cosine
of its key and the frozen feature of the image, the query; a pull draws the chosen keys to their
queries. Prompts and keys start uniform on [-1, 1], as in that paper's code and FedMGP's.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn import functional as F

from stforecast.federated.data import Batch
from stforecast.federated.method import Method
from stforecast.federated.state import Clients, Cohort
from vision.methods.conditional import label_counts


def uniform(n_clients: int, *shape: int, rng: torch.Generator) -> Tensor:
    """Numbers on [-1, 1], the same for all clients, `(n_clients, *shape)`."""
    return (2 * torch.rand(shape, generator=rng) - 1).expand(n_clients, *shape).clone()


def add_parameters(clients: Clients, tensors: Mapping[str, Tensor]) -> None:
    """Give the clients trainable tensors, on the device where the others are."""
    device = next(iter(clients.params.values())).device
    clients.params.update({name: t.to(device) for name, t in tensors.items()})


def cosines(query: Tensor, keys: Tensor) -> Tensor:
    """Cosine of each query and each key.

    Args:
        query: `(clients, batch, d)`.
        keys: `(clients, n, d)`.

    Returns:
        `(clients, batch, n)`.
    """
    return F.normalize(query, dim=-1) @ F.normalize(keys, dim=-1).mT


def chosen_prompts(query: Tensor, keys: Tensor, n: int, vote: bool = False) -> Tensor:
    """Indices of the n prompts whose keys are nearest, `(clients, batch, n)`.

    Args:
        query: `(clients, batch, d)`.
        keys: `(clients, pool, d)`.
        n: prompts a sample.
        vote: all samples of a batch take the n prompts that are chosen most often in it.

    Example:
        >>> query = torch.tensor([[[1.0, 0.0], [0.9, 0.1], [0.0, 1.0]]])
        >>> keys = torch.tensor([[[0.0, 2.0], [3.0, 0.0]]])
        >>> chosen_prompts(query, keys, 1)[0, :, 0]
        tensor([1, 1, 0])
        >>> chosen_prompts(query, keys, 1, vote=True)[0, :, 0]
        tensor([1, 1, 1])
    """
    chosen = cosines(query, keys).topk(n, dim=-1).indices
    if not vote:
        return chosen
    votes = F.one_hot(chosen, keys.shape[1]).sum((1, 2))
    return votes.topk(n, dim=-1).indices[:, None].expand_as(chosen)


def prompt_tokens(pool: Tensor, chosen: Tensor) -> Tensor:
    """The chosen prompts one after another.

    Args:
        pool: `(clients, pool, length, d)`.
        chosen: `(clients, batch, n)`.

    Returns:
        `(clients, batch, n · length, d)`.
    """
    client = torch.arange(len(pool), device=pool.device)[:, None, None]
    return pool[client, chosen].flatten(2, 3)


def key_distance(query: Tensor, keys: Tensor, chosen: Tensor) -> Tensor:
    """`Σ_s (1 - cos(query, key_s))` over the chosen keys, mean over the batch, `(clients,)`."""
    return (1 - cosines(query, keys).gather(-1, chosen)).sum(-1).mean(1)


def present_classes(method: Method, cohort: Cohort) -> Tensor:
    """`(clients, classes)` whether a client has samples of a class now, in its present task."""
    return label_counts(method.task, cohort) > 0


def loss_among(
    method: Method, cohort: Cohort, logits: Tensor, batch: Batch, classes: Tensor | None
) -> Tensor:
    """The task's loss where predictions choose among some classes only; noted for the report.

    Args:
        method: whose task it is.
        cohort: notes it.
        logits: `(clients, batch, n_classes)`.
        batch: the samples.
        classes: `(clients, n_classes)`, None for all.
    """
    if classes is not None:
        logits = logits.masked_fill(~classes[:, None], -torch.inf)
    loss = method.task.loss(logits, batch)
    cohort.record("task_loss", loss)
    return loss
