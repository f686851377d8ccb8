"""FeDPM: clients exchange prototypical memories, codebooks that quantise what a forecast reads.

Deng, Liu, Niu, Chen, Sun, Wu, Long, Liang: Discrete Prototypical Memories for Federated Time Series
Foundation Models, 2026, arXiv 2604.04475. Of the paper only the abstract and the introduction could
be read, so there are no numbers of equations here: sizes, losses and the server's rules are those
of the authors' code (MIT, github.com/LiweiDengDavid/FeDPM, commit 99d5267), whose files are named.

A client encodes a normalised window in vectors, one for each patch, and replaces each by the
nearest prototype of its memory; a decoder forecasts from these. Encoder and decoder stay on the
client. It sends its memory and how often it used each prototype. The server joins prototypes of
different clients that are alike; clients receive these, and in the remaining places prototypes of
their own that nobody shares.

Choices where the code leaves something open, and departures from it:

- After a round the code evaluates each client with its own new memory, but trains all of them on
  from that of the first client. Here a client trains on from its own, as the abstract's "domain-
  specific memory update" asks.
- A client's z-scored readings are one series; the code has several series, one normalisation each.
- With one target step a target has no deviation, and its normalised value would always be 0. It is
  then normalised like its window, and there is no network of the level.
- An epoch's last batch is trained on, too; the code drops it.
- Windows may have unobserved targets, which are left out of losses and of the targets' moments.
- The server compares all pairs of prototypes, so its time grows with the square of the clients.
- With partial participation the absent keep their memories. A client that has never taken part
  begins with the shared prototypes, and in the other places with those of the run's start.
- The memory's places change from round to round, so moments of the optimiser that were kept would
  belong to other prototypes; the default makes a new optimiser in each round, as the code.
- Any model serves, `patch_transformer` is the code's. Of another, the features are one vector.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
import torch
from pydantic import NonNegativeFloat, PositiveFloat, PositiveInt
from torch import Tensor, nn
from torch.nn import functional as F

from data_prep.base.errors import InputError, Words
from stforecast.data.anchors import LEVEL
from stforecast.federated.core.declared import Upload
from stforecast.federated.core.layers import ClientDropout, ClientLinear
from stforecast.federated.core.method import Method
from stforecast.federated.core.options import CheckedOptions, Grid, Share
from stforecast.federated.core.population import Network, feature_width
from stforecast.federated.core.prototypes import by_key
from stforecast.federated.core.state import Clients, Cohort, Participants, ServerState, generator
from stforecast.federated.core.tensors import Batch, Params, Payload, weighted_mean, with_axes
from stforecast.forecasting.task import ForecastTask

MEMORY, FILL = 1, 2
"""Purposes of random draws, the last part of a generator's key."""

LEVEL_UNITS, LEVEL_DROPOUT = 512, 0.2
"""Units of both hidden layers of the network of the level, and its dropout (`Client.py`)."""


@dataclass(frozen=True)
class FedPMOptions(CheckedOptions):
    """Settings of FeDPM; the defaults are those of the released code.

    Attributes:
        n_prototypes: prototypes of a memory, M.
        commitment: weight of the distance of the encoder's vectors to their prototypes, beside that
            of the prototypes to the vectors.
        smooth: error up to which the smooth L1 loss is squared, in units of its argument.
        level: how a forecast returns to the window's scale: by a network that learns how mean and
            deviation of the targets differ from the window's (`learned`), or by the window's own
            (`window`; the code's `clients_disable_mustd`).
        align: what the server does with memories: join prototypes that are `similar`; average the
            memories place by place (`mean`; the code's `fedavg`); or `none`, and nothing is sent
            (the code's `disable_memory_aggregation`).
        threshold: cosine similarity above which prototypes of two clients are joined.
        shared: largest share γ of the places that shared prototypes take.
        fill: what fills the other places: each client's own `personal` prototypes, `random` ones of
            all that nobody shares, the same for all clients, or `zeros`.
        usage: weight of how often a client uses a prototype, against how much it is like those of
            others, where its own are chosen.
    """

    n_prototypes: PositiveInt = 256
    commitment: NonNegativeFloat = 0.25
    smooth: PositiveFloat = 0.1
    level: Literal["learned", "window"] = "learned"
    align: Literal["similar", "mean", "none"] = "similar"
    threshold: Share = 0.7
    shared: Share = 0.95
    fill: Literal["personal", "random", "zeros"] = "personal"
    usage: NonNegativeFloat = 1.0


class Moments(NamedTuple):
    """Mean and deviation of each window or its targets, `(clients, batch, 1)`."""

    mean: Tensor
    deviation: Tensor


