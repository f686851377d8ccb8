"""The object a user fits, saves, loads and predicts with."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import xarray as xr

from data_prep.errors import InputError
from data_prep.limits import check_size
from stforecast.baselines import BASELINES
from stforecast.config import Config, resolve, unread
from stforecast.data.imputation import impute
from stforecast.data.scaling import Scaler, fit_scaler
from stforecast.data.series import Data, Series, as_series, in_minutes
from stforecast.data.splits import make_split, period_warning
from stforecast.data.windows import WEEK
from stforecast.evaluation import Evaluation, Fitted
from stforecast.federated.runs.checkpointing import Checkpointer
from stforecast.federated.runs.model_files import AGAIN, read_model, restoring, write_model
from stforecast.federated.runs.saving import check_finite, check_shapes
from stforecast.federated.server import RoundReport
from stforecast.intervals import Bands, raw_bands, widened
from stforecast.leaks import Leak, forecast_leaks
from stforecast.rolling import Rolling, roll
from stforecast.trained_method import DESCRIPTION, FittedMethod, train

log = logging.getLogger(__name__)


class Interval(NamedTuple):
    """Bounds of a forecast, each a table like the forecast itself."""

    lower: pd.DataFrame
    upper: pd.DataFrame


class Forecaster:
    """Forecasts traffic with a federated method or a reference forecaster.

    Args:
        method: name of a method, see `stforecast list methods`.
        **settings: any setting of `stforecast.config`, e.g. `rounds=50`, `split="days:20,5,5"`.

    Attributes:
        config: all settings; once it is fitted, with windows in steps of the data.
        rounds_: one row a round: losses, bytes, seconds (empty for reference forecasters).
        refits_: one row a refit of the test part: windows, bytes, seconds (empty without).
        cells: `(cells,)` ids; like the following, there once it is fitted or loaded.
        step: length of a time step.
        service: what is forecast.
        units: its unit.
        split: windows of each part of the data that it was fitted on.

    Raises:
        InputError: for an unknown method, setting or value.

    Example:
        >>> import numpy as np, pandas as pd
        >>> hours = pd.date_range("2013-11-01", periods=24 * 14, freq="h")
        >>> daily = 100 + 50 * np.sin(2 * np.pi * hours.hour / 24)
        >>> table = pd.DataFrame({"a": daily, "b": 2 * daily}, index=hours)
        >>> forecaster = Forecaster("seasonal_day", split="days:8,3,3").fit(table)
        >>> forecaster.predict(table).round(0).to_numpy().tolist()
        [[100.0, 200.0]]
    """

    def __init__(self, method: str = "fuels", **settings: Any) -> None:
        self._asked = resolve(method, **settings)
        self.config: Config = self._asked
        self.rounds_ = pd.DataFrame()
        self.refits_ = pd.DataFrame()
        self._fitted: dict[str, Any] = {}
        self._evaluation: Evaluation | None = None
        self._radius: np.ndarray | None = None

    def fit(
        self,
        data: Data,
        after_round: Callable[[RoundReport], None] | None = None,
        checkpointer: Checkpointer | None = None,
    ) -> Forecaster:
        """Train on the training part of `data`, choosing by its validation part.

        Args:
            data: a cube, a wide table (time × cell) or the path of a cube.
            after_round: called with each round's report, e.g. to draw a progress bar.
            checkpointer: takes checkpoints of the training, and goes on from its newest.

        Returns:
            Itself.

        Raises:
            InputError: if the data cannot be used with these settings.
        """
        asked = self._asked
        if names := unread(asked.method, asked.flat()):
            log.warning(
                "%s is a reference forecaster, fitted without rounds: it does not read %s",
                asked.method, ", ".join(names),
            )  # fmt: skip
        series = as_series(data, asked.data.service)
        calendar = series.calendar
        config = self.config = asked.at(calendar.step)
        if warning := period_warning(calendar.step, config.window.period):
            log.warning(warning)
        n_steps = len(series.values)
        local_times = calendar.local_times(np.arange(n_steps))
        split = make_split(config.data.split, n_steps, calendar.step, config.window, local_times)
        _warn_of_constants(series, split.fit_steps)
        self.scaler = fit_scaler(series.values, split.fit_steps, config.data.scale, series.cells)
        self._evaluation, self._radius = Evaluation(config, series, split, self.scaler), None
        z = self.scaler.transform(series.values)
        if checkpointer:
            checkpointer.note_data(*series.identity())
        if config.federated:
            fitted, federation = train(
                config,
                z,
                split,
                calendar,
                series.locations,
                after_round,
                series.adjacency,
                checkpointer,
            )
            self._fitted = dict(fitted)
            self.rounds_ = pd.DataFrame(federation.history())
        else:
            baseline = BASELINES[config.method](config.method_options)
            baseline.fit(z, split.train, config.window, calendar)
            self._fitted = {"last": baseline, "best": baseline}
        if config.rolling.refit != "never":
            rolling, self.refits_ = roll(config, self._chosen(), series, z, split, checkpointer)
            self._fitted[config.run.select] = rolling
        self.cells, self.step, self.split = series.cells, calendar.step, split
        self.service, self.units = series.service, series.units
        return self

    def predict(self, history: Data, steps: int | None = None) -> pd.DataFrame:
        """Forecast what follows the end of `history`, in the data's own units.

        Args:
            history: data of at least the cells that the model was fitted on; others are ignored
                with a warning. As a table (time × cell) it is taken to be the fitted service.
            steps: how many steps to forecast; by default the model's horizon. Beyond the horizon,
                forecasts are fed back as if they had been observed.

        Returns:
            Table (time × cell) with the times of the forecast steps on the data's clock; `attrs`
            names `service`, `units` and `clock` ("utc" or "local").

        Missing inputs are taken for the cell's mean, as in training, and told of in a warning; a
        cell without any has no forecast (NaN).

        Raises:
            InputError: if the history lacks cells, has another step length, is too short or has no
                value that the model reads.
        """
        fitted = self._chosen()
        steps = self.config.window.horizon if steps is None else steps
        if steps < 1:
            raise InputError(f"steps is {steps}; forecast at least 1")
        series = self._history(history)
        missing = self._missing_inputs(series)
        _warn_of_missing(series, missing)
        z, n_steps = self.scaler.transform(series.values), len(series.values)
        while len(z) < n_steps + steps:
            y_hat = fitted.predict(z, np.array([len(z)]), series.calendar)
            z = np.concatenate([z, y_hat[:, 0].T])
        unknown = np.asarray(missing.all(axis=0))
        table = self._table(z[n_steps : n_steps + steps], series, unknown)
        odd = ~np.isfinite(table.to_numpy()).all(axis=0) & ~unknown
        if odd.any():
            raise InputError(
                f"{series.name}: the forecast of cell {self.cells[odd][0]} is not finite; look for "
                "readings that are far too large, or fit the model again"
            )
        return table

    def predict_interval(self, history: Data, steps: int | None = None) -> Interval | None:
        """Bounds of what `predict` gives; steps beyond the model's horizon have none (NaN).

        Args:
            history: as for `predict`.
            steps: as for `predict`.

        Returns:
            Lower and upper bounds in the data's own units, `attrs` with the `coverage` that they
            are made for; None if the settings ask for no intervals.

        Raises:
            InputError: as `predict` does.
        """
        fitted, radius = self._chosen(), self._interval_radius()
        if radius is None:
            return None
        coverage, horizon = self.config.coverage, self.config.window.horizon
        series = self._history(history)
        unknown = np.asarray(self._missing_inputs(series).all(axis=0))
        z = self.scaler.transform(series.values)
        bands = raw_bands(fitted, z, np.array([len(z)]), series.calendar, self.config.coverages)
        asked = Bands(bands.centre, {coverage: bands.bounds[coverage]})
        moved = widened(asked, {coverage: radius[:, None]}).bounds[coverage]
        tables = []
        for bound in moved:
            values = np.full((steps or horizon, len(self.cells)), np.nan)
            values[:horizon] = bound[:, 0].T[: len(values)]
            tables.append(self._table(values, series, unknown))
            tables[-1].attrs["coverage"] = coverage
        return Interval(*tables)

    def _table(self, z: np.ndarray, series: Series, unknown: np.ndarray) -> pd.DataFrame:
        """Z-scores `(steps, cells)` that follow a series, as a table in the data's units.

        Args:
            z: the z-scores.
            series: what they follow.
            unknown: `(cells,)` of which cells nothing was known; they get no values.
        """
        times = series.times[-1] + self.step * np.arange(1, len(z) + 1)
        table = pd.DataFrame(
            np.where(unknown, np.nan, self.scaler.inverse(z, cell_axis=1)),
            pd.DatetimeIndex(times, name="time"),
            pd.Index(self.cells, name="cell"),
        )
        table.attrs = {"service": self.service, "units": self.units, "clock": series.clock}
        return table

    def _missing_inputs(self, series: Series) -> np.ndarray:
        """`(inputs, cells)` whether what the forecast is made from is missing.

        Raises:
            InputError: if all is.
        """
        window, missing = self.config.window, np.isnan(series.values)
        if self.config.federated or BASELINES[self.config.method].reads_windows:
            per_week = series.calendar.steps_in(WEEK) if window.impute == "last-week" else 0
            lags = np.array([*window.lags, *window.further_lags])
            filled = impute(series.values, window.impute, per_week)
            missing = np.isnan(filled[len(filled) - lags[lags <= len(filled)]])
        else:
            missing = missing.all(axis=0, keepdims=True)
        if missing.all():
            raise InputError(
                f"{series.name}: {series.service} has none of the values that the forecast is made "
                "from; give a history whose end is known"
            )
        return missing

    def _interval_radius(self) -> np.ndarray | None:
        """How far the bounds are moved `(cells, horizon)`; None without intervals."""
        if self._radius is None and self._evaluation and self.config.has_intervals:
            self._radius = self._evaluation.radius(self._chosen())
        return self._radius

    def _history(self, history: Data) -> Series:
        """The series of the fitted cells, if the model can read it."""
        series = as_series(history, None if isinstance(history, pd.DataFrame) else self.service)
        if series.calendar.step != self.step:
            raise InputError(
                f"{series.name} has steps of {in_minutes(series.calendar.step)}, the model was "
                f"fitted on {in_minutes(self.step)}; prepare the history with that step"
            )
        if len(series.values) < self.config.window.reach:
            raise InputError(
                f"{series.name} has {len(series.values)} steps; the model reads "
                f"{self.config.window.reach} steps back, so give a longer history"
            )
        known = series.select(self.cells)
        if extra := len(series.cells) - len(self.cells):
            log.warning("%s: %d cells that the model does not know are ignored", series.name, extra)
        return known

    def evaluate(self) -> pd.DataFrame:
        """Errors on the validation and test part of the data that it was fitted on.

        Returns:
            One row for each client (and "all"), horizon step (and "all"), split, selection and
            metric: `mse`, `mae`, `rmse` of z-scores; `raw_…` in the data's units; on the test part
            with intervals `coverage`, `width`, `pinball` and `crps` too. Selections are "last" and
            "best", and "last (global)" and the like for a method's other models. A split without
            windows has no rows.

        Raises:
            InputError: if it was loaded rather than fitted here.
        """
        return self._judge().table(self._fitted)

    def test_forecasts(self) -> xr.Dataset:
        """Forecasts of the test part by the chosen selection, beside what was observed.

        Returns:
            `y_hat` and `y` (NaN where missing) with dimensions `(cell, time, horizon)`, in the
            data's units; `time` is the first forecast step, `horizon` counts from 1. The attribute
            `clock` says whether times are "utc" or "local". With intervals, `lower` and `upper`
            besides, and the attribute `coverage`.

        Raises:
            InputError: if it was loaded rather than fitted here.
        """
        return self._judge().test_forecasts(self._chosen())

    def find_leaks(self, history: Data) -> list[Leak]:
        """Windows at the end of `history` whose inputs or forecasts depend on what comes after.

        Args:
            history: as for `predict`; its last quarter is tried.

        Returns:
            What was found, see `stforecast.leaks`; empty if nothing.

        Raises:
            InputError: as `predict` does.
        """
        series, window = self._history(history), self.config.window
        z = self.scaler.transform(series.values)
        starts = np.arange(max(window.reach, len(z) - len(z) // 4), len(z))
        return forecast_leaks(self._chosen(), z, starts, window, series.calendar)

    def parts(self) -> dict[str, dict[str, str] | None]:
        """First and last target step of each part of the data that it was fitted on.

        Returns:
            `training`, `validation` and `test`, each with `first` and `last`, on the place's wall
            clock; None for a part without windows.

        Raises:
            InputError: if it was loaded rather than fitted here.
        """
        calendar, further = self._judge().series.calendar, self.config.window.horizon - 1
        parts = {
            "training": self.split.train,
            "validation": self.split.validation,
            "test": self.split.test,
        }
        found: dict[str, dict[str, str] | None] = {}
        for name, starts in parts.items():
            steps = starts[[0, -1]] + [0, further] if len(starts) else starts
            times = [str(time) for time in calendar.local_times(steps)]
            found[name] = dict(zip(("first", "last"), times, strict=True)) if times else None
        return found

    def _chosen(self) -> Fitted:
        if not self._fitted:
            raise InputError("this forecaster is not fitted; call fit or Forecaster.load first")
        return self._fitted[self.config.run.select]

    def _judge(self) -> Evaluation:
        if self._evaluation is None:
            raise InputError("evaluation needs the data: fit this forecaster, do not load it")
        return self._evaluation

    def save(self, folder: str | os.PathLike[str]) -> Path:
        """Save what predicting needs: `forecaster.json` and `state.safetensors`.

        Args:
            folder: made if it is not there.

        Returns:
            The folder.
        """
        chosen: Any = self._chosen()
        if isinstance(chosen, Rolling):
            chosen = chosen.models[-1]
        method = isinstance(chosen, FittedMethod)
        state = chosen.arrays() if method else chosen.state()
        extra = {f"scaler/{name}": a for name, a in self.scaler.state().items()}
        if (radius := self._interval_radius()) is not None:
            extra["interval/radius"] = radius
        about = {
            "settings": self.config.flat(),
            "service": self.service,
            "units": self.units,
            "step": str(self.step),
            "cells": self.cells.tolist(),
            "round": chosen.state.round if method else 0,
        }
        write_model(Path(folder), DESCRIPTION, about, {**state, **extra})
        return Path(folder)

    @classmethod
    def load(cls, folder: str | os.PathLike[str], device: str = "auto") -> Forecaster:
        """Load what `save` wrote (or the run folder around it); nothing is unpickled.

        Args:
            folder: a run folder, or the folder given to `save`.
            device: where to compute, whatever it was trained on.

        Raises:
            InputError: naming the file that is missing, damaged or of another version.
        """
        folder, about, arrays = read_model(Path(folder), DESCRIPTION, "Forecaster.save")
        with restoring(folder):
            self = cls(**{**about["settings"], "device": device})
            self._restore(about, arrays)
            self._rehearse()
        return self

    def _rehearse(self) -> None:
        """Forecast once from zeros: arrays that do not fit the settings fail here."""
        shape = len(self.cells), self.config.window.horizon
        if self._radius is not None and self._radius.shape != shape:
            raise InputError(
                f"interval/radius has shape {self._radius.shape}, the settings say {shape}; {AGAIN}"
            )
        if self._radius is not None and np.isnan(self._radius).any():
            raise InputError(f"interval/radius has values that are no numbers; {AGAIN}")
        n_steps = max(2, self.config.window.reach)
        check_size(64 * n_steps * len(self.cells), f"{n_steps} steps of {len(self.cells)} cells")
        times = pd.date_range("2013-11-01", periods=n_steps, freq=self.step)
        with np.errstate(all="ignore"):
            forecast = self.predict(pd.DataFrame(0.0, times, pd.Index(self.cells)))
        if not np.isfinite(forecast.to_numpy()).all():
            raise InputError(f"its forecasts are not finite; {AGAIN}")

    def _restore(self, about: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
        scaler = {name: arrays.pop(f"scaler/{name}") for name in ("mean", "std")}
        _check_scale(scaler)
        self.scaler = Scaler.from_state(scaler)
        self._radius = arrays.pop("interval/radius") if self.config.has_intervals else None
        self.service, self.units = str(about["service"]), str(about["units"])
        self.step, self.cells = pd.Timedelta(about["step"]), np.asarray(about["cells"])
        self.config = self._asked.at(self.step)
        fitted: Fitted
        if self.config.federated:
            fitted = FittedMethod.from_arrays(
                self.config, arrays, int(about["round"]), len(self.cells)
            )
            check_shapes(fitted.method, arrays, 1 if fitted.method.pooled else len(self.cells))
        else:
            check_finite(arrays)
            baseline = BASELINES[self.config.method]
            fitted = baseline.from_state(arrays, self.config.window, self.config.method_options)
        self._fitted = {self.config.run.select: fitted}


def _check_scale(scaler: dict[str, np.ndarray]) -> None:
    check_finite({f"scaler/{name}": values for name, values in scaler.items()})
    if not (scaler["std"] > 0).all():
        raise InputError(f"scaler/std has values that are not above 0; {AGAIN}")


def _warn_of_missing(series: Series, missing: np.ndarray) -> None:
    """Tell of missing inputs `(inputs, cells)` of a forecast, and of cells that have none."""
    unknown = np.asarray(missing.all(axis=0))
    partly = missing.any(axis=0) & ~unknown
    for cells, what in (
        (unknown, "none of the values that their forecast is made from: they get no forecast"),
        (partly, "missing values among their inputs, which are taken for the training mean"),
    ):
        if cells.any():
            log.warning(
                "%s: %d of %d cells, such as %s, have %s",
                series.name, cells.sum(), len(cells), series.cells[cells][0], what,
            )  # fmt: skip


def _warn_of_constants(series: Series, fit_steps: int) -> None:
    seen = pd.DataFrame(series.values[:fit_steps])
    if n := int((seen.max() == seen.min()).sum()):
        log.warning(
            "%s: %d of %d cells never change in the training part of %s; errors of such cells say "
            "nothing", series.name, n, len(series.cells), series.service,
        )  # fmt: skip
