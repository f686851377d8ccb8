"""Fusion of prompt pools by distillation on the server, as in FedTA and FedMGP.

Yu et al., CVPR 2025, arXiv 2412.18355, Eq. 8 (selective input knowledge fusion), and Yu et al., KDD
2024, arXiv 2407.00113 (selective prompt fusion); see `vision.methods.fedta` and `.fedmgp`.
"""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor
from torch.nn import functional as F

from stforecast.federated.core.method import Task
from stforecast.federated.core.tensors import Batch
from stforecast.federated.core.training import Optimizer, Training, zero_moments
from vision.backbones import Backbone
from vision.backbones.backbone import Read
from vision.methods.prompts import chosen_prompts, prompt_tokens


def surrogate_images(task: Task, classes: Tensor) -> Batch | None:
    """Return the server's images `x` and labels `y` of some classes, `(1, m, …)`, if it has any.

    `classes` `(n_classes,)` tells which to take; the result is on its device.
    """
    surrogate = getattr(task, "surrogate", None)
    if surrogate is None:
        return None
    taken = classes.cpu()[surrogate["y"][0]]
    return {name: surrogate[name][:, taken].to(classes.device) for name in ("x", "y")}


def fused_pool(
    backbone: Backbone,
    pools: tuple[Tensor, Tensor],
    images: Tensor,
    query: Tensor,
    *,
    top_n: int,
    training: Training,
    epochs: int,
    rng: torch.Generator,
    read: Read = "feature",
) -> tuple[Tensor, Tensor]:
    """Train one client's pool to match the mean features under the other pools (Eq. 8).

    Its keys are not trained; without images, neither are the prompts.

    Args:
        backbone: the frozen network.
        pools: prompts `(clients, pool, length, d)` and keys `(clients, pool, d)` of at least two
            clients.
        images: surrogate images `(m, channels, height, width)`.
        query: their features `(m, d)`, to compare with keys.
        top_n: prompts of an image.
        training: batch size and optimiser; its moments start at zero.
        epochs: epochs over the images.
        rng: random generator for the target and the batches.
        read: features to compare: the pooled feature, or the mean of the prompts' outputs.
    """
    prompts, keys = pools
    target = int(torch.randint(len(prompts), (), generator=rng))
    if not len(images):
        return prompts[target].clone(), keys[target].clone()
    chosen = chosen_prompts(query[None].expand(len(keys), -1, -1), keys, top_n)
    others = [i for i in range(len(prompts)) if i != target]
    with torch.no_grad():
        under = [prompt_tokens(prompts[i, None], chosen[i, None]) for i in others]
        taught = [backbone.prompted(images[None], t, read=read)[0] for t in under]
        mean = torch.stack(taught).mean(0)
    pool = prompts[target, None].clone().requires_grad_()
    training = dataclasses.replace(training, schedule="constant")
    optimizer = Optimizer({"pool": pool}, zero_moments({"pool": pool}, training), training)
    with torch.enable_grad():
        for _ in range(epochs):
            order = torch.randperm(len(images), generator=rng).to(images.device)
            for rows in order.split(training.batch_size):
                tokens = prompt_tokens(pool, chosen[target, None, rows])
                features = backbone.prompted(images[None, rows], tokens, read=read)
                optimizer.step(F.mse_loss(features[0], mean[rows])[None])
    return pool.detach()[0], keys[target].clone()
