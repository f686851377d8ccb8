"""ProtoRidge: clients send mean windows; the server solves for a linear map.

Ours. It is `fedlean` without a network, and with prototypes in place of its sums. Client n divides
its N windows at random into K groups, whose sizes nₖ differ by one at most. A prototype is the mean
of a group's linear inputs z and changes e = y - r, see `stforecast.methods.fedlean`:

    z̄ₖ = Σ z / nₖ,    ēₖ = Σ e / nₖ    over the windows of group k.

Over all ways to draw the groups, the scatter of their means is in expectation (K - 1) / (N - 1)
times that of the windows. So these are unbiased estimates of the products that `fedlean` sums:

    G ≈ z̄ z̄ᵀ + (N - 1) / (K - 1) Σₖ nₖ/N (z̄ₖ - z̄) (z̄ₖ - z̄)ᵀ,    z̄ = Σₖ nₖ/N z̄ₖ,

and M likewise, with ēₖ in the second place. One client's prototypes are fewer than its inputs, but
those of all clients suffice for a common map W if they are several times as many as the inputs.
Each client corrects it on its own windows, and forecasts as with `fedlean`. Further rounds, of
which each refit has one, draw other groups, and the server takes the mean of their maps.

With `groups` slots, windows are sorted by their place in the period before they are divided. So a
prototype is the mean of a part of the day, as FUELS's are, but of inputs and targets instead of
features. Their scatter tells what changes within a day and not from day to day, so it is taken as
it is, without the factor.

A client sends K (n_linear + horizon) values; `fedlean` sends n_linear (n_linear + 1) / 2 + n_linear
horizon. A group has `FEWEST` windows or more, so a client of few windows has fewer groups. Means of
so few windows are no protection. Consecutive windows share all but their ends. Where K times the
number of lags exceeds that of the readings, linear equations give up all of them, to a constant, to
whoever knows the groups. In one process the run's seed draws them. A real node draws them from its
own entropy, and keeps them for itself; but with two weeks of records, the mean calendar inputs of a
group tell which windows are in it, see the benchmark `disclosure`. Prototypes of slots give up
the profile of a mean day, and how the readings of the first week differ from those of the last. The
server needs the prototypes of each client, so secure sums cannot hide them. Clipping and noise work
as for any upload, but noise adds to G like a larger `ridge`.

Sketching a regression by sums of random groups of rows is Clarkson, Woodruff: Low Rank
Approximation and Regression in Input Sparsity Time, STOC 2013; theirs have random signs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import torch
from annotated_types import Ge, Le
from torch import Tensor

from stforecast.federated.core.declared import Attacked, Needs, Upload
from stforecast.federated.core.options import Grid, names_of
from stforecast.federated.core.state import Clients, Cohort, Participants
from stforecast.federated.core.tensors import Payload
from stforecast.federated.core.training import Training
from stforecast.methods.fedlean import CHUNK, MAP, FedLean, FedLeanOptions, RelativeInputs, n_linear

PROTOTYPES, ROUNDS = "prototypes", "rounds"
"""Names of the upload, and of the number of rounds whose maps the server's is the mean of."""

FEWEST = 8
"""Fewest windows of a group."""


@dataclass(frozen=True)
class ProtoRidgeOptions(FedLeanOptions):
    """Settings of ProtoRidge, besides FedLean's for its map and mixture.

    Attributes:
        prototypes: number of groups of a client's windows in each round.
        groups: how windows are grouped: at `random`, or by `slots`, parts of the day.
    """

    prototypes: Annotated[int, Ge(2), Le(1024)] = 24
    groups: Literal["random", "slots"] = "random"


