"""Mixture of several forecasts of each cell, by the errors that are known already.

One forecast after the other is mixed into those before it. Its weight is the least-squares one of
the last seven days (Granger, Ramanathan, "Improved methods of combining forecasts", Journal of
Forecasting 3, 1984), drawn to a usual one and kept between 0 and 1. Weights depend on the cell's
own readings before the window alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from stforecast.data.clock import Calendar
from stforecast.data.dates import WEEK
from stforecast.data.window_spec import WindowSpec
from stforecast.data.windows import training_targets

PER_HORIZON = 4
"""Windows whose errors count, per horizon: those of each step would take long to forecast."""


class Usual(NamedTuple):
    """What a weight is drawn to.

    Attributes:
        weight: the usual weight.
        counts: what it counts as, as a share of what a whole week of errors counts.
    """

    weight: float
    counts: float = 0.2


def weights(
    forecasts: Callable[[np.ndarray], Sequence[np.ndarray]],
    usual: Sequence[Usual],
    series: np.ndarray,
    starts: np.ndarray,
    spec: WindowSpec,
    calendar: Calendar,
) -> np.ndarray:
    """Return the weights of all forecasts but the first, `(forecasts - 1, cells, windows)`.

    Args:
        forecasts: function of first target steps that returns the forecasts of these windows,
            `(cells, windows, horizon)` each.
        usual: what the weight of each but the first is drawn to.
        series: `(steps, cells)`, z-scored, NaN where missing; read before each start only.
        starts: `(windows,)` first target steps of the windows to forecast.
        spec: the windows' shape.
        calendar: the series' wall clock.
    """
    every, week = max(1, spec.horizon // PER_HORIZON), calendar.steps_in(WEEK)
    known = np.asarray(starts) - spec.horizon
    begin = max(spec.max_lag, known.min() + 1 - week)
    origins = np.arange(-(-begin // every) * every, known.max() + 1, every)
    if not len(origins):
        shape = len(usual), series.shape[1], len(starts)
        return np.broadcast_to(np.reshape([of.weight for of in usual], (-1, 1, 1)), shape)
    first, *others = forecasts(origins)
    y, mask = training_targets(series, origins, spec, calendar)
    changes = [np.where(mask, part - first, 0.0).astype(np.float64) for part in (*others, y)]
    start, end = (np.searchsorted(origins, k, side="right") for k in (known - week, known))
    weeks = week / (every * np.maximum(end - start, 1))

    def known_sum(one: np.ndarray, other: np.ndarray) -> Tensor:
        total = np.pad((one * other).sum(-1).cumsum(1), ((0, 0), (1, 0)))
        return torch.from_numpy(total[:, end] - total[:, start])

    products = torch.stack(
        [torch.stack([known_sum(one, other) for other in changes]) for one in changes]
    )
    return in_turn(products, torch.from_numpy(weeks), usual).numpy()


def in_turn(products: Tensor, weeks: Tensor | float, usual: Sequence[Usual]) -> Tensor:
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
