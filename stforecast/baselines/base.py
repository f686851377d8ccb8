"""Base classes of reference forecasters, which are fitted once, without rounds, and of peers."""

from __future__ import annotations

import importlib
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
from pydantic import PositiveFloat

from data_prep.base.errors import InputError, Words
from stforecast.data.anchors import with_anchors
from stforecast.data.clock import Calendar
from stforecast.data.window_spec import WindowSpec
from stforecast.federated.core.options import CheckedOptions, Grid, NoOptions

Arrays = dict[str, np.ndarray]
"""Learned state of a forecaster: name to array."""


class Baseline(ABC):
    """A forecaster that is fitted once, without rounds; see `stforecast.forecasting.fit.Predictor`.

    Attributes:
        levels: empty, since it forecasts one value.
        round: 0, since it has no rounds.
        name: the name a user types; a class without one is not registered.
        summary: one line for lists and tables.
        paper: its authors, venue and year, if it is of one paper.
        pooled: whether one model is fitted on the records of all cells together, which a
            federation would not allow.
        learned: names of the arrays in its `state`.
        reads_windows: True if it reads the inputs of windows, False if it reads the whole series
            before them.
        of_cells: axis of the cells in each learned array, for a forecaster that is fitted to each
            cell by itself; empty for one that learns nothing of a cell.
        reads_covariates: whether it reads all inputs of windows: `inputs`, `static`, `events`.
        reads: names of settings that most reference forecasters do not read and it does, such as
            `device`; see `stforecast.forecasting.config.unread`.
        grid: values that the setting `tune` tries, by the name of the option.
        reads_target: whether it learns `training_targets`, so that the setting `target` applies.
        Options: frozen dataclass of the options.
        config: the options.
        seed: random seed of the run, for forecasters that draw random numbers.
        adjacency: weights of the roads while it is fitted, or None.
        validation: first target steps of the validation windows while it is fitted.
        defaults: its own defaults of shared settings.
    """

    levels: ClassVar[tuple[float, ...]] = ()
    round: ClassVar[int] = 0
    name: ClassVar[str]
    summary: ClassVar[str]
    paper: ClassVar[str] = ""
    pooled: ClassVar[bool] = False
    learned: ClassVar[tuple[str, ...]] = ()
    reads_windows: ClassVar[bool] = True
    of_cells: ClassVar[Mapping[str, int]] = {}
    reads_covariates: ClassVar[bool] = False
    reads: ClassVar[Set[str]] = frozenset()
    grid: ClassVar[Grid] = {}
    defaults: ClassVar[Mapping[str, Any]] = {}
    reads_target: ClassVar[bool] = False
    Options: ClassVar[type] = NoOptions

    def __init__(self, config: Any = None, seed: int = 1) -> None:
        self.config = self.Options() if config is None else config
        self.seed = seed
        self.adjacency: np.ndarray | None = None
        self.spec: WindowSpec
        self.arrays: Arrays
        self.validation: np.ndarray

    def fit(
        self,
        series: np.ndarray,
        starts: np.ndarray,
        spec: WindowSpec,
        calendar: Calendar,
        adjacency: np.ndarray | None = None,
        validation: np.ndarray | None = None,
    ) -> Self:
        """Learn from the training windows.

        Args:
            series: `(steps, cells)`, z-scored, NaN where missing; it is read up to the last
                target of the windows only.
            starts: `(windows,)` first target steps of the training windows (`Split.train`).
            spec: the windows' shape.
            calendar: the series' wall clock.
            adjacency: `(cells, cells)` weights of the roads from row to column, if known.
            validation: `(windows,)` first target steps of windows to choose by; none by default.

        Raises:
            InputError: if the series or the calendar does not suit the forecaster.
        """
        if len(starts) == 0:
            raise InputError(f"{self.name}: no training windows; give a longer series")
        self.spec, self.adjacency = spec, adjacency
        self.validation = np.array([], int) if validation is None else np.asarray(validation)
        self._restore(self._learn(series, np.asarray(starts), calendar))
        return self

    def predict(self, series: np.ndarray, starts: np.ndarray, calendar: Calendar) -> np.ndarray:
        """Forecast windows, each from the steps before it.

        Args:
            series: `(steps, cells)`, z-scored, NaN where missing; read before each start only.
            starts: `(windows,)` first target steps; may be the step just after the series.
            calendar: the series' wall clock.

        Returns:
            `(cells, windows, horizon)` float32, z-scored.

        Raises:
            InputError: if the history is too short or has other cells than those fitted.
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
        y_hat = np.asarray(self._forecast(series, starts, calendar), dtype=np.float32)
        expected = (series.shape[1], len(starts), self.spec.horizon)
        if y_hat.shape != expected:
            raise InputError(
                f"{self.name}: its forecasts have the shape {y_hat.shape}, expected {expected}: "
                "cells, windows, horizon"
            )
        if not self.reads_target:
            return y_hat
        y_hat = calendar.off_wall_clock(y_hat, starts)
        return with_anchors(y_hat, series, starts, self.spec.target, calendar)

    def quantiles(self, series: np.ndarray, starts: np.ndarray, calendar: Calendar) -> np.ndarray:
        """Return the forecasts of `predict` with a last axis of one."""
        return self.predict(series, starts, calendar)[..., None]

    def state(self) -> Arrays:
        """Return the learned state as plain arrays."""
        return self.arrays

    @classmethod
    def from_state(
        cls, state: Mapping[str, np.ndarray], spec: WindowSpec, config: Any = None
    ) -> Self:
        """Restore a forecaster from its `state`; it gives the same forecasts.

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

    @property
    def knows_cells(self) -> bool:
        """Whether one model tells the cells apart, so that it cannot forecast others."""
        return False

    @property
    def options_of_refit(self) -> Any:
        """The options to fit it again with."""
        return self.config

    def joined(self, new: Self, ids: np.ndarray) -> Self:
        """Return the forecaster of its own cells at some of `ids`, then of the cells of `new`."""
        arrays = {
            name: np.concatenate([self.arrays[name], new.arrays[name]], axis).take(ids, axis)
            for name, axis in self.of_cells.items()
        }
        return self.from_state({**self.arrays, **arrays}, self.spec, self.config)

    def _learn(self, series: np.ndarray, starts: np.ndarray, calendar: Calendar) -> Arrays:
        """Return the arrays that `state` keeps; none by default."""
        return {}

    def _restore(self, arrays: Arrays) -> None:
        """Set the arrays from `_learn`, and build from them whatever else forecasting needs."""
        self.arrays = arrays

    @abstractmethod
    def _forecast(self, series: np.ndarray, starts: np.ndarray, calendar: Calendar) -> np.ndarray:
        """Return forecasts `(cells, windows, horizon)`, less the anchors if it `reads_target`."""

    def _check_cells(self, series: np.ndarray, n_cells: int) -> None:
        if series.shape[1] != n_cells:
            raise InputError(
                f"{self.name}: fitted on {n_cells} cells, the series has {series.shape[1]}; give "
                "the same cells in the same order"
            )


