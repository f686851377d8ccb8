"""FedAGHN: each client starts from a mixture of the models of clients that change as it does.

Song, Shen, Hou, Wang, Wang, Tang, Lv: FedAGHN: Personalized Federated Learning with Attentive Graph
HyperNetworks, 2025, arXiv 2501.16379. For each layer, the server keeps two numbers of every client,
its own weight p_i and its sharpness q_i. From the models θ_j after the last round, and from what
training changed in that round, Δ_j, client i receives

    θ̄_i = (max(p_i, 0) θ_i + Σ_{j≠i} s_ij θ_j) / (max(p_i, 0) + 1),
    s_ij = exp(q_i cos(Δ_i, Δ_j)) / Σ_{k≠i} exp(q_i cos(Δ_i, Δ_k)),

and trains it to its new θ_i, by Δ_i = θ_i - θ̄_i. With this change in place of the loss's negative
gradient, the server takes a step of size η of p_i and q_i,

    φ_i ← φ_i + η ∂⟨θ̄_i, Δ_i⟩ / ∂φ_i,    Δ_i fixed.

Of the paper only the beginning could be read. Rules and defaults are those of the released code
(MIT, commit 9a68321). With `uphill`, the models, p and q of twelve rounds equal its own to 1e-14 in
double precision.

- The code's step has the other sign: it lowers the weights of models that lie where training went,
  and so goes up the loss. As it is not known what the paper says, `uphill` chooses it.
- A layer is a module with parameters of its own, of any kind; the code knows three kinds.
- The cosine with a layer that did not change is 0; the code divides by 0.
- The code's clients all take part. Here, the server mixes the latest models of all that have taken
  part, and a client who is the only one keeps its model.
- A negative p_i counts as 0, and is 0 before the next step.
- The code can fix p and q, and set p of the last layer apart. Both are off there, and left out.
- Models are parameters; clients keep running statistics, and what a model calls its own.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from pydantic import NonNegativeFloat
from torch import Tensor

from stforecast.federated.core.declared import Upload
from stforecast.federated.core.options import CheckedOptions
from stforecast.federated.core.state import Clients, Participants, ServerState
from stforecast.federated.core.tensors import Params, Payload, with_axes
from stforecast.federated.methods.two_models import SEEN, OwnModels

OWN, SHARPNESS = "own weight", "sharpness"
"""Names of the server's tensors p and q, `(clients, layers)`."""

CHANGE = "change."
"""Prefix of the latest changes of the clients' models, with norm 1 in each layer."""


@dataclass(frozen=True)
class FedAghnOptions(CheckedOptions):
    """Settings of FedAGHN; the defaults are those of the released code.

    Attributes:
        own_weight: initial weight p of a client's own model; the others weigh 1 together.
        sharpness: initial factor q of the cosines of changes; 0 weighs the others equally.
        weight_lr: step size η of p and q; 0 keeps them.
        uphill: whether p and q step up the clients' losses, as in the released code.
    """

    own_weight: NonNegativeFloat = 0.05
    sharpness: float = 1.0
    weight_lr: NonNegativeFloat = 0.005
    uphill: bool = False


