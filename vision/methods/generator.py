"""Base of TARGET and MFCL: data-free replay with a generator that the server trains.

Both train a generator on the server against the global model at the end of a task, so that clients
can rehearse classes without their samples. Here the model is a head on frozen features, and the
generator makes features:

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

import torch
from torch import Tensor, nn

from stforecast.federated.core.data import Batch, ClientData
from stforecast.federated.core.layers import ClientLinear
from stforecast.federated.core.method import Participants, ServerState
from stforecast.federated.core.population import Network, Params
from stforecast.federated.core.state import Clients, Cohort, generator
from stforecast.federated.methods.fedavg import FedAvg
from stforecast.federated.uploads.payload import Payload
from vision.methods.conditional import NormedLinear
from vision.methods.prompts import DEFAULTS, present_classes, queried
from vision.methods.teacher import TEACHER
from vision.models.vit import backbone_of

SERVER = (0, 8)
"""Key of the server's random generator, after the round."""


def feature_generator(noise_width: int, hidden: int, width: int) -> Network:
    """Build a network from noise `(n, batch, noise_width)` to features `(n, batch, width)`."""
    return Network(
        "generator.",
        lambda: nn.Sequential(
            NormedLinear(noise_width, hidden),
            nn.LeakyReLU(0.2),
            ClientLinear(hidden, width),
            nn.LayerNorm(width, elementwise_affine=False),
        ),
    )


class DataFreeFedAvg(FedAvg):
    """FedAvg of a head on frozen features, with training on the server when a task ends.

    A task ends after `rounds` rounds, as in a stream of order `sequential`. The server's state has
    the head at that time (`teacher.…`), the classes of all ended tasks (`former`) and those that
    any client has had (`seen`), `(classes,)`. From then on clients receive the first two, and the
    tensors that a subclass has learned from them (`replayed`). Clients upload their classes
    (`present`) and keep nothing.
    """

    name = ""
    sums = "none"
    defaults = DEFAULTS
    replayed: tuple[str, ...] = ()
    """Names of the tensors for rehearsal in the server's state."""

    def set_up(self) -> None:
        """Find the backbone."""
        self.backbone = backbone_of(self.population, self.name)

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

    def recorded(self, cohort: Cohort, logits: Tensor, batch: Batch) -> Tensor:
        """Return the task's loss, and record it."""
        loss = self.task.loss(logits, batch)
        cohort.record("task_loss", loss)
        return loss

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
        random = generator(int(server["seed"]), of.round, *SERVER)
        self.population.train(False)
        with torch.enable_grad():
            return {**server, **self.learned(server, random)}

    def taught(self, tensors: Payload, features: Tensor) -> Tensor:
        """Return the teacher's logits of features `(clients, batch, d)`; gradients flow to them."""
        teacher = {name: tensors[TEACHER + name] for name in self.shared}
        return self.population.decode(teacher, features)
