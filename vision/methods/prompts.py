"""Parts that prompt methods share: FedAvg of prompts and a head, pools of prompts with keys.

L2P's pool (Wang et al., CVPR 2022, arXiv 2112.08654, section 4.1): a prompt is selected by the
cosine of its key and the frozen feature of the image, the query; a loss pulls the selected keys
towards their queries. Prompts and keys are initialised uniformly on [-1, 1], as in the code of that
paper and of FedMGP.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import torch
from pydantic import PositiveInt
from torch import Tensor
from torch.nn import functional as F

from data_prep.base.errors import InputError
from stforecast.federated.core.data import ClientData
from stforecast.federated.core.method import Method, Task
from stforecast.federated.core.options import CheckedOptions
from stforecast.federated.core.prototypes import key_counts
from stforecast.federated.core.state import Clients, Cohort, ServerState
from stforecast.federated.core.tensors import Batch, Payload
from stforecast.federated.core.training import Optimizer, Training, zero_moments
from stforecast.federated.methods.fedavg import FedAvg
from vision.backbones.backbone import Backbone, Read
from vision.draws import Draw
from vision.models.vit import backbone_of
from vision.task import cosines

PROMPT = "prompt."
"""Prefix of the tensors that a prompt method adds and averages."""

HEAD = "head."
"""Prefix of the head's parameters."""

DEFAULTS = MappingProxyType(
    {
        "model": "vit",
        "rounds": 5,
        "epochs": 5,
        "batch_size": 16,
        "optimizer": "adam",
        "lr": 1e-3,
        "weight_decay": 0.0,
        "optimizer_state": "round",
        "clip_gradients": 1.0,
        "within_task": True,
    }
)
"""FedTA's settings in its related code, for all methods on a frozen backbone.

That code also uses a weight decay of 1e-3 in its first stage, and tests among a task's classes only
(`vision.evaluation.TASK`). The decay is left out: Adam applies it in full steps to a head's other
classes, which have no gradient, so they would be forgotten.
"""