class FedAghn(OwnModels):
    """FedAGHN."""

    name = "fedaghn"
    summary = "starts each client from a mixture of models, weighted by how alike they change"
    paper = "Song et al., arXiv 2025"
    sends = Upload(
        needs_each="its server compares the changes of the clients' models with each other",
        apart=True,
    )
    Options = FedAghnOptions
    options: FedAghnOptions

    def set_up(self) -> None:
        """Find the names of the parameters that are sent, by layer."""
        super().set_up()
        self.layers: dict[str, list[str]] = {}
        for name in self.shared:
            self.layers.setdefault(name.rpartition(".")[0], []).append(name)

    def init(self, clients: Clients, sizes: Tensor, seed: int) -> ServerState:
        """Return all clients' models `(clients, …)`, of which none has changed yet."""
        server = super().init(clients, sizes, seed)
        changes = {CHANGE + name: torch.zeros_like(server[name]) for name in self.shared}
        return {**server, **changes, **self.scalars(server[SEEN])}

    def scalars(self, like: Tensor) -> ServerState:
        """Return the initial p and q of clients, in double precision. `like`: `(clients,)`."""
        ones = like.new_ones(len(like), len(self.layers), dtype=torch.float64)
        return {OWN: self.options.own_weight * ones, SHARPNESS: self.options.sharpness * ones}

    def broadcast(self, server: ServerState, to: Participants) -> Payload:
        """Return each client's θ̄_i under the names of the model."""
        ids = to.ids.to(server[SEEN].device)
        weights = self.weights(server, ids, server[OWN][ids], server[SHARPNESS][ids])
        return {
            name: torch.tensordot(of_layer.to(server[name]), server[name], dims=1)
            for of_layer, names in zip(weights, self.layers.values(), strict=True)
            for name in names
        }

    def weights(self, server: ServerState, ids: Tensor, own: Tensor, sharpness: Tensor) -> Tensor:
        """Return the weights of all models for the clients `ids`, `(layers, n, clients)`.

        They sum to 1 over the last axis. `own` and `sharpness`: p and q, `(n, layers)`.
        """
        changes = {name: server[CHANGE + name] for name in self.shared}
        cosines = self.products({name: t[ids] for name, t in changes.items()}, changes)
        itself = ids[:, None] == torch.arange(len(server[SEEN]), device=ids.device)
        others = server[SEEN] & ~itself
        # The smallest number, as the softmax of nothing but -inf has no gradient.
        lowest = torch.finfo(cosines.dtype).min
        share = (sharpness.T[..., None] * cosines).masked_fill(~others, lowest).softmax(-1) * others
        own = torch.where(others.any(1), own.T.clamp(min=0), 1.0)[..., None]
        return torch.where(itself, own, share) / (own + share.sum(-1, keepdim=True))

    def products(self, some: Params, every: Params) -> Tensor:
        """Return the inner products of models in each layer, in double precision.

        For models `(n, …)` and `(clients, …)`, they are `(layers, n, clients)`.
        """
        rows, columns = (
            {name: t.reshape(len(t), -1) for name, t in models.items()} for models in (some, every)
        )
        return torch.stack(
            [
                torch.stack([rows[n] @ columns[n].T for n in names]).sum(0)
                for names in self.layers.values()
            ]
        ).double()

    def aggregate(self, server: ServerState, of: Participants, uploads: Payload) -> ServerState:
        """Store the models and how they changed, and take a step of p and q."""
        ids = of.ids.to(server[SEEN].device)
        began = self.broadcast(server, of)
        change = {name: t - began[name] for name, t in uploads.items()}
        after = {name: t.clone() for name, t in server.items()}
        for names in self.layers.values():
            parts = [change[name].reshape(len(ids), -1) for name in names]
            norm = torch.cat(parts, 1).norm(dim=1).clamp(min=torch.finfo(parts[0].dtype).tiny)
            for name in names:
                after[name][ids] = uploads[name]
                after[CHANGE + name][ids] = change[name] / with_axes(norm, change[name].ndim)
        after[OWN][ids], after[SHARPNESS][ids] = self.stepped(server, ids, change)
        after[SEEN][ids] = True
        return after

    def stepped(self, server: ServerState, ids: Tensor, change: Params) -> tuple[Tensor, Tensor]:
        """Return p and q of the clients `ids` after a step, `(n, layers)` each."""
        # Weights sum to 1, so a mean of models has no gradient, only rounding errors.
        centred = {name: server[name] - server[name].mean(0) for name in self.shared}
        products = self.products(change, centred)
        with torch.enable_grad():
            p, q = (server[name][ids].requires_grad_() for name in (OWN, SHARPNESS))
            gain = (self.weights(server, ids, p, q) * products).sum()
            of_p, of_q = torch.autograd.grad(gain, (p, q))
        step = self.options.weight_lr * (-1 if self.options.uphill else 1)
        return p.detach().clamp(min=0) + step * of_p, q.detach() + step * of_q

    def server_for(self, server: ServerState, ids: Tensor) -> ServerState:
        """Return the state for other clients; the model of a new one is the mean of all."""
        ids = ids.to(server[SEEN].device)
        known, model = ids >= 0, self.model_of_new(server)
        changes = {CHANGE + name: torch.zeros_like(t) for name, t in model.items()}
        fresh = {**model, **changes, SEEN: torch.zeros_like(known), **self.scalars(known)}
        return {
            name: torch.where(with_axes(known, t.ndim), t[ids], fresh[name])
            for name, t in server.items()
        }
