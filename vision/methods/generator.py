"""Bases of methods that remember former tasks: teachers, and generators of features.

TARGET and MFCL train a generator on the server against the global model at the end of a task, so
that clients can rehearse classes without their samples. Here the model is a head on frozen
features, and the generator makes features:

- Only the head is trained, and its input is features. Generated images would matter only through
  their features, which a frozen transformer would have to compute in each local step.
- Losses on pixels or inside the network have no counterpart: priors of images, and statistics of
  batch normalisation, which a Vision Transformer does not have.
- Image generators end in a layer that keeps pixels in range. Likewise, this generator ends in a
  layer normalisation, as a transformer does, without the learned scale.

FedTA (Yu et al., CVPR 2025, section 5.3) explains the low accuracy of both methods by the size of
the generated images, 3 × 224 × 224. This does not apply here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from stforecast.federated.core.data import ClientData
from stforecast.federated.core.declared import Upload
from stforecast.federated.core.layers import ClientLinear, Stacked, uniform
from stforecast.federated.core.population import Network
from stforecast.federated.core.state import Clients, Cohort, Participants, ServerState
from stforecast.federated.core.tensors import Batch, Params, Payload
from stforecast.federated.methods.fedavg import FedAvg
from vision.draws import Draw
from vision.methods.prompts import DEFAULTS, present_classes, queried
from vision.models.vit import backbone_of

TEACHER = "teacher."


class TaughtFedAvg(FedAvg):
    """FedAvg whose clients keep the model that they received at the start of a stage.

    A client's memory has this model (`teacher.…`) and flags of the classes of its former stages
    (`former`) and of its present stage (`present`), `(clients, classes)`.
    """

    name = ""

    def init(self, clients: Clients, sizes: Tensor, seed: int) -> ServerState:
        """Start as FedAvg does, without former classes."""
        server = super().init(clients, sizes, seed)
        device = clients.device
        n, c = len(clients), self.task.n_keys
        model = {**clients.params, **clients.buffers}
        clients.memory |= {TEACHER + name: t.clone() for name, t in model.items()}
        clients.memory |= {
            "stage": torch.full((n,), -1, device=device),
            "former": torch.zeros(n, c, dtype=torch.bool, device=device),
            "present": torch.zeros(n, c, dtype=torch.bool, device=device),
        }
        return server

    def local_update(self, cohort: Cohort, payload: Payload) -> Payload:
        """Store teacher and former classes of clients whose stage begins; train as FedAvg does."""
        memory, new = cohort.memory, self.begins(cohort, payload)
        memory["former"] |= memory["present"] & new[:, None]
        memory["present"] &= ~new[:, None]
        memory["present"] |= present_classes(self, cohort)
        with torch.no_grad():
            for name, t in self.lesson(payload).items():
                memory[TEACHER + name][new] = t[new]
        return super().local_update(cohort, payload)

    def begins(self, cohort: Cohort, payload: Payload) -> Tensor:
        """Return whether a stage begins for each client in this round, `(clients,)`."""
        stage = cohort.memory["stage"]
        new = stage != cohort.stage
        stage.fill_(cohort.stage)
        return new

    def lesson(self, payload: Payload) -> Payload:
        """Return the model to keep as the teacher, by parameter name; here the received one."""
        return payload

    def teacher(self, cohort: Cohort) -> Params:
        """Return the teacher by parameter name."""
        return {name: cohort.memory[TEACHER + name] for name in self.population.names}

    def teach(self, cohort: Cohort, x: Tensor) -> Tensor:
        """Return the teacher's logits in evaluation mode."""
        model = self.teacher(cohort)
        self.population.train(False)
        with torch.no_grad():
            logits = self.population.decode(model, self.population.encode(model, x))
        self.population.train()
        return logits


def draw_labels(counts: Tensor, uniform: Tensor) -> Tensor:
    """Draw labels `(clients, batch)` in proportion to counts `(clients, classes)`.

    Uniform numbers in [0, 1) decide. Each row of counts has a positive one.

    >>> draw_labels(torch.tensor([[0, 1, 3, 0]]), torch.tensor([[0.0, 0.24, 0.25, 0.99]]))
    tensor([[1, 1, 2, 2]])
    """
    edges = counts.long().cumsum(1)
    places = (uniform.double().to(counts.device) * edges[:, -1:]).long()
    return torch.searchsorted(edges, places, right=True)


def normal(generators: Sequence[torch.Generator], *shape: int) -> Tensor:
    """Draw standard normal numbers `(n, *shape)`, with one generator for each client."""
    return torch.stack([torch.randn(shape, generator=g) for g in generators])


def condition(values: Tensor, labels: Tensor, n_classes: int) -> Tensor:
    """Append one-hot labels to values `(clients, batch, d)`; gives `(clients, batch, d + n)`."""
    return torch.cat([values, F.one_hot(labels, n_classes).to(values)], dim=-1)


