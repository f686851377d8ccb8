"""FUELS: dual semantic alignment-based contrastive learning that sends prototypes only.

Liu, Sun, Liang, Xue, Liu: Personalized Federated Learning for Spatio-Temporal Forecasting: A Dual
Semantic Alignment-Based Contrastive Approach, AAAI 2025, arXiv 2404.03702.

Clients keep their models. They send prototypes, mean representations of each slot of the period
(Eq. 8); the server compares them by Jensen–Shannon divergence and returns to each client the mean
of those similar to its own and the mean of the others (Eq. 9, 10): the positives and negatives of
its contrastive loss (Eq. 11). A second contrastive loss (Eq. 6) separates the hours of a client's
day; a learned matrix W leaves out those that look similar (Eq. 3-5).

Where the paper contradicts itself or is silent, the option concerned documents the choice. It does
not say whether Adam's moments survive a round: here a client keeps its optimiser for the run, as it
keeps its model (`--optimizer-state keep`).

A batch of the paper is a period of hourly samples, so a batch has 24 rows and row b is hour b. With
shorter steps such a batch would be a whole day of 144 or 288 samples, and an epoch too few steps.
If `batch_size` is less than the period's steps, the period is therefore divided into at most
`batch_size` equal slots, and the samples at one place within the slots are a batch: of a day of ten
minutes, six batches of 24 (`stforecast.data.profiles`). This departs from the paper; a batch size
of the period's steps is the paper's, and hourly data with the default of 24 are not concerned.

A client's divergence from itself is 0, so Eq. 9 as printed counts its own prototype among its
positives. Here it is left out, as it would pull features to where they were a round before.

The paper's clients are single cells. A client of several cells reads a period of all of them in a
batch; its prototypes are means over its cells, and its contrast of hours is the mean of those
within each cell, with one W.
"""

from __future__ import annotations

import dataclasses
import logging

import torch
from torch import Tensor
from torch.nn import functional as F

from data_prep.base.errors import InputError, Words, counted
from stforecast.data.profiles import by_slot, mean_windows, slot_order, slots_of
from stforecast.federated.core.data import ClientData
from stforecast.federated.core.declared import Attacked, Needs, Upload
from stforecast.federated.core.method import Method
from stforecast.federated.core.prototypes import (
    PrototypeMeans,
    attract_repel_loss,
    by_key,
    jensen_shannon,
    weighted_prototypes,
)
from stforecast.federated.core.state import Clients, Cohort, Participants, ServerState, generator
from stforecast.federated.core.tensors import Batch, Params, Payload, with_axes
from stforecast.federated.kernels.compiler import usable
from stforecast.federated.kernels.functions import contrast
from stforecast.methods.fuels_options import FuelsOptions, are_known, as_many_at_random, quantile

log = logging.getLogger(__name__)

FILTER, POSITIVES, WEIGHTS, SHARES, COMPARED = 1, 4, 5, 6, 7
"""Purposes of random draws, the last part of a generator's key."""


