"""The federation that benchmarks measure, and its local training client by client.

The federation is FUELS's with the paper's sizes. In the loop over clients each has its own `nn.GRU`
module and optimiser and trains alone. Batches are slices, since a `DataLoader` would only be
slower. The loop uses the same random draws and server code as the project's stacked path, so that
both compute the same numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from stforecast.federated.core.data import ClientData
from stforecast.federated.core.state import generator
from stforecast.federated.engine.rounds import Federation
from stforecast.federated.engine.sizing import parse_bytes
from stforecast.federated.engine.trainer import Trainer
from stforecast.forecasting.config import resolve
from stforecast.forecasting.trained_method import build_method
from stforecast.methods.fuels import FuelsOptions

BATCH, STEPS, HIDDEN = 24, 3, 128
"""Batch size (the period), steps of each GRU and its hidden size, as in the paper."""

EPOCH = 37
"""Batches of a client's epoch: the days of Milan's training part."""


def make_data(n_clients: int, n_batches: int, n_inputs: int) -> ClientData:
    """Return windows with the reference round's shapes, the same for all variants.

    Clients differ in level and amplitude; otherwise rounding would decide which are most similar.
    """
    samples = BATCH * n_batches
    g = torch.Generator().manual_seed(0)
    steps = torch.arange(samples + n_inputs + 1)
    level, swing = torch.randn(2, n_clients, 1, generator=g)
    series = level + swing * torch.sin(steps * 2 * torch.pi / BATCH)
    series += 0.3 * torch.randn(n_clients, len(steps), generator=g)
    windows = series.unfold(1, n_inputs + 1, 1)
    x, x_next = windows[:, :samples, :-1].contiguous(), windows[:, :samples, 1:].contiguous()
    y = windows[:, :samples, -1:].contiguous()
    sample = torch.arange(samples).expand(n_clients, -1)
    tensors = {"x": x, "x_next": x_next, "y": y, "mask": torch.ones_like(y, dtype=torch.bool)}
    tensors |= {"slot": sample % BATCH, "sample": sample}
    return ClientData(tensors, torch.full((n_clients,), samples))


def make_federation(
    n_clients: int,
    n_batches: int,
    workers: int = 1,
    method: str = "fuels",
    make_trainer: Callable[..., Trainer] = Trainer,
    **settings: Any,
) -> Federation:
    """Return a federation before its first round, deterministic in the sizes."""
    config = resolve(method, **{"rounds": 10**6, "seed": 1, "period": BATCH, **settings})
    data = make_data(n_clients, n_batches, config.window.closeness + config.window.periods)
    return Federation(
        build_method(config),
        data,
        seed=config.run.seed,
        cohort_size=config.run.cohort or None,
        workers=workers,
        memory=parse_bytes(config.run.memory) if config.run.memory else None,
        make_trainer=make_trainer,
    )


class DualGRUModule(nn.Module):
    """Model of one client: a GRU for recent values, one for periodic values, and a linear head."""

    def __init__(self, closeness: int, hidden_size: int, n_slots: int) -> None:
        super().__init__()
        self.parts = closeness
        self.closeness = nn.GRU(1, hidden_size, batch_first=True)
        self.periodic = nn.GRU(1, hidden_size, batch_first=True)
        self.head = nn.Linear(hidden_size, 1)
        self.filter = nn.Parameter(torch.empty(n_slots, n_slots))

    def encode(self, x: Tensor) -> Tensor:
        """Encode windows `(batch, inputs)` as features `(batch, 2 hidden_size)`."""
        _, recent = self.closeness(x[:, : self.parts, None])
        _, periodic = self.periodic(x[:, self.parts :, None])
        return torch.cat([recent[0], periodic[0]], dim=1)

    def decode(self, features: Tensor) -> Tensor:
        """Return predictions `(batch, 1)` from features `(batch, 2 hidden_size)`."""
        recent, periodic = features.chunk(2, dim=1)
        return self.head(recent + periodic)

    def load(self, row: dict[str, Tensor]) -> None:
        """Load the parameters that a stacked population holds for one client."""
        with torch.no_grad():
            for name in ("closeness", "periodic"):
                for own, p in getattr(self, name).named_parameters():
                    stacked = row[f"encoder.{name}.{own.removesuffix('_l0')}"]
                    p.copy_(stacked.mT if stacked.ndim == 2 else stacked)
            self.head.weight.copy_(row["head.linear.weight"].mT)
            self.head.bias.copy_(row["head.linear.bias"])
            self.filter.copy_(row["filter"])


def intra_loss(features: Tensor, augmented: Tensor, filters: Tensor, tau: float) -> Tensor:
    """Return the intra-client contrastive loss of one client, Eq. 3 to 6 as printed."""
    similarity = (F.normalize(features, dim=1) @ F.normalize(augmented, dim=1).T / tau).exp()
    positive = similarity.diagonal()
    negatives = F.relu(similarity * filters).sum(1)
    return -(positive / (positive + negatives)).log().mean()


def inter_loss(features: Tensor, positive: Tensor, negative: Tensor, tau: float) -> Tensor:
    """Return the inter-client contrastive loss of one client with both prototypes.

    Eq. 11 to 13, as a cross-entropy of two classes.
    """
    similarity = torch.stack(
        [F.cosine_similarity(features, positive), F.cosine_similarity(features, negative)], dim=1
    )
    return F.cross_entropy(similarity / tau, torch.zeros(len(features), dtype=torch.long))


class LoneClient:
    """A client with a module and an optimiser of its own.

    If `tuned`, it encodes a batch and its augmentation in one call, and uses torch's fused Adam.
    """

    def __init__(self, federation: Federation, client: int, *, tuned: bool) -> None:
        self.client, self.tuned, self.seed = client, tuned, federation.state.seed
        method = federation.method
        self.options: FuelsOptions = method.options
        self.batch_size = method.training.batch_size
        self.data = {name: t[client] for name, t in federation.train.tensors.items()}
        params = {name: p[client] for name, p in federation.state.clients.params.items()}
        closeness = method.population.model.encoder.sizes[0]  # type: ignore[index]
        hidden_size, n_slots = len(params["encoder.closeness.weight_hh"]), len(params["filter"])
        self.model = DualGRUModule(cast(int, closeness), hidden_size, n_slots)
        self.model.load(params)
        fused = True if tuned else None
        self.optimizer = torch.optim.Adam(
            self.model.parameters(), lr=method.training.lr, fused=fused
        )

    def train(self, round: int, payload: dict[str, Tensor]) -> tuple[float, Tensor]:
        """Train for one epoch; return the mean loss, and the client's prototypes `(slots, d)`.

        The payload has positive and negative prototypes `(slots, d)`, or nothing.
        """
        own = generator(self.seed, round, self.client)
        compares = all(t.any() for t in payload.values())
        size, n_batches = self.batch_size, len(self.data["x"]) // self.batch_size
        losses, sums = [], torch.zeros(())
        for start in range(0, n_batches * size, size):
            batch = {name: t[start : start + size] for name, t in self.data.items()}
            features, loss = self._loss(batch, payload if compares else {}, own)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            losses.append(loss.item())
            by_slot = torch.zeros(size, features.shape[1])
            sums = sums + by_slot.index_add_(0, batch["slot"], features.detach())
        return sum(losses) / n_batches, sums / n_batches

    def _loss(
        self, batch: dict[str, Tensor], payload: dict[str, Tensor], own: torch.Generator
    ) -> tuple[Tensor, Tensor]:
        o = self.options
        keep = o.shift + (1 - o.shift) * torch.rand(self.batch_size, 1, generator=own)
        shifted = torch.lerp(batch["x_next"], batch["x"], keep)
        if self.tuned:
            features, augmented = self.model.encode(torch.cat([batch["x"], shifted])).chunk(2)
        else:
            features, augmented = self.model.encode(batch["x"]), self.model.encode(shifted)
        loss = F.mse_loss(self.model.decode(features), batch["y"])
        loss = loss + intra_loss(features, augmented, self.model.filter, o.tau)
        if payload:
            pulled, pushed = (payload[name][batch["slot"]] for name in ("positive", "negative"))
            loss = loss + o.rho * inter_loss(features, pulled, pushed, o.tau)
        return features, loss


class ClientLoop:
    """Rounds of FUELS, one client after another."""

    def __init__(self, federation: Federation, *, tuned: bool) -> None:
        self.method, self.everyone = federation.method, federation.participants()
        self.server, self.round = federation.state.server, 0
        ids = range(len(federation.train))
        self.clients = [LoneClient(federation, i, tuned=tuned) for i in ids]

    def run_round(self) -> float:
        """Train every client, aggregate the uploads and return the mean training loss."""
        payload = self.method.broadcast(self.server, self.everyone)
        trained = [
            c.train(self.round, {name: t[i] for name, t in payload.items()})
            for i, c in enumerate(self.clients)
        ]
        uploads = {"prototypes": torch.stack([prototypes for _, prototypes in trained])}
        self.server = self.method.aggregate(self.server, self.everyone, uploads)
        self.round += 1
        return sum(loss for loss, _ in trained) / len(trained)
