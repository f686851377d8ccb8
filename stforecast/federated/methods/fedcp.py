"""FedCP: FedPer whose clients split each sample's features between a global and a personal head.

Zhang, Hua, Wang, Song, Xue, Ma, Guan: FedCP: Separating Feature Information for Personalized
Federated Learning via Conditional Policy, KDD 2023, arXiv 2307.01217.

For the features h of a sample, a conditional policy network (CPN) makes two shares r and s of every
feature, r + s = 1, from h and the client's own head. The prediction is

    head_g(r ⊙ h) + head_i(s ⊙ h),

with the global head head_g as received, which is frozen in the round, and the client's own head_i.
A client trains encoder, CPN and head_i on its own loss, plus λ times the maximum mean discrepancy
(MMD) between h and the features of the received encoder, which is frozen, too. Encoder and CPN are
averaged and overwritten; head_i stays, and its mean with head_g is averaged into the next head_g.
This follows Figure 2 of the paper and the authors' slides, and the released code (Apache 2.0) for
what they do not show: the softmax, v, the MMD and the mean of the heads. Only the beginning of the
paper's text was available.

- The CPN is a linear layer of twice the width, a layer normalisation and a rectifier, and then a
  softmax over the two values of each feature. The released code adds Gumbel noise, in predictions
  as well.
- Its input is h ⊙ v/‖v‖ with v the sum of the weights of the client's own head over its outputs, as
  it was before the round; in the first round the code draws v at random. For heads that are not
  linear v is the slope of the summed outputs at 0.
- The MMD sums the code's Gaussian kernels, whose widths do not follow the features. Its λ of 5
  belongs to them: with widths around the samples' mean squared distance the term outweighs ℓ.
- As in the code, (head_g + head_i) / 2 is sent. Heads start equal for all clients.
- The server weights by samples. Running statistics of the encoder are averaged; the frozen
  encoder's pass does not change them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

import torch
from pydantic import NonNegativeFloat
from torch import Tensor, nn
from torch.nn import functional as F

from stforecast.federated.core.declared import Attacked
from stforecast.federated.core.layers import ClientLayerNorm, ClientLinear
from stforecast.federated.core.options import CheckedOptions
from stforecast.federated.core.population import Network, feature_width
from stforecast.federated.core.state import Clients, Cohort, ServerState
from stforecast.federated.core.tensors import Batch, Payload, mmd
from stforecast.federated.methods.fedavg import FedAvg
from stforecast.federated.methods.fedper import HEAD

WIDTHS = (20.0, 30.0, 40.0, 100.0)
"""Widths of the kernels: twice the variances 10, 15, 20 and 50 of the released code."""


@dataclass(frozen=True)
class FedCPOptions(CheckedOptions):
    """Settings of FedCP.

    Attributes:
        lam: weight λ of the discrepancy to the global encoder's features. The released script
            for MNIST has 5; the default for images is 1, as in PFLlib.
    """

    lam: NonNegativeFloat = 5.0


class FedCP(FedAvg):
    """FedCP. The policy's parameters are named `policy.…`; a client's `head.…` are its own."""

    name = "fedcp"
    summary = "splits each sample's features between a global and a personal head"
    paper = "Zhang et al., KDD 2023"
    attacked = Attacked(
        guards=("median", "trimmed", "drop"),
        unguarded="beside liars the error is half as large again, as the page of security shows",
    )
    views = ("personal",)
    keeps_own = True
    Options = FedCPOptions
    options: FedCPOptions

    def set_up(self) -> None:
        """Build the network that separates features."""
        self.width = d = feature_width(self.population)
        self.policy = Network(
            "policy.",
            partial(ClientLinear, d, 2 * d),
            partial(ClientLayerNorm, 2 * d),
            nn.ReLU,
        )

    def init(self, clients: Clients, sizes: Tensor, seed: int) -> ServerState:
        """Initialise as FedAvg, with the same policy for all clients."""
        server = super().init(clients, sizes, seed)
        policies, _ = self.policy.initial(len(clients), seed, clients.device)
        clients.params |= policies
        return {**server, **{name: t[0].clone() for name, t in policies.items()}}

    def receive(self, cohort: Cohort, payload: Payload) -> None:
        """Overwrite encoder and policy; the client keeps its head."""
        super().receive(cohort, {n: t for n, t in payload.items() if not n.startswith(HEAD)})

    def local_update(self, cohort: Cohort, payload: Payload) -> Payload:
        """Train encoder, policy and the own head; send the mean of both heads."""
        cohort.scratch["context"] = self.context(cohort.state)
        upload = super().local_update(cohort, payload)
        heads = {n: (t + payload[n]) / 2 for n, t in upload.items() if n.startswith(HEAD)}
        policy = {name: cohort.params[name].detach() for name in self.policy.parameters}
        return {**upload, **heads, **policy}

    def local_loss(self, cohort: Cohort, batch: Batch, payload: Payload) -> Tensor:
        """Return ℓ + λ MMD(h, h_global) of each client, `(clients,)`."""
        features = self.population.encode(cohort.state, batch["x"])
        y_hat = self.both(cohort.state, payload, features, cohort.scratch["context"])
        loss = self.recorded(cohort, y_hat, batch)
        if self.options.lam == 0:
            return loss
        with torch.no_grad():
            buffers = {name: t.clone() for name, t in cohort.buffers.items()}
            received = self.population.encode({**cohort.state, **payload, **buffers}, batch["x"])
        return loss + self.options.lam * mmd(features, received, WIDTHS)

    def both(
        self, state: Mapping[str, Tensor], payload: Payload, features: Tensor, context: Tensor
    ) -> Tensor:
        """Return the sum of both heads' predictions, each of its share of the features."""
        values = self.policy(state, features * context, training=True)
        shares = values.unflatten(-1, (2, self.width)).softmax(-2)
        common = self.population.decode({**state, **payload}, shares[..., 0, :] * features)
        return common + self.population.decode(state, shares[..., 1, :] * features)

    def context(self, state: Mapping[str, Tensor]) -> Tensor:
        """Return v/‖v‖ `(clients, 1, d)`, the slope of the head's summed outputs at 0."""
        head = {name: t.detach() for name, t in state.items()}
        like = next(t for name, t in head.items() if name.startswith(HEAD))
        with torch.enable_grad():
            at = like.new_zeros(len(like), 1, self.width).requires_grad_()
            (slope,) = torch.autograd.grad(self.population.decode(head, at).sum(), at)
        return F.normalize(slope, dim=-1)

    def predict(self, state: Payload, payload: Payload, x: Tensor, view: str) -> Tensor:
        """Predict with the latest encoder, policy and global head, and the own head."""
        own = {**state, **{n: t for n, t in payload.items() if not n.startswith(HEAD)}}
        return self.both(own, payload, self.population.encode(own, x), self.context(own))
