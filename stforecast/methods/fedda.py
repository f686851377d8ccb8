"""FedDA: clusters of similar clients, aggregated by attention with a pre-trained model.

Zhang, Dang, Shihada, Alouini: Dual Attention-Based Federated Learning for Wireless Traffic
Prediction, INFOCOM 2021, arXiv 2110.05183.

In the first round every client sends a small augmented sample of its data; the server trains the
quasi-global model w_Q on these samples and clusters the clients by them. From then on clients train
the global model; the server aggregates their models within each cluster, then the cluster models,
by one rule (these two levels are the dual attention). For each layer of a model w and the uploaded
models w_i:

    w ← w - ε (Σ_i α_i (w - w_i) + ρ β (w - w_Q))
    α = softmax_i ‖w - w_i‖,  β = softmax_layers ‖w - w_Q‖

A layer is a parameter tensor. Distances have a plus sign, so farther models count more, as in
FedAtt (Ji et al., IJCNN 2019, arXiv 1812.07108); the temperature is 1. Rule, sign and defaults are
those of the released code; only the abstract of the paper was available. Buffers (running
statistics), which the code's model lacks, are means weighted by samples: ρ could make a variance
negative.

A client sends in the first round the mean of its windows for each (week, slot of the period), of
which a share φ is drawn; the mean targets of all of them, its profile; and its location if the data
have one (otherwise only the profiles are clustered). φ thus saves bytes, not privacy. In later
rounds it sends the model's parameters and buffers.

The defaults of `update_clusters` and `optimizer_state` follow the released code:

- Every round aggregates a cluster's clients starting from w_Q (w = w_Q, so ρ has no effect there).
  The abstract's "aggregating intra- and inter-cluster models" can also mean that a cluster keeps
  its aggregated model and starts from it in the next round: `--update-clusters`.
- A client starts each round with a new optimiser, without momentum: `--optimizer-state round`,
  which only FedDA has as its default. With `keep`, its momentum or Adam's moments persist although
  the model was replaced.

Differences from the released code:

- The code cuts windows from the series of mean targets. Here the window of a (week, slot) is the
  mean of its windows: periodic inputs stay days apart (in the code they are weeks apart), no week
  is lost as history, and any input of the windows is kept. Weeks are counted from the first window,
  not by the calendar; leftover periods belong to the last one.
- K-means by location and by profile initialise each other in turn until they agree. In the code,
  k-means by location always starts from the origin, so nothing alternates.
- The second decay of the warm-up's learning rate takes place. In the code it is due at epoch 112.5,
  thus never.
- Two unused weights of the code's model are left out of β.

A client of several cells sends the means of all their windows, and the mean of their locations.

As in the code, the warm-up reads one client after another, unshuffled, and windows are drawn with
replacement even with φ = 1.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from pydantic import NonNegativeInt, PositiveFloat, PositiveInt
from torch import Tensor

from data_prep.base.errors import InputError, Words
from stforecast.data.profiles import cluster_clients, mean_windows, zscored
from stforecast.federated.core.data import ClientData
from stforecast.federated.core.declared import Attacked, Upload
from stforecast.federated.core.options import CheckedOptions, PositiveShare
from stforecast.federated.core.state import (
    Clients,
    Cohort,
    Participants,
    ServerState,
    generator,
    seeded,
)
from stforecast.federated.core.tensors import (
    Params,
    Payload,
    repeated,
    take,
    weighted_mean,
    with_axes,
)
from stforecast.federated.methods.fedavg import FedAvg
from stforecast.federated.uploads.robust import RULES


@dataclass(frozen=True)
class DualAttentionOptions(CheckedOptions):
    """Settings of FedDA and of its clusters: the defaults of the released code's arguments.

    Its scripts pass `clusters` 16, `warmup_lr` 0.1 and `rho` -0.3 to 0.3.

    Attributes:
        clusters: number of clusters of clients; fewer if fewer clients differ.
        phi: share φ of a client's mean windows to send, drawn with replacement.
        rho: weight ρ of the pull towards the quasi-global model; a negative one pushes away.
        epsilon: step size ε of the server.
        warmup_epochs: epochs of training the quasi-global model on the server; 0 leaves it as
            initialised.
        warmup_lr: learning rate of the warm-up, divided by 10 after half and by 100 after three
            quarters of the epochs. 0.1 overfits the mean windows of a few weeks.
        warmup_batch_size: windows per batch of the warm-up.
        profile_periods: periods in a "week" of the profile; 7 for weeks of days.
        profile_zscore: whether clients z-score their mean windows by the mean and deviation of
            their mean targets. This would scale calendar inputs too: set False with them.
    """

    clusters: PositiveInt = 4
    phi: PositiveShare = 1.0
    rho: float = 0.2
    epsilon: PositiveFloat = 1.0
    warmup_epochs: NonNegativeInt = 150
    warmup_lr: PositiveFloat = 1e-4
    warmup_batch_size: PositiveInt = 64
    profile_periods: PositiveInt = 7
    profile_zscore: bool = True


@dataclass(frozen=True)
class FedDAOptions(DualAttentionOptions):
    """Settings of FedDA.

    Attributes:
        update_clusters: whether a cluster keeps its aggregated model for the next round; otherwise
            each round starts from the quasi-global model.
    """

    update_clusters: bool = False


class DualAttention(FedAvg):
    """Base of both. Servers keep `quasi.…` w_Q, `cluster.…` `(clusters, …)`, `global.…`, `label`.

    The first round trains no client; its reported loss is that of the untrained model.
    """

    name = ""
    paper = "Zhang et al., INFOCOM 2021"
    sends = Upload(
        needs_each="its server groups the clients by what they send", apart=True, counts=True
    )
    attacked = Attacked(discloses="some")
    options: DualAttentionOptions
    keeps_clusters = True
    """Whether a cluster keeps its aggregated model for the next round."""
    defaults: ClassVar[Mapping[str, Any]] = {"optimizer_state": "round"}

    def init(self, clients: Clients, sizes: Tensor, seed: int) -> ServerState:
        """Return the common initial model and the number of samples of every client's profile."""
        if self.population.own:
            raise InputError(
                f"{self.name}'s server trains the model on mean windows of all clients, in which "
                "no model finds a client's cells; ",
                Words("take another {model}, or {clients:cell}"),
            )
        samples = sizes.min().clone()
        if samples < self.task.n_keys:
            raise InputError(
                f"fedda averages whole periods: client {int(sizes.argmin())} has {int(samples)} "
                f"training samples, a period has {self.task.n_keys}; use longer data"
            )
        model = super().init(clients, sizes, seed)
        nobodys = torch.zeros(len(clients), dtype=torch.long, device=clients.device)
        return {**model, "samples": samples, "seed": torch.tensor(seed), "label": nobodys}

    def broadcast(self, server: ServerState, to: Participants) -> Payload:
        """Return the model to train from; in the first round, the length of the profile."""
        if "samples" in server:
            return {"samples": server["samples"].expand(len(to.ids))}
        return self.models_for(server, to)

    @abstractmethod
    def models_for(self, server: ServerState, to: Participants) -> Payload:
        """Return the models that clients train."""

    def kept(self, server: ServerState, prefix: str) -> Params:
        """Return a model of the server in its own order, on which sums over layers depend."""
        return {name: server[prefix + name] for name in self.shared}

    def local_update(self, cohort: Cohort, payload: Payload) -> Payload:
        """Train the model received; in the first round, send the augmented sample instead."""
        if "samples" in payload:
            return self.augmented_sample(cohort, int(payload["samples"][0]))
        return super().local_update(cohort, payload)

    @torch.no_grad()
    def augmented_sample(self, cohort: Cohort, samples: int) -> Payload:
        """Return the drawn mean windows `x`, `y`, `mask`, the `profile` and any `location`."""
        o, tensors = self.options, cohort.data.tensors
        self.population.train(False)
        for batch in cohort.batches(1):
            features = self.population.encode(cohort.state, batch["x"])
            cohort.record("loss", self.task_loss(cohort, features, batch))
        self.population.train()
        group = cohort.data.group
        rows = min(samples, int(cohort.data.n_groups[0])) * group
        data = {name: tensors[name][:, :rows] for name in ("x", "y", "mask", "slot")}
        means = mean_windows(data, self.task.n_keys, o.profile_periods, group)
        if o.profile_zscore:
            means = zscored(means)
        n = means["y"].shape[1]
        size = (max(1, int(o.phi * n)),)
        drawn = torch.stack([torch.randint(n, size, generator=g) for g in cohort.generators])
        client = torch.arange(len(cohort))[:, None]
        sent = {name: t[client, drawn] for name, t in means.items()}
        sent["profile"] = means["y"][..., 0]
        if "location" in tensors:
            sent["location"] = tensors["location"][:, :group].mean(1)
        return sent

    def aggregate(self, server: ServerState, of: Participants, uploads: Payload) -> ServerState:
        """Aggregate models within each cluster, then the models of participating clusters."""
        if "samples" in server:
            return self.warm_up(server, of, uploads)
        quasi = self.kept(server, "quasi.")
        clusters = {name: t.clone() for name, t in self.kept(server, "cluster.").items()}
        label = server["label"][of.ids]
        present = label.unique()
        members = [(label == cluster).nonzero().squeeze(1).cpu() for cluster in present]
        for cluster, ids in zip(present, members, strict=True):
            model = {name: t[cluster] for name, t in clusters.items()}
            joined = self.joined(model, take(uploads, ids), of.sizes[ids], quasi)
            for name, t in joined.items():
                clusters[name][cluster] = t
        weights = torch.stack([of.sizes[ids].sum() for ids in members])
        joined = self.joined(self.kept(server, "global."), take(clusters, present), weights, quasi)
        after = {**server, **prefixed("global.", joined)}
        return after | prefixed("cluster.", clusters) if self.keeps_clusters else after

    def joined(self, model: Params, uploads: Params, sizes: Tensor, quasi: Params) -> Params:
        """Move a model towards `uploads` `(n, …)`; average buffers by `sizes` `(n,)`."""
        trained = self.population.trainable
        weights = {name: t for name, t in model.items() if name in trained}
        moved = attend(weights, uploads, quasi, self.options.rho, self.options.epsilon)
        averaged = {n: weighted_mean(t, sizes) for n, t in uploads.items() if n not in trained}
        return {**moved, **averaged}

    def server_for(self, server: ServerState, ids: Tensor) -> ServerState:
        """Return the state for other clients; new ones join the largest cluster."""
        label = server["label"]
        return {**server, "label": torch.where(ids >= 0, label[ids], label.mode().values)}

    def warm_up(self, server: ServerState, of: Participants, uploads: Payload) -> ServerState:
        """Train the quasi-global model, cluster the clients and initialise every model from it.

        Clients whose sample did not arrive join the largest cluster.
        """
        # The key is distinct from those of the core and the clients.
        seed = generator(int(server["seed"]), 0, 0, 4).initial_seed()
        initial = self.kept(server, "")
        quasi = self.quasi_global(initial, uploads, seed)
        location = uploads.get("location")
        found = torch.from_numpy(
            cluster_clients(
                uploads["profile"].cpu().numpy(),
                None if location is None else location.cpu().numpy(),
                self.options.clusters,
                seed % 2**32,
            )
        ).to(uploads["profile"].device)
        k = int(found.max()) + 1
        label = found.mode().values.repeat(len(server["label"]))
        label[of.ids] = found
        return {
            **prefixed("quasi.", quasi),
            **prefixed("cluster.", {n: t.repeat(k, *[1] * t.ndim) for n, t in quasi.items()}),
            **prefixed("global.", {n: t.clone() for n, t in quasi.items()}),
            "label": label,
        }

    def quasi_global(self, initial: Params, sample: Payload, seed: int) -> Params:
        """Train the initial model on all clients' mean windows, in their order, by SGD."""
        o = self.options
        device = next(iter(initial.values())).device
        model = self.population.parameters(1, device) | self.population.buffers(1, device)
        model |= {name: t[None].clone() for name, t in initial.items()}
        params = [model[name].requires_grad_() for name in self.population.trainable]
        optimizer = torch.optim.SGD(params, lr=o.warmup_lr, momentum=0.9)
        falls = [o.warmup_epochs // 2, 3 * o.warmup_epochs // 4]
        schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, falls, gamma=0.1)
        pooled = {name: sample[name].flatten(0, 1)[None] for name in ("x", "y", "mask")}
        windows = ClientData(pooled, torch.tensor([pooled["x"].shape[1]]))
        with seeded(seed, params[0].device), torch.enable_grad():
            self.population.train()
            for _ in range(o.warmup_epochs):
                for batch in windows.chunks(o.warmup_batch_size):
                    optimizer.zero_grad()
                    features = self.population.encode(model, batch["x"])
                    self.task.loss(self.population.decode(model, features), batch).sum().backward()
                    optimizer.step()
                schedule.step()
        if not all(p.isfinite().all() for p in params):
            raise InputError(
                f"fedda's quasi-global model diverged: warmup_lr is {o.warmup_lr}; ",
                Words("take a smaller {warmup_lr}"),
            )
        return {name: model[name].detach()[0] for name in initial}


