"""GPFL: FedPer whose features serve shared embeddings of the keys and the client's own task.

Zhang, Hua, Wang, Song, Xue, Ma, Cao, Guan: GPFL: Simultaneously Learning Global and Personalized
Feature Information for Personalized Federated Learning, ICCV 2023, arXiv 2308.10279, Eq. 3
to 11 and Algorithm 1.

The encoder's features f are turned into two by a conditional valve (CoV), a small network that
makes scale γ and shift β from a condition,

    f_G = σ((γ + 1) ⊙ f + β) from g,    f_P = σ((γ_i + 1) ⊙ f + β_i) from p_i  (Eq. 3 and 4).

f_P goes to the client's own head. f_G is guided by embeddings C of all keys (GCE), trained along:
by angle, the cross-entropy of its cosine similarities to all embeddings (Eq. 8), and by magnitude,
its distance to the key's embedding Ĉ as received (Eq. 9):

    L = ℓ(head(f_P), y) + L_alg + λ ‖f_G - Ĉ_y‖, with weight decay μ of C and V.

g is the mean of all Ĉ, p_i their mean weighted by the client's samples of each key. Encoder, CoV
(V) and GCE (C) are sent and averaged by samples; the head stays.

- γ and β come from the condition alone, by a linear layer, a rectifier and a layer normalisation
  each, and σ is the rectifier.
- Eq. 7 divides p_i by the number of keys once more, although its weights sum to 1. The released
  code (Apache 2.0) does not, nor does this; so p_i is g where all keys are equally frequent.
- g and p_i come from the embeddings received in the round, as in Algorithm 1. In the code they come
  from the client's own of the round before, and are 0 in the first.
- Eq. 9 is a norm for each sample, of which this takes the mean; the code takes that of the batch.
- Eq. 11 adds μ times the norms of V and C to the loss. In the code μ is the weight decay of plain
  SGD; here both shrink by the factor 1 - μ lr after each step, which is the same for small lr. As
  a part of the gradient it would be far stronger with Adam, which scales any gradient to about 1:
  the valve's weights vanished after a few rounds.
- The paper gives each client its own random head; here all start equal. Embeddings start normally
  distributed. The paper's plain SGD is the run's optimiser.
- With forecasts, keys are slots of the period. Clients have about equally many samples of each, so
  g and p_i hardly differ, and neither do f_G and f_P. The method is made for skewed classes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

import torch
from pydantic import NonNegativeFloat
from torch import Tensor, nn
from torch.nn import functional as F

from stforecast.federated.core.declared import Attacked, Needs
from stforecast.federated.core.layers import ClientLayerNorm, ClientLinear
from stforecast.federated.core.options import CheckedOptions
from stforecast.federated.core.population import Network, feature_width
from stforecast.federated.core.prototypes import by_key, key_counts
from stforecast.federated.core.state import Clients, Cohort, ServerState, generator
from stforecast.federated.core.tensors import Batch, Payload
from stforecast.federated.methods.fedper import FedPer
from stforecast.federated.uploads.robust import RULES

EMBEDDINGS, SHARES = "embeddings", "key_shares"
"""Names of C, `(keys, d)` of each client, and of a client's share of samples of each key."""

EMBEDDING_DRAW = (0, 8)
"""Key of the generator of the initial embeddings."""


@dataclass(frozen=True)
class GPFLOptions(CheckedOptions):
    """Settings of GPFL.

    Attributes:
        lam: weight λ of the distance to the key's embedding (released script: 0.01 for small CNNs
            and MLPs, 0.0001 for ResNet-18).
        mu: weight decay μ of embeddings and valve (released script: 0.1 and 0).
    """

    lam: NonNegativeFloat = 0.01
    mu: NonNegativeFloat = 0.1


