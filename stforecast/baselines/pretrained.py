"""A small network that was trained on simulated traffic, and forecasts without further training.

It reads a cell's newest readings, hourly means of its last day, means of its last seven days, and
its readings at the target's time on former days. Each of these may be missing, and is then masked;
all are relative to the mean and the standard deviation of the last seven days. So one network
serves any step that divides a day, any horizon, and cells with little history.

Its training data were drawn at random by `experiments.pretrain`. They hold no record of any place,
so it cannot know the test part of any data. Networks that are trained only on simulated series
forecast real ones well (Dooley et al., "ForecastPFN: synthetically-trained zero-shot forecasting",
NeurIPS 2023). It forecasts one value between mean and median. Bounds come from the validation part,
as with every method.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch
from torch import Tensor
from torch.nn.functional import relu

from data_prep.base.errors import InputError, Words
from stforecast.baselines.base import Arrays, Baseline
from stforecast.data.clock import Calendar
from stforecast.data.dates import DAY

WEIGHTS = Path(__file__).with_name("pretrained.npz")
"""The trained network, in half precision; `experiments.pretrain` writes it."""

NEWEST = torch.arange(1, 25)
"""Steps before the first target whose readings are inputs; as many hourly means are."""

DAYS = torch.arange(1, 8)
"""Days before a target whose readings at its time are inputs, and whose means are."""

FEWEST = 8
"""Fewest steps of a day."""

SECONDS = 86400
"""Seconds of a day."""

BLOCK = 2**21
"""Inputs of targets that are in memory at a time."""


class WallClock(NamedTuple):
    """The wall clock of a series.

    Attributes:
        day: steps of a day.
        before: function of steps and of how many steps before them, by the wall clock; see
            `stforecast.data.clock.Calendar.before`.
        local: function of steps that returns the seconds from 1970 to their local times.
    """

    day: int
    before: Callable[[Tensor, Tensor], Tensor]
    local: Callable[[Tensor], Tensor]

    @classmethod
    def of(cls, calendar: Calendar) -> WallClock:
        """Return the wall clock of a calendar that `suits`."""

        def before(steps: Tensor, lags: Tensor) -> Tensor:
            return torch.from_numpy(calendar.before(steps.numpy(), lags.numpy()))

        def local(steps: Tensor) -> Tensor:
            times = calendar.local_times(steps.numpy().ravel()).as_unit("s")
            return torch.tensor(times.astype(np.int64).to_numpy()).reshape(steps.shape)

        return cls(calendar.steps_in(DAY), before, local)


def suits(step: pd.Timedelta) -> bool:
    """Return whether the network was trained for a step: a day has eight steps or more."""
    return not DAY % step and DAY // step >= FEWEST


class Inputs(NamedTuple):
    """Inputs of windows, relative to `mean` and `spread`.

    Attributes:
        window: `(cells, windows, of_window)` what all targets of a window share.
        target: `(cells, windows, horizon, of_target)`.
        mean: `(cells, windows)` of the last seven days; 0.0, the training mean, without a reading.
        spread: `(cells, windows)` standard deviation of these days.
    """

    window: Tensor
    target: Tensor
    mean: Tensor
    spread: Tensor


class Past:
    """A series, and sums that give the mean of any span of it.

    Args:
        series: `(steps, cells)`, z-scored, NaN where missing.
        clock: its wall clock.
    """

    def __init__(self, series: Tensor, clock: WallClock) -> None:
        self.clock, self.day = clock, clock.day
        values = series.T.double()
        known = ~values.isnan()
        self.values, zeroed = values.float(), values.nan_to_num(0.0)
        parts = torch.stack([known.double(), zeroed, zeroed**2])
        self._sums = torch.cat([torch.zeros_like(parts[..., :1]), parts.cumsum(-1)], dim=-1)

    def inputs(self, starts: Tensor, ahead: Tensor) -> Inputs:
        """Return the inputs of windows, which read nothing from their start on.

        Args:
            starts: `(windows,)` first target steps.
            ahead: `(horizon,)` steps from the last one before the windows to their targets.
        """
        first, hour = starts[:, None], max(self.day // 24, 1)
        mean, spread = self.scale(starts)
        hours, days = first - NEWEST * hour, first - DAYS * self.day
        of_window = [
            self._readings(first - NEWEST, first),
            self._means(hours, hours + hour, first),
            self._means(days, days + self.day, first),
        ]
        targets, of_target = first + ahead - 1, []
        # Of other days, also some steps before and after the same time are inputs, fewer of weeks.
        for former, beside in ((DAYS, 2), (torch.tensor([14, 21, 28]), 1)):
            at = self.clock.before(targets[..., None], former * self.day)
            around = at[..., None] + torch.arange(-beside, beside + 1)
            of_target.append(self._readings(around.flatten(2), first[..., None]))
            of_target.append(self._means(at - hour, at + hour + 1, first[..., None]))
        window = _masked(of_window, mean[..., None], spread[..., None])
        target = _masked(of_target, mean[..., None, None], spread[..., None, None])
        of_clock = self._of_clock(targets, ahead).expand(*target.shape[:-1], -1)
        step = torch.full_like(spread, math.log(self.day / 24) / 2)
        return Inputs(
            torch.cat([window, step[..., None].float(), spread.log()[..., None].float()], dim=-1),
            torch.cat([target, of_clock], dim=-1),
            mean,
            spread,
        )

    def scale(self, starts: Tensor) -> tuple[Tensor, Tensor]:
        """Return mean and standard deviation of the last seven days, `(cells, windows)`."""
        begin = (starts - len(DAYS) * self.day).clamp(min=0)
        n, total, squares = self._sums[..., starts] - self._sums[..., begin]
        some = n.clamp(min=1)
        mean = total / some
        # At least 0.05 standard deviations of the training part.
        spread = (squares / some - mean**2).clamp(min=0.05**2).sqrt()
        return mean, torch.where(n > 0, spread, 1.0)

    def _readings(self, steps: Tensor, first: Tensor) -> Tensor:
        """Return `(cells, *steps.shape)` readings; NaN for those not yet known at `first`."""
        known = (steps >= 0) & (steps < first)
        last = self.values.shape[1] - 1
        return torch.where(known, self.values[:, steps.clamp(0, last)], torch.nan)

    def _means(self, begin: Tensor, end: Tensor, first: Tensor) -> Tensor:
        """Return the means of the known readings from `begin` up to `end`; NaN without any."""
        low, high = (torch.minimum(part, first).clamp(min=0) for part in (begin, end))
        n, total, _ = self._sums[..., high] - self._sums[..., low]
        return (total / n).float()

    def _of_clock(self, targets: Tensor, ahead: Tensor) -> Tensor:
        """Return time of day and weekday of targets and how far they are ahead."""
        seconds = self.clock.local(targets)
        angle = 2 * torch.pi * (seconds % SECONDS).double() / SECONDS
        far = ahead.double().expand(targets.shape)
        columns = [f(k * angle) for k in (1, 2, 3) for f in (torch.sin, torch.cos)]
        columns += [(weekday(seconds) == day).double() for day in range(7)]
        columns += [far / self.day, far.log() / 3]
        return torch.stack(columns, dim=-1).float()


def weekday(seconds: Tensor) -> Tensor:
    """Return the day of the week, Monday being 0; 1970 began on a Thursday."""
    return (torch.div(seconds, SECONDS, rounding_mode="floor") + 3) % 7


def _masked(parts: list[Tensor], mean: Tensor, spread: Tensor) -> Tensor:
    """Return relative values up to 8 standard deviations, 0 where unknown, and 1 where known."""
    values = torch.cat(parts, dim=-1)
    relative = ((values - mean.float()) / spread.float()).clamp(-8.0, 8.0)
    return torch.cat([relative.nan_to_num(0.0), (~values.isnan()).float()], dim=-1)


class Perceptron(torch.nn.Module):
    """A perceptron of two layers plus a linear map; the targets of a window share its part.

    Args:
        of_window: inputs of a window.
        of_target: inputs of a target.
        width: units of each layer.
    """

    def __init__(self, of_window: int, of_target: int, width: int) -> None:
        super().__init__()
        self.window = torch.nn.Linear(of_window, width + 1)
        self.target = torch.nn.Linear(of_target, width + 1, bias=False)
        self.hidden = torch.nn.Linear(width, width)
        self.output = torch.nn.Linear(width, 1, bias=False)

    def forward(self, window: Tensor, target: Tensor) -> Tensor:
        """Return relative forecasts `(…, horizon)` of `(…, inputs)` and `(…, horizon, inputs)`."""
        both = self.window(window)[..., None, :] + self.target(target)
        linear, first = both[..., 0], relu(both[..., 1:])
        second = first + relu(self.hidden(first))
        return linear + self.output(second)[..., 0]

    def levels(self, inputs: Inputs) -> Tensor:
        """Return forecasts `(cells, windows, horizon)`, z-scored as the series is."""
        relative = self(inputs.window, inputs.target)
        return inputs.mean[..., None] + inputs.spread[..., None] * relative

    @classmethod
    def from_arrays(cls, arrays: Arrays) -> Perceptron:
        """Build the network from its weights."""
        sizes = arrays["window.weight"].shape[1], arrays["target.weight"].shape[1]
        network = cls(*sizes, arrays["hidden.weight"].shape[0])
        state = {name: torch.from_numpy(a.astype(np.float32)) for name, a in arrays.items()}
        network.load_state_dict(state)
        return network.requires_grad_(False)


class Pretrained(Baseline):
    """The trained network as a forecaster; it learns nothing here.

    A saved forecaster holds the weights, so that another version of the package, with others,
    forecasts the same.
    """

    name = "pretrained"
    summary = "a small network trained on simulated traffic, which is not trained further (ours)"
    learned = (
        "window.weight", "window.bias", "target.weight", "hidden.weight", "hidden.bias",
        "output.weight",
    )  # fmt: skip
    reads_windows = False

    def _learn(self, series: np.ndarray, starts: np.ndarray, calendar: Calendar) -> Arrays:
        if not suits(calendar.step):
            minutes = calendar.step / pd.Timedelta(minutes=1)
            raise InputError(
                f"pretrained: the step is {minutes:g} minutes, expected one that divides a day "
                f"into {FEWEST} parts or more; ",
                Words("give a table {resample:1h}, or take another method"),
            )
        return trained_arrays()

    def _restore(self, arrays: Arrays) -> None:
        super()._restore(arrays)
        self.network = Perceptron.from_arrays(arrays)

    def _forecast(self, series: np.ndarray, starts: np.ndarray, calendar: Calendar) -> np.ndarray:
        past = Past(torch.tensor(series), WallClock.of(calendar))
        return forecasts(past, starts, self.spec.horizon, self.network)


@lru_cache(maxsize=1)
def trained_arrays() -> Arrays:
    """Return the weights of the trained network."""
    with np.load(WEIGHTS, allow_pickle=False) as file:
        return dict(file)


def forecasts(
    past: Past, starts: np.ndarray, horizon: int, network: Perceptron | None = None
) -> np.ndarray:
    """Forecast windows, `(cells, windows, horizon)` float32, z-scored, by blocks of them."""
    network = network or Perceptron.from_arrays(trained_arrays())
    of_window = len(past.values) * horizon * network.target.in_features
    ahead = torch.arange(1, horizon + 1)
    blocks = torch.as_tensor(starts).split(max(BLOCK // of_window, 1))
    return (
        torch.cat([network.levels(past.inputs(of, ahead)) for of in blocks], dim=1).float().numpy()
    )