class FedDA(DualAttention):
    """FedDA: clients train the global model."""

    name = "fedda"
    summary = "aggregates within and between clusters by attention, with a warm-up model"
    attacked = Attacked(guards=RULES, discloses="some")
    Options = FedDAOptions
    options: FedDAOptions

    def set_up(self) -> None:
        """Keep the clusters' models if asked."""
        self.keeps_clusters = self.options.update_clusters

    def models_for(self, server: ServerState, to: Participants) -> Payload:
        """Return the global model, the same for every client."""
        return repeated(self.kept(server, "global."), len(to.ids))


class FedDAClusters(DualAttention):
    """FedDA in which clients train, and predict with, the model of their own cluster.

    Not in the paper: personal models for clusters of clients, aggregated only within clusters.
    """

    name = "fedda_clusters"
    summary = "FedDA whose clusters keep their own models (not in the paper)"
    attacked = Attacked(
        guards=("median", "drop"),
        unguarded="it costs 5 % or more, or much more beside liars, as the page of security shows",
        discloses="some",
    )
    views = ("personal",)
    Options = DualAttentionOptions

    def models_for(self, server: ServerState, to: Participants) -> Payload:
        """Return the model of each client's cluster."""
        label = server["label"][to.ids.to(server["label"].device)]
        return {name: t[label] for name, t in self.kept(server, "cluster.").items()}


def attend(model: Params, uploads: Params, quasi: Params, rho: float, epsilon: float) -> Params:
    """Move a model `(…)` by one step towards uploads `(n, …)` and the quasi-global model."""
    far = torch.stack([(w - quasi[name]).norm() for name, w in model.items()])
    moved = {}
    for (name, w), pull in zip(model.items(), far.softmax(0), strict=True):
        differences = w - uploads[name]
        attention = differences.reshape(len(differences), -1).norm(dim=1).softmax(0)
        towards_uploads = (with_axes(attention, differences.ndim) * differences).sum(0)
        moved[name] = w - epsilon * (towards_uploads + rho * pull * (w - quasi[name]))
    return moved


def prefixed(prefix: str, tensors: Params) -> Params:
    """Return the tensors with a prefix before their names."""
    return {prefix + name: t for name, t in tensors.items()}