class NormedLinear(Stacked):
    """Stacked `nn.Linear` without bias and `nn.BatchNorm1d`, `(clients, batch, features)`.

    The shift of the normalisation is the bias; a bias before it would have no gradient.
    """

    running_mean: Tensor
    running_var: Tensor

    def __init__(self, in_features: int, out_features: int) -> None:
        super().__init__()
        self.weight = uniform(1 / math.sqrt(in_features), in_features, out_features)
        self.scale = nn.Parameter(torch.ones(1, out_features))
        self.shift = nn.Parameter(torch.zeros(1, out_features))
        self.register_buffer("running_mean", torch.zeros(1, out_features))
        self.register_buffer("running_var", torch.ones(1, out_features))

    def forward(self, x: Tensor) -> Tensor:
        """Apply each client's layer; in training the running statistics are updated in place."""
        clients, batch, _ = x.shape
        mapped = torch.bmm(x, self.weight)
        y = F.batch_norm(
            mapped.transpose(0, 1).reshape(batch, -1),  # Each client has its own channels.
            self.running_mean.reshape(-1),
            self.running_var.reshape(-1),
            self.scale.reshape(-1),
            self.shift.reshape(-1),
            training=self.training,
        )
        return y.view(batch, clients, -1).transpose(0, 1)


class DataFreeFedAvg(FedAvg):
    """FedAvg of a head on frozen features, with training on the server when a task ends.

    A task ends after `rounds` rounds, as in a stream of order `sequential`. The server's state has
    the head at that time (`teacher.…`), the classes of all ended tasks (`former`) and those that
    any client has had (`seen`), `(classes,)`. From then on clients receive the first two, and the
    tensors that a subclass has learned from them (`replayed`). Clients upload their classes
    (`present`) and keep nothing.
    """

    name = ""
    sends = Upload()
    defaults = DEFAULTS
    replayed: tuple[str, ...] = ()
    """Names of the tensors for rehearsal in the server's state."""

    def set_up(self) -> None:
        """Find the backbone; build the generator of features `(n, batch, width)` from noise."""
        o, self.backbone = self.options, backbone_of(self.population, self.name)
        width = self.backbone.width
        self.generator = Network(
            "generator.",
            partial(NormedLinear, o.noise_width, o.hidden),
            partial(nn.LeakyReLU, 0.2),
            partial(ClientLinear, o.hidden, width),
            partial(nn.LayerNorm, width, elementwise_affine=False),
        )

    def learned(self, server: Params, random: torch.Generator) -> Params:
        """Learn the tensors `replayed` from the teacher when a task has ended."""
        raise NotImplementedError

    def replay_loss(self, cohort: Cohort, batch: Batch, payload: Payload) -> Tensor:
        """Return the clients' loss for former classes, `(clients,)`."""
        raise NotImplementedError

    def init(self, clients: Clients, sizes: Tensor, seed: int) -> ServerState:
        """Start as FedAvg does, without former classes."""
        server = super().init(clients, sizes, seed)
        nothing = torch.zeros(self.task.n_keys, dtype=torch.bool, device=clients.device)
        teacher = {TEACHER + name: t.clone() for name, t in server.items()}
        flags = {"former": nothing, "seen": nothing.clone()}
        return {**server, **teacher, **flags, "seed": torch.tensor(seed)}

    def broadcast(self, server: ServerState, to: Participants) -> Payload:
        """Send the head, and after the first task also teacher, former classes and `replayed`."""
        names = self.shared
        if to.round >= self.training.rounds:
            names = [*names, *(TEACHER + n for n in names), "former", *self.replayed]
        return super().broadcast({name: server[name] for name in names}, to)

    def local_update(self, cohort: Cohort, payload: Payload) -> Payload:
        """Query each image once, then train as FedAvg does."""
        cohort.data = ClientData(queried(cohort, self.backbone), cohort.data.sizes)
        return super().local_update(cohort, payload)

    def local_loss(self, cohort: Cohort, batch: Batch, payload: Payload) -> Tensor:
        """Return the task's loss (among new classes with `split`) plus that for former classes."""
        logits = self.population.decode(cohort.state, batch["query"])
        if "former" not in payload:
            return self.recorded(cohort, logits, batch)
        if self.options.split:
            new = ~payload["former"] | present_classes(self, cohort)
            logits = logits.masked_fill(~new[:, None], -torch.inf)
        loss = self.recorded(cohort, logits, batch)
        return loss + self.replay_loss(cohort, batch, payload)

    def upload(self, cohort: Cohort) -> Payload:
        """Return the head and the client's classes."""
        return {**super().upload(cohort), "present": present_classes(self, cohort)}

    def aggregate(self, server: ServerState, of: Participants, uploads: Payload) -> ServerState:
        """Average the heads; when a task ends, learn from the average."""
        model = super().aggregate(server, of, {n: uploads[n] for n in self.shared})
        seen = server["seen"] | uploads["present"].any(0)
        server = {**server, **model, "seen": seen}
        if (of.round + 1) % self.training.rounds:
            return server
        teacher = {TEACHER + name: t.clone() for name, t in model.items()}
        server = {**server, **teacher, "former": seen.clone()}
        random = Draw.DATA_FREE.generator(int(server["seed"]), of.round)
        self.population.train(False)
        with torch.enable_grad():
            return {**server, **self.learned(server, random)}

    def taught(self, tensors: Payload, features: Tensor) -> Tensor:
        """Return the teacher's logits of features `(clients, batch, d)`; gradients flow to them."""
        teacher = {name: tensors[TEACHER + name] for name in self.shared}
        return self.population.decode(teacher, features)
