"""FUELS: dual semantic alignment-based contrastive learning that sends prototypes only.

Liu, Sun, Liang, Xue, Liu: Personalized Federated Learning for Spatio-Temporal Forecasting: A Dual
Semantic Alignment-Based Contrastive Approach, AAAI 2025, arXiv 2404.03702.

Clients keep their models. They send prototypes, mean representations of each slot of the period
(Eq. 8); the server compares them by Jensen–Shannon divergence and returns to each client the mean
of those similar to its own and the mean of the others (Eq. 9, 10): the positives and negatives of
its contrastive loss (Eq. 11). A second contrastive loss (Eq. 6) separates the hours of a client's
day; a learned matrix W leaves out those that look similar (Eq. 3-5).

Where the paper contradicts itself or is silent, the option concerned documents the choice.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from pydantic import NonNegativeFloat, PositiveFloat
from torch import Tensor
from torch.nn import functional as F

from data_prep.errors import InputError
from stforecast.federated.data import Batch
from stforecast.federated.kernels.compiler import usable
from stforecast.federated.kernels.features import attract_repel, filtered_contrast
from stforecast.federated.method import Method, Participants
from stforecast.federated.options import CheckedOptions, Share
from stforecast.federated.prototypes import (
    PrototypeMeans,
    attract_repel_loss,
    by_key,
    jensen_shannon,
    weighted_prototypes,
)
from stforecast.federated.state import Clients, Cohort, generator
from stforecast.federated.uploads.payload import Payload


@dataclass(frozen=True)
class FuelsOptions(CheckedOptions):
    """Settings of FUELS; the paper's values where it gives them.

    Attributes:
        tau: temperature τ of both contrastive losses (section 5.4: 0.02).
        rho: weight ρ of the inter-client loss, or of the prediction loss with `loss_form="alg1"`
            (section 5.4: 5).
        beta: the threshold β as a quantile of all JSD values (section 5.4: 0.5).
        loss_form: `eq15`: pred + intra + ρ inter; `alg1`: intra + inter + ρ pred. The paper prints
            both; the notation table and the sweep agree with Eq. 15.
        intra: whether to use the intra-client loss (False: ablation "w/o intra").
        inter: whether to use the inter-client loss (False: ablation "w/o inter", and nothing is
            sent).
        filter_init: initial W: `uniform` in [0, 1) or `ones`. The paper does not say; a positive
            start reproduces its Figure 9. The gradient on W is never negative, so W only falls.
        filter_train: whether W is trained, by the client's own optimiser (False with `ones`:
            ablation "w/o W").
        shift: lower bound of the share a ~ U(shift, 1) that an augmented sample keeps of the
            original; 1 turns augmentation off. The paper does not say.
        prototypes: `periodic`: mean by slot of the period (Eq. 8); `concat`: one per sample (Eq. 7,
            ablation "w/o p-aware").
        prototype_pass: `training`: average the representations of the last local epoch (Algorithm
            1); `fresh`: those of one more pass after it.
        divergence: JSD of the softmax over the whole prototype (`flat`) or the mean of those over
            its rows (`rows`). The paper does not say how real vectors become distributions.
        include_self: whether a client's own prototype counts as positive.
    """

    tau: PositiveFloat = 0.02
    rho: NonNegativeFloat = 5.0
    beta: Share = 0.5
    loss_form: Literal["eq15", "alg1"] = "eq15"
    intra: bool = True
    inter: bool = True
    filter_init: Literal["uniform", "ones"] = "uniform"
    filter_train: bool = True
    shift: Share = 0.5
    prototypes: Literal["periodic", "concat"] = "periodic"
    prototype_pass: Literal["training", "fresh"] = "training"
    divergence: Literal["flat", "rows"] = "flat"
    include_self: bool = False


class Fuels(Method):
    """FUELS. The functions follow the order of the paper's Algorithm 1."""

    name = "fuels"
    summary = "exchanges hourly prototypes; intra- and inter-client contrastive losses"
    paper = "Liu et al., AAAI 2025"
    keeps_apart = True
    reads_next = True
    Options = FuelsOptions
    options: FuelsOptions

    def init(self, clients: Clients, sizes: Tensor, seed: int) -> dict[str, Tensor]:
        """Give each client its filtering matrix W `(B, B)`; the server has no prototypes yet."""
        if self.training.shuffle:
            raise InputError("fuels needs batches in order of time (row b is slot b): no --shuffle")
        n, b = len(clients), self.training.batch_size
        if not self.training.drop_last:
            raise InputError("fuels needs whole batches, one period each; leave drop_last on")
        if self.options.prototypes == "periodic" and b != self.task.n_keys:
            raise InputError(
                f"fuels needs a batch of one period (section 3.3.1): batch_size is {b}, the period "
                f"is {self.task.n_keys}; set --batch-size {self.task.n_keys}"
            )
        if self.options.prototypes == "concat" and len(sizes.unique()) > 1:
            raise InputError("concatenated prototypes need clients of equal size; use 'periodic'")
        filters = torch.ones(n, b, b)
        if self.options.filter_init == "uniform":
            filters = torch.stack(
                [torch.rand(b, b, generator=generator(seed, 0, i, 1)) for i in range(n)]
            )
        device = next(iter(clients.params.values())).device
        group = clients.params if self.options.filter_train else clients.memory
        group["filter"] = filters.to(device)
        return {"jsd": torch.zeros(n, n, device=device)} if self.options.inter else {}

    def broadcast(self, server: dict[str, Tensor], to: Participants) -> Payload:
        """Return each client's global positive and negative prototypes (Eq. 9, 10), if any."""
        if "prototypes" not in server:
            return {}
        jsd, prototypes = server["jsd"], server["prototypes"]
        ids = to.ids.to(jsd.device)
        known = are_known(prototypes)
        similar = known & (jsd[ids] <= server["threshold"])
        others = known & (torch.arange(len(jsd), device=jsd.device) != ids[:, None])
        positive = similar if self.options.include_self else similar & others
        return {
            "positive": weighted_prototypes(prototypes, positive.float()),
            "negative": weighted_prototypes(prototypes, (~similar & others).float()),
        }

    def threshold(self, jsd: Tensor) -> Tensor:
        """Return β, the quantile of the divergences of all pairs, each counted once (5.4)."""
        n = len(jsd)
        pairs = jsd[tuple(torch.triu_indices(n, n, 1, device=jsd.device))]
        return quantile(pairs, self.options.beta) if len(pairs) else jsd.new_zeros(())

    def local_update(self, cohort: Cohort, payload: Payload) -> Payload:
        """Train and average the representations on the way (Algorithm 1, lines 16 to 26)."""
        cohort.scratch["means"] = PrototypeMeans(self._n_keys(cohort))
        return super().local_update(cohort, payload)

    def local_loss(self, cohort: Cohort, batch: Batch, payload: Payload) -> Tensor:
        """Return the loss of Eq. 15, or of line 23 of Algorithm 1."""
        o = self.options
        if o.intra:
            both = torch.cat([batch["x"], self.augment(cohort, batch)], dim=1)
            features, augmented = self.population.encode(cohort.state, both).chunk(2, dim=1)
        else:
            features = self.population.encode(cohort.state, batch["x"])
        if cohort.last_epoch and o.prototype_pass == "training":
            cohort.scratch["means"].add(features, self._keys(batch))
        pred = self.task_loss(cohort, features, batch)
        filters = {**cohort.memory, **cohort.params}["filter"]
        intra = intra_loss(features, augmented, filters, o.tau) if o.intra else 0.0
        inter = self.inter_loss(features, batch, payload) if o.inter and payload else 0.0
        if o.loss_form == "alg1":
            return intra + inter + o.rho * pred
        return pred + intra + o.rho * inter

    def augment(self, cohort: Cohort, batch: Batch) -> Tensor:
        """Augment by temporal shifting (Liu et al. 2022): x' = a x + (1 - a) x one step later.

        Each sample draws its own a. The last closeness value of x one step later is the target:
        only this view reads it, and only in training.
        """
        shift = self.options.shift
        keep = shift + (1 - shift) * cohort.rand(batch["x"].shape[1], 1).to(batch["x"].device)
        return torch.lerp(batch["x_next"], batch["x"], keep)

    def inter_loss(self, features: Tensor, batch: Batch, payload: Payload) -> Tensor:
        """Return Eq. 11 to 13, `(clients,)`, comparing row b of a batch with prototype row b."""
        keys, tau = self._keys(batch), self.options.tau
        positive, negative = payload["positive"], payload["negative"]
        if usable(features.shape[-1], features, positive, negative):
            return attract_repel(features, positive, negative, keys, tau)
        positive, negative = by_key(positive, keys), by_key(negative, keys)
        return attract_repel_loss(features, positive, negative, tau).mean(1)

    def upload(self, cohort: Cohort) -> Payload:
        """Return the prototypes R_n (Eq. 8, or 7): `(clients, slots or samples, d)`."""
        if not self.options.inter:
            return {}
        means: PrototypeMeans = cohort.scratch["means"]
        if self.options.prototype_pass == "fresh":
            with torch.no_grad():
                for batch in cohort.data.chunks(self.training.batch_size):
                    features = self.population.encode(cohort.state, batch["x"])
                    means.add(features, self._keys(batch))
        return {"prototypes": means.means()}

    def aggregate(
        self, server: dict[str, Tensor], of: Participants, uploads: Payload
    ) -> dict[str, Tensor]:
        """Store the prototypes and update the divergences of participants (3.3.2).

        The rows of absent clients are reused: the divergence of two absent clients is unchanged,
        like their prototypes. Clients that have never sent any have zeros and are ignored.
        """
        if not uploads:
            return server
        fresh, jsd = uploads["prototypes"], server["jsd"].clone()
        nothing = fresh.new_zeros(len(jsd), *fresh.shape[1:])
        prototypes = server.get("prototypes", nothing).clone()
        ids = of.ids.to(jsd.device)
        prototypes[ids] = fresh
        everyone = len(ids) == len(jsd)
        rows = self.divergences(fresh, None if everyone else prototypes)
        rows[:, ids] = (rows[:, ids] + rows[:, ids].T) / 2  # A tie must not depend on rounding.
        jsd[ids], jsd[:, ids] = rows, rows.T
        known = are_known(prototypes)
        threshold = self.threshold(jsd[known][:, known])
        return {"prototypes": prototypes, "jsd": jsd, "threshold": threshold}

    def divergences(self, p: Tensor, q: Tensor | None = None) -> Tensor:
        """Compute the JSD between the prototypes of two groups of clients, `(n, m)`.

        Without q, within one group. Softmax turns a prototype into a distribution; the sum is
        divided by its number of values (nats per value), as the size of the paper's threshold
        (0.00065) suggests. β is a quantile, so this factor has no effect on the result.
        """
        if self.options.divergence == "flat":
            p, q = p.flatten(1)[:, None], q if q is None else q.flatten(1)[:, None]
        others = [None] * p.shape[1] if q is None else q.unbind(1)
        rows = [jensen_shannon(a, b) for a, b in zip(p.unbind(1), others, strict=True)]
        return (torch.stack(rows).mean(0) / p.shape[-1]).float()

    def _n_keys(self, cohort: Cohort) -> int:
        return self.task.n_keys if self.options.prototypes == "periodic" else self._used(cohort)

    def _used(self, cohort: Cohort) -> int:
        """Samples that ordered full batches reach."""
        size, b = int(cohort.data.sizes[0]), self.training.batch_size
        return size if self.options.prototype_pass == "fresh" else size // b * b

    def _keys(self, batch: Batch) -> Tensor:
        return self.task.keys(batch) if self.options.prototypes == "periodic" else batch["sample"]