class FedPM(Method):
    """FeDPM."""

    name = "fedpm"
    summary = "exchanges codebooks whose similar entries are joined; encoders and decoders stay"
    paper = "Deng et al., arXiv 2026"
    sends = Upload(
        needs_each="its server compares the clients' prototypes with each other",
        apart=True,
        counts=True,
    )
    unread = frozenset({"loss", "huber_delta"})
    Options = FedPMOptions
    options: FedPMOptions
    task: ForecastTask
    grid: ClassVar[Grid] = {
        "lr": [1e-5, 1e-4, 3e-4, 1e-3, 3e-3],
        "schedule": ["constant", "cosine"],
    }
    defaults: ClassVar[Mapping[str, Any]] = {
        "model": "patch_transformer",
        "closeness": 96,
        "periods": 0,
        "rounds": 100,
        "epochs": 5,
        "batch_size": 128,
        "lr": 1e-5,
        "optimizer_state": "round",
        "shuffle": True,
        "drop_last": False,
        "patience": 10,
    }

    def set_up(self) -> None:
        """Build the network of the level, and find the size of a prototype."""
        window = self.task.window
        if window.target != LEVEL:
            raise InputError(
                "fedpm normalises targets by their own mean, so they cannot be differences; ",
                Words("set {target:level}"),
            )
        self.n_readings = window.n_readings
        self.size = self.population.model.token_size or feature_width(self.population)
        self.level = Network("level.", partial(level_network, self.n_readings))
        self.personal = self.options.align == "similar" and self.options.fill == "personal"

    def init(self, clients: Clients, sizes: Tensor, seed: int) -> ServerState:
        """Give all clients the same memory `(M, d)`, uniform within ± 1/M, and level network."""
        o, n, device = self.options, len(clients), clients.device
        draw = torch.rand(o.n_prototypes, self.size, generator=generator(seed, 0, 0, MEMORY))
        memory = ((2 * draw - 1) / o.n_prototypes).to(device)
        clients.params["memory"] = memory.repeat(n, 1, 1)
        clients.params |= self.level.initial(n, seed, device)[0]
        if o.align == "none":
            return {}
        if self.personal:
            return {"memory": memory.repeat(n, 1, 1), "start": memory.clone()}
        return {"memory": memory, **({"seed": torch.tensor(seed)} if o.fill == "random" else {})}

    def broadcast(self, server: ServerState, to: Participants) -> Payload:
        """Return each client's memory `(clients, M, d)`."""
        if not server:
            return {}
        memory, n = server["memory"], len(to.ids)
        own = memory[to.ids.to(memory.device)] if self.personal else memory.expand(n, -1, -1)
        return {"memory": own}

    def local_update(self, cohort: Cohort, payload: Payload) -> Payload:
        """Train from the received memory, and count how often each prototype is used."""
        memory = cohort.params["memory"]
        cohort.scratch["used"] = memory.new_zeros(memory.shape[:2], dtype=torch.int32)
        return super().local_update(cohort, payload)

    def local_loss(self, cohort: Cohort, batch: Batch, payload: Payload) -> Tensor:
        """Return the sum of all losses of `Client.local_train`, `(clients,)`.

        They are the smooth L1 losses of the normalised forecast, of the changes of mean and
        deviation, and of the forecast on the window's scale, and that of the memory.
        """
        features, window = self.encoded(cohort.state, batch["x"])
        vectors = features.unflatten(-1, (-1, self.size)).flatten(1, 2)
        quantised, used, loss = nearest_prototypes(
            vectors, cohort.params["memory"], self.options.commitment
        )
        counts = cohort.scratch["used"]
        counts.scatter_add_(1, used, torch.ones_like(used, dtype=counts.dtype))
        normal = self.population.decode(cohort.state, quantised.view(features.shape))
        y, mask = batch["y"], batch["mask"]
        one_step = y.shape[-1] == 1
        target = window if one_step else moments(y, mask)
        loss = loss + self.error(normal, (y - target.mean) / target.deviation, mask)
        if not one_step and self.options.level == "learned":
            change = self.change(cohort.params, batch["x"], window, cohort.generators)
            known = mask.any(-1, keepdim=True)
            for learned, of_target, of_window in zip(change, target, window, strict=True):
                loss = loss + self.error(learned, of_target - of_window, known)
            window = Moments(*(w + c.detach() for w, c in zip(window, change, strict=True)))
        forecast = normal * window.deviation + window.mean
        self.recorded(cohort, forecast.detach(), batch)
        return loss + self.error(forecast, y, mask)

    def encoded(self, state: Mapping[str, Tensor], x: Tensor) -> tuple[Tensor, Moments]:
        """Return the features of windows, each normalised by its own moments, and these."""
        readings, known = x.tensor_split([self.n_readings], dim=-1)
        of_window = moments(readings)
        normal = (readings - of_window.mean) / of_window.deviation
        return self.population.encode(state, torch.cat([normal, known], dim=-1)), of_window

    def change(
        self,
        state: Mapping[str, Tensor],
        x: Tensor,
        window: Moments,
        generators: Sequence[torch.Generator] = (),
    ) -> Moments:
        """Return the learned change from the window's moments to those of its targets.

        With `generators`, units are dropped as in training.
        """
        inputs = torch.cat([x[..., : self.n_readings], *window], dim=-1)
        outputs = self.level(state, inputs, training=bool(generators), generators=generators)
        return Moments(*outputs.split(1, dim=-1))

    def error(self, prediction: Tensor, target: Tensor, mask: Tensor) -> Tensor:
        """Return the mean smooth L1 loss of each client where `mask` is True, `(clients,)`."""
        target = torch.where(mask, target, prediction.detach())
        total = F.smooth_l1_loss(prediction, target, reduction="none", beta=self.options.smooth)
        return total.sum((1, 2)) / mask.sum((1, 2)).clamp(min=1)

    def upload(self, cohort: Cohort) -> Payload:
        """Return the memory, and the number of vectors that each prototype replaced."""
        if self.options.align == "none":
            return {}
        memory = {"memory": cohort.params["memory"].detach()}
        return memory | ({"used": cohort.scratch["used"]} if self.personal else {})

    def aggregate(self, server: ServerState, of: Participants, uploads: Payload) -> ServerState:
        """Return the next memories (`Server._aggregate_memory_by_cos_similarity`)."""
        o = self.options
        if not uploads:
            return server
        memory = uploads["memory"]
        if o.align == "mean":
            return {"memory": weighted_mean(memory, of.sizes)}
        common, alone = joined_prototypes(memory, o.threshold)
        common = common[: int(o.n_prototypes * o.shared)]
        n_free = o.n_prototypes - len(common)
        if not self.personal:
            if o.fill == "random":
                draw, isolated = generator(int(server["seed"]), of.round, 0, FILL), memory[alone]
                drawn = torch.randperm(len(isolated), generator=draw)[:n_free]
                common = torch.cat([common, isolated[drawn.to(memory.device)]])
            return {**server, "memory": F.pad(common, (0, 0, 0, o.n_prototypes - len(common)))}
        kept, ids = server["memory"].clone(), of.ids.to(memory.device)
        own = personal(memory, uploads["used"], alone, n_free, o.usage)
        kept[ids] = torch.cat([common.expand(len(ids), -1, -1), own], dim=1)
        start = torch.cat([common, server["start"][len(common) :]])
        return {"memory": kept, "start": start}

    def server_for(self, server: ServerState, ids: Tensor) -> ServerState:
        """Return the state for other clients; a new one has the shared prototypes."""
        if not self.personal:
            return server
        ids = ids.to(server["memory"].device)
        rows = torch.where(with_axes(ids >= 0, 3), server["memory"][ids], server["start"])
        return {**server, "memory": rows}

    def predict(self, state: Payload, payload: Payload, x: Tensor, view: str) -> Tensor:
        """Forecast from the prototypes of the latest memory, on the scale of the window."""
        params: Params = {**state, **payload}
        features, window = self.encoded(params, x)
        vectors = features.unflatten(-1, (-1, self.size)).flatten(1, 2)
        chosen = by_key(params["memory"], nearest(vectors, params["memory"]))
        normal = self.population.decode(params, chosen.view(features.shape))
        if normal.shape[-1] > 1 and self.options.level == "learned":
            change = self.change(params, x, window)
            window = Moments(*(w + c for w, c in zip(window, change, strict=True)))
        return normal * window.deviation + window.mean


