"""The object a user fits, saves, loads and predicts with."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pandas as pd
import xarray as xr
from safetensors.numpy import load_file, save_file

from data_prep.checksum import checksum
from data_prep.cube import atomic_path
from data_prep.errors import InputError, reading
from data_prep.limits import check_size
from stforecast.baselines import BASELINES
from stforecast.config import Config, resolve
from stforecast.federated.rounds import RoundReport
from stforecast.fitted import FittedMethod, train
from stforecast.metrics import evaluate
from stforecast.scaling import Scaler, fit_scaler
from stforecast.series import Data, Series, as_series, in_minutes
from stforecast.splits import Split, make_split, period_warning
from stforecast.windows import Calendar, target_windows

log = logging.getLogger(__name__)

FORMAT = 1
"""Version of the saved layout."""

AGAIN = "fit and save it again"

SCALED_METRICS = ("mse", "mae", "rmse")
"""Metrics of z-scores; relative ones need a true zero and are given in raw units only."""


class Fitted(Protocol):
    """What a method or a reference forecaster is after fitting."""

    def predict(self, series: np.ndarray, starts: np.ndarray, calendar: Calendar) -> np.ndarray:
        """Forecasts `(cells, windows, horizon)` of z-scores, each from what lies before it."""
        ...


class Forecaster:
    """Forecasts traffic with a federated method or a reference forecaster.

    Args:
        method: name of a method, see `stforecast list methods`.
        **settings: any setting of `stforecast.config`, e.g. `rounds=50`, `split="days:20,5,5"`.

    Attributes:
        config: all settings, resolved.
        rounds_: one row a round: losses, bytes, seconds (empty for reference forecasters).
        cells: `(cells,)` ids; like the following, there once it is fitted or loaded.
        step: length of a time step.
        service: what is forecast.
        units: its unit.

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
        self.config: Config = resolve(method, **settings)
        self.rounds_ = pd.DataFrame()
        self._fitted: dict[str, Any] = {}
        self._series: Series | None = None
        self._split: Split | None = None

    def fit(
        self, data: Data, after_round: Callable[[RoundReport], None] | None = None
    ) -> Forecaster:
        """Train on the training part of `data`, choosing by its validation part.

        Args:
            data: a cube, a wide table (time × cell) or the path of a cube.
            after_round: called with each round's report, e.g. to draw a progress bar.

        Returns:
            Itself.

        Raises:
            InputError: if the data cannot be used with these settings.
        """
        config = self.config
        series = as_series(data, config.data.service)
        calendar = series.calendar
        if warning := period_warning(calendar.step, config.window.period):
            log.warning(warning)
        n_steps = len(series.values)
        local_times = calendar.local_times(np.arange(n_steps))
        split = make_split(config.data.split, n_steps, calendar.step, config.window, local_times)
        _warn_of_constants(series, split.fit_steps)
        self.scaler = fit_scaler(series.values, split.fit_steps, config.data.scale, series.cells)
        z = self.scaler.transform(series.values)
        if config.federated:
            fitted, federation = train(config, z, split, calendar, series.locations, after_round)
            self._fitted = dict(fitted)
            self.rounds_ = pd.DataFrame(federation.history())
        else:
            baseline = BASELINES[config.method](config.method_options)
            baseline.fit(z, split.train, config.window, calendar)
            self._fitted = {"last": baseline, "best": baseline}
        self._series, self._split = series, split
        self.cells, self.step = series.cells, calendar.step
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

        Raises:
            InputError: if the history lacks cells, has another step length or is too short.
        """
        fitted = self._chosen()
        steps = self.config.window.horizon if steps is None else steps
        if steps < 1:
            raise InputError(f"steps is {steps}; forecast at least 1")
        series = self._history(history)
        z, n_steps = self.scaler.transform(series.values), len(series.values)
        while len(z) < n_steps + steps:
            y_hat = fitted.predict(z, np.array([len(z)]), series.calendar)
            z = np.concatenate([z, y_hat[:, 0].T])
        values = self.scaler.inverse(z[n_steps : n_steps + steps], cell_axis=1)
        times = series.times[-1] + self.step * np.arange(1, steps + 1)
        table = pd.DataFrame(
            values, pd.DatetimeIndex(times, name="time"), pd.Index(self.cells, name="cell")
        )
        table.attrs = {"service": self.service, "units": self.units, "clock": series.clock}
        return table

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
            metric: `mse`, `mae`, `rmse` of z-scores; `raw_…` in the data's units. Selections are
            "last" and "best", and "last (global)" and the like for a method's other models. A split
            without windows has no rows.

        Raises:
            InputError: if it was loaded rather than fitted here.
        """
        _, parts = self._data()
        splits = [name for name in ("validation", "test") if len(getattr(parts, name))]
        tables = []
        for split in splits:
            for selection, fitted in self._fitted.items():
                y_hat, y, mask = self._forecasts(split, fitted)
                scaled = evaluate(y_hat, y, mask, self.cells, SCALED_METRICS)
                raw = evaluate(self._raw(y_hat), self._raw(y), mask, self.cells)
                raw["metric"] = "raw_" + raw["metric"]
                table = pd.concat([scaled, raw], ignore_index=True)
                tables.append(table.assign(split=split, selection=selection))
        return pd.concat(tables, ignore_index=True)

    def test_forecasts(self) -> xr.Dataset:
        """Forecasts of the test part by the chosen selection, beside what was observed.

        Returns:
            `y_hat` and `y` (NaN where missing) with dimensions `(cell, time, horizon)`, in the
            data's units; `time` is the first forecast step, `horizon` counts from 1. The attribute
            `clock` says whether times are "utc" or "local".

        Raises:
            InputError: if it was loaded rather than fitted here.
        """
        series, split = self._data()
        y_hat, y, mask = self._forecasts("test", self._chosen())
        observed = np.where(mask, self._raw(y), np.nan)
        dims = ("cell", "time", "horizon")
        return xr.Dataset(
            {
                "y_hat": (dims, self._raw(y_hat), {"units": self.units, "long_name": "forecast"}),
                "y": (dims, observed, {"units": self.units, "long_name": "observed"}),
            },
            coords={
                "cell": self.cells,
                "time": series.times[split.test],
                "horizon": np.arange(1, y.shape[2] + 1),
            },
            attrs={
                "service": self.service,
                "method": self.config.method,
                "clock": series.clock,
            },
        )

    def _forecasts(self, split: str, fitted: Fitted) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Forecasts, targets and mask of one part, `(cells, windows, horizon)`, z-scored."""
        series, parts = self._data()
        z = self.scaler.transform(series.values)
        starts: np.ndarray = getattr(parts, split)
        y, mask = target_windows(z, starts, self.config.window)
        return fitted.predict(z, starts, series.calendar), y, mask

    def _raw(self, values: np.ndarray) -> np.ndarray:
        return self.scaler.inverse(values, cell_axis=0)

    def _chosen(self) -> Fitted:
        if not self._fitted:
            raise InputError("this forecaster is not fitted; call fit or Forecaster.load first")
        return self._fitted[self.config.run.select]

    def _data(self) -> tuple[Series, Split]:
        if self._series is None or self._split is None:
            raise InputError("evaluation needs the data: fit this forecaster, do not load it")
        return self._series, self._split

    def save(self, folder: str | os.PathLike[str]) -> Path:
        """Save what predicting needs: `forecaster.json` and `state.safetensors`.

        Args:
            folder: made if it is not there.

        Returns:
            The folder.
        """
        chosen: Any = self._chosen()
        method = isinstance(chosen, FittedMethod)
        state = chosen.arrays() if method else chosen.state()
        scaler = {f"scaler/{name}": a for name, a in self.scaler.state().items()}
        about = {
            "format": FORMAT,
            "settings": self.config.flat(),
            "service": self.service,
            "units": self.units,
            "step": str(self.step),
            "cells": self.cells.tolist(),
            "round": chosen.state.round if method else 0,
        }
        folder = Path(folder)
        with atomic_path(folder / "state.safetensors") as part:
            save_file({n: np.ascontiguousarray(a) for n, a in {**state, **scaler}.items()}, part)
            about["state"] = checksum(part)
        with atomic_path(folder / "forecaster.json") as part:
            part.write_text(json.dumps(about, indent=2) + "\n")
        return folder

    @classmethod
    def load(cls, folder: str | os.PathLike[str], device: str = "auto") -> Forecaster:
        """Load what `save` wrote (or the run folder around it); nothing is unpickled.

        Args:
            folder: a run folder, or the folder given to `save`.
            device: where to compute, whatever it was trained on.

        Raises:
            InputError: naming the file that is missing, damaged or of another version.
        """
        folder = Path(folder)
        folder = folder / "model" if (folder / "model").is_dir() else folder
        about = _read_about(folder / "forecaster.json")
        arrays = _read_state(folder / "state.safetensors", about.get("state"))
        try:
            with reading(folder, "as a saved model", AGAIN):
                self = cls(**{**about["settings"], "device": device})
                self._restore(about, arrays)
                self._rehearse()
        except InputError as e:
            if isinstance(e.__cause__, KeyError):
                key = e.__cause__
                raise InputError(f"{folder}: no {key} in the saved model; {AGAIN}") from key
            raise e if str(folder) in str(e) else InputError(f"{folder}: {e}") from e
        return self

    def _rehearse(self) -> None:
        """Forecast once from zeros: arrays that do not fit the settings fail here."""
        n_steps = max(2, self.config.window.reach)
        check_size(64 * n_steps * len(self.cells), f"{n_steps} steps of {len(self.cells)} cells")
        times = pd.date_range("2013-11-01", periods=n_steps, freq=self.step)
        self.predict(pd.DataFrame(0.0, times, pd.Index(self.cells)))

    def _restore(self, about: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
        scaler = {name: arrays.pop(f"scaler/{name}") for name in ("mean", "std")}
        self.scaler = Scaler.from_state(scaler)
        self.service, self.units = str(about["service"]), str(about["units"])
        self.step, self.cells = pd.Timedelta(about["step"]), np.asarray(about["cells"])
        fitted: Fitted
        if self.config.federated:
            fitted = FittedMethod.from_arrays(self.config, arrays, about["round"])
        else:
            baseline = BASELINES[self.config.method]
            fitted = baseline.from_state(arrays, self.config.window, self.config.method_options)
        self._fitted = {self.config.run.select: fitted}


def _warn_of_constants(series: Series, fit_steps: int) -> None:
    seen = pd.DataFrame(series.values[:fit_steps])
    if n := int((seen.max() == seen.min()).sum()):
        log.warning(
            "%s: %d of %d cells never change in the training part of %s; errors of such cells say "
            "nothing", series.name, n, len(series.cells), series.service,
        )  # fmt: skip


def _read_state(path: Path, expected: str | None) -> dict[str, np.ndarray]:
    """The arrays of a saved model; those of before checksums were kept have none `expected`."""
    with reading(path, "as arrays", AGAIN):
        if expected is not None and checksum(path) != expected:
            raise InputError(
                f"{path}: cannot be trusted: it has {checksum(path)}, forecaster.json says "
                f"{expected}; {AGAIN}"
            )
        return load_file(path)


def _read_about(path: Path) -> dict[str, Any]:
    remedy = "give the folder of a run or of Forecaster.save"
    try:
        about = json.loads(path.read_text())
    except OSError as e:
        raise InputError(f"{path}: cannot be read ({e.strerror}); {remedy}") from e
    except (ValueError, RecursionError) as e:
        raise InputError(f"{path}: is not JSON ({e}); {remedy}") from e
    if not isinstance(about, dict) or about.get("format") != FORMAT:
        found = about.get("format") if isinstance(about, dict) else type(about).__name__
        raise InputError(f"{path}: format {found!r}, this version reads {FORMAT}; {remedy}")
    return about