class PromptedFedAvg(FedAvg):
    """FedAvg of a head and of prompts for a frozen backbone.

    A subclass defines the prompts (`prompts`) and the features under them (`prompted`, `features`).
    """

    name = ""
    defaults = DEFAULTS

    def set_up(self) -> None:
        """Find the backbone."""
        self.backbone: Backbone = backbone_of(self.population, self.name)

    def prompts(self, n_clients: int, rng: torch.Generator) -> dict[str, Tensor]:
        """Return trainable tensors `(n_clients, …)` other than the head, named `prompt.…`."""
        raise NotImplementedError

    def prompted(self, cohort: Cohort, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return training features `(clients, batch, d)` and a loss of the prompts `(clients,)`."""
        raise NotImplementedError

    def features(self, params: Payload, x: Tensor) -> Tensor:
        """Return features `(clients, batch, d)` for predictions."""
        raise NotImplementedError

    def init(self, clients: Clients, sizes: Tensor, seed: int) -> ServerState:
        """Give all clients the same head and prompts."""
        server = super().init(clients, sizes, seed)
        prompts = self.prompts(len(clients), Draw.PROMPTS.generator(seed))
        add_parameters(clients, prompts)
        return {**server, **{name: clients.params[name][0].clone() for name in prompts}}

    def local_update(self, cohort: Cohort, payload: Payload) -> Payload:
        """Query each image once and train; then train only the head if it has further epochs."""
        self.receive(cohort, payload)
        data = queried(cohort, self.backbone)
        train_parts(
            cohort, (PROMPT, HEAD), None, data, lambda b: self.local_loss(cohort, b, payload)
        )
        train_head(
            cohort,
            HEAD,
            self.options.head_epochs,
            data,
            lambda: self.features(cohort.params, data["x"]),
            lambda b: self.task_loss(cohort, b["feature"], b),
        )
        return self.upload(cohort)

    def local_loss(self, cohort: Cohort, batch: Batch, payload: Payload) -> Tensor:
        """Return the task's loss under prompts, and the prompts' own."""
        features, loss = self.prompted(cohort, batch)
        return self.task_loss(cohort, features, batch) + loss

    def upload(self, cohort: Cohort) -> Payload:
        """Return the head and the prompts."""
        prompts = {n: t.detach() for n, t in cohort.params.items() if n.startswith(PROMPT)}
        return {**super().upload(cohort), **prompts}

    def predict(self, state: Payload, payload: Payload, x: Tensor, view: str) -> Tensor:
        """Predict with the head on features under prompts."""
        params = {**state, **payload}
        return self.population.decode(params, self.features(params, x))


def queried(cohort: Cohort, backbone: Backbone) -> Batch:
    """Return the cohort's samples with their frozen features `query`, without augmentation."""
    size = int(cohort.data.sizes[0])
    data = {name: t[:, :size] for name, t in cohort.data.tensors.items()}
    return {**data, "query": backbone.query(data["x"])}


def train_parts(
    cohort: Cohort,
    parts: tuple[str, ...],
    epochs: int | None,
    data: Batch,
    loss: Callable[[Batch], Tensor],
) -> None:
    """Train only the parameters with some prefixes, on samples `(clients, samples, …)`.

    Clients have equally many samples. Without `epochs` it takes the run's. The loss of a batch is
    `(clients,)`.
    """
    whole = cohort.data
    cohort.data = ClientData(data, whole.sizes)
    with cohort.training_only(*parts):
        for batch in cohort.batches(epochs):
            cohort.step(loss(batch))
    cohort.data = whole


def train_head(
    cohort: Cohort,
    head: str,
    epochs: int | None,
    data: Batch,
    features: Callable[[], Tensor],
    loss: Callable[[Batch], Tensor],
) -> None:
    """Train only a head for its epochs beyond the run's, in which the prompts train too.

    Args:
        cohort: clients of equal sizes.
        head: prefix of the head's parameters.
        epochs: epochs of the head in a round; None for the run's.
        data: training samples.
        features: returns the head's inputs `(clients, samples, d)`, computed once and without
            gradients.
        loss: loss of each client on a batch with these inputs as `feature`.
    """
    further = (epochs or 0) - cohort.training.epochs
    if further <= 0:
        return
    with torch.no_grad():
        inputs = {n: t for n, t in data.items() if n != "x"} | {"feature": features()}
    train_parts(cohort, (head,), further, inputs, loss)


def add_parameters(clients: Clients, tensors: Mapping[str, Tensor]) -> None:
    """Add trainable tensors to the clients, on the device of the others."""
    clients.params.update({name: t.to(clients.device) for name, t in tensors.items()})


def present_classes(method: Method, cohort: Cohort) -> Tensor:
    """Return `(clients, classes)` whether a client has samples of a class in its present task."""
    if "present" not in cohort.scratch:
        cohort.scratch["present"] = key_counts(method.task, cohort) > 0
    present: Tensor = cohort.scratch["present"]
    return present


@dataclass(frozen=True)
class PoolOptions(CheckedOptions):
    """Settings of a pool of prompts.

    Attributes:
        pool_size: prompts in the pool.
        prompt_length: tokens of a prompt.
        top_n: prompts of an image, at most `pool_size`.
    """

    pool_size: PositiveInt = 10
    prompt_length: PositiveInt = 10
    top_n: PositiveInt = 1

    def __post_init__(self) -> None:
        """Refuse more prompts of an image than there are."""
        super().__post_init__()
        if self.top_n > self.pool_size:
            raise InputError(f"top_n is {self.top_n}; the pool has {self.pool_size} prompts")


def new_pool(
    part: str, n_clients: int, options: PoolOptions, width: int, rng: torch.Generator
) -> dict[str, Tensor]:
    """Draw a pool `(clients, pool, length, width)` and keys `(clients, pool, width)`.

    They are the same for all clients, named `PARTpool` and `PARTkeys`.
    """
    o = options
    return {
        f"{part}pool": uniform(n_clients, o.pool_size, o.prompt_length, width, rng=rng),
        f"{part}keys": uniform(n_clients, o.pool_size, width, rng=rng),
    }


def uniform(n_clients: int, *shape: int, rng: torch.Generator) -> Tensor:
    """Draw numbers on [-1, 1], the same for all clients, `(n_clients, *shape)`."""
    return (2 * torch.rand(shape, generator=rng) - 1).expand(n_clients, *shape).clone()


def chosen_prompts(query: Tensor, keys: Tensor, n: int, *, vote: bool = False) -> Tensor:
    """Return the indices of the n prompts with the nearest keys, `(clients, batch, n)`.

    With `vote`, all samples of a batch take its n most often selected prompts, of equals the first
    in the pool. Queries are `(clients, batch, d)`, keys `(clients, pool, d)`.

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
    order = votes.argsort(dim=-1, descending=True, stable=True)
    return order[:, None, :n].expand_as(chosen)


def prompt_tokens(pool: Tensor, chosen: Tensor) -> Tensor:
    """Concatenate the `chosen` prompts of a pool, `(clients, batch, n · length, d)`."""
    client = torch.arange(len(pool), device=pool.device)[:, None, None]
    return pool[client, chosen].flatten(2, 3)


def key_distance(query: Tensor, keys: Tensor, chosen: Tensor) -> Tensor:
    """Return `Σ_s (1 - cos(query, key_s))` over selected keys, batch mean, `(clients,)`."""
    return (1 - cosines(query, keys).gather(-1, chosen)).sum(-1).mean(1)


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
    optimizer = Optimizer({"pool": pool}, zero_moments({"pool": pool}, training), training)
    with torch.enable_grad():
        for _ in range(epochs):
            order = torch.randperm(len(images), generator=rng).to(images.device)
            for rows in order.split(training.batch_size):
                tokens = prompt_tokens(pool, chosen[target, None, rows])
                features = backbone.prompted(images[None, rows], tokens, read=read)
                optimizer.step(F.mse_loss(features[0], mean[rows])[None])
    return pool.detach()[0], keys[target].clone()
