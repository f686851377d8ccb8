"""Attacks that solve for readings, given what a method sends: used by the benchmark `disclosure`.

The attacker knows the code, the settings, the seed, the calendar and the numbers of windows, and so
what each input of each window is as a function of the readings: linear in them. Whatever is a mean
of windows with weights that it knows gives linear equations for the readings.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from stforecast.data.prepared import PreparedSeries, prepare
from stforecast.data.series import as_series
from stforecast.data.weekly_profile import WeeklyProfile
from stforecast.data.windows import source_steps
from stforecast.federated.core.data import ClientData
from stforecast.federated.core.method import Method, initial_state
from stforecast.federated.core.state import Cohort, ServerState, State
from stforecast.federated.core.tensors import Payload
from stforecast.federated.engine.rounds import Server
from stforecast.federated.engine.trainer import Trainer
from stforecast.federated.nodes.membership import Patience
from stforecast.flower.settings import RunSettings
from stforecast.forecasting.config import resolve
from stforecast.forecasting.trained_method import build_method, client_samples

SPLIT = "time:0.7,0.15,0.15"


class Recovered(NamedTuple):
    """What an attack found: readings `(steps, cells)`, the truth, and the guess."""

    found: Tensor
    truth: Tensor
    guess: Tensor


@dataclass(frozen=True, eq=False)
class Senders:
    """Clients that take part in a run as on nodes, and send what an attack is on.

    Attributes:
        method: the method before the first round.
        samples: training samples.
        seed: seed of the run.
    """

    method: Method
    samples: ClientData
    seed: int

    @cached_property
    def state(self) -> State:
        """State before the first round."""
        state = initial_state(self.method, self.samples.sizes, self.seed)
        state.clients.memory |= self.method.sample_memory(self.samples)
        return state

    def cohort(self) -> Cohort:
        """Return all clients as a cohort of the first round, on copies of their state."""
        ids, training = torch.arange(len(self.samples)), self.method.training
        return Cohort(self.state.clients, ids, self.samples, training, self.seed, 0, copied=True)

    @cached_property
    def sent(self) -> Payload:
        """What each client sends in the first round, `(clients, …)`."""
        return self.rounds(1)[0][1]

    def rounds(self, n: int) -> list[tuple[ServerState, Payload]]:
        """Return the server's state before each of the first rounds, and the uploads."""
        trainer = Trainer(self.method, self.samples, None, seed=self.seed, device="cpu")
        server, ids = Server(self.method, trainer.state, n), torch.arange(len(self.samples))
        found = list[tuple[ServerState, Payload]]()
        for _ in range(n):
            found.append((trainer.state.server, trainer.train(ids).upload))
            server.aggregate(ids, found[-1][1])
        return found

    def with_values(self, ids: Tensor, values: Tensor) -> ClientData:
        """Return the training samples of some clients with other values of the readings.

        The values are `(…, clients)`.
        """
        raise NotImplementedError


