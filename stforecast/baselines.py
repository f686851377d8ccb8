"""Reference forecasters: what a federated method has to beat.

All read and forecast z-scored series. A missing reading that no rule below replaces counts as 0.0,
the training mean, as in `stforecast.data.windows`; missing targets are left out of the fits. A
class with a `name` is found in `BASELINES`; adding one touches nothing else.
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Self

import numpy as np
import pandas as pd
from annotated_types import Ge
from pydantic import NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt
from sklearn.ensemble import HistGradientBoostingRegressor
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]  # it ships no types

from data_prep.errors import InputError
from stforecast.data.windows import Calendar, WindowSpec, day_slots, input_windows, target_windows
from stforecast.federated.options import CheckedOptions

DAY = pd.Timedelta(days=1)
WEEK = pd.Timedelta(days=7)
SMALL_JOB = 100_000

BASELINES: dict[str, type[Baseline]] = {}
"""Every reference forecaster by name, in the order of this module."""


@dataclass(frozen=True)
class NoOptions:
    """No options."""


class Baseline(ABC):
    """A forecaster that is fitted once, without rounds.

    Attributes:
        name: the name a user types; a class without one is not listed.
        summary: one line for people.
        pooled: whether one model is fitted on the records of all cells together, which a
            federation would not allow.
        learned: names of the arrays in its `state`.
        reads_windows: whether it reads the inputs of windows, rather than all that came before.
        Options: frozen dataclass of the options.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    pooled: ClassVar[bool] = False
    learned: ClassVar[tuple[str, ...]] = ()
    reads_windows: ClassVar[bool] = True
    Options: ClassVar[type] = NoOptions

    def __init_subclass__(cls) -> None:
        if "name" in cls.__dict__:
            BASELINES[cls.name] = cls

    def __init__(self, config: Any = None) -> None:
        self.config = self.Options() if config is None else config
        self.spec: WindowSpec
        self.arrays: dict[str, np.ndarray]

    def fit(
        self, series: np.ndarray, starts: np.ndarray, spec: WindowSpec, calendar: Calendar
    ) -> Self:
        """Learn from the training windows.

        Args:
            series: `(steps, cells)`, z-scored, NaN where missing; nothing after the last training
                target is read.
            starts: `(windows,)` first target steps of the training windows (`Split.train`).
            spec: the windows' shape.
            calendar: the series' wall clock.

        Returns:
            Itself.

        Raises:
            InputError: if the series or the calendar does not allow it.
        """
        if len(starts) == 0:
            raise InputError(f"{self.name}: no training windows; give a longer series")
        self.spec = spec
        self._restore(self._learn(series, np.asarray(starts), calendar))
        return self

    def predict(self, series: np.ndarray, starts: np.ndarray, calendar: Calendar) -> np.ndarray:
        """Forecast windows, each from what lies before it.

        Args:
            series: `(steps, cells)`, z-scored, NaN where missing; read before each start only.
            starts: `(windows,)` first target steps; may be the step just after the series.
            calendar: the series' wall clock.

        Returns:
            `(cells, windows, horizon)` float32, z-scored.

        Raises:
            InputError: if the history is too short or there are other cells than were fitted.
        """
        if not hasattr(self, "spec"):
            raise InputError(f"{self.name}: not fitted; call fit or from_state first")
        if len(starts) == 0:
            return np.empty((series.shape[1], 0, self.spec.horizon), dtype=np.float32)
        starts = np.asarray(starts)
        if starts.max() > len(series):
            raise InputError(
                f"{self.name}: cannot forecast step {starts.max()} from {len(series)} steps; the "
                "furthest first target is the step just after the series"
            )
        return self._forecast(series, starts, calendar).astype(np.float32)

    def state(self) -> dict[str, np.ndarray]:
        """What was learned, as plain arrays."""
        return self.arrays

    @classmethod
    def from_state(
        cls, state: Mapping[str, np.ndarray], spec: WindowSpec, config: Any = None
    ) -> Self:
        """The forecaster whose `state` this is: it forecasts the same.

        Raises:
            InputError: if an entry is missing.
        """
        if absent := set(cls.learned) - state.keys():
            raise InputError(
                f"{cls.name}: saved state has no {min(absent)!r}; fit and save it again"
            )
        baseline = cls(config)
        baseline.spec = spec
        baseline._restore(dict(state))
        return baseline

    def _learn(
        self, series: np.ndarray, starts: np.ndarray, calendar: Calendar
    ) -> dict[str, np.ndarray]:
        """What `state` keeps; nothing by default."""
        return {}

    def _restore(self, arrays: dict[str, np.ndarray]) -> None:
        """Take over what `_learn` gave, and build from it what forecasting needs besides."""
        self.arrays = arrays

    @abstractmethod
    def _forecast(self, series: np.ndarray, starts: np.ndarray, calendar: Calendar) -> np.ndarray:
        """`(cells, windows, horizon)` forecasts."""

    def _targets(self, starts: np.ndarray) -> np.ndarray:
        """`(windows, horizon)` target steps."""
        return starts[:, None] + np.arange(self.spec.horizon)

    def _check_cells(self, series: np.ndarray, n_cells: int) -> None:
        if series.shape[1] != n_cells:
            raise InputError(
                f"{self.name}: fitted on {n_cells} cells, the series has {series.shape[1]}; give "
                "the same cells in the same order"
            )


