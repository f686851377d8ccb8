"""ProtoRidge: clients send mean windows alone, in one round; the server solves for a linear map.

Ours. It is `fedlean` without a network, and with prototypes in place of its sums. Client n divides
its windows at random into K groups of equal size. A prototype is the mean of a group's linear
inputs z and changes e = y - r, see `stforecast.methods.fedlean`:

    z̄ₖ = Σ z / nₖ,    ēₖ = Σ e / nₖ    over the nₖ windows of group k.

Over all ways to draw the groups, the scatter of their means is in expectation that of the windows
times (K - 1) / (N - 1), for N windows and K groups. So the server can estimate the products that
`fedlean` sums, where z̄ and ē without index are means over all windows:

    G ≈ z̄ z̄ᵀ + (N - 1) / (K - 1) Σₖ nₖ/N (z̄ₖ - z̄) (z̄ₖ - z̄)ᵀ,

and M likewise with ēₖ. One client's K prototypes are too few for its map, but those of all clients
together suffice for a common one. Each client then corrects it on its own windows, and forecasts as
with `fedlean`. Further rounds draw other groups, and the server takes the mean of their estimates.

With `groups` slots, a prototype is the mean of a part of the day, as those of FUELS are, but of
inputs and targets instead of features. Their scatter tells how days go, not how days differ, so it
is taken as it is.

A client sends K (n_linear + horizon) values, which do not grow with the square of the inputs. The
server needs each client's own, so secure aggregation cannot hide them. Who knows the seed of a run
knows the groups, and then consecutive windows, which share all but their ends, make many equations
for few readings: as with `fedlean`'s sums, an upload may give readings away. Clipping and noise
work as for any upload.

Sketching a regression by sums of random groups of rows is Clarkson, Woodruff: Low-rank
approximation and regression in input sparsity time, STOC 2013; theirs have random signs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import torch
from annotated_types import Ge
from torch import Tensor

from stforecast.federated.core.data import shuffled
from stforecast.federated.core.options import names_of
from stforecast.federated.core.state import Clients, Cohort, Participants
from stforecast.federated.core.tensors import Payload
from stforecast.federated.core.training import Training
from stforecast.methods.fedlean import (
    CHUNK,
    MAP,
    SAVED,
    FedLean,
    FedLeanOptions,
    RelativeInputs,
    relative,
)  # fmt: skip

PROTOTYPES, ESTIMATE, ROUNDS = "prototypes", "estimate", "rounds"
"""Names of the upload, and of the estimates of G and M on the server and their number of rounds."""

READ = ("rounds", "participation", "full_start")
"""Settings of training that it reads."""


@dataclass(frozen=True)
class ProtoRidgeOptions(FedLeanOptions):
    """Settings of ProtoRidge, beside those of FedLean's map and mixture.

    Attributes:
        prototypes: number of groups of a client's windows in each round.
        groups: how windows are grouped: at `random`, or by `slots`, as many parts of the day.
    """

    prototypes: Annotated[int, Ge(2)] = 24
    groups: Literal["random", "slots"] = "random"


class ProtoRidge(FedLean):
    """Ridge regression of prototypes, then own corrections."""

    name = "protoridge"
    summary = "ridge regression of the mean windows that clients send in one round (ours)"
    guards = ()
    keeps_apart = True
    sums = "none"
    needs_each = "its server needs how the prototypes of each client differ"
    needs: ClassVar[tuple[str, ...]] = ()
    unread = {"model", "rounds_per_cell", "participants"} | names_of(Training) - set(READ)
    Options = ProtoRidgeOptions
    options: ProtoRidgeOptions
    defaults: ClassVar[Mapping[str, Any]] = {**FedLean.defaults, "rounds": 1, "refit_rounds": 1}

    @classmethod
    def training_for(cls, training: Training, n_series: int, options: FedLeanOptions) -> Training:
        """Return the settings as they are: all clients may send in each round."""
        return training

    def shares(self, name: str) -> bool:
        """Return False: there is no network."""
        return False

    def init(self, clients: Clients, sizes: Tensor, seed: int) -> dict[str, Tensor]:
        """Return a map of zeros, which is of no round yet."""
        return {**super().init(clients, sizes, seed), ROUNDS: torch.zeros(())}

    def broadcast(self, server: dict[str, Tensor], to: Participants) -> Payload:
        """Return the map, and what penalties saved; nothing before the first round."""
        public = {name: t for name, t in server.items() if name in (MAP, SAVED)}
        return super().broadcast(public, to)

    def local_update(self, cohort: Cohort, payload: Payload) -> Payload:
        """Send prototypes; in the first round of a refit, also what penalties save."""
        return self._of_map(cohort, payload if cohort.round == 0 else {})

    @torch.no_grad()
    def _sums(self, cohort: Cohort) -> Payload:
        """Return the mean inputs and changes of each group, `(clients, groups, inputs + outputs)`.

        As in FedLean, a window without an observed target counts as 0, and where some steps were
        not observed, a step's changes count for the windows in which it was.
        """
        groups, place, parts = self._groups(cohort), 0, []
        for batch in cohort.data.chunks(CHUNK):
            inputs = relative(batch["x"], self.task.window)
            change, known = self.task.residual(self._base(inputs), batch)
            seen = known.any(-1, keepdim=True)
            rows = torch.cat([inputs.linear * seen, change], dim=-1).double()
            of = groups[:, place : place + rows.shape[1]]
            place += rows.shape[1]
            member = torch.nn.functional.one_hot(of, self.n_groups).double().mT
            parts.append((member @ rows, member.sum(-1), known.sum(1), seen.sum(1)))
        sums, sizes, known, seen = (torch.stack(part).sum(0) for part in zip(*parts, strict=True))
        sums[..., -self.task.n_outputs :] *= (seen / known.clamp(min=1))[:, None]
        return {PROTOTYPES: sums / sizes.clamp(min=1)[..., None]}

    @property
    def n_groups(self) -> int:
        """Largest number of a client's groups."""
        most = self.options.prototypes
        return most if self.options.groups == "random" else min(most, self.task.n_keys)

    def _groups(self, cohort: Cohort) -> Tensor:
        """Return the group of each window, `(clients, windows)`."""
        n = int(cohort.data.sizes[0])
        if self.options.groups == "random":
            order = shuffled(n, cohort.generators).to(cohort.data.sizes.device)
            return order % self.n_groups
        slots = self.task.keys(cohort.data.tensors)[:, :n]
        return slots * self.n_groups // self.task.n_keys

    def aggregate(
        self, server: dict[str, Tensor], of: Participants, uploads: Payload
    ) -> dict[str, Tensor]:
        """Estimate G and M by the scatter of prototypes; solve for the map."""
        prototypes = uploads[PROTOTYPES].double()
        sizes = of.sizes[:, None, None]
        n_groups = sizes.clamp(max=self.n_groups)  # A client may have fewer windows.
        some = torch.arange(self.n_groups, device=sizes.device)[:, None] < n_groups
        mean = prototypes.sum(1, keepdim=True) / n_groups
        apart = (prototypes - mean) * some
        share = sizes / sizes.sum()
        scale = share / n_groups
        if self.options.groups == "random":
            scale = scale * (sizes - 1) / (n_groups - 1).clamp(min=1)
        n = len(server[MAP])
        found = _weighted_products(mean, share, n) + _weighted_products(apart, scale, n)
        rounds = 1 if of.round == 0 else server[ROUNDS] + 1
        if of.round > 0:
            found = server[ESTIMATE] + (found - server[ESTIMATE]) / rounds
        solved = self._solved(found[:, :n], found[:, n:]).to(server[MAP])
        return {
            **server,
            **self._saved_so_far(server, of, uploads),
            MAP: solved,
            ESTIMATE: found,
            ROUNDS: torch.as_tensor(rounds, dtype=server[ROUNDS].dtype),
        }

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