@dataclass(frozen=True, eq=False)
class Victims(Senders):
    """Cells that take part in a run with a method's defaults, as on nodes.

    Attributes:
        data: the cells' prepared series.
    """

    data: PreparedSeries

    @classmethod
    def of(cls, table: pd.DataFrame, method: str, horizon: int, **settings: Any) -> Victims:
        """Prepare hourly readings `(time, cell)` as nodes do."""
        asked = resolve(method, horizon=horizon, split=SPLIT, device="cpu", **settings)
        config = RunSettings(asked, table.shape[1], Patience(), "").chosen
        series, own = as_series(table, None, config.window), config.data
        data = prepare(series, config.window, own.split, own.scale, config.clients, own.outliers)
        built = build_method(config)
        samples, _ = client_samples(built, data, data.split.train, data.split.validation)
        return cls(built, samples, config.run.seed, data)

    @property
    def readings(self) -> Tensor:
        """The z-scored readings of the training part, `(steps, cells)`: what is to be found."""
        last = int(self.data.split.train[-1]) + self.data.window.horizon
        return torch.from_numpy(self.data.z[:last]).double()

    @cached_property
    def in_mean(self) -> Tensor:
        """Weights of the readings in the mean that z-scores have subtracted, `(steps,)`."""
        weights = torch.zeros(self.inputs.n, dtype=torch.float64)
        weights[self.data.split.fit] = 1
        return weights / weights.sum()

    def with_values(self, ids: Tensor, values: Tensor) -> ClientData:
        """Return the training samples of some cells with other readings, `(steps, cells)`."""
        of, rest = self.inputs, self.samples.take(ids)
        padded = torch.cat([values, values.new_zeros(1, len(ids))])
        known = of.known.expand(len(ids), -1, -1)
        x = torch.cat([padded[of.steps].permute(2, 0, 1), known], dim=2)
        changed = {"x": x, "y": values[of.targets].permute(2, 0, 1)}
        if "x_next" in rest.tensors:
            window, starts = self.data.window, self.data.split.train
            later = torch.from_numpy(source_steps(starts + 1, window, self.data.calendar))
            changed["x_next"] = padded[later].permute(2, 0, 1)
        return dataclasses.replace(rest, tensors={**rest.tensors, **changed})

    @cached_property
    def inputs(self) -> LinearWindows:
        """What every input and target of every window is, as a function of the readings."""
        return LinearWindows.of(self.data, len(self.readings))


@dataclass(frozen=True, eq=False)
class LinearWindows:
    """Inputs and targets of windows as linear functions of a cell's readings.

    Attributes:
        steps: `(windows, lags)` the reading of each input; -1 is none, which counts as 0.
        newest: `(windows,)` the newest reading.
        targets: `(windows, horizon)` the reading of each target.
        known: `(windows, known)` inputs from the calendar.
        profile: `(windows, inputs, readings)` inputs from the weekly profile.
    """

    steps: Tensor
    newest: Tensor
    targets: Tensor
    known: Tensor
    profile: Tensor

    @classmethod
    def of(cls, data: PreparedSeries, n: int) -> LinearWindows:
        """Find them from the windows of a prepared series, without its readings."""
        window, starts, calendar = data.window, data.split.train, data.calendar
        steps = torch.from_numpy(source_steps(starts, window, calendar))
        newest = torch.from_numpy(starts - 1)
        fallback = newest[:, None] if window.impute == "newest" else torch.tensor(-1)
        steps = torch.where(steps < 0, fallback, steps)
        n_known = window.n_known - window.n_profile
        x = torch.from_numpy(data.windows(starts).x[0])
        known = x[:, steps.shape[1] :][:, :n_known].double()
        profile = torch.zeros(len(starts), 0, n, dtype=torch.float64)
        if window.n_profile:
            of_each = WeeklyProfile.of(np.eye(n), window.horizon, calendar)
            inputs = of_each.inputs(starts, window.horizon, calendar)
            profile = torch.from_numpy(np.nan_to_num(inputs)).double().permute(1, 2, 0)
        targets = torch.from_numpy(starts[:, None] + np.arange(window.horizon))
        return cls(steps, newest, targets, known, profile)

    @property
    def n(self) -> int:
        """Number of readings."""
        return int(self.targets.max()) + 1

    def means(self, weights: Tensor, *, relative: bool) -> tuple[Tensor, Tensor, Tensor]:
        """Return weighted sums over windows as linear functions of the readings.

        Args:
            weights: `(m, windows)`.
            relative: whether the newest reading is subtracted from lags and targets.

        Returns:
            Coefficients of lags, profile and targets, `(inputs, m, readings)` each.
        """
        base = self._gathered(weights, self.newest) if relative else 0.0
        lags = torch.stack([self._gathered(weights, s) - base for s in self.steps.unbind(1)])
        targets = torch.stack([self._gathered(weights, s) - base for s in self.targets.unbind(1)])
        profile = torch.einsum("mw,wpt->pmt", weights, self.profile)
        return lags, profile, targets

    def _gathered(self, weights: Tensor, steps: Tensor) -> Tensor:
        found = weights.new_zeros(len(weights), self.n + 1)
        return found.index_add_(1, steps % (self.n + 1), weights)[:, : self.n]

    def changed(self, values: Tensor, *, relative: bool) -> Tensor:
        """Return how weighted sums of the inputs change with the readings.

        Args:
            values: `(windows, m)` weights.
            relative: whether the newest reading is subtracted from lags and targets.

        Returns:
            `(readings, inputs and targets, m)`.
        """
        parts = self.means(values.mT, relative=relative)
        return torch.cat(parts).permute(2, 0, 1)