class _SeasonalNaive(Baseline):
    """The latest observed value a whole number of seasons before the target."""

    reads_windows = False

    @abstractmethod
    def _season(self, calendar: Calendar) -> int:
        """Length of a season in steps."""

    def _forecast(self, series: np.ndarray, starts: np.ndarray, calendar: Calendar) -> np.ndarray:
        season = self._season(calendar)
        if starts.min() < season:
            raise InputError(
                f"{self.name}: needs {season} steps of history, step {starts.min()} has fewer; "
                "forecast later steps or choose another baseline"
            )
        phase = np.arange(len(series)) % season
        latest = pd.DataFrame(series).groupby(phase).ffill().fillna(0.0).to_numpy()
        ahead = np.arange(self.spec.horizon)
        steps = self._targets(starts) - season * (ahead // season + 1)
        return np.moveaxis(latest[steps], -1, 0)


class LastValue(_SeasonalNaive):
    """Every target gets the last observed value."""

    name = "last_value"
    summary = "the last observed value"

    def _season(self, calendar: Calendar) -> int:
        return 1


class SeasonalDay(_SeasonalNaive):
    """Every target gets the value of the same time of the latest observed day."""

    name = "seasonal_day"
    summary = "the value one day before"

    def _season(self, calendar: Calendar) -> int:
        return calendar.steps_in(DAY)


class SeasonalWeek(_SeasonalNaive):
    """Every target gets the value of the same weekday and time of the latest observed week."""

    name = "seasonal_week"
    summary = "the value one week before"

    def _season(self, calendar: Calendar) -> int:
        return calendar.steps_in(WEEK)


class HistoricalAverage(Baseline):
    """Mean of the training part at the same weekday and time of day.

    Where a weekday was not seen: the mean at that time of day over all days.
    """

    name = "historical_average"
    summary = "the training mean of the weekday and time of day"
    learned = ("mean",)
    reads_windows = False

    def _learn(
        self, series: np.ndarray, starts: np.ndarray, calendar: Calendar
    ) -> dict[str, np.ndarray]:
        past = pd.DataFrame(series[: starts.max() + self.spec.horizon])
        slots = self._week_slots(np.arange(len(past)), calendar)
        per_day = calendar.steps_in(DAY)
        by_week = past.groupby(slots).mean().reindex(range(7 * per_day)).to_numpy()
        by_day = past.groupby(slots % per_day).mean().reindex(range(per_day)).to_numpy()
        mean = np.where(np.isnan(by_week), np.tile(by_day, (7, 1)), by_week)
        return {"mean": np.nan_to_num(mean, nan=0.0)}

    def _forecast(self, series: np.ndarray, starts: np.ndarray, calendar: Calendar) -> np.ndarray:
        mean = self.arrays["mean"]
        self._check_cells(series, mean.shape[1])
        targets = self._targets(starts)
        slots = self._week_slots(targets.ravel(), calendar).reshape(targets.shape)
        return np.moveaxis(mean[slots], -1, 0)

    def _week_slots(self, steps: np.ndarray, calendar: Calendar) -> np.ndarray:
        """Steps since Monday's midnight, (n,)."""
        return day_slots(calendar.local_times(steps), calendar.steps_in(WEEK), calendar.step)


@dataclass(frozen=True)
class RidgeConfig(CheckedOptions):
    """Options of `Ridge`.

    Attributes:
        alpha: weight of the squared coefficients; 1.0 is scikit-learn's default.
    """

    alpha: NonNegativeFloat = 1.0


class Ridge(Baseline):
    """Ridge regression of each cell on its own windows, one for each target step."""

    name = "ridge"
    summary = "a ridge regression of each cell on the inputs of its windows"
    learned = ("weights",)
    Options = RidgeConfig

    def _learn(
        self, series: np.ndarray, starts: np.ndarray, calendar: Calendar
    ) -> dict[str, np.ndarray]:
        x, _ = input_windows(series, starts, self.spec, calendar)
        y, mask = target_windows(series, starts, self.spec)
        cells = zip(x, y, mask, strict=True)
        return {"weights": np.stack([_ridge(*cell, self.config.alpha) for cell in cells])}

    def _forecast(self, series: np.ndarray, starts: np.ndarray, calendar: Calendar) -> np.ndarray:
        weights = self.arrays["weights"]
        self._check_cells(series, len(weights))
        x, _ = input_windows(series, starts, self.spec, calendar)
        return x @ weights[:, :, 1:].swapaxes(1, 2) + weights[:, None, :, 0]


def _ridge(x: np.ndarray, y: np.ndarray, mask: np.ndarray, alpha: float) -> np.ndarray:
    """Ridge weights of one cell; the intercept, which comes first, is not penalised.

    Args:
        x: `(windows, n_inputs)` inputs.
        y: `(windows, horizon)` targets, 0.0 where missing.
        mask: `(windows, horizon)` whether the target was observed.
        alpha: weight of the penalty.

    Returns:
        `(horizon, 1 + n_inputs)`; zeros, the training mean, for a target never observed.
    """
    n = 1 + x.shape[1]
    z = np.column_stack([np.ones(len(x)), x])
    products = (z[:, :, None] * z[:, None, :]).reshape(len(z), n * n)
    gram = (mask.T.astype(np.float64) @ products).reshape(-1, n, n)
    penalty = alpha * np.eye(n)
    penalty[0, 0] = 0.0
    moments = y.T.astype(np.float64) @ z
    weights = np.zeros((y.shape[1], n))
    seen = mask.any(axis=0)
    weights[seen] = np.linalg.solve(gram[seen] + penalty, moments[seen, :, None])[..., 0]
    return weights


@dataclass(frozen=True)
class BoostingConfig(CheckedOptions):
    """Options of `Boosting`, with scikit-learn's defaults.

    Attributes:
        max_iter: number of trees.
        learning_rate: shrinkage of each tree.
        max_leaf_nodes: leaves of a tree.
        random_state: seed of the tenth held out to stop early, which scikit-learn does on more than
            10,000 records.
    """

    max_iter: PositiveInt = 100
    learning_rate: PositiveFloat = 0.1
    max_leaf_nodes: Annotated[int, Ge(2)] = 31
    random_state: NonNegativeInt = 0


class Boosting(Baseline):
    """Gradient-boosted trees on the windows of all cells together, one model for each target step.

    Trees have no form as plain arrays, so the state keeps the training windows and loading fits
    again, to the same trees.
    """

    name = "boosting"
    summary = "gradient-boosted trees on the windows of all cells together (not federated)"
    pooled = True
    learned = ("x", "y", "mask")
    Options = BoostingConfig

    def _learn(
        self, series: np.ndarray, starts: np.ndarray, calendar: Calendar
    ) -> dict[str, np.ndarray]:
        x, _ = input_windows(series, starts, self.spec, calendar)
        y, mask = target_windows(series, starts, self.spec)
        unseen = np.flatnonzero(~mask.any(axis=(0, 1)))
        if len(unseen):
            raise InputError(
                f"{self.name}: no observed training target at horizon step {unseen[0] + 1}; give a "
                "longer training part"
            )
        return {
            name: values.reshape(-1, values.shape[-1])
            for name, values in (("x", x), ("y", y), ("mask", mask))
        }

    def _restore(self, arrays: dict[str, np.ndarray]) -> None:
        super()._restore(arrays)
        x, y, mask = (arrays[key] for key in ("x", "y", "mask"))
        options = dataclasses.asdict(self.config)
        with _threads_for(len(x)):
            self._models = [
                HistGradientBoostingRegressor(**options).fit(x[seen], target[seen])
                for target, seen in zip(y.T, mask.T, strict=True)
            ]

    def _forecast(self, series: np.ndarray, starts: np.ndarray, calendar: Calendar) -> np.ndarray:
        x, _ = input_windows(series, starts, self.spec, calendar)
        flat = x.reshape(-1, self.spec.n_inputs)
        with _threads_for(len(flat)):
            y_hat = np.stack([model.predict(flat) for model in self._models], axis=-1)
        return y_hat.reshape(len(x), len(starts), self.spec.horizon)


def _threads_for(n_records: int) -> threadpool_limits:
    """One thread for small jobs.

    On a busy machine the threads of a small job wait for each other far longer than they work:
    60 s instead of 0.2 s for 10,000 records. The trees do not depend on the number of threads.
    """
    return threadpool_limits(1 if n_records < SMALL_JOB else None, user_api="openmp")