def are_known(prototypes: Tensor) -> Tensor:
    """Return `(clients,)`, True for clients whose prototypes `(clients, slots, d)` are not 0."""
    return prototypes.flatten(1).any(1)


def quantile(values: Tensor, q: float) -> Tensor:
    """Compute `torch.quantile` without its limit of 2²⁴ values (5,793 clients)."""
    position = q * (len(values) - 1)
    below = int(position)
    ordered = values.sort().values
    return torch.lerp(ordered[below], ordered[min(below + 1, len(values) - 1)], position - below)


def intra_loss(features: Tensor, augmented: Tensor, filters: Tensor, tau: float) -> Tensor:
    """Compute the intra-client contrastive loss, Eq. 3 to 6, in log-sum-exp form.

    With s = cosine similarity / τ, `Z = ReLU(e^s ⊙ W)` is `e^(s + log W)` where W > 0 and absent
    elsewhere, so the loss of row b is `logsumexp(s_bb, {s_bi + log W_bi : W_bi > 0}) - s_bb`.

    Args:
        features: r, `(clients, B, d)`.
        augmented: r', `(clients, B, d)`.
        filters: W, `(clients, B, B)`.
        tau: temperature τ.

    Returns:
        `(clients,)`.
    """
    if usable(features.shape[-1], features, augmented, filters):
        return filtered_contrast(features, augmented, filters, tau)
    r, shifted = F.normalize(features, dim=-1), F.normalize(augmented, dim=-1)
    similarity = torch.bmm(r, shifted.mT) / tau
    kept = filters > 0
    negatives = similarity + torch.where(kept, filters, 1.0).log()
    negatives = negatives.masked_fill(~kept, -torch.inf)
    positive = similarity.diagonal(dim1=1, dim2=2)
    total = torch.logsumexp(torch.cat([positive[..., None], negatives], dim=-1), dim=-1)
    return (total - positive).mean(1)