def solved(equations: Tensor, values: Tensor, guess: Tensor, noise: float = 1e-7) -> Tensor:
    """Solve linear equations, and stay near a guess where they tell nothing.

    Args:
        equations: `(equations, readings)`.
        values: `(equations, cells)`.
        guess: `(readings, cells)`.
        noise: deviation of the values, in units of the guess's error.

    Returns:
        `(readings, cells)`, the most probable readings if both errors are Gaussian.
    """
    _, r = torch.linalg.qr(torch.cat([equations, values - equations @ guess], dim=1), mode="r")
    n = equations.shape[1]
    u, s, v = torch.linalg.svd(r[:n, :n], full_matrices=False)
    return guess + v.mT @ ((s / (s**2 + noise**2))[:, None] * (u.mT @ r[:n, n:]))


def least_squares(
    errors: Callable[[Tensor], Tensor],
    slopes: Callable[[Tensor, Tensor], Tensor],
    start: Tensor,
    steps: int,
) -> Tensor:
    """Return what has the smallest squared errors, by the Levenberg-Marquardt method.

    Args:
        errors: of values `(readings, cells)`, `(errors,)`.
        slopes: how the errors change with each reading of the first cell, then of the next ones,
            given values and their errors, `(errors, values)`.
        start: values to start from.
        steps: of the method, at most.
    """
    x, penalty, error = start.clone(), 1e-3, errors(start)
    for _ in range(steps):
        slope = slopes(x, error)
        curvature, downhill = slope.mT @ slope, slope.mT @ error
        for _ in range(10):
            damped = curvature + penalty * torch.eye(len(curvature), dtype=x.dtype)
            step = torch.linalg.solve(damped, downhill).view(x.shape[1], -1).mT
            found = errors(x - step)
            if found.norm() < error.norm():
                break
            penalty *= 4
        else:
            break
        x, error, penalty = x - step, found, max(penalty / 5, 1e-13)
        if error.norm() < 1e-6:
            break
    return x


