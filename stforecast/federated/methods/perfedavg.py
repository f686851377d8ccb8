"""Per-FedAvg: a global model that a client personalises by one gradient step on its own data.

Fallah, Mokhtari, Ozdaglar: Personalized Federated Learning with Theoretical Guarantees: A
Model-Agnostic Meta-Learning Approach, NeurIPS 2020, arXiv 2002.07948, Algorithm 1.

The clients minimise the mean of f_i(w - α ∇f_i(w)). A local step takes batches D, D' and D'':
w̃ = w - α ∇f(w; D), then w ← w - β (I - α ∇²f(w; D'')) ∇f(w̃; D'). The paper approximates the
product with the Hessian in two ways: FO drops it and needs no D''; HF takes the finite difference
[∇f(w + δ g; D'') - ∇f(w - δ g; D'')] / 2δ, where g = ∇f(w̃; D').

- Batches: the local epochs are one stream of batches, in order of time unless the run shuffles.
  Each step takes the next ones as D, D' (and D''), so an epoch of FO has half the optimiser steps
  of FedAvg's. If the stream ends within a step, that step is filled up with the first batches of
  the stream (a client with a single batch uses it for all).
- Outer step: the run's optimiser takes it, and β is its learning rate. The paper's is plain SGD
  (`--optimizer sgd`).
- Personalisation: before predicting, a client takes `steps` plain gradient steps of length α from
  the received global model, each on one batch of its own data. The baseline in pFedMe's released
  code takes a second step, of length β.
- The server counts clients equally, as in the paper; that baseline weights them by their samples.
- Running statistics are those of all forward passes of a step, at w, w̃ and w ± δ g. The server
  averages them; personalising changes a copy.

The reported losses are f(w̃; D'), those of the personalised model on data it was not fitted to.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, cycle, islice
from typing import Literal

import torch
from pydantic import NonNegativeFloat, NonNegativeInt, PositiveFloat
from torch import Tensor

from stforecast.federated.core.declared import Attacked, Upload
from stforecast.federated.core.options import CheckedOptions
from stforecast.federated.core.state import Cohort
from stforecast.federated.core.tensors import Batch, Params, Payload, linear_term
from stforecast.federated.methods.two_models import FittedModels
from stforecast.federated.uploads.robust import RULES


@dataclass(frozen=True)
class PerFedAvgOptions(CheckedOptions):
    """Settings of Per-FedAvg.

    Attributes:
        order: `fo`: first order, without the Hessian; `hf`: Hessian-free, its product with the
            gradient as a finite difference. The paper has both; the baseline in pFedMe's released
            code is `fo`.
        alpha: length α of the inner and the personalising steps (0.005 in that baseline).
        delta: step δ of the finite difference; the paper gives no value.
        steps: gradient steps that personalise the model before it predicts (paper: 1).
    """

    order: Literal["fo", "hf"] = "fo"
    alpha: NonNegativeFloat = 0.005
    delta: PositiveFloat = 1e-3
    steps: NonNegativeInt = 1


class PerFedAvg(FittedModels):
    """Per-FedAvg; `personalise` turns the global model into the client's personal one."""

    name = "perfedavg"
    summary = "learns a global model to personalise by a gradient step"
    paper = "Fallah et al., NeurIPS 2020"
    attacked = Attacked(guards=RULES)
    sends = Upload(sums="clients")
    Options = PerFedAvgOptions
    options: PerFedAvgOptions

    def local_update(self, cohort: Cohort, payload: Payload) -> Payload:
        """Run Algorithm 1: local meta steps from the received model."""
        self.receive(cohort, payload)
        for batches in groups(cohort.batches(), 2 if self.options.order == "fo" else 3):
            cohort.step(self.meta_loss(cohort, *batches))
        return self.upload(cohort)

    def meta_loss(
        self, cohort: Cohort, inner: Batch, outer: Batch, third: Batch | None = None
    ) -> Tensor:
        """Return f(w̃; D') `(clients,)`, whose gradient for w is that of the paper's local step.

        The batches are D, D' and D'', which is None for FO.
        """
        w, alpha = cohort.params, self.options.alpha
        first = self.gradient(cohort, w, inner)
        adapted = {name: p - alpha * first[name] for name, p in w.items()}
        loss = self.loss_of({**cohort.state, **adapted}, outer)
        cohort.record("task_loss", loss)
        if third is None:
            return loss
        product = self.hessian_product(cohort, gradient_of(loss, adapted), third)
        # The correction is 0; its gradient is -α ∇²f g.
        here = {name: p.detach() for name, p in w.items()}
        return loss - alpha * linear_term(product, w, here)

    def hessian_product(self, cohort: Cohort, g: Params, batch: Batch) -> Params:
        """Return ∇²f(w) g as a central difference of gradients, with the same dropout in both."""
        w, delta = cohort.params, self.options.delta
        device = next(iter(w.values())).device
        devices = [device] if device.type == "cuda" else []
        with torch.random.fork_rng(devices=devices), self.population.repeating():
            ahead = self.gradient(cohort, {n: p + delta * g[n] for n, p in w.items()}, batch)
        behind = self.gradient(cohort, {n: p - delta * g[n] for n, p in w.items()}, batch)
        return {name: (ahead[name] - behind[name]) / (2 * delta) for name in g}

    def gradient(self, cohort: Cohort, params: Params, batch: Batch) -> Params:
        """Return ∇f at `params` on a batch; changes only the cohort's running statistics."""
        leaves = {name: p.detach().requires_grad_() for name, p in params.items()}
        return gradient_of(self.loss_of({**cohort.state, **leaves}, batch), leaves)

    def personalise(self, cohort: Cohort, payload: Payload) -> None:
        """Take `steps` steps w ← w - α ∇f(w) from the global model, each on the next batch."""
        self.receive(cohort, payload)
        for batch in islice(cohort.batches(epochs=self.options.steps), self.options.steps):
            gradient = self.gradient(cohort, cohort.params, batch)
            for name, p in cohort.params.items():
                p.detach().sub_(self.options.alpha * gradient[name])


def gradient_of(losses: Tensor, params: Params) -> Params:
    """Return the gradient of each client's loss, 0 where it does not depend on a parameter.

    The autograd graph is kept.
    """
    tensors = list(params.values())
    gradients = torch.autograd.grad(
        losses.sum(), tensors, retain_graph=True, materialize_grads=True
    )
    return dict(zip(params, gradients, strict=True))


def groups(batches: Iterable[Batch], size: int) -> Iterator[tuple[Batch, ...]]:
    """Yield consecutive groups of `size` batches, the last one filled up with the first batches.

    >>> "".join("".join(group) for group in groups("abcde", 3))
    'abcdea'
    """
    stream = iter(batches)
    head = list(islice(stream, size))
    stream = chain(head, stream)
    while group := list(islice(stream, size)):
        yield tuple(islice(chain(group, cycle(head)), size))