class ProtoRidge(FedLean):
    """Ridge regression of prototypes, then own corrections."""

    name = "protoridge"
    summary = "ridge regression of the mean windows that clients send in one round (ours)"
    attacked = Attacked(discloses="readings")
    sends = Upload(
        needs_each="its server needs how the prototypes of each client differ", apart=True
    )
    needs = Needs()
    unread = {"model", "loss", "huber_delta", "rounds_per_cell", "participants"} | names_of(
        Training
    ) - {"rounds", "participation", "full_start"}
    Options = ProtoRidgeOptions
    options: ProtoRidgeOptions
    grid: ClassVar[Grid] = {}  # Its penalties follow from the samples.
    defaults: ClassVar[Mapping[str, Any]] = {**FedLean.defaults, "rounds": 1, "refit_rounds": 1}

    @classmethod
    def training_for(cls, training: Training, n_series: int, options: FedLeanOptions) -> Training:
        """Return the settings as they are: all clients may send in each round."""
        return training

    def shares(self, name: str) -> bool:
        """Return False: there is no network."""
        return False

    @property
    def _sends_week(self) -> bool:
        """Return False: prototypes are all that is sent."""
        return False

    def init(self, clients: Clients, sizes: Tensor, seed: int) -> dict[str, Tensor]:
        """Return a map of zeros, which is of no round yet; clients keep no network."""
        server = super().init(clients, sizes, seed)
        clients.params.clear()
        return {**server, ROUNDS: torch.zeros(())}

    def broadcast(self, server: dict[str, Tensor], to: Participants) -> Payload:
        """Return the map; nothing before the first round."""
        return super().broadcast({MAP: server[MAP]}, to)

    def local_update(self, cohort: Cohort, payload: Payload) -> Payload:
        """Send prototypes."""
        return self._of_map(cohort)

    @torch.no_grad()
    def _sums(self, cohort: Cohort) -> Payload:
        """Return the mean inputs and changes of each group, `(clients, groups, inputs + outputs)`.

        As in FedLean, a window without an observed target counts as 0, and where some steps were
        not observed, a step's changes count for the windows in which it was.
        """
        data, n_outputs, parts = cohort.data, self.task.n_outputs, []
        device, n = data.tensors["x"].device, int(data.sizes[0])
        shape = len(data), self.options.prototypes, n_linear(self.task.window) + n_outputs
        sums = torch.zeros(shape, dtype=torch.float64, device=device)
        group, place = self._groups(cohort, n).to(device), 0
        for batch in data.chunks(CHUNK):
            inputs = RelativeInputs(batch["x"], self.task.window)
            change, known = self.task.residual(self._base(inputs), batch)
            seen = known.any(-1, keepdim=True)
            rows = torch.cat([inputs.linear * seen, change], dim=-1).double()
            of = group[:, place : place + rows.shape[1], None]
            sums.scatter_add_(1, of.expand_as(rows), rows)
            place += rows.shape[1]
            parts.append((known.sum(1), seen.sum(1)))
        known, seen = (torch.stack(part).sum(0) for part in zip(*parts, strict=True))
        sums[..., -n_outputs:] *= (seen / known.clamp(min=1))[:, None]
        counts = self._counts(data.sizes).to(sums)
        return {PROTOTYPES: sums / counts.clamp(min=1)[..., None]}

    def _groups(self, cohort: Cohort, n: int) -> Tensor:
        """Return the group of each of n windows, `(clients, n)`."""
        if self.options.groups == "random":
            place = cohort.secret_order(n)
        else:
            slots = self.task.keys(cohort.data.tensors)[:, :n]
            place = slots.argsort(stable=True).argsort().cpu()
        return place * int(self._n_groups(torch.tensor(n))) // n

    def _n_groups(self, sizes: Tensor) -> Tensor:
        """Return the number of groups of clients with so many windows."""
        return (sizes // FEWEST).clamp(1, self.options.prototypes)

    def _counts(self, sizes: Tensor) -> Tensor:
        """Return the number of windows in each group, `(clients, prototypes)`."""
        n_groups, sizes = self._n_groups(sizes)[:, None], sizes[:, None]
        ends = torch.arange(self.options.prototypes + 1, device=sizes.device).clamp(max=n_groups)
        # The first place of group k is the smallest i with i n_groups ≥ k n.
        return torch.div(ends * sizes + n_groups - 1, n_groups, rounding_mode="floor").diff()

    def aggregate(
        self, server: dict[str, Tensor], of: Participants, uploads: Payload
    ) -> dict[str, Tensor]:
        """Estimate G and M from the prototypes, and solve for the map."""
        found = self.estimate(uploads[PROTOTYPES].double(), of.sizes, len(server[MAP]))
        solved = self._solved(*found.tensor_split([len(found)], dim=1)).to(server[MAP])
        rounds = server[ROUNDS] + 1 if of.round > 0 else torch.ones_like(server[ROUNDS])
        mean = server[MAP] + (solved - server[MAP]) / rounds
        return {**server, MAP: mean, ROUNDS: rounds}

    def estimate(self, prototypes: Tensor, sizes: Tensor, n: int) -> Tensor:
        """Estimate the mean products of all clients' windows, `(inputs, inputs + outputs)`.

        Args:
            prototypes: `(clients, prototypes, inputs + outputs)`.
            sizes: `(clients,)` numbers of windows.
            n: number of inputs.
        """
        sizes = sizes.to(prototypes)[:, None, None]
        shares = self._counts(sizes[:, 0, 0].long())[..., None] / sizes
        mean = (shares * prototypes).sum(1, keepdim=True)
        weights, n_groups = sizes / sizes.sum(), self._n_groups(sizes.long())
        scale = weights * shares
        if self.options.groups == "random":
            scale = scale * (sizes - 1) / (n_groups - 1).clamp(min=1)
        within = _weighted_products(prototypes - mean, scale, n)
        return _weighted_products(mean, weights, n) + within

    def _rest(self, params: Payload, inputs: RelativeInputs) -> Tensor:
        """Return r alone."""
        return self._base(inputs)


def _weighted_products(rows: Tensor, weights: Tensor, n: int) -> Tensor:
    """Return weighted sums of the products of the first n columns with all, over all rows.

    Args:
        rows: `(clients, rows, columns)`.
        weights: of clients or rows, `(clients, 1 or rows, 1)`.
        n: number of columns.
    """
    return (weights * rows).flatten(0, 1)[:, :n].mT @ rows.flatten(0, 1)