def level_network(n_readings: int) -> nn.Module:
    """Build the perceptron of readings, mean and deviation (`MuStdModel`)."""
    sizes = (n_readings + 2, LEVEL_UNITS, LEVEL_UNITS, 2)
    linear = [ClientLinear(*pair) for pair in pairwise(sizes)]
    for layer in linear:
        nn.init.xavier_uniform_(layer.weight[0])
    bend = nn.ReLU(), ClientDropout(LEVEL_DROPOUT)
    return nn.Sequential(linear[0], *bend, linear[1], *bend, linear[2])


def moments(values: Tensor, mask: Tensor | None = None) -> Moments:
    """Return the moments over the last axis of `(clients, batch, steps)`, where `mask` is True."""
    kept = torch.ones_like(values) if mask is None else mask.to(values.dtype)
    n = kept.sum(-1, keepdim=True).clamp(min=1)
    values = torch.where(kept > 0, values, 0.0)
    mean = values.sum(-1, keepdim=True) / n
    variance = ((values - mean).square() * kept).sum(-1, keepdim=True) / n
    return Moments(mean, (variance + 1e-5).sqrt())  # As in `revin.py`.


def nearest(vectors: Tensor, memory: Tensor) -> Tensor:
    """Return the place of the nearest prototype `(clients, M, d)` of each vector.

    Vectors are `(clients, n, d)`, places `(clients, n)`.
    """
    squares = memory.square().sum(-1)[:, None]
    return torch.baddbmm(squares, vectors, memory.mT, alpha=-2).argmin(-1)


