"""Mixture of several forecasts of each cell, by the errors that are known already.

One forecast after the other is mixed into those before it. Its weight is the least-squares one of
the last seven days (Granger, Ramanathan, "Improved methods of combining forecasts", Journal of
Forecasting 3, 1984), drawn to a usual one and kept between 0 and 1.

The last two of them correct what the others give together, with their usual weights. One adds a
line, a + b m for the forecast m, fitted to the errors of the last two days, for levels and
amplitudes that have changed (Mincer, Zarnowitz, "The evaluation of economic forecasts", 1969). The
other adds the mean error at the same time of the last seven days.

Errors that are large beside the cell's readings of a week count as Huber's loss counts them, so
that a burst does not decide. Everything depends on the cell's own readings before the window alone,
and, up to rounding, not on which other windows are asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import combinations_with_replacement
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from stforecast.data.window_spec import WindowSpec

TRUSTED = 1.0
"""Largest error that counts in full, in standard deviations of a week's readings."""

RECENT = 2
"""Days whose errors the line is fitted to."""

PRIOR = 20.0
"""Steps without an error that the line is drawn to, where errors are as large as z-scored readings
vary; of smaller errors, as many times fewer as their squares are smaller."""

HABIT = 1.0
"""Days without an error that the mean error at a time of the day is drawn to."""

SMALLEST = 1e-9
"""Smallest size of what is divided by."""


class UsualWeight(NamedTuple):
    """The usual weight of a forecast, to which errors that are few draw the fitted one.

    Attributes:
        weight: the usual weight.
        counts: how much it counts, as a share of a whole week of errors.
    """

    weight: float
    counts: float = 0.2


NEWEST = UsualWeight(0.0, 0.5)
"""Weight of the newest reading as a forecast."""

CORRECTIONS = (UsualWeight(0.0, 0.5), UsualWeight(0.0, 0.5))
"""Weights of the line and of the mean error at a time of the day."""


class MixtureWindows(NamedTuple):
    """Windows whose errors are known in part, and then those to forecast.

    Attributes:
        first: `(windows,)` their first target steps.
        targets: `(windows, horizon)` the steps of their targets.
        horizon: number of targets of a window.
        n_known: number of windows whose errors are known in part.
        every: steps between these.
        before: function of steps and of how many steps before them, by the wall clock.
        day: steps of a day.
    """

    first: np.ndarray
    targets: Tensor
    horizon: int
    n_known: int
    every: int
    before: Callable[[Tensor, Tensor], Tensor]
    day: int

    @property
    def asked(self) -> np.ndarray:
        """First target steps of the windows to forecast."""
        return self.first[self.n_known :]

    @property
    def per_step(self) -> float:
        """Known windows that have the same target."""
        return self.horizon / self.every

    @property
    def week(self) -> int:
        """Steps of a week."""
        return 7 * self.day