class GPFL(FedPer):
    """GPFL. The valve's parameters are named `gamma.…` and `beta.…`."""

    name = "gpfl"
    summary = "FedPer with features for shared embeddings of the keys and the client's task"
    paper = "Zhang et al., ICCV 2023"
    attacked = Attacked(guards=RULES)
    needs = Needs(data=("equal initial weights", "keys"))
    Options = GPFLOptions
    options: GPFLOptions

    def set_up(self) -> None:
        """Build both networks of the guides."""
        self.width = d = feature_width(self.population)
        self.gamma, self.beta = (
            Network(prefix, partial(ClientLinear, d, d), nn.ReLU, partial(ClientLayerNorm, d))
            for prefix in ("gamma.", "beta.")
        )
        self.guides = [EMBEDDINGS, *self.gamma.parameters, *self.beta.parameters]

    def init(self, clients: Clients, sizes: Tensor, seed: int) -> ServerState:
        """Initialise as FedPer, with the same embeddings and valve for all clients."""
        server = super().init(clients, sizes, seed)
        n, keys, device = len(clients), self.task.n_keys, clients.device
        drawn = torch.randn(keys, self.width, generator=generator(seed, *EMBEDDING_DRAW))
        clients.params[EMBEDDINGS] = drawn.to(device).repeat(n, 1, 1)
        for i, network in enumerate((self.gamma, self.beta)):
            clients.params |= network.initial(n, seed + i, device)[0]
        clients.memory[SHARES] = torch.full((n, keys), 1 / keys, device=device)
        return {**server, **{name: clients.params[name][0].clone() for name in self.guides}}

    def local_update(self, cohort: Cohort, payload: Payload) -> Payload:
        """Count the client's keys, then train all parts."""
        counts = key_counts(self.task, cohort)
        cohort.memory[SHARES].copy_(counts / counts.sum(1, keepdim=True))
        self.receive(cohort, payload)
        kept = 1 - self.options.mu * self.training.lr_in(cohort.round)
        for batch in cohort.batches():
            cohort.step(self.local_loss(cohort, batch, payload))
            with torch.no_grad():
                for name in self.guides:
                    cohort.params[name].mul_(kept)
        return self.upload(cohort)

    def local_loss(self, cohort: Cohort, batch: Batch, payload: Payload) -> Tensor:
        """Return ℓ + L_alg + λ L_mlg of each client, `(clients,)`."""
        state = {**cohort.state, SHARES: cohort.memory[SHARES]}
        features = self.population.encode(state, batch["x"])
        own, common = self.conditions(state, payload[EMBEDDINGS])
        loss = self.task_loss(cohort, self.valve(state, features, own), batch)
        guided, keys = self.valve(state, features, common), self.task.keys(batch)
        angle = angles_loss(guided, keys, state[EMBEDDINGS])
        length = torch.linalg.vector_norm(guided - by_key(payload[EMBEDDINGS], keys), dim=-1)
        result: Tensor = loss + angle + self.options.lam * length.mean(1)
        return result

    def conditions(self, state: Mapping[str, Tensor], embeddings: Tensor) -> tuple[Tensor, Tensor]:
        """Return p_i and g (Eq. 5 to 7), each `(clients, 1, d)`."""
        own = state[SHARES][:, None].to(embeddings) @ embeddings
        return own, embeddings.mean(1, keepdim=True)

    def valve(self, state: Mapping[str, Tensor], features: Tensor, condition: Tensor) -> Tensor:
        """Return σ((γ + 1) ⊙ f + β) for the condition (Eq. 3)."""
        gamma, beta = (net(state, condition, training=True) for net in (self.gamma, self.beta))
        return torch.relu(features * (gamma + 1) + beta)

    def upload(self, cohort: Cohort) -> Payload:
        """Return encoder, embeddings and valve."""
        guides = {name: cohort.params[name].detach() for name in self.guides}
        return {**super().upload(cohort), **guides}

    def predict(self, state: Payload, payload: Payload, x: Tensor, view: str) -> Tensor:
        """Predict with the latest shared parts, the own conditions and the own head."""
        model = {**state, **payload}
        own, _ = self.conditions(model, model[EMBEDDINGS])
        features = self.valve(model, self.population.encode(model, x), own)
        return self.population.decode(model, features)


def angles_loss(features: Tensor, keys: Tensor, embeddings: Tensor) -> Tensor:
    """Return the mean cross-entropy of cosine similarities to all embeddings (Eq. 8), `(clients,)`.

    The features are `(clients, batch, d)`, the embeddings `(clients, keys, d)`.

    >>> features, keys = torch.tensor([[[3.0, 0.0]]]), torch.tensor([[0]])
    >>> angles_loss(features, keys, torch.tensor([[[1.0, 0.0], [0.0, 2.0]]]))  # log(1 + 1/e)
    tensor([0.3133])
    """
    cosine = F.normalize(features, dim=-1) @ F.normalize(embeddings, dim=-1).mT
    return F.cross_entropy(cosine.mT, keys, reduction="none").mean(1)