class Fuels(Method):
    """FUELS. The functions follow the order of the paper's Algorithm 1."""

    name = "fuels"
    summary = "exchanges hourly prototypes; intra- and inter-client contrastive losses"
    paper = "Liu et al., AAAI 2025"
    attacked = Attacked(
        guards=("trimmed", "clip", "drop"),
        unguarded="if many clients lie alike, their prototypes replace those of honest clients",
        discloses="some",
    )
    sends = Upload(
        needs_each="its server compares the clients' prototypes with each other", apart=True
    )
    needs = Needs(data=("keys", "a period in each batch"), next_windows=True)
    """It reads `x_next`, a training sample's inputs one step later."""
    Options = FuelsOptions
    options: FuelsOptions

    def set_up(self) -> None:
        """Divide the period into slots, as many as a batch has samples."""
        if self.options.prototypes == "periodic":
            slots = slots_of(self.task.n_keys, self.training.batch_size)
            self.training = dataclasses.replace(self.training, batch_size=slots)

    def init(self, clients: Clients, sizes: Tensor, seed: int) -> ServerState:
        """Give each client its filtering matrix W `(B, B)`; the server has no prototypes yet."""
        self._check(sizes)
        o, ids = self.options, range(len(clients))
        n, b = len(clients), self.training.batch_size
        device = clients.device
        if o.starts == "own":
            seeds = [generator(seed, 0, i, WEIGHTS).initial_seed() for i in ids]
            clients.params.update(self.population.parameters_drawn(seeds, device))
        filters = torch.ones(n, b, b)
        if o.filter_init == "uniform":
            filters = torch.stack(
                [torch.rand(b, b, generator=generator(seed, 0, i, FILTER)) for i in ids]
            )
        group = clients.params if o.filter_train else clients.memory
        group["filter"] = filters.to(device)
        if o.shift_draw == "once":
            size = (int(sizes.max()), 1)
            shares = [torch.rand(size, generator=generator(seed, 0, i, SHARES)) for i in ids]
            clients.memory["shares"] = torch.stack(shares).to(device)
        if not o.inter:
            return {}
        drawn = o.compared or o.positives != "divergence"
        kept = {"seed": torch.tensor(seed)} if drawn else {}
        if o.compared:  # A matrix of all pairs would grow with the square of the clients.
            return {"known": torch.zeros(n, dtype=torch.bool, device=device), **kept}
        return {"jsd": torch.zeros(n, n, device=device), **kept}

    def _check(self, sizes: Tensor) -> None:
        """Refuse settings under which row b of a batch is not slot b, and note departures."""
        period, slots = self.task.n_keys, self.training.batch_size
        if self.training.shuffle:
            raise InputError(
                "fuels needs batches in order of time (row b is slot b); ",
                Words("leave out {shuffle}"),
            )
        if not self.training.drop_last:
            raise InputError("fuels needs whole batches, one period each; leave drop_last on")
        if self.options.prototypes == "concat":
            if len(sizes.unique()) > 1:
                raise InputError(
                    "concatenated prototypes need clients of equal size; use 'periodic'"
                )
            return
        if slots < 2 <= period:
            raise InputError(
                f"fuels needs slots of equal length, and a period of {period} steps cannot be "
                f"divided into fewer than {period}; ",
                Words("set {batch_size}, or another {period}", batch_size=period),
            )
        if slots < period:
            log.info(
                "fuels: a period of %d steps has %d slots of %d; in the paper each step is a slot "
                "(%s)",
                *(period, slots, period // slots),
                Words("{batch_size}", batch_size=period),
            )

    def sample_memory(self, data: ClientData) -> Params:
        """Refuse clients without a whole period, and note few batches; there is no memory."""
        if self.options.prototypes == "concat":
            return {}
        period, fewest = self.task.n_keys, int(data.n_groups.min())
        slots = self.training.batch_size
        n_batches = len(slot_order(fewest, period, slots)) // slots
        if not n_batches:
            raise InputError(
                f"fuels needs a whole period of {period} steps, a client has "
                f"{counted(fewest, 'training sample')}; use longer data or another split"
            )
        if n_batches < 8:
            log.info(
                "fuels: %d batches an epoch; more data gives more, %s",
                n_batches,
                Words("or a smaller {batch_size}, which makes slots longer"),
            )
        return {}

    def broadcast(self, server: ServerState, to: Participants) -> Payload:
        """Return each client's global positive and negative prototypes (Eq. 9, 10), if any."""
        if "prototypes" not in server:
            return {}
        ids = to.ids.to(server["prototypes"].device)
        jsd, compared, prototypes = self._compared(server, ids)
        known = are_known(prototypes)
        similar = known & (jsd <= server["threshold"])
        others = known & (compared != ids[:, None])
        positive = similar & others
        if self.options.positives != "divergence":
            draw = to.round if self.options.positives == "random" else 0
            keys = [(int(server["seed"]), draw, i, POSITIVES) for i in to.ids.tolist()]
            positive = as_many_at_random(positive, others, keys)
        return {
            "positive": weighted_prototypes(prototypes, positive.float()),
            "negative": weighted_prototypes(prototypes, (others & ~positive).float()),
        }

    def _compared(self, server: ServerState, ids: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return divergences `(n, m)` from m clients, their ids and their prototypes."""
        prototypes = server["prototypes"]
        if not self.options.compared:
            everyone = torch.arange(len(prototypes), device=ids.device)
            return server["jsd"][ids], everyone, prototypes
        sample, of_clients = server["sample"], server[self.options.partition]
        jsd = self.divergences(of_clients[ids], of_clients[sample])
        # Zeros, as in the matrix of all pairs, until a client has sent prototypes.
        return jsd * server["known"][ids][:, None], sample, prototypes[sample]

    def threshold(self, jsd: Tensor) -> Tensor:
        """Return β, the quantile of the divergences of all pairs, each counted once (5.4)."""
        n = len(jsd)
        pairs = jsd[tuple(torch.triu_indices(n, n, 1, device=jsd.device))]
        return quantile(pairs, self.options.beta) if len(pairs) else jsd.new_zeros(())

    def local_update(self, cohort: Cohort, payload: Payload) -> Payload:
        """Train and average the representations on the way (Algorithm 1, lines 16 to 26)."""
        if self.options.prototypes == "periodic":
            cohort.data = by_slot(cohort.data, self.task.n_keys, self.training.batch_size)
        cohort.scratch["means"] = PrototypeMeans(self._n_keys(cohort))
        for batch in cohort.batches(prepare=self.with_shifted):
            cohort.step(self.local_loss(cohort, batch, payload))
        return self.upload(cohort)

    def with_shifted(self, cohort: Cohort) -> ClientData:
        """Return the samples of an epoch's batches, with x' beside x."""
        if not self.options.intra:
            return cohort.data
        whole = self.training.batch_size * cohort.data.group
        used = int(cohort.data.sizes[0]) // whole * whole
        tensors = {name: t[:, :used] for name, t in cohort.data.tensors.items()}
        tensors["shifted"] = self.augment(cohort, tensors)
        del tensors["x_next"]
        sizes = torch.full_like(cohort.data.sizes, used)
        return dataclasses.replace(cohort.data, tensors=tensors, sizes=sizes)

    def local_loss(self, cohort: Cohort, batch: Batch, payload: Payload) -> Tensor:
        """Return the loss of Eq. 15, or of line 23 of Algorithm 1."""
        o = self.options
        x = torch.cat([batch["x"], batch["shifted"]], dim=1) if o.intra else batch["x"]
        encoded = self.population.encode(cohort.state, x)
        features, contrasts = self.contrasts(cohort, encoded, batch, payload)
        if cohort.last_epoch:
            cohort.scratch["means"].add(features, self._keys(batch))
        pred = self.task_loss(cohort, features, batch)
        return contrasts + (o.rho * pred if o.loss_form == "alg1" else pred)

    def contrasts(
        self, cohort: Cohort, encoded: Tensor, batch: Batch, payload: Payload
    ) -> tuple[Tensor, Tensor]:
        """Return a batch's representations, and the sum of both contrastive losses with its weight.

        With `intra`, `encoded` holds representations r `(clients, batch, d)`, followed by r'.
        """
        o = self.options
        weight = 1.0 if o.loss_form == "alg1" else o.rho
        filters = {**cohort.memory, **cohort.params}["filter"] if o.intra else None
        if filters is not None and o.filter_floor:
            filters = filters.clamp(min=o.filter_floor)
        given = () if filters is None else (filters,)
        sent = (payload["positive"], payload["negative"]) if o.inter and payload else ()
        if usable(encoded.shape[-1], encoded, *given, *sent):
            prototypes = (*sent, self._keys(batch)) if sent else None
            return contrast(encoded, filters, prototypes, o.tau, weight)
        features, losses = encoded, encoded.new_zeros(len(encoded))
        if filters is not None:
            features, augmented = encoded.chunk(2, dim=1)
            losses = losses + self.intra_loss(features, augmented, filters)
        if sent:
            losses = losses + weight * self.inter_loss(features, batch, payload)
        return features, losses

    def intra_loss(self, features: Tensor, augmented: Tensor, filters: Tensor) -> Tensor:
        """Return Eq. 6, `(clients,)`: the mean over a client's cells, each with its own hours."""
        slots = self.training.batch_size
        n_cells = features.shape[1] // slots
        if n_cells == 1:
            return intra_loss(features, augmented, filters, self.options.tau)
        own, shifted = (
            t.unflatten(1, (slots, n_cells)).transpose(1, 2).flatten(0, 1).contiguous()
            for t in (features, augmented)
        )
        repeated = filters.repeat_interleave(n_cells, dim=0)
        losses = intra_loss(own, shifted, repeated, self.options.tau)
        return losses.unflatten(0, (-1, n_cells)).mean(1)

    def augment(self, cohort: Cohort, batch: Batch) -> Tensor:
        """Augment by temporal shifting (Liu et al. 2022): x' = a x + (1 - a) x one step later.

        Each sample draws its own a, `(clients, batch, 1)`. The last closeness value of x one step
        later is the target: only this view reads it, and only in training.
        """
        shift = self.options.shift
        if self.options.shift_draw == "once":
            drawn = by_key(cohort.memory["shares"], batch["sample"])
        else:
            drawn = cohort.rand(batch["x"].shape[1], 1).to(batch["x"].device)
        keep = shift + (1 - shift) * drawn
        return torch.lerp(batch["x_next"], batch["x"], keep)

    def inter_loss(self, features: Tensor, batch: Batch, payload: Payload) -> Tensor:
        """Return Eq. 11 to 13, `(clients,)`, comparing row b of a batch with prototype row b."""
        keys = self._keys(batch)
        positive, negative = (by_key(payload[name], keys) for name in ("positive", "negative"))
        return attract_repel_loss(features, positive, negative, self.options.tau).mean(1)

    def upload(self, cohort: Cohort) -> Payload:
        """Return the prototypes R_n (Eq. 8, or 7): `(clients, slots or samples, d)`.

        With `partition="profiles"` also the mean first target of each, `(clients, …, 1)`.
        """
        if not self.options.inter:
            return {}
        means: PrototypeMeans = cohort.scratch["means"]
        sent = {"prototypes": means.means()}
        if self.options.partition == "profiles":
            sent["profiles"] = self.profiles(cohort)
        return sent

    def profiles(self, cohort: Cohort) -> Tensor:
        """Return the mean first training target of each slot, `(clients, slots, 1)`, z-scored."""
        size = self._n_keys(cohort)
        data = {name: t[:, : int(cohort.data.sizes[0])] for name, t in cohort.data.tensors.items()}
        data["slot"] = self._keys(data)
        return mean_windows(data, size, week_periods=len(data["slot"][0]))["y"][..., :1].clone()

    def aggregate(self, server: ServerState, of: Participants, uploads: Payload) -> ServerState:
        """Store the prototypes and update the divergences of participants (3.3.2).

        The rows of absent clients are reused: the divergence of two absent clients is unchanged,
        like their prototypes. Clients that have never sent any have zeros and are ignored.
        """
        if not uploads:
            return server
        if self.options.compared:
            return self.sampled(server, of, uploads)
        jsd, ids, kept = server["jsd"].clone(), of.ids.to(server["jsd"].device), {}
        for name, fresh in uploads.items():
            nothing = fresh.new_zeros(len(jsd), *fresh.shape[1:])
            kept[name] = server.get(name, nothing).clone()
            kept[name][ids] = fresh
        compared, everyone = self.options.partition, len(ids) == len(jsd)
        rows = self.divergences(uploads[compared], None if everyone else kept[compared])
        rows[:, ids] = (rows[:, ids] + rows[:, ids].T) / 2  # A tie must not depend on rounding.
        jsd[ids], jsd[:, ids] = rows, rows.T
        known = are_known(kept["prototypes"])
        threshold = self.threshold(jsd[known][:, known])
        return {**server, **kept, "jsd": jsd, "threshold": threshold}

    def server_for(self, server: ServerState, ids: Tensor) -> ServerState:
        """Return the state for other clients; all are similar to a new one."""
        if "jsd" not in server and "known" not in server:
            return server
        known = ids >= 0
        rows = {
            name: torch.where(with_axes(known, t.ndim), t[ids], 0)
            for name, t in server.items()
            if name in ("prototypes", "profiles", "jsd")
        }
        if "jsd" in server:
            return {**server, **rows, "jsd": torch.where(known, rows["jsd"][:, ids], 0)}
        rows["known"] = server["known"][ids] & known
        if "sample" in server:
            rows["sample"] = self._first_known(rows["known"], torch.arange(len(ids)))
        return {**server, **rows}

    def sampled(self, server: ServerState, of: Participants, uploads: Payload) -> ServerState:
        """Store the prototypes; draw the clients of the next comparisons, and find their threshold.

        Clients that have sent none are drawn only if there are too few others.
        """
        ids, known = of.ids.to(server["known"].device), server["known"].clone()
        known[ids] = are_known(uploads["prototypes"])
        kept = {}
        for name, fresh in uploads.items():
            if name in server:  # Changed in place: to copy them all would cost more than a round.
                kept[name] = server[name]
            else:
                kept[name] = fresh.new_zeros(len(known), *fresh.shape[1:])
            kept[name][ids] = fresh
        draw = generator(int(server["seed"]), of.round, 0, COMPARED)
        order = torch.randperm(len(known), generator=draw).to(known.device)
        sample = self._first_known(known, order)
        jsd = self.divergences(kept[self.options.partition][sample])
        among = known[sample]
        threshold = self.threshold(jsd[among][:, among])
        return {**server, **kept, "known": known, "sample": sample, "threshold": threshold}

    def _first_known(self, known: Tensor, order: Tensor) -> Tensor:
        """Return the increasing ids of the clients to compare with, in an order of preference."""
        first = known[order].logical_not().sort(stable=True).indices[: self.options.compared]
        return order[first].sort().values

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
        """Return the number of slots, or of the samples that ordered full batches reach."""
        if self.options.prototypes == "periodic":
            return self.training.batch_size
        size, b = int(cohort.data.sizes[0]), self.training.batch_size * cohort.data.group
        return size // b * b

    def _keys(self, batch: Batch) -> Tensor:
        """Return the slot of each sample, or its number for concatenated prototypes."""
        if self.options.prototypes == "concat":
            return batch["sample"]
        keys, length = self.task.keys(batch), self.task.n_keys // self.training.batch_size
        return keys // length if length > 1 else keys


def intra_loss(features: Tensor, augmented: Tensor, filters: Tensor, tau: float) -> Tensor:
    """Compute the intra-client contrastive loss, Eq. 3 to 6, in log-sum-exp form, `(clients,)`.

    With s = cosine similarity / τ, `Z = ReLU(e^s ⊙ W)` is `e^(s + log W)` where W > 0 and absent
    elsewhere, so the loss of row b is `logsumexp(s_bb, {s_bi + log W_bi : W_bi > 0}) - s_bb`.
    Features r and r' are `(clients, B, d)`, filters W `(clients, B, B)`.
    """
    r, shifted = F.normalize(features, dim=-1), F.normalize(augmented, dim=-1)
    similarity = torch.bmm(r, shifted.mT) / tau
    kept = filters > 0
    negatives = similarity + torch.where(kept, filters, 1.0).log()
    negatives = negatives.masked_fill(~kept, -torch.inf)
    positive = similarity.diagonal(dim1=1, dim2=2)
    total = torch.logsumexp(torch.cat([positive[..., None], negatives], dim=-1), dim=-1)
    return (total - positive).mean(1)
