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
from collections.abc import Callable, Iterator, Mapping, Sequence
from unittest import mock

import torch
from torch import Tensor
from torch.nn import functional as F

from experiments.benchmarks.inversion import Senders, least_squares
from stforecast.federated.core import prototypes
from stforecast.federated.core.state import Cohort, Participants, ServerState, generator
from stforecast.federated.core.tensors import Params
from stforecast.federated.core.training import BETAS, EPSILON
from stforecast.federated.engine.trainer import DROPOUT
from stforecast.federated.kernels import compiler
from stforecast.methods import fedpm

STEPS, RATE = (150, 60), 0.05
"""Steps of Adam and of L-BFGS that change the guess, and the rate of the former."""

SOLVED, APART = 15, 1e-6
"""Steps of the Levenberg-Marquardt method, and differences from which it finds slopes."""


class Unrolled(Cohort):
    """A cohort whose steps autograd can differentiate: parameters become functions of samples."""

    trained: tuple[str, ...] = ("",)
    _past: dict[str, tuple[int, Tensor, Tensor]]

    def begin(self, seed: int, round: int, payload: Params) -> None:
        """Start a round in double precision, from the payload and the kept tensors."""
        self.generators = [generator(seed, round, int(i)) for i in self.ids]
        self.round, self.epoch, self.records, self.scratch = round, 0, {}, {}
        own = {n: payload.get(n, t).double().clone() for n, t in self.params.items()}
        self.params = {n: t.requires_grad_() for n, t in own.items()}
        self.buffers, self.memory = doubled(self.buffers), doubled(self.memory)
        if not round or self.training.optimizer_state != "keep":
            self._past = {}

    def rand(self, *shape: int) -> Tensor:
        """Draw the uniform numbers of a cohort, in double precision."""
        return super().rand(*shape).double()

    @contextlib.contextmanager
    def training_only(self, *prefixes: str) -> Iterator[None]:
        """Train only the parameters with these prefixes within the context."""
        before, self.trained = self.trained, prefixes
        try:
            yield
        finally:
            self.trained = before

    def step(self, losses: Tensor) -> Params:
        """Take a step of Adam or of gradient descent that stays a function of the samples."""
        names = [name for name in self.params if name.startswith(self.trained)]
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
class UnrolledUploads:
    """What a node would send in the first rounds, as a function of the sought values.

    Attributes:
        senders: all clients.
        ids: numbers of the node's clients, whose mean upload it sends.
        heard: the server's state before each of the rounds.
    """

    senders: Senders
    ids: Tensor
    heard: Sequence[ServerState]

    def __call__(self, values: Tensor) -> Params:
        """Return the uploads for values `(…, clients)`, by number of the round and name."""
        of, ids = self.senders, self.ids
        method, seed, own = of.method, of.seed, of.with_values(ids, values)
        cohort = Unrolled(of.state.clients, ids, own, method.training, seed, 0, copied=True)
        # Else its encoder would follow the memory. In a few rounds it hardly moves.
        cohort.trained = ("memory",) if isinstance(method, fedpm.FedPM) else ("",)
        method.population.train(True)
        found: Params = {}
        for round, server in enumerate(self.heard):
            to = Participants(ids, of.samples.sizes[ids], round)
            payload = doubled(method.broadcast(server, to))
            cohort.begin(seed, round, payload)
            dropped = [generator(seed, round, int(i), DROPOUT) for i in ids]
            with method.population.drawing(dropped):
                sent = method.local_update(cohort, payload)
            # Uploads are detached where they are parameters. Buffers have no gradient.
            grown = {n: cohort.params.get(n, t) for n, t in sent.items() if n not in cohort.buffers}
            found |= {f"{round}/{n}": t for n, t in as_sent(grown).items()}
        return found


def as_sent(upload: Params) -> Params:
    """Return the mean over cells of the parts of an upload that are not counts."""
    floats = {n: t for n, t in upload.items() if t.is_floating_point()}
    return {n: t.double().mean(0) for n, t in floats.items()}


def nearest_with_gradient(vectors: Tensor, memory: Tensor, _: float) -> tuple[Tensor, ...]:
    """Return what `nearest_prototypes` does, and keep the gradient of vectors in the loss.

    The loss is only of the memory.
    """
    places = fedpm.nearest(vectors.detach(), memory.detach())
    chosen = prototypes.by_key(memory, places)
    return chosen.detach(), places, (chosen - vectors).square().mean((1, 2))


@contextlib.contextmanager
def with_gradients() -> Iterator[None]:
    """Compute without kernels and with gradients of prototypes within the context."""
    with (
        mock.patch.object(compiler, "library", return_value=None),
        mock.patch.object(prototypes.PrototypeMeans, "add", add_with_gradient),
        mock.patch.object(fedpm, "nearest_prototypes", nearest_with_gradient),
    ):
        yield


def inverted(senders: Senders, guess: Tensor, uploads: int = 1, solving: bool = False) -> Tensor:
    """Return values with which a node would send what it sent.

    Args:
        senders: all clients; the node has the first ones.
        guess: values of these to begin with, `(…, clients)`.
        uploads: number of rounds whose uploads are used.
        solving: whether to solve nonlinear equations instead of following gradients.
    """
    heard, sent = zip(*senders.rounds(uploads), strict=True)
    ids = torch.arange(guess.shape[-1])
    simulate, target = UnrolledUploads(senders, ids, heard), dict[str, Tensor]()
    for round, upload in enumerate(sent):
        own = as_sent({n: t[ids] for n, t in upload.items()})
        target |= {f"{round}/{n}": t for n, t in own.items()}

    def errors(values: Tensor) -> Tensor:
        sent = simulate(values)
        apart = [(t - target[n]).detach().flatten() for n, t in sent.items()]
        return torch.cat(apart) / scale.sqrt()

    def slopes(values: Tensor, now: Tensor) -> Tensor:
        each = APART * torch.eye(values.numel(), dtype=values.dtype)
        apart = each.view(len(each), *values.mT.shape).mT
        return torch.stack([(errors(values + x) - now) / APART for x in apart], dim=1)

    with with_gradients():
        scale = squares(simulate(guess), target).detach()
        if solving:
            return least_squares(errors, slopes, guess, SOLVED)
        return fitted_values(lambda x: squares(simulate(x), target) / scale, guess)


def squares(found: Mapping[str, Tensor], sent: Mapping[str, Tensor]) -> Tensor:
    """Return the sum of squared differences."""
    return torch.stack([(t - sent[n]).square().sum() for n, t in found.items()]).sum()


def fitted_values(error: Callable[[Tensor], Tensor], start: Tensor) -> Tensor:
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