def nearest_prototypes(
    vectors: Tensor, memory: Tensor, commitment: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Replace vectors by prototypes (`PMR.forward`; van den Oord et al., NeurIPS 2017).

    The gradient of a prototype goes to its vector unchanged.

    Args:
        vectors: `(clients, n, d)`.
        memory: prototypes `(clients, M, d)`.
        commitment: weight of the second distance.

    Returns:
        The prototypes `(clients, n, d)`, their places `(clients, n)` and the loss `(clients,)`:
        mean squared distances, first with a gradient for the memory, then for the vectors.
    """
    places = nearest(vectors.detach(), memory.detach())
    chosen = by_key(memory, places)
    to_vectors = (chosen - vectors.detach()).square().mean((1, 2))
    to_memory = (chosen.detach() - vectors).square().mean((1, 2))
    straight = vectors + (chosen - vectors).detach()
    return straight, places, to_vectors + commitment * to_memory


def joined_prototypes(memory: Tensor, threshold: float) -> tuple[Tensor, Tensor]:
    """Join prototypes of different clients that are alike, and those alike to these.

    Args:
        memory: `(clients, M, d)`.
        threshold: cosine similarity above which two are alike.

    Returns:
        The mean of each group, `(groups, d)`, of most prototypes first and then as they come, and
        which prototypes are in none, `(clients, M)`.
    """
    from scipy.sparse import coo_array  # slow to import
    from scipy.sparse.csgraph import connected_components

    n, m, _ = memory.shape
    unit, group = F.normalize(memory, dim=-1), np.arange(n * m)
    for i in range(n - 1):  # One client at a time: all pairs at once would not fit the memory.
        alike = unit[i] @ unit[i + 1 :].flatten(0, 1).T > threshold
        first, second = alike.nonzero().cpu().numpy().T
        ends = group[first + i * m], group[second + (i + 1) * m]
        graph = coo_array((np.ones(len(first), dtype=bool), ends), shape=(n * m, n * m))
        group = connected_components(graph, directed=False)[1][group]
    _, start, of, size = np.unique(
        group, return_index=True, return_inverse=True, return_counts=True
    )
    order = np.lexsort((start, -size))[: (size > 1).sum()]
    place = np.full(len(size), len(order))
    place[order] = np.arange(len(order))
    places = torch.from_numpy(place[of]).to(memory.device)
    sums = memory.new_zeros(len(order) + 1, memory.shape[2])
    sums.index_add_(0, places, memory.flatten(0, 1))
    sizes = torch.from_numpy(size[order]).to(memory)
    return sums[:-1] / sizes[:, None], (places == len(order)).view(n, m)


def personal(memory: Tensor, used: Tensor, alone: Tensor, n: int, usage: float) -> Tensor:
    """Return n prototypes of each client, `(clients, n, d)`; zeros where it has fewer.

    They are those of the highest score, the use of a prototype, divided by the client's largest, in
    units of `usage`, less its mean cosine similarity to the prototypes of all other clients.

    Args:
        memory: `(clients, M, d)`.
        used: uses `(clients, M)`.
        alone: which can be chosen, `(clients, M)`.
        n: number of prototypes.
        usage: weight of the use.
    """
    unit = F.normalize(memory, dim=-1)
    of_client = unit.sum(1)
    others = of_client.sum(0) - of_client
    n_others = max(1, (len(memory) - 1) * memory.shape[1])
    similarity = (unit @ others[..., None])[..., 0] / n_others
    uses = torch.where(alone, used, 0).to(memory.dtype)
    score = usage * uses / uses.amax(1, keepdim=True).clamp(min=1) - similarity
    score = score.masked_fill(~alone, -torch.inf)
    places = score.sort(dim=1, descending=True, stable=True).indices[:, :n]
    chosen = by_key(memory, places)
    return torch.where(alone.gather(1, places)[..., None], chosen, 0.0)
