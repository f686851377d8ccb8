"""What is mixed with a trained method's own forecasts, for each cell by the errors known so far.

In this order: its second expert, the weekly profile, the pretrained network and, where any of these
is mixed in, the newest reading; see `stforecast.forecasting.mixture` for the weights.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from stforecast.baselines.pretrained import Past, WallClock, forecasts, suits
from stforecast.data.anchors import anchors, without_anchors
from stforecast.data.clock import Calendar
from stforecast.data.dates import DAY, WEEK
from stforecast.data.weekly_profile import at_targets
from stforecast.data.window_spec import WindowSpec
from stforecast.data.windows import History, training_targets
from stforecast.federated.core.method import Method
from stforecast.forecasting.mixture import NEWEST, MixtureWindows, UsualWeight, error_windows, mixed
from stforecast.methods.mixing import MixesForecasts

MOST_CELLS = 300
"""Most cells whose forecasts are mixed with those of the pretrained network, which takes long."""


@dataclass(frozen=True)
class Mixture:
    """What is mixed with the forecasts of a method.

    Attributes:
        window: the windows of its forecasts.
        n_levels: number of quantiles that it forecasts; of these, the middle one is weighed.
        has_experts: whether it has a second expert.
        pretrained: whether the pretrained network is mixed in, if it suits the data's steps.
        n_trained: steps of the training part.
        n_mixed: how many of these are mixed in, for `stforecast.forecasting.explain`; None for all.
    """

    window: WindowSpec
    n_levels: int
    has_experts: bool = False
    pretrained: bool = False
    n_trained: int = 0
    n_mixed: int | None = None

    @classmethod
    def of(
        cls, method: Method, window: WindowSpec, n_levels: int, n_cells: int, n_trained: int
    ) -> Mixture:
        """Return what is mixed with a method's forecasts of so many cells."""
        if not isinstance(method, MixesForecasts):
            return cls(window, n_levels)
        pretrained = method.mixes_pretrained and n_cells <= MOST_CELLS
        return cls(window, n_levels, method.has_experts, pretrained, n_trained)

    def reads_pretrained(self, step: pd.Timedelta) -> bool:
        """Return whether the pretrained network is mixed in for data of this step."""
        return self.pretrained and suits(step)

    def usual_weights(self, step: pd.Timedelta) -> list[UsualWeight]:
        """Return the usual weight of each forecast that is mixed in; none if nothing is."""
        found = [UsualWeight(0.5), UsualWeight(0.0)] if self.has_experts else []
        if self.reads_pretrained(step):
            weight = pretrained_weight(self.window.horizon, step, self.n_trained * step / DAY)
            found.append(UsualWeight(weight, 2.0))
        return [*found, NEWEST] if found else []

    def known_windows(self, starts: np.ndarray, calendar: Calendar) -> np.ndarray:
        """Return the first target steps of windows whose errors weigh the forecasts of others."""
        return error_windows(starts, self.window, calendar.steps_in(WEEK))[0]

    def bytes_of_cell(self, starts: np.ndarray, calendar: Calendar) -> int:
        """Return the memory that the mixture takes for windows of a cell: 128 bytes a target."""
        if not len(starts) or not self.usual_weights(calendar.step):
            return 0
        n_windows = len(self.known_windows(starts, calendar)) + len(starts)
        return 128 * n_windows * self.window.horizon

    def mixed(
        self,
        known: np.ndarray,
        outputs: np.ndarray,
        history: History,
        starts: np.ndarray,
        plain: np.ndarray | None = None,
        observed: np.ndarray | None = None,
    ) -> np.ndarray:
        """Mix a method's outputs, of two experts or one, with other forecasts.

        Args:
            known: `(cells, known windows, experts * horizon * levels)` its outputs for the
                `error_windows`.
            outputs: `(cells, windows, experts * horizon * levels)`.
            history: what windows are cut from.
            starts: `(windows,)` first target steps.
            plain: all outputs as if there were no holiday or event, if windows read these. The
                profile and the network, which know none, are moved by the difference.
            observed: the series as it was, if it was filled: only its readings are targets.

        Returns:
            `(cells, windows, horizon * levels)`. What is not an expert moves all levels equally.
        """
        window, horizon, middle = self.window, self.window.horizon, self.n_levels // 2
        series, calendar = history.z, history.calendar
        origins, every = error_windows(starts, window, calendar.steps_in(WEEK))
        first, clock = np.concatenate([origins, starts]), WallClock.of(calendar)
        past, targets = Past(torch.tensor(series), clock), first[:, None] + np.arange(horizon)
        others: list[np.ndarray] = []
        if history.profile is not None and self.has_experts:
            others.append(at_targets(history.profile.profile, first, horizon, calendar))
        if self.reads_pretrained(calendar.step):
            others.append(forecasts(past, first, horizon))
        others.append(anchors(series, first, horizon, "change", calendar))
        changes = [without_anchors(of, series, first, window.target, calendar) for of in others]
        changes = [calendar.on_wall_clock(np.nan_to_num(of), first) for of in changes]
        # Targets of the latest windows whose errors are known in part are beyond the series.
        beyond = np.full((horizon, series.shape[1]), np.nan, series.dtype)
        of_targets = np.concatenate([series if observed is None else observed, beyond])
        y, seen = training_targets(of_targets, origins, window, calendar)
        own = np.concatenate([known, outputs], axis=1)
        shape = 1 + self.has_experts, horizon, self.n_levels
        experts = torch.from_numpy(own).unflatten(-1, shape)
        if plain is not None:
            moved = (own - plain).reshape(*own.shape[:2], *shape)[..., middle].mean(2)
            changes[:-1] = [change + moved for change in changes[:-1]]
        steps = calendar.on_wall_clock(targets[None], first)[0]
        found, weights = mixed(
            [*experts[..., middle].unbind(2), *(torch.from_numpy(of) for of in changes)],
            self.usual_weights(calendar.step),
            torch.from_numpy(np.where(seen, y, np.nan)),
            past.scale(torch.from_numpy(origins))[1],
            MixtureWindows(
                first, torch.from_numpy(steps), horizon, len(origins), every,
                clock.before, clock.day,
            ),
            self.n_mixed,
        )  # fmt: skip
        return mixed_levels(experts[:, len(origins) :], found, weights).flatten(2).numpy()


