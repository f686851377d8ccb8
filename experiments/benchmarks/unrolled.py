"""Attacks that invert a client's training: used by the benchmark `disclosure`.

The attacker guesses readings, trains on them as the client would, and changes its guess until what
it would send is what was sent: Zhu, Liu, Han: Deep Leakage from Gradients, NeurIPS 2019, with the
steps of local training unrolled as in Geiping, Bauermeister, Dröge, Moeller: Inverting Gradients,
NeurIPS 2020. It knows the model before the round, the order of the batches, and all random draws
that follow from the run's seed.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping
from unittest import mock

import torch
from torch import Tensor
from torch.nn import functional as F

from experiments.benchmarks.inversion import Victims
from stforecast.data.windows import source_steps
from stforecast.federated.core import prototypes
from stforecast.federated.core.state import Cohort, Participants
from stforecast.federated.core.tensors import Batch, Params
from stforecast.federated.core.training import BETAS, EPSILON
from stforecast.federated.kernels import compiler

STEPS, RATE = (150, 60), 0.05
"""Steps of Adam and of L-BFGS that change the guess, and the rate of the former."""


class Unrolled(Cohort):
    """A cohort whose steps autograd can differentiate: parameters become functions of samples."""

    def begin(self) -> None:
        """Start to train in double precision, without moments."""
        self.params = {n: t.detach().double().requires_grad_() for n, t in self.params.items()}
        self.buffers, self.memory = doubled(self.buffers), doubled(self.memory)
        self._trained: tuple[str, ...] = ("",)
        self._past: dict[str, tuple[int, Tensor, Tensor]] = {}

    def rand(self, *shape: int) -> Tensor:
        """Draw the uniform numbers of a cohort, in double precision."""
        return super().rand(*shape).double()

    @contextlib.contextmanager
    def training_only(self, *prefixes: str) -> Iterator[None]:
        """Train only the parameters with these prefixes within the context."""
        before, self._trained = self._trained, prefixes
        try:
            yield
        finally:
            self._trained = before

    def step(self, losses: Tensor) -> Params:
        """Take a step of Adam or of gradient descent that stays a function of the samples."""
        names = [name for name in self.params if name.startswith(self._trained)]
        own = [self.params[name] for name in names]
        found = torch.autograd.grad(losses.sum(), own, create_graph=True, allow_unused=True)
        grads = {name: g for name, g in zip(names, found, strict=True) if g is not None}
        # Later gradients are to see no earlier step: clones are nodes of their own.
        self.params = {name: p.clone() for name, p in self.params.items()}
        lr, adam = self.optimizer.training.lr, self.training.optimizer == "adam"
        for name, g in grads.items():
            change = self._adam(name, g) if adam else g
            self.params[name] = self.params[name] - lr * change
        return grads

    def _adam(self, name: str, g: Tensor) -> Tensor:
        nothing = torch.zeros_like(g)
        t, mean, square = self._past.get(name, (0, nothing, nothing))
        t, (one, two) = t + 1, BETAS
        mean, square = one * mean + (1 - one) * g, two * square + (1 - two) * g * g
        self._past[name] = t, mean, square
        # The root of 0 has no slope.
        return mean / (1 - one**t) / ((square / (1 - two**t) + 1e-30).sqrt() + EPSILON)


def doubled(tensors: Params) -> Params:
    """Return tensors in double precision, except integers and truth values."""
    return {n: t.double() if t.is_floating_point() else t for n, t in tensors.items()}


def add_with_gradient(means: prototypes.PrototypeMeans, features: Tensor, keys: Tensor) -> None:
    """Add features to means of keys, as `PrototypeMeans.add` does, and keep their gradient."""
    member = F.one_hot(keys, means.n_keys).to(features)
    sums, counts = member.mT @ features, member.sum(1)
    before = means._sums, means._counts
    means._sums = sums if before[0] is None else before[0] + sums
    means._counts = counts if before[1] is None else before[1] + counts


@dataclasses.dataclass(frozen=True, eq=False)
class Sent:
    """What one of the victims would send in the first round, as a function of its readings.

    Attributes:
        victims: the cells.
        cell: number of the attacked one.
    """

    victims: Victims
    cell: int

    def __call__(self, readings: Tensor) -> dict[str, Tensor]:
        """Return the upload for readings `(steps,)`, by name."""
        v, ids = self.victims, torch.tensor([self.cell])
        own = dataclasses.replace(v.samples.take(ids), tensors=self._samples(readings))
        training, seed = v.method.training, v.config.run.seed
        cohort = Unrolled(v.state.clients, ids, own, training, seed, 0, copied=True)
        cohort.begin()
        v.method.population.train(True)
        sizes = v.samples.sizes
        to = Participants(ids, sizes[ids], 0)
        payload = v.method.broadcast(v.state.server, to)
        with v.method.population.drawing(cohort.generators):
            sent = v.method.local_update(cohort, doubled(payload))
        return {n: cohort.params.get(n, t) for n, t in sent.items() if t.is_floating_point()}

    def _samples(self, readings: Tensor) -> Batch:
        """Return the cell's samples with other readings."""
        v, of = self.victims, self.victims.inputs
        rest = v.samples.take(torch.tensor([self.cell])).tensors
        padded = torch.cat([readings, readings.new_zeros(1)])
        x = torch.cat([padded[of.steps], of.known], dim=1)[None]
        changed = {"x": x, "y": readings[of.targets][None]}
        if "x_next" in rest:
            window, starts = v.data.window, v.data.split.train
            lags = (*window.lags, *window.further_lags)
            later = source_steps(starts + 1, lags, window, v.data.calendar)
            changed["x_next"] = padded[torch.from_numpy(later)][None]
        return {**rest, **changed}


@contextlib.contextmanager
def with_gradients() -> Iterator[None]:
    """Compute without kernels and with gradients of prototypes within the context."""
    with (
        mock.patch.object(compiler, "library", return_value=None),
        mock.patch.object(prototypes.PrototypeMeans, "add", add_with_gradient),
    ):
        yield


def inverted(victims: Victims, cell: int, guess: Tensor) -> Tensor:
    """Return the readings `(steps, 1)` of a cell with which it would send what it sent."""
    sent = {n: t[[cell]].double() for n, t in victims.sent.items() if t.is_floating_point()}
    simulate = Sent(victims, cell)
    with with_gradients():
        first = simulate(guess[:, 0])
        scale = squares(first, sent).detach()
        return fitted(lambda x: squares(simulate(x), sent) / scale, guess[:, 0])[:, None]


def squares(found: Mapping[str, Tensor], sent: Mapping[str, Tensor]) -> Tensor:
    """Return the sum of squared differences."""
    return torch.stack([(found[n] - t).square().sum() for n, t in sent.items()]).sum()


def fitted(error: Callable[[Tensor], Tensor], start: Tensor) -> Tensor:
    """Return what has the smallest error on the way of Adam, then of L-BFGS, from a start."""
    x, least, best = start.clone().requires_grad_(), math.inf, start

    def slope() -> Tensor:
        nonlocal least, best
        found = error(x)
        if float(found.detach()) < least:
            least, best = float(found.detach()), x.detach().clone()
        (x.grad,) = torch.autograd.grad(found, x)
        return found

    first = torch.optim.Adam([x], lr=RATE)
    for _ in range(STEPS[0]):
        first.step(slope)
    with torch.no_grad():
        x.copy_(best)
    torch.optim.LBFGS([x], max_iter=STEPS[1], line_search_fn="strong_wolfe").step(slope)
    return best
