"""The forecaster: fit, predict, evaluate, save and load."""

from __future__ import annotations

import dataclasses
import logging
import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
import pandas as pd

from data_prep.base.errors import InputError
from data_prep.base.limits import check_size
from data_prep.base.text import counted
from stforecast.adaptation import AdaptOptions, adapt
from stforecast.backtest import Backtest, FoldResult, run_folds
from stforecast.config import Config, check_covariates, check_read, read_by, resolve
from stforecast.data.clients import Partition, one_per_cell
from stforecast.data.dates import WEEK, period_warning
from stforecast.data.folds import FoldOptions, plan_folds
from stforecast.data.prepared import prepare
from stforecast.data.scaling import Scaler
from stforecast.data.series import Data, Series, as_series, zeros
from stforecast.data.splits import Split
from stforecast.default import DEFAULT_METHOD
from stforecast.evaluated_forecaster import EvaluatedForecaster
from stforecast.evaluation import Evaluation, check_calibration
from stforecast.federated.engine.server import RoundReport
from stforecast.federated.runs.checkpointing import Checkpointer
from stforecast.federated.runs.model_files import AGAIN, read_model, restoring
from stforecast.fitting import fit
from stforecast.forecast_tables import reach
from stforecast.history import (
    read_series,
    warn_of_constants,
    warn_of_outliers,
    warn_of_values_outside,
)
from stforecast.intervals.calibration import Calibration
from stforecast.predictor import Predictor
from stforecast.results import MODEL
from stforecast.rolling import roll
from stforecast.saved_forecaster import SavedForecaster
from stforecast.tracking import Callback, each

log = logging.getLogger(__name__)