def pretrained_weight(horizon: int, step: pd.Timedelta, days: float) -> float:
    """Return the usual weight of the pretrained network after so many days of training.

    After few days it is larger, by the cube root of the days ahead: few days tell a method little
    of others, and its errors on them are small. It is halfway at eleven days. Chosen on the sets of
    docs/results/default.md.

    >>> [round(pretrained_weight(24, pd.Timedelta("1h"), days), 2) for days in (3, 11, 14, 999)]
    [0.95, 0.7, 0.45, 0.45]
    """
    many = 0.1 if horizon == 1 else 0.45
    more = (0.95 - many) * min(1.0, horizon * step / DAY) ** (1 / 3)
    return many + more * (1 - math.tanh(days - 11)) / 2


def mixed_levels(experts: Tensor, found: Tensor, weights: Tensor) -> Tensor:
    """Return the experts' levels, mixed by their weights and moved to a mixture of the middle ones.

    Args:
        experts: `(cells, windows, experts, horizon, levels)`.
        found: `(cells, windows, horizon)` the mixture of the middle levels with all else.
        weights: `(forecasts - 1, cells, windows)`, of the experts but the first to begin with.

    Returns:
        `(cells, windows, horizon, levels)`, in single precision.
    """
    levels, *others = experts.unbind(2)
    for weight, expert in zip(weights, others, strict=False):
        levels = levels + weight[..., None, None] * (expert - levels)
    middle = levels[..., levels.shape[-1] // 2]
    return (levels + (found - middle)[..., None]).float()