@dataclass(frozen=True)
class PeerOptions(CheckedOptions):
    """Options of every peer.

    Attributes:
        time_limit: seconds that fitting and each call that forecasts may take; beyond it, the run
            fails.
    """

    time_limit: PositiveFloat = 1800.0


class TimeLimit:
    """A time limit, counted from now."""

    def __init__(self, peer: str, seconds: float) -> None:
        self.peer, self.seconds = peer, seconds
        self._end = time.monotonic() + seconds

    @property
    def left(self) -> float:
        """Seconds that are left."""
        return max(0.0, self._end - time.monotonic())

    def check(self, done: int, total: int, what: str) -> None:
        """Fail if the time is over; `what` names the parts, in the plural."""
        if not self.left and done < total:
            raise InputError(
                f"{self.peer}: stopped by its time limit of {self.seconds:g} s after {done} of "
                f"{total} {what}; ",
                Words("raise {time_limit}, or give fewer cells or windows"),
            )


class Peer(Baseline):
    """A forecaster of another library, with the library's own defaults and a time limit.

    Attributes:
        package: name of the library's module.
        installed_by: what `pip install` installs it by.
        limit: time limit of the current call.
    """

    package: ClassVar[str]
    installed_by: ClassVar[str] = "'stforecast[peers]'"
    reads_windows = False
    Options = PeerOptions

    def __init__(self, config: Any = None, seed: int = 1) -> None:
        super().__init__(config, seed)
        try:
            importlib.import_module(self.package)
        except Exception as e:  # A package for another torch raises whatever it likes.
            raise InputError(
                f"{self.name} needs the package {self.package} ({e}); "
                f"pip install {self.installed_by}"
            ) from e
        self.limit: TimeLimit

    def fit(self, *args: Any, **kwargs: Any) -> Self:
        """Learn from the training windows within the time limit; see `Baseline.fit`."""
        self.limit = TimeLimit(self.name, self.config.time_limit)
        return super().fit(*args, **kwargs)

    def predict(self, *args: Any, **kwargs: Any) -> np.ndarray:
        """Forecast windows within the time limit; see `Baseline.predict`."""
        self.limit = TimeLimit(self.name, self.config.time_limit)
        return super().predict(*args, **kwargs)

    def _by_batches(
        self,
        n_cells: int,
        starts: np.ndarray,
        n: int,
        forecast: Callable[[tuple[np.ndarray, np.ndarray]], np.ndarray],
    ) -> np.ndarray:
        """Forecast all windows of all cells, `n` at a time, within the time limit.

        `forecast` is given starts and positions of cells, and returns `(n, horizon)`.
        """
        cells, windows = np.divmod(np.arange(n_cells * len(starts)), len(starts))
        y_hat = []
        for k in range(0, len(cells), n):
            y_hat.append(forecast((starts[windows[k : k + n]], cells[k : k + n])))
            self.limit.check(min(k + n, len(cells)), len(cells), "windows")
        return np.concatenate(y_hat).reshape(n_cells, len(starts), -1)