def error_windows(starts: np.ndarray, spec: WindowSpec, week: int) -> tuple[np.ndarray, int]:
    """Return windows whose errors the mixture of others reads, and the steps between them.

    Args:
        starts: `(windows,)` first target steps of the others.
        spec: the windows' shape.
        week: steps of a week.

    Returns:
        First target steps, some of which are so late that a part of their targets is known alone.
    """
    # Four windows a horizon: to forecast one at each step would take long.
    every = max(1, spec.horizon // 4)
    # A week of windows, whose corrections read a week of errors.
    begin = max(spec.max_lag, min(starts) + 1 - 2 * (week + spec.horizon))
    return np.arange(-(-begin // every) * every, max(starts), every), every


def mixed(
    forecasts: Sequence[Tensor],
    usual: Sequence[UsualWeight],
    y: Tensor,
    spread: Tensor,
    windows: MixtureWindows,
    n_mixed: int | None = None,
) -> tuple[Tensor, Tensor]:
    """Return the mixture of forecasts, and the weight of each but the first.

    Args:
        forecasts: `(cells, windows, horizon)` each, z-scored.
        usual: what the weight of each but the first is drawn to.
        y: `(cells, known, horizon)` targets of the known windows, NaN where missing.
        spread: `(cells, known)` standard deviations of the readings of the week before these.
        windows: the windows.
        n_mixed: how many are mixed into the first, with the weights that they have among all.

    Returns:
        `(cells, asked, horizon)` and `(forecasts - 1, cells, asked)`, in double precision. Where
        any window is known, the weights of the two corrections follow.
    """
    n = windows.n_known
    together, others = forecasts[0].double(), list(zip(forecasts[1:], usual, strict=True))
    for forecast, of in others if n else others[:n_mixed]:
        together = together + of.weight * (forecast - together)
    if not n:
        of_usual = [torch.full_like(together[..., 0], of.weight) for of in usual]
        return together, torch.stack(of_usual)
    error = (y - together[:, :n]).nan_to_num(0.0)
    trust = TRUSTED * spread[..., None] / error.abs().clamp(min=SMALLEST)
    trust = trust.clamp(max=1.0) * ~y.isnan()
    corrections = (of(together, error, trust, windows) for of in (line, habit))
    candidates: list[Tensor] = [*forecasts, *(together + correction for correction in corrections)]
    first = candidates[0][:, :n].double()
    changes = [(of[:, :n] - first).nan_to_num(0.0) * trust.sqrt() for of in (*candidates[1:], y)]
    end, start = (
        np.searchsorted(windows.first[:n], windows.asked - windows.horizon - back, "right")
        for back in (0, windows.week)
    )
    weeks = windows.week / (windows.every * np.maximum(end - start, 1))

    def known_sum(one: Tensor, other: Tensor) -> Tensor:
        total = _summed((one * other).sum(-1))
        return total[:, end] - total[:, start]

    places = range(len(changes))
    pairs = {
        (i, k): known_sum(changes[i], changes[k])
        for i, k in combinations_with_replacement(places, 2)
    }
    products = torch.stack(
        [torch.stack([pairs[min(i, k), max(i, k)] for k in places]) for i in places]
    )
    shares = in_turn(products, torch.from_numpy(weeks), (*usual, *CORRECTIONS))
    found = candidates[0][:, n:].double()
    for share, forecast in zip(shares[:n_mixed], candidates[1:][:n_mixed], strict=True):
        found = torch.lerp(found, forecast[:, n:].double(), share[..., None])
    return found, shares


def line(forecast: Tensor, error: Tensor, trust: Tensor, windows: MixtureWindows) -> Tensor:
    """Return a + b m of each forecast m, fitted to the errors of the last days.

    Args:
        forecast: `(cells, windows, horizon)`.
        error: `(cells, known, horizon)` its errors, 0 where unknown.
        trust: what each of these counts as, 0 where unknown.
        windows: the windows.
    """
    m = forecast[:, : windows.n_known]
    parts = [trust, trust * error, trust * m, trust * m * m, trust * m * error, trust * error**2]
    totals, end = _summed(_by_step(parts, windows)), windows.first - windows.first[0]
    end = end.clip(0)  # Some windows begin before the first known one.
    recent = totals[..., end] - totals[..., (end - RECENT * windows.day).clip(0)]
    count, errors, levels, squares, products, losses = recent
    some = count.clamp(min=SMALLEST)
    mean, prior = levels / some, windows.per_step * PRIOR * losses / some
    a = errors / (count + prior).clamp(min=SMALLEST)
    variance = (squares - levels * mean).clamp(min=0)
    b = (products - errors * mean) / (variance + prior).clamp(min=SMALLEST)
    return a[..., None] + b[..., None] * (forecast - mean[..., None])


def habit(forecast: Tensor, error: Tensor, trust: Tensor, windows: MixtureWindows) -> Tensor:
    """Return the mean error at the time of day of each target; the arguments are those of `line`.

    It is that of the last seven steps at this time that are known when the window begins.
    """
    by_step, day = _by_step([trust, trust * error], windows), windows.day
    first, origin = torch.from_numpy(windows.first)[:, None], int(windows.first[0])
    steps = origin + torch.arange(by_step.shape[-1])
    of_week = by_step
    for back in range(1, 7):
        at = windows.before(steps, torch.full_like(steps, back * day)) - origin
        of_week = of_week + torch.where(at >= 0, by_step[..., at.clamp(min=0)], 0.0)
    days = torch.div(windows.targets - first, day, rounding_mode="floor") + 1
    latest, earlier = (windows.before(windows.targets, d * day) for d in (days, days + 1))
    at = torch.where(latest < first, latest, earlier) - origin  # A clock may be changed between.
    count, total = torch.where(at >= 0, of_week[..., at.clamp(min=0)], 0.0)
    return total / (count + HABIT * windows.per_step)


def _by_step(parts: Sequence[Tensor], windows: MixtureWindows) -> Tensor:
    """Return sums of values of targets by their steps, from the first window's on.

    Args:
        parts: `(cells, known, horizon)` each.
        windows: the windows.

    Returns:
        `(parts, cells, steps)`.
    """
    steps = windows.targets[: windows.n_known].flatten() - windows.first[0]
    values = torch.stack(list(parts)).flatten(2)
    n_steps = int(windows.first.max() - windows.first[0]) + windows.horizon
    sums = values.new_zeros(*values.shape[:2], n_steps)
    return sums.scatter_add(2, steps.expand_as(values), values)


def _summed(values: Tensor) -> Tensor:
    """Return the sums of the first 0, 1, … of the last axis."""
    return torch.nn.functional.pad(values.cumsum(-1), (1, 0))


def in_turn(products: Tensor, weeks: Tensor | float, usual: Sequence[UsualWeight]) -> Tensor:
    """Return the weight of each forecast in a mixture of those before it, `(forecasts - 1, …)`.

    Args:
        products: `(forecasts, forecasts, …)` sums of products of differences from the first
            forecast: those of the others, in their order, and of the targets.
        weeks: by how many times a week has more windows than the sums.
        usual: what each weight is drawn to.
    """
    found: list[Tensor] = []
    shares = products[0, :0]  # of the forecasts that the mixture has so far
    for k, (drawn_to, counts) in enumerate(usual):
        # From the mixture, a forecast or target differs by its difference less the shares' ones.
        factors = torch.cat([-shares, torch.ones_like(products[0, :1])])
        both = factors[:, None] * factors
        variance, covariance = (
            (both * products[: k + 1, [*range(k), of]]).sum((0, 1)) for of in (k, len(usual))
        )
        sure, prior = variance > 0, counts * weeks
        weight = covariance + prior * variance * drawn_to
        weight = weight / torch.where(sure, variance * (1 + prior), 1.0)
        found.append(torch.where(sure, weight.clamp(0.0, 1.0), drawn_to))
        shares = torch.cat([shares * (1 - found[-1]), found[-1][None]])
    return torch.stack(found)