class Forecaster(EvaluatedForecaster):
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
        clients: the client of each cell, see `stforecast.data.clients`.
        step: length of a time step.
        service: name of the forecast variable.
        units: unit of the service.
        time_zone: zone of the data, which calendar and lags follow; see `Series.time_zone`.
        non_negative: whether no value of the training part was below 0.
        data_name: path or title of the data that it was fitted on.
        trained_on: `data`, their name, and `first` and `last` target of the training part.
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
        super().__init__(method, **settings)
        self.asked: Config = resolve(method, **settings)
        check_read(method, settings)
        self.config = self.asked
        self.rounds_ = pd.DataFrame()
        self.refits_ = pd.DataFrame()
        self.train_seconds_, self.adapted, self.trained_on = 0.0, False, {}
        self._fitted: dict[str, Predictor] = {}
        self._evaluations: dict[str, Evaluation] = {}
        self._calibration: Calibration | None = None
        self.cells: np.ndarray
        self.clients: Partition
        self.step: pd.Timedelta
        self.service: str
        self.units: str
        self.time_zone: str | None
        self.split: Split
        self.scaler: Scaler
        self.non_negative: bool

    @classmethod
    def recorded(cls, settings: Mapping[str, Any]) -> Forecaster:
        """Return a forecaster of recorded settings, of which a method may read only some.

        Args:
            settings: all settings by flat name, and the method.
        """
        return cls(**read_by(settings["method"], settings))

    def fit(
        self,
        data: Data,
        after_round: Callable[[RoundReport], None] | None = None,
        checkpointer: Checkpointer | None = None,
        *,
        callbacks: Sequence[Callback] = (),
    ) -> Self:
        """Train on the training part of `data` and select the model on its validation part.

        Args:
            data: a cube, a wide table (time × cell) or the path of a cube.
            after_round: called with each round's report, e.g. to draw a progress bar.
            checkpointer: writes checkpoints of the training and resumes from the newest one.
            callbacks: told when the training begins, after each round and at its end; such as those
                of `stforecast.tracking`, for TensorBoard, MLflow and Weights & Biases.

        Returns:
            The fitted forecaster.

        Raises:
            InputError: if the data cannot be used with these settings.
        """
        asked = self.asked
        check_covariates(asked)
        series = as_series(data, asked.data.service, asked.window)
        if table := asked.window.events:
            series = series.with_events(table)
        step = series.calendar.step
        config = self.config = asked.at(step)
        if warning := period_warning(step, config.window.period):
            log.warning(warning)
        prepared = prepare(
            series, config.window, config.data.split, config.data.scale, config.clients
        )
        config = dataclasses.replace(config, window=prepared.window)
        config = self.config = config.for_cells(len(series.cells))
        if config.training != asked.training:
            log.info(
                "rounds: %d instead of %d for %s, see rounds_per_cell", config.training.rounds,
                asked.training.rounds, counted(len(series.cells), "cell"),
            )  # fmt: skip
        warn_of_constants(series, prepared.split.fit)
        warn_of_values_outside(series, config.data.limits(non_negative=False))
        warn_of_outliers(series, prepared.split.fit)
        check_calibration(config, prepared)
        begin = time.perf_counter()
        for callback in callbacks:
            callback.begin({"data": series.name, **config.flat()})
        fitted = fit(config, prepared, each(after_round, callbacks), checkpointer)
        config = self.config = fitted.config
        prepared, self._fitted, self.rounds_ = fitted.data, fitted.predictors, fitted.rounds
        # A resumed run has trained its first rounds before.
        of_rounds = float(self.rounds_["seconds"].sum()) if len(self.rounds_) else 0.0
        self.train_seconds_ = max(time.perf_counter() - begin, of_rounds)
        if config.rolling.refit != "never":
            rolling, self.refits_ = roll(config, self._chosen(), prepared, checkpointer)
            self._fitted[config.run.select] = rolling
        self._calibration, self.adapted = None, False
        models = {id(p): Evaluation(config, prepared, p) for p in self._fitted.values()}
        self._evaluations = {name: models[id(p)] for name, p in self._fitted.items()}
        self.cells, self.step, self.clients = series.cells, step, prepared.clients
        self.service, self.units = series.service, series.units
        self.time_zone = series.time_zone
        self.split, self.scaler = prepared.split, prepared.scaler
        self.non_negative, self.data_name = prepared.non_negative, series.name
        self.trained_on = {"data": series.name, **(prepared.parts()["training"] or {})}
        for callback in callbacks:
            callback.end(self._pooled_errors())
        return self

    def adapt(
        self, history: Data | Series, days: float = 3.0, *, rounds: int = 10, fine_tune: int = 0,
        events: str | os.PathLike[str] | None = None,
    ) -> Forecaster:  # fmt: skip
        """Make a forecaster of the cells of a history, of which some are new to this one.

        Cells that it knows keep the part that they have. New ones get forecasts from the shared
        part, and train a personal part of their own by the method's local update, as
        `stforecast.adaptation` says; nothing is sent. This forecaster stays as it is.

        Args:
            history: data of new cells, with or without cells that it knows. It may be shorter than
                the inputs reach back: steps before it count as missing. New cells are scaled by
                all of it, and by the mean scale of the trained cells without a reading.
            days: days at the end of the history that train new cells; 0 for the shared part alone.
            rounds: local updates of what a new cell keeps to itself.
            fine_tune: epochs in which a new cell fits the global model to its own data, for methods
                that average one model; none by default.
            events: table of the events in the history, for a model that reads events.

        Returns:
            A forecaster as one that was loaded: save, predict, evaluate on data, plot a history.

        Raises:
            InputError: if no cell is new, the history is too short for the days, or the method
                cannot be adapted.
        """
        options = AdaptOptions(days, rounds, fine_tune)
        self._chosen()
        table = self._events(history, events)
        series = read_series(history, self._trained(), table)
        adapted = adapt(self._model(calibrated=True), series, options)
        other = Forecaster.recorded(adapted.config.flat())
        other._restore(adapted)
        return other

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
        windows = {self.asked.method: self.asked.window}
        plan = plan_folds(len(series.values), series.calendar, windows, options)

        def tested(split: str) -> FoldResult:
            fitted = Forecaster.recorded({**self.asked.flat(), "split": split}).fit(data)
            return FoldResult(fitted.evaluate(), fitted.test_forecasts(), fitted.parts())

        return run_folds(plan, tested, progress=progress)

    def save(self, folder: str | os.PathLike[str]) -> Path:
        """Save the forecaster as `forecaster.json` and `state.safetensors`.

        Args:
            folder: created if it does not exist.

        Returns:
            The folder.
        """
        self._model(calibrated=True).write(Path(folder))
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
        folder, about, arrays = read_model(Path(folder), MODEL, "Forecaster.save")
        with restoring(folder):
            self = cls.recorded({**about["settings"], "device": device})
            self._restore(SavedForecaster.of_files(self.asked, about, arrays))
            self._rehearse()
        if self.time_zone is None:
            log.warning(
                "%s was saved without the time zone of its data: it cannot be checked that a "
                "history's times have the same zone; fit the model again to keep it", folder,
            )  # fmt: skip
        return self

    def _rehearse(self) -> None:
        """Forecast once from zeros, so that arrays that do not fit the settings fail here."""
        # Forecasters that read no windows look back a week at most.
        season = 0 if self._chosen().reads_windows else math.ceil(WEEK / self.step)
        n_steps = max(2, reach(self._model()), season)
        check_size(64 * n_steps * len(self.cells), f"{n_steps} steps of {len(self.cells)} cells")
        times = pd.date_range("2013-11-01", periods=n_steps, freq=self.step)
        empty = zeros(
            times, self.cells, self.service, self.config.window, self.units, self.time_zone
        )
        with np.errstate(all="ignore"):
            forecast = self.predict(empty)
        if not np.isfinite(forecast.to_numpy()).all():
            raise InputError(f"its forecasts are not finite; {AGAIN}")

    def _restore(self, saved: SavedForecaster) -> None:
        self.config, self.scaler = saved.config, saved.scaler
        self._calibration = saved.calibration
        self.service, self.units = saved.service, saved.units
        self.time_zone = saved.time_zone
        self.step, self.cells = saved.step, saved.cells
        self.clients = saved.clients or one_per_cell(saved.cells)
        self.non_negative, self.adapted = saved.non_negative, saved.adapted
        self.trained_on = saved.trained_on
        self._fitted = {self.config.run.select: saved.predictor}
