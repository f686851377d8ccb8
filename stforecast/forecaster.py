"""The forecaster: fit, predict, evaluate, save and load."""

from __future__ import annotations

import dataclasses
import logging
import math
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import xarray as xr

from data_prep.errors import InputError
from data_prep.limits import check_size
from stforecast.backtest import Backtest, FoldResult, run_folds
from stforecast.config import Config, resolve, unread
from stforecast.data.anchors import season_of_anchors
from stforecast.data.durations import WEEK, period_warning
from stforecast.data.fold_plan import plan_folds
from stforecast.data.folds import FoldOptions
from stforecast.data.prepared import prepare
from stforecast.data.scaling import Scaler
from stforecast.data.series import Data, Series, as_series
from stforecast.data.splits import Split
from stforecast.default import DEFAULT_METHOD
from stforecast.evaluation import Evaluation, check_calibration, error_table, forecasts_dataset
from stforecast.federated.runs.checkpointing import Checkpointer
from stforecast.federated.runs.model_files import AGAIN, read_model, restoring
from stforecast.federated.server import RoundReport
from stforecast.fitting import fit
from stforecast.history import missing_inputs, read_history, warn_of_constants, warn_of_missing
from stforecast.intervals.bands import Bands, raw_bands
from stforecast.intervals.calibration import Calibration
from stforecast.leaks import Leak, forecast_leaks
from stforecast.predictor import Predictor
from stforecast.rolling import roll
from stforecast.saved_forecaster import DESCRIPTION, SavedForecaster

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
        asked: all settings as given.
        config: the resolved settings; after `fit`, with windows in steps of the data and with what
            was chosen on the validation part.
        rounds_: one row per round: losses, bytes, seconds (empty for reference forecasters).
        refits_: one row per refit during the test part: windows, bytes, seconds (may be empty).
        cells: `(cells,)` ids; this and the following are set by `fit` and `load`.
        step: length of a time step.
        service: name of the forecast variable.
        units: unit of the service.
        split: windows of each part of the data that it was fitted on.
        train_seconds_: seconds of training, those of a resumed run's earlier rounds included.

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

    def __init__(self, method: str = DEFAULT_METHOD, **settings: Any) -> None:
        self.asked: Config = resolve(method, **settings)
        self.config = self.asked
        self.rounds_ = pd.DataFrame()
        self.refits_ = pd.DataFrame()
        self.train_seconds_ = 0.0
        self._fitted: dict[str, Predictor] = {}
        self._evaluations: dict[str, Evaluation] = {}
        self._calibration: Calibration | None = None
        self.cells: np.ndarray
        self.step: pd.Timedelta
        self.service: str
        self.units: str
        self.split: Split
        self.scaler: Scaler

    def fit(
        self,
        data: Data,
        after_round: Callable[[RoundReport], None] | None = None,
        checkpointer: Checkpointer | None = None,
    ) -> Forecaster:
        """Train on the training part of `data` and select the model on its validation part.

        Args:
            data: a cube, a wide table (time × cell) or the path of a cube.
            after_round: called with each round's report, e.g. to draw a progress bar.
            checkpointer: writes checkpoints of the training and resumes from the newest one.

        Returns:
            The fitted forecaster.

        Raises:
            InputError: if the data cannot be used with these settings.
        """
        asked = self.asked
        if names := unread(asked.method, asked.flat()):
            log.warning(
                "%s is a reference forecaster, fitted without rounds: it does not read %s",
                asked.method, ", ".join(names),
            )  # fmt: skip
        series = as_series(data, asked.data.service)
        step = series.calendar.step
        config = self.config = asked.at(step)
        if warning := period_warning(step, config.window.period):
            log.warning(warning)
        prepared = prepare(series, config.window, config.data.split, config.data.scale)
        config = self.config = dataclasses.replace(config, window=prepared.window)
        warn_of_constants(series, prepared.split.fit)
        check_calibration(config, prepared)
        begin = time.perf_counter()
        fitted = fit(config, prepared, after_round, checkpointer)
        config = self.config = fitted.config
        prepared, self._fitted, self.rounds_ = fitted.data, fitted.predictors, fitted.rounds
        # A resumed run has trained its first rounds before.
        of_rounds = float(self.rounds_["seconds"].sum()) if len(self.rounds_) else 0.0
        self.train_seconds_ = max(time.perf_counter() - begin, of_rounds)
        if config.rolling.refit != "never":
            rolling, self.refits_ = roll(config, self._chosen(), prepared, checkpointer)
            self._fitted[config.run.select] = rolling
        self._calibration = None
        models = {id(p): Evaluation(config, prepared, p) for p in self._fitted.values()}
        self._evaluations = {name: models[id(p)] for name, p in self._fitted.items()}
        self.cells, self.step = series.cells, step
        self.service, self.units = series.service, series.units
        self.split, self.scaler = prepared.split, prepared.scaler
        return self

    def predict(self, history: Data | Series, steps: int | None = None) -> pd.DataFrame:
        """Forecast what follows the end of `history`, in the data's own units.

        Args:
            history: data of at least the cells that the model was fitted on; other cells are
                ignored with a warning. The values of a table (time × cell) are taken to be of the
                fitted service. A `Series` from `read` is used directly.
            steps: number of steps to forecast; by default the model's horizon. Beyond the horizon,
                forecasts are fed back as inputs.

        Returns:
            Table (time × cell) with the times of the forecast steps on the data's clock; `attrs`
            names `service`, `units` and `clock` ("utc" or "local").

        Missing inputs are replaced by the cell's mean, as in training, with a warning; a cell
        without any observed input gets no forecast (NaN).

        Raises:
            InputError: if the history lacks cells, has another step length, is too short or has no
                observed input.
        """
        fitted = self._chosen()
        steps = self.config.window.horizon if steps is None else steps
        if steps < 1:
            raise InputError(f"steps is {steps}; forecast at least 1")
        series = self.read(history)
        missing = missing_inputs(series, self.config.window, fitted.reads_windows)
        warn_of_missing(series, missing)
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

    def predict_interval(self, history: Data | Series, steps: int | None = None) -> Interval | None:
        """Return bounds of the forecast; those beyond the model's horizon are NaN.

        Args:
            history: as for `predict`.
            steps: as for `predict`.

        Returns:
            Lower and upper bounds in the data's own units, with the nominal `coverage` in `attrs`;
            None if the settings ask for no intervals.

        Raises:
            InputError: as `predict`.
        """
        fitted, calibration = self._chosen(), self._interval_calibration()
        if calibration is None:
            return None
        coverage, horizon = self.config.coverage, self.config.window.horizon
        series = self.read(history)
        missing = missing_inputs(series, self.config.window, fitted.reads_windows)
        unknown = np.asarray(missing.all(axis=0))
        z = self.scaler.transform(series.values)
        start, calendar = np.array([len(z)]), series.calendar
        bands = raw_bands(fitted, z, start, calendar, self.config.coverages)
        asked = Bands(bands.centre, {coverage: bands.bounds[coverage]})
        tables = []
        for bound in calibration.calibrated(asked, z, start, calendar).bounds[coverage]:
            values = np.full((steps or horizon, len(self.cells)), np.nan)
            values[:horizon] = bound[:, 0].T[: len(values)]
            table = self._table(values, series, unknown)
            tables.append(table if np.isinf(calibration.floor).any() else table.clip(lower=0.0))
            tables[-1].attrs["coverage"] = coverage
        return Interval(*tables)

    def _table(self, z: np.ndarray, series: Series, unknown: np.ndarray) -> pd.DataFrame:
        """Return forecast z-scores as a table in the data's units.

        Args:
            z: `(steps, cells)` z-scores.
            series: the history before them.
            unknown: `(cells,)` bool, cells without any observed input; their values become NaN.
        """
        times = series.times[-1] + self.step * np.arange(1, len(z) + 1)
        table = pd.DataFrame(
            np.where(unknown, np.nan, self.scaler.inverse(z, cell_axis=1)),
            pd.DatetimeIndex(times, name="time"),
            pd.Index(self.cells, name="cell"),
        )
        table.attrs = {"service": self.service, "units": self.units, "clock": series.clock}
        return table

    def read(self, history: Data | Series) -> Series:
        """Read the series of the fitted cells from a history, to forecast from it repeatedly.

        Args:
            history: as for `predict`.

        Raises:
            InputError: as `predict`, except for missing values.
        """
        self._chosen()
        return read_history(history, self.service, self.cells, self.step, self._reach)

    @property
    def _reach(self) -> int:
        """Number of steps back that the model reads."""
        window = self.config.window
        return max(window.reach, season_of_anchors(window.target, self.step))

    def _interval_calibration(self) -> Calibration | None:
        """Return what calibrates bounds; None without intervals."""
        if self._calibration is None and self._evaluations and self.config.has_intervals:
            self._calibration = self._evaluated().calibration()
        return self._calibration

    def evaluate(self) -> pd.DataFrame:
        """Compute the errors on the validation and test parts of the data it was fitted on.

        Returns:
            One row for each client (and "all"), horizon step (and "all"), split, selection and
            metric: `mse`, `mae`, `rmse` of z-scores; `raw_…` in the data's units; with intervals,
            also `coverage`, `width`, `pinball` and `crps` on the test part. Selections are "last"
            and "best", and e.g. "last (global)" for a method's other models. A split without
            windows has no rows.

        Raises:
            InputError: if it was loaded rather than fitted here.
        """
        self._evaluated()
        return error_table(self._evaluations)

    def test_forecasts(self) -> xr.Dataset:
        """Return the forecasts of the test part with the observed targets.

        Returns:
            `y_hat` and `y` (NaN where missing) with dimensions `(cell, time, horizon)`, in the
            data's units; `time` is the first forecast step, `horizon` counts from 1. With
            intervals, also `lower` and `upper` of the widest and the attribute `coverage`; bounds
            that cover 50 % are `lower_50` and `upper_50`, and so on. The forecasts of other
            selections, such as those of the last round, are `y_hat_last` and the like; the
            attribute `selection` of each names its selections. `seasonal_naive` repeats the day
            before, unless there is none. By `cell` alone: `std`, of the z-scores, `seasonal_mae`
            and `seasonal_rmse`, which scaled errors divide by, and `lon` and `lat` if known.
            Attributes are `service`, `method`, `step_minutes`, `clock` ("utc" or "local"), and
            `time_zone` if the clock is UTC.

        Raises:
            InputError: if it was loaded rather than fitted here.
        """
        self._evaluated()
        return forecasts_dataset(self._evaluations, self.config.run.select)

    @property
    def predict_seconds_(self) -> float:
        """Seconds that the selected model's forecasts of the test part took."""
        return self._evaluated().seconds

    def backtest(
        self,
        data: Data,
        folds: int = 3,
        test: str = "",
        validation: str = "",
        gap: str = "",
        train: str = "",
        *,
        progress: bool = False,
    ) -> Backtest:
        """Test these settings on successive spans, each with a forecaster fitted before it.

        This forecaster stays as it is; its split is not used. With `refit`, refits within a test
        span use every window known by then, those of the gap included: a gap delays the first
        model only.

        Args:
            data: as for `fit`.
            folds: number of test spans; they follow each other, and the last ends with the data.
            test: length of each test span, such as "7d"; by default 30 % of the time divided by the
                folds.
            validation: length of each validation span; by default that of a test span, "0d" for
                none.
            gap: time from the end of validation to the first test target; none by default.
            train: length of the training span, a window that slides; by default it begins with the
                data and grows.
            progress: whether to show a progress bar.

        Returns:
            Errors, forecasts and dates of all folds.

        Raises:
            InputError: if the folds do not fit in the data, or the windows in a fold.
        """
        options = FoldOptions(folds, test, validation, gap, train)
        series = as_series(data, self.asked.data.service)
        plan = plan_folds(len(series.values), series.calendar, [self.asked.window], options)

        def tested(split: str) -> FoldResult:
            fitted = Forecaster(**{**self.asked.flat(), "split": split}).fit(data)
            return FoldResult(fitted.evaluate(), fitted.test_forecasts(), fitted.parts())

        return run_folds(plan, tested, progress=progress)

    def find_leaks(self, history: Data | Series) -> list[Leak]:
        """Find windows whose inputs or forecasts depend on later values.

        Args:
            history: as for `predict`; windows of its last quarter are tested.

        Returns:
            The leaks, see `stforecast.leaks`; empty if none was found.

        Raises:
            InputError: as `predict`.
        """
        series, window = self.read(history), self.config.window
        z = self.scaler.transform(series.values)
        starts = np.arange(max(self._reach, len(z) - len(z) // 4), len(z))
        return forecast_leaks(self._chosen(), z, starts, window, series.calendar)

    def parts(self) -> dict[str, dict[str, str] | None]:
        """Return the first and last target step of each part of the data it was fitted on.

        Returns:
            `training`, `validation` and `test`, each with `first` and `last` in local time; None
            for a part without windows.

        Raises:
            InputError: if it was loaded rather than fitted here.
        """
        return self._evaluated().data.parts()

    def _chosen(self) -> Predictor:
        if not self._fitted:
            raise InputError("this forecaster is not fitted; call fit or Forecaster.load first")
        return self._fitted[self.config.run.select]

    def _evaluated(self) -> Evaluation:
        """Return the evaluation of the selected model."""
        if not self._evaluations:
            raise InputError("evaluation needs the data: fit this forecaster, do not load it")
        return self._evaluations[self.config.run.select]

    def save(self, folder: str | os.PathLike[str]) -> Path:
        """Save the forecaster as `forecaster.json` and `state.safetensors`.

        Args:
            folder: created if it does not exist.

        Returns:
            The folder.
        """
        SavedForecaster(
            self.config, self.cells, self.step, self.service, self.units, self.scaler,
            self._chosen(), self._interval_calibration(),
        ).write(Path(folder))  # fmt: skip
        return Path(folder)

    @classmethod
    def load(cls, folder: str | os.PathLike[str], device: str = "auto") -> Forecaster:
        """Load a saved forecaster or that of a run folder; nothing is unpickled.

        Args:
            folder: a run folder, or the folder given to `save`.
            device: device to compute on, regardless of the one used for training.

        Raises:
            InputError: naming the file that is missing, damaged or of another version.
        """
        folder, about, arrays = read_model(Path(folder), DESCRIPTION, "Forecaster.save")
        with restoring(folder):
            self = cls(**{**about["settings"], "device": device})
            self._restore(SavedForecaster.of_files(self.asked, about, arrays))
            self._rehearse()
        return self

    def _rehearse(self) -> None:
        """Forecast once from zeros, so that arrays that do not fit the settings fail here."""
        # Forecasters that read no windows look back a week at most.
        season = 0 if self._chosen().reads_windows else math.ceil(WEEK / self.step)
        n_steps = max(2, self._reach, season)
        check_size(64 * n_steps * len(self.cells), f"{n_steps} steps of {len(self.cells)} cells")
        times = pd.date_range("2013-11-01", periods=n_steps, freq=self.step)
        with np.errstate(all="ignore"):
            forecast = self.predict(pd.DataFrame(0.0, times, pd.Index(self.cells)))
        if not np.isfinite(forecast.to_numpy()).all():
            raise InputError(f"its forecasts are not finite; {AGAIN}")

    def _restore(self, saved: SavedForecaster) -> None:
        self.config, self.scaler = saved.config, saved.scaler
        self._calibration = saved.calibration
        self.service, self.units = saved.service, saved.units
        self.step, self.cells = saved.step, saved.cells
        self._fitted = {self.config.run.select: saved.predictor}
