"""Check of PFPL's convergence conditions (Corollary 1) with estimated constants.

By the corollary, a client's loss falls in a round if, at every local step é,

    η < 2 (Σₑ ‖∇ℓ‖² - λ L₂ E G) / (L₂ E G)        (Eq. 15, as printed; e from the first step to é)
    λ < ‖∇ℓ‖² / (L₂ E G)                           (Eq. 16, at the first step)

with E local steps, G a bound of a stochastic gradient's expected norm (Eq. 12) and L₂ the Lipschitz
constant of the features in the encoder's parameters (Eq. 13). A constant η must obey Eq. 15 at the
first step, where the sum is smallest; this limit is reported. ‖∇ℓ‖² of the first step is that of
the whole local loss. L₂ and G are unknown; both are measured in one more round of local training,
along its path, so they are lower bounds and the limits are upper bounds: a λ or η above its limit
violates the condition, but one below it may violate it too.

Two reservations. FedProto's corollary, from which the paper's is taken, has L₁ (the smoothness of
the loss) and the variance of the gradients in η's denominator; the paper prints L₂, so η's limit
has no meaning beyond the printed formula. Also, the proof weights an unsquared distance by λ, but
PFPL's loss (Eq. 5, 7) has a squared one, here averaged over the features: λ and its limit have
different units.
"""

from __future__ import annotations

import copy
import math
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from data_prep.base.errors import InputError
from stforecast.federated.core.data import ClientData
from stforecast.federated.core.state import Cohort, Participants, State
from stforecast.federated.core.tensors import Params
from stforecast.federated.core.training import zero_moments
from vision.learner import Learner
from vision.methods.pfpl import PFPL
from vision.results import ImageRun
from vision.streams.base import TaskStream
from vision.task import stacked_images

PROBE = 64
"""Samples of a client whose features are compared from step to step."""


class Still(Cohort):
    """A cohort of one client that sums the gradients of its batches and does not train."""

    total: Tensor | None = None
    n = 0

    def step(self, losses: Tensor) -> Params:
        """Add the batch's gradient; parameters without one count as zeros."""
        found = torch.autograd.grad(
            losses.sum(), list(self.params.values()), allow_unused=True, materialize_grads=True
        )
        gradient = torch.cat([g.flatten() for g in found])
        self.total = gradient if self.total is None else self.total + gradient
        self.n += 1
        return dict(zip(self.params, found, strict=True))


class Observed(Cohort):
    """A cohort of one client that records gradients and features while it trains.

    Attributes:
        norms: norm of the stochastic gradient of each step.
        ratios: change of the features divided by the change of the encoder's parameters, by step.
    """

    def watch(self, method: PFPL) -> None:
        """Start recording; call it before the first step."""
        self.norms: list[float] = []
        self.ratios: list[float] = []
        self._method = method
        self._x = self.data.tensors["x"][:, : min(PROBE, int(self.data.sizes[0]))]
        self._before = self._look()

    @torch.no_grad()
    def _look(self) -> tuple[Tensor, Tensor]:
        """Return the features of the probe `(samples, d)` and the encoder's flat parameters."""
        encoder = [p.flatten() for name, p in self.params.items() if name.startswith("encoder.")]
        buffers = {name: t.clone() for name, t in self.buffers.items()}
        features = self._method.population.encode({**self.params, **buffers}, self._x)[0]
        return features, torch.cat(encoder).clone()

    def step(self, losses: Tensor) -> Params:
        """Take a step and record its gradient and the change of the features."""
        gradients = super().step(losses)
        self.norms.append(float(torch.cat([g.flatten() for g in gradients.values()]).norm()))
        features, encoder = self._look()
        moved = float((encoder - self._before[1]).norm())
        if moved:
            change = (features - self._before[0]).norm(dim=-1).max()
            self.ratios.append(float(change) / moved)
        self._before = features, encoder
        return gradients


def corollary_1(method: PFPL, state: State, train: ClientData) -> pd.DataFrame:
    """Evaluate the conditions of Corollary 1 for every client, in one more round from a state.

    Returns:
        One row for each client that has samples: `client`, `steps` E, `gradient` ‖∇ℓ‖² at the
        start, `G`, `L2`, `most_lam` (Eq. 16), `lam`, `most_lr` (Eq. 15; if negative, no learning
        rate is small enough) and `lr`. Limits are NaN if the parameters do not move.
    """
    state, last = copy.deepcopy(state), max(0, state.round - 1)
    method.population.train()
    rows: list[dict[str, Any]] = []
    for i in train.sizes.nonzero().flatten().tolist():
        ids = torch.tensor([i])
        to = Participants(ids, train.sizes[ids], state.round)
        payload = method.broadcast(state.server, to)

        def cohort(kind: type[Cohort], ids: Tensor = ids) -> Any:
            data, training = train.take(ids), method.training
            return kind(state.clients, ids, data, training, state.seed, last, copied=True)

        still, observed = cohort(Still), cohort(Observed)
        method.local_update(still, payload)
        observed.watch(method)
        method.local_update(observed, payload)
        square = float((still.total / still.n).square().sum())
        steps, g = len(observed.norms), sum(observed.norms) / len(observed.norms)
        lipschitz = max(observed.ratios, default=math.nan)
        product = lipschitz * steps * g or math.nan
        lam = method.options.lam
        rows.append(
            {
                "client": i,
                "steps": steps,
                "gradient": square,
                "G": g,
                "L2": lipschitz,
                "most_lam": square / product,
                "lam": lam,
                "most_lr": 2 * (square - lam * product) / product,
                "lr": method.training.lr_in(last),
            }
        )
    return pd.DataFrame(rows)


def diagnose_run(run: Path, images: Path | None = None) -> pd.DataFrame:
    """Compute `corollary_1` of a saved run of PFPL on its last stage; the images are read again."""
    finished = ImageRun.open(run)
    learner = Learner.load(run)
    method, state = learner.fitted()
    if not isinstance(method, PFPL):
        raise InputError(f"{run}: is a run of {method.name}; give a run of pfpl")
    config, shared = learner.config, finished.images(images)
    stage = TaskStream.of(config.partition.split(shared, config.run.seed)).train[-1]
    params = state.clients.params
    state.clients.moments = zero_moments(params, config.training)
    device = next(iter(params.values())).device
    return corollary_1(method, state, stacked_images(shared, stage).to(device))