@dataclass(frozen=True, eq=False)
class Products:
    """Sums over cells of the mean products of windows, as the attacker has them.

    Attributes:
        inputs: the windows.
        relative: whether the newest reading is subtracted from lags and targets.
        weights: `(m, windows)` known inputs, orthogonal.
        linear: `(inputs and targets, m)` mean products with these, summed over `cells`.
        quadratic: `(inputs, inputs and targets)` mean products of the others, summed likewise.
        scaled: `(readings,)` weights of the mean in z-scores.
        cells: number of cells.
    """

    inputs: LinearWindows
    relative: bool
    weights: Tensor
    linear: Tensor
    quadratic: Tensor
    scaled: Tensor
    cells: int

    @cached_property
    def equations(self) -> Tensor:
        """Linear equations for the sum of the cells' readings, `(equations, readings)`."""
        of_means = torch.cat(self.inputs.means(self.weights, relative=self.relative)).flatten(0, 1)
        return torch.cat([of_means, self.scaled[None]])

    def mean_reading(self, guess: Tensor) -> Tensor:
        """Solve for the mean of the cells' readings, `(readings, 1)`, near a guess of it."""
        return mean_readings([self], guess)

    def each_reading(self, start: Tensor, steps: int, every: int = 2) -> Tensor:
        """Solve for each cell's readings by the Levenberg-Marquardt method.

        Of the quadratic equations it takes one of `every`, since there are more than it needs.
        """
        some = torch.ones_like(self.quadratic, dtype=torch.bool).triu().nonzero()[::every].T

        def slopes(x: Tensor, _: Tensor) -> Tensor:
            return torch.cat([self._slopes(x, c, some) for c in range(self.cells)], dim=1)

        return least_squares(lambda x: self._errors(x, some), slopes, start, steps)

    def _windows(self, series: Tensor) -> Tensor:
        """Return the inputs and targets of a series, `(windows, inputs and targets)`."""
        of = self.inputs
        padded = torch.cat([series, series.new_zeros(1)])
        base = series[of.newest][:, None] if self.relative else 0.0
        lags, targets = padded[of.steps] - base, series[of.targets] - base
        return torch.cat([lags, of.profile @ series, targets], dim=1)

    def _errors(self, x: Tensor, some: Tensor) -> Tensor:
        windows = [self._windows(series) for series in x.unbind(1)]
        n, rows = len(self.inputs.newest), len(self.quadratic)
        linear = sum(w.mT @ self.weights.mT for w in windows) - self.linear
        products = sum(w[:, :rows].mT @ w for w in windows) / n - self.quadratic
        variance = self.scaled @ x.square() - self.scaled.sum()
        parts = linear.flatten(), products[tuple(some)], self.scaled @ x, variance
        return torch.cat(parts)

    def _slopes(self, x: Tensor, cell: int, some: Tensor) -> Tensor:
        """Return how the errors change with a cell's readings, `(errors, readings)`."""
        windows, rows = self._windows(x[:, cell]), len(self.quadratic)
        change = self.inputs.changed(windows, relative=self.relative) / len(windows)
        products = (change + change.mT)[:, :rows][:, some[0], some[1]].mT
        own = torch.zeros(2 * self.cells, len(x), dtype=x.dtype)
        own[cell], own[self.cells + cell] = self.scaled, 2 * self.scaled * x[:, cell]
        return torch.cat([self.equations[:-1], products, own])


def mean_readings(products: Sequence[Products], guesses: Tensor) -> Tensor:
    """Solve for the mean reading of each of several sums over the same windows.

    Args:
        products: the sums.
        guesses: `(readings, sums)`.

    Returns:
        `(readings, sums)`.
    """
    of_sums = [torch.cat([p.linear.flatten(), torch.zeros(1)]) / p.cells for p in products]
    return solved(products[0].equations, torch.stack(of_sums, dim=1), guesses)


def weekly_guess(readings: Tensor) -> Tensor:
    """Return the guess for each cell: the mean week of all other cells, z-scored.

    Hours of a weekday that the readings lack in some weeks count as often as they occur.
    """
    n, cells = readings.shape
    others = (readings.sum(1, keepdim=True) - readings) / max(cells - 1, 1)
    hours = torch.arange(n) % 168
    sums = torch.zeros(168, cells, dtype=readings.dtype).index_add_(0, hours, others)
    week = sums / torch.bincount(hours, minlength=168).clamp(min=1)[:, None]
    return z_scores(week[hours])


def z_scores(values: Tensor) -> Tensor:
    """Return series with mean 0 and deviation 1, `(steps, cells)`."""
    deviation = values.std(0, correction=0).clamp(min=1e-9)
    return (values - values.mean(0)) / deviation


def closeness(found: Tensor, truth: Tensor) -> dict[str, float]:
    """Return the shares of readings within .01 and .1 standard deviations, and the correlation."""
    error = (found - truth).abs()
    r = (z_scores(found) * z_scores(truth)).mean(0).mean()
    return {
        "within .01": float((error < 0.01).double().mean()),
        "within .1": float((error < 0.1).double().mean()),
        "correlation": 0.0 if math.isnan(r) else float(r),
    }
