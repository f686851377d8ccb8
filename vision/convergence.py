"""Whether PFPL's convergence conditions hold: Corollary 1, with its constants estimated.

The corollary promises that a client's loss falls in a round whose learning rate η and weight λ obey

    η < 2 (Σₑ ‖∇ℓ‖² - λ L₂ E G) / (L₂ E G)        (Eq. 15, as printed)
    λ < ‖∇ℓ‖² / (L₂ E G)                           (Eq. 16, at the round's first step)

with E local steps, G the mean norm of a stochastic gradient (Eq. 12) and L₂ the Lipschitz constant
of the features in the encoder's parameters (Eq. 13). Neither constant is known; both are measured
here in one more round of local training. Measured on the path that was taken, L₂ is a lower bound
of the true constant, so the printed limits are upper bounds of the true ones: a λ or η above them
violates the condition, one below them need not fulfil it. FedProto's corollary, from which the
paper's is taken, has L₁ (the smoothness of the loss) and the variance in η's denominator; the
paper prints L₂, so η's limit here has the units of the printed formula and no others.
"""

from __future__ import annotations

import copy
import dataclasses
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from stforecast.federated.data import ClientData
from stforecast.federated.method import Method, Participants
from stforecast.federated.state import Cohort, State
from stforecast.federated.training import zero_moments
from vision.clients import client_data
from vision.learner import Learner, load_images

PROBE = 64
"""Samples of a client on which its features are compared from step to step."""


class Observed(Cohort):
    """A cohort of one client that notes gradients and features as it trains.

    Attributes:
        squares: `‖∇ℓ‖²` of each step.
        ratios: change of the features over change of the encoder's parameters, each step.
    """

    def watch(self, method: Method) -> None:
        """Begin to observe; before the first step."""
        self.squares: list[float] = []
        self.ratios: list[float] = []
        self._method = method
        self._x = self.data.tensors["x"][:, : min(PROBE, int(self.data.sizes[0]))]
        self._before = self._look()

    @torch.no_grad()
    def _look(self) -> tuple[Tensor, Tensor]:
        """Features of the probe `(samples, d)` and the encoder's parameters, flat."""
        encoder = [p.flatten() for name, p in self.params.items() if name.startswith("encoder.")]
        buffers = {name: t.clone() for name, t in self.buffers.items()}
        features = self._method.population.encode({**self.params, **buffers}, self._x)[0]
        return features, torch.cat(encoder).clone()

    def step(self, losses: Tensor) -> None:
        """Step, then note what it did."""
        super().step(losses)
        gradients = [p.grad for p in self.params.values() if p.grad is not None]
        self.squares.append(float(sum((g.square().sum() for g in gradients), torch.zeros(()))))
        features, encoder = self._look()
        moved = float((encoder - self._before[1]).norm())
        if moved:
            change = (features - self._before[0]).norm(dim=-1).max()
            self.ratios.append(float(change) / moved)
        self._before = features, encoder


def corollary_1(method: Method, state: State, train: ClientData) -> pd.DataFrame:
    """The conditions of Corollary 1 for every client, in one more round from a state.

    Args:
        method: PFPL, or any method with an alignment weight `lam`.
        state: from which the round starts; it is left as it is.
        train: training samples of all clients.

    Returns:
        One row a client: `client`, `steps` E, `gradient` ‖∇ℓ‖² of the first step, `G`, `L2`,
        `most_lam` (Eq. 16), `lam`, `most_lr` (Eq. 15; negative: no learning rate will do) and `lr`.
    """
    state, training = copy.deepcopy(state), method.training
    lam: float = getattr(method.options, "lam", 0.0)
    rows: list[dict[str, Any]] = []
    method.population.train()
    for i, size in enumerate(train.sizes.tolist()):
        if not size:
            continue
        ids = torch.tensor([i])
        cohort = Observed(state.clients, ids, train.take(ids), training, state.seed, state.round)
        cohort.watch(method)
        to = Participants(ids, train.sizes[ids], state.round)
        method.local_update(cohort, method.broadcast(state.server, to))
        e, g = len(cohort.squares), sum(s**0.5 for s in cohort.squares) / len(cohort.squares)
        lipschitz = max(cohort.ratios, default=float("nan"))
        product = lipschitz * e * g
        rows.append(
            {
                "client": i,
                "steps": e,
                "gradient": cohort.squares[0],
                "G": g,
                "L2": lipschitz,
                "most_lam": cohort.squares[0] / product,
                "lam": lam,
                "most_lr": 2 * (sum(cohort.squares) - lam * product) / product,
                "lr": training.lr_in(state.round),
            }
        )
    return pd.DataFrame(rows)


def diagnose_run(run: Path, images: Path | None = None) -> pd.DataFrame:
    """`corollary_1` of a saved run, whose images are read again.

    Args:
        run: a run folder.
        images: folder of the images' files, if it has moved.

    Raises:
        InputError: if the run or the images cannot be read.
    """
    learner = Learner.load(run)
    config = learner.config
    if images is not None:
        config = dataclasses.replace(
            config, data=dataclasses.replace(config.data, images=str(images))
        )
    loaded = load_images(config)
    parts = config.partition.split(loaded, config.run.seed)
    method, state = learner.fitted()
    state.clients.moments = zero_moments(state.clients.params, config.training)
    return corollary_1(method, state, client_data(loaded, parts.train))
