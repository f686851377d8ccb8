"""The forecaster: fit, predict, evaluate, save and load."""

from __future__ import annotations

import dataclasses
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, get_args

import numpy as np
import pandas as pd
import xarray as xr

from data_prep.base.errors import InputError, Words, choose
from data_prep.base.progress import doing, each
from data_prep.netcdf import dump_blocks
from stforecast.bench.progress import rounds_bar
from stforecast.data.cubes import Data, name_of
from stforecast.data.folds import FoldOptions, plan_folds
from stforecast.data.prepared import PreparedSeries
from stforecast.data.scaling import Limits
from stforecast.data.series import Series, as_series
from stforecast.federated.core.options import Estimator
from stforecast.federated.engine.rounds import RoundReport
from stforecast.federated.runs.unfinished_run import Checkpointer
from stforecast.federated.uploads.uplink import Sent, counting_uploads
from stforecast.forecasting import DEFAULT_METHOD
from stforecast.forecasting import evaluate as evaluations
from stforecast.forecasting.adapt import AdaptOptions, adapt
from stforecast.forecasting.backtest import Backtest, FoldResult
from stforecast.forecasting.config import Config, check_read, read_by, resolve
from stforecast.forecasting.evaluate import By, Evaluation
from stforecast.forecasting.explain import Explanation, explain
from stforecast.forecasting.fit import Predictor, fit, prepare_series
from stforecast.forecasting.history import (
    open_history,
    read_series,
    warn_of_further_services,
    warn_of_level,
    warn_of_set_back,
)
from stforecast.forecasting.leaks import Leak, model_leaks
from stforecast.forecasting.model import FittedModel, as_html, call_in_one_line
from stforecast.forecasting.planning import ANY
from stforecast.forecasting.results import tested_forecasts
from stforecast.forecasting.rolling import roll
from stforecast.forecasting.sweep import tuned_settings
from stforecast.forecasting.tables import Interval, tidy
from stforecast.forecasting.update import (
    How,
    calibrated,
    split_before,
    trained_further,
    trial_steps,
    with_bounds_of,
)
from stforecast.tracking import Callback, call_all, errors_by_name

if TYPE_CHECKING:
    import h5netcdf
    from matplotlib.axes import Axes

AnyPath = str | os.PathLike[str]

IN_CHUNK = 2**16
"""Values of a chunk of `forecasts.nc` with many cells, about."""

BITS = 10
"""Binary digits of a cell's deviation to which `forecasts.nc` is rounded.

On 3,000 cells a day ahead, a cell's mean errors then change by at most 1 in 20,000, and the mean of
all cells in the seventh digit. Six bits more, as before, took 1.6 times the room of a forecast."""


class Forecaster(Estimator):
    """Forecasts traffic with a federated method or a reference forecaster.

    Args:
        method: name of a method, see `stforecast list methods`.
        **settings: any setting of `stforecast.forecasting.config`, such as `rounds=50` or
            `split="days:20,5,5"`.

    Attributes:
        asked: all settings as given.
        rounds_: one row per round: losses, bytes, seconds (empty for reference forecasters).
        refits_: one row per refit: windows, bytes, seconds (may be empty).
        sent_: uploads that left each client in the fit, of candidates and refits included.
        train_seconds_: seconds of training, those of a resumed run's earlier rounds included.

    Raises:
        InputError: for an unknown method, setting or value.

    >>> import numpy as np, pandas as pd
    >>> hours = pd.date_range("2013-11-01", periods=24 * 14, freq="h")
    >>> daily = 100 + 50 * np.sin(2 * np.pi * hours.hour / 24)
    >>> table = pd.DataFrame({"a": daily, "b": 2 * daily}, index=hours)
    >>> forecaster = Forecaster("seasonal_day", split="days:8,3,3").fit(table)
    >>> forecaster.predict(table).round(0).to_numpy().tolist()
    [[100.0, 200.0]]
    """

    def __init__(self, method: str = DEFAULT_METHOD, **settings: Any) -> None:
        self._given = {"method": method, **settings}
        plain = {n: os.fspath(v) if isinstance(v, os.PathLike) else v for n, v in settings.items()}
        self.asked: Config = resolve(method, **plain)
        check_read(method, plain)
        self.rounds_, self.refits_, self.train_seconds_ = pd.DataFrame(), pd.DataFrame(), 0.0
        self.sent_: list[Sent] = []
        self._model: FittedModel | None = None
        self._evaluations: dict[str, Evaluation] = {}
        self._folder: Path | None = None

    @classmethod
    def recorded(cls, settings: Mapping[str, Any]) -> Forecaster:
        """Return a forecaster of recorded settings, of which its method may read only some."""
        return cls(**read_by(settings["method"], settings))

    def __sklearn_tags__(self) -> Any:
        """Return the properties that scikit-learn asks of an estimator."""
        from sklearn.utils import InputTags, Tags, TargetTags

        return Tags(
            estimator_type=None,
            target_tags=TargetTags(required=False),
            input_tags=InputTags(allow_nan=True),
        )

    @property
    def model_(self) -> FittedModel:
        """What was fitted, with the calibration of its intervals.

        Raises:
            InputError: if the forecaster is not fitted.
        """
        model = self._fitted()
        if model.calibration is None and self._evaluations and model.config.has_intervals:
            calibration = self._evaluation().calibration()
            self._model = model = dataclasses.replace(model, calibration=calibration)
        return model

    def _fitted(self) -> FittedModel:
        """Return the model, which may not be calibrated yet."""
        if self._model is None:
            raise InputError("this forecaster is not fitted; call fit or Forecaster.load first")
        return self._model

    def _evaluation(self) -> Evaluation:
        """Return the evaluation of the selected model."""
        if not self._evaluations:
            self._fitted()
            raise InputError(
                "a loaded forecaster does not hold the data that it was fitted on; give the data"
            )
        return self._evaluations[self.config.run.select]

    @property
    def config(self) -> Config:
        """The resolved settings; once fitted, with steps of the data and what was chosen."""
        return self.asked if self._model is None else self._model.config

    @property
    def cells(self) -> np.ndarray:
        """Ids of the fitted cells, `(cells,)`."""
        return self._fitted().cells

    @property
    def limits(self) -> tuple[float, float]:
        """Lowest and highest value of its forecasts and bounds, in the data's units."""
        limits = self._fitted().limits
        return limits.lower, limits.upper

    @property
    def data_(self) -> PreparedSeries:
        """The data that it was fitted on, split and scaled; `data_.parts()` tells the dates.

        Raises:
            InputError: if it was loaded rather than fitted here.
        """
        return self._evaluation().data

    def fit(
        self,
        data: Data,
        after_round: Callable[[RoundReport], None] | None = None,
        checkpointer: Checkpointer | None = None,
        *,
        callbacks: Sequence[Callback] = (),
        progress: bool | None = None,
    ) -> Self:
        """Train on the training part of `data` and select the model on its validation part.

        Args:
            data: as for `open_cube`: a cube, a table (time × cell), or the path of either.
            after_round: called with each round's report, in place of a progress bar.
            checkpointer: writes checkpoints of the training and resumes from the newest one.
            callbacks: such as those of `stforecast.tracking`, for TensorBoard and the like.
            progress: whether to show a bar of the rounds; by default in terminals and notebooks.

        Raises:
            InputError: if the data cannot be used with these settings.
        """
        with counting_uploads() as self.sent_:
            return self._fit(data, after_round, checkpointer, callbacks, progress)

    def _fit(
        self,
        data: Data,
        after_round: Callable[[RoundReport], None] | None,
        checkpointer: Checkpointer | None,
        callbacks: Sequence[Callback],
        progress: bool | None,
    ) -> Self:
        doing(f"reading {name_of(data)}")
        begin = time.perf_counter()
        asked = tuned_settings(self.asked, data)
        swept = time.perf_counter() - begin
        config, prepared = prepare_series(asked, data)
        begin = time.perf_counter() - swept
        doing(f"training {config.method}")
        for callback in callbacks:
            callback.begin({"data": prepared.series.name, **config.flat()})
        shown = progress if config.federated and after_round is None else False
        with rounds_bar(config.total_rounds, progress=shown, keep=False) as moved:
            after = call_all(after_round or moved, callbacks)
            fitted = fit(config, prepared, after, checkpointer)
        config, prepared, predictors = fitted.config, fitted.data, fitted.predictors
        # A resumed run has trained its first rounds before.
        of_rounds = float(fitted.rounds["seconds"].sum()) if len(fitted.rounds) else 0.0
        self.train_seconds_ = max(time.perf_counter() - begin, of_rounds)
        self.rounds_, self.refits_, select = fitted.rounds, pd.DataFrame(), config.run.select
        if config.rolling.refit != "never":
            doing("refitting with newer data")
            rolling, self.refits_ = roll(config, predictors[select], prepared, checkpointer)
            predictors[select] = rolling
        self._keep(config, prepared, predictors)
        for callback in callbacks:
            callback.end(errors_by_name(self.evaluate(), select))
        return self

    def _keep(
        self, config: Config, data: PreparedSeries, predictors: Mapping[str, Predictor]
    ) -> None:
        """Keep what was fitted, by selection."""
        found = {
            id(p): Evaluation(FittedModel.of(config, data, p), data, config.run)
            for p in predictors.values()
        }
        self._evaluations = {name: found[id(p)] for name, p in predictors.items()}
        self._model = self._evaluations[config.run.select].model

    @classmethod
    def of(
        cls, config: Config, data: PreparedSeries, predictors: Mapping[str, Predictor]
    ) -> Forecaster:
        """Return one that holds what was fitted elsewhere, as on a node, by selection."""
        self = cls.recorded(config.flat())
        self._keep(config, data, predictors)
        return self

    def predict(
        self,
        history: Data | Series | None = None,
        steps: int | None = None,
        *,
        limits: tuple[float, float] | None = None,
        events: AnyPath | None = None,
    ) -> pd.DataFrame:
        """Forecast what follows the end of `history`, in the data's own units.

        Missing inputs are replaced by the cell's mean, as in training, with a warning, unless the
        setting `impute` fills them: then a warning names cells without a reading in the last hour.
        A cell without any observed input gets no forecast (NaN).

        Args:
            history: data of at least the cells that the model was fitted on, by default the data
                it was fitted on. Values of a table (time × cell) are of the fitted service, in its
                unit, with 0 for missing ones if its data had that; times in another zone are
                converted to the model's. A `Series` from `read` is used directly.
            steps: number of steps to forecast; by default the model's horizon. Beyond the horizon,
                forecasts are fed back as inputs.
            limits: lowest and highest possible value, infinite for none; forecasts outside become
                these. By default the settings `lower_limit` and `upper_limit`, and 0 as the lowest
                if no value of the training part was below 0, as in counts, traffic and speeds.
            events: table of the events known for the forecast's times, for a model that reads
                events (`stforecast.data.events`); by default that of the fit, which is not saved.

        Returns:
            Table (time × cell) with the times of the forecast steps, in the time zone of the
            history if it has one, and the cells of `cells`, which a fit orders by name.
            `attrs` names `service`, `units` and `limits`.

        Raises:
            InputError: if the history lacks cells, has another step length or unit, is too short,
                has no observed input, or times that cannot be placed in the model's zone; if the
                model was loaded and no history is given.
        """
        series = self._warned(history, events)
        found = self._fitted().predict(series, steps, Limits.of(limits))
        warn_of_set_back(series, len(found))
        return found

    def _warned(self, history: Data | Series | None, events: AnyPath | None) -> Series:
        """Read a history, and warn of what a forecast from it may suffer from."""
        model, series = self._fitted(), self.read(history, events)
        warn_of_level(series, model)
        warn_of_further_services(series, model)
        return series

    def predict_interval(
        self,
        history: Data | Series | None = None,
        steps: int | None = None,
        *,
        limits: tuple[float, float] | None = None,
        events: AnyPath | None = None,
    ) -> Interval | None:
        """Return bounds of the forecast; those beyond the model's horizon are NaN.

        The arguments are those of `predict`; bounds outside the limits become these.

        Returns:
            Lower and upper bounds in the data's own units, with the nominal `coverage` in `attrs`;
            None if the settings ask for no intervals.
        """
        series = self.read(history, events)
        return self.model_.bounds(series, steps, Limits.of(limits))

    def outlook(
        self,
        history: Data | Series | None = None,
        steps: int | None = None,
        *,
        limits: tuple[float, float] | None = None,
        events: AnyPath | None = None,
    ) -> tuple[pd.DataFrame, Interval | None]:
        """Return what `predict` and `predict_interval` return, in half of their time.

        It takes the arguments of `predict`.
        """
        model, series = self.model_, self._warned(history, events)
        found, interval = model.outlook(series, steps, Limits.of(limits))
        warn_of_set_back(series, len(found))
        return found, interval

    def sample_paths(
        self,
        history: Data | Series | None = None,
        n: int | None = 100,
        steps: int | None = None,
        *,
        limits: tuple[float, float] | None = None,
        events: AnyPath | None = None,
    ) -> xr.DataArray:
        """Draw joint futures `(path, cell, time)`, from which sums, maxima and spans are read.

        Their margins are the bounds; errors go together as in the tested forecasts, see
        `stforecast.forecasting.paths`.

        Args:
            history: as for `predict`.
            n: number of paths; None for one of each tested forecast.
            steps: as for `predict`, at most the model's horizon.
            limits: as for `predict`.
            events: as for `predict`.

        Raises:
            InputError: without bounds or tested forecasts, or too few of them.
        """
        from stforecast.forecasting.paths import sample_paths

        found, interval = self.outlook(history, steps, limits=ANY, events=events)
        tested = self.tested()
        if interval is None or tested is None:
            raise InputError(
                "paths need bounds and tested forecasts; give ", Words("{intervals:normalised}"),
                ", and load the folder of the run rather than of a saved model",
            )  # fmt: skip
        return sample_paths(found, interval, tested, n, limits or self.limits)

    def predict_groups(
        self,
        groups: str,
        history: Data | Series | None = None,
        steps: int | None = None,
        *,
        events: AnyPath | None = None,
    ) -> tuple[pd.DataFrame, Interval | None]:
        """Forecast sums over groups of cells, such as sites and a city, with bounds.

        Args:
            groups: table of members or columns of the cube, see
                `stforecast.forecasting.groups.read_groups`.
            history: as for `predict`.
            steps: as for `predict`.
            events: as for `predict`.

        Returns:
            Forecasts (time × group), the sums of the cells' in seven digits, and bounds; None
            without bounds of cells, or without tested forecasts.
        """
        from stforecast.forecasting.groups import read_groups
        from stforecast.forecasting.outlook import make_outlook

        series = self.read(history, events)
        members = read_groups(groups, series)
        found = make_outlook(self, series, steps, tested=self.tested(), groups=members).sums
        assert found is not None
        return found.forecast, found.interval

    def explain(
        self, cell: Any, history: Data | Series | None = None, *, events: AnyPath | None = None
    ) -> Explanation:
        """Explain the forecasts of a cell as sums of parts, see `stforecast.forecasting.explain`.

        Args:
            cell: id of the cell.
            history: as for `predict`.
            events: as for `predict`.

        Raises:
            InputError: as `predict`; for an unknown cell.
        """
        series = self.read(history, events)
        known = [str(one) for one in series.cells]
        if str(cell) not in known:
            raise choose("cell", str(cell), known)
        (found,) = explain(self._fitted(), series, np.array([known.index(str(cell))]))
        return found

    def tested(self) -> xr.Dataset | None:
        """Return `test_forecasts` of the fit or of the run it was loaded from, if there are any."""
        if self._evaluations:
            return self.test_forecasts()
        return None if self._folder is None else tested_forecasts(self._folder)

    def read(self, history: Data | Series | None, events: AnyPath | None = None) -> Series:
        """Read the series of the fitted cells from a history, to forecast from it repeatedly.

        Args:
            history: as for `predict`.
            events: as for `predict`.

        Raises:
            InputError: as `predict`, except for missing values.
        """
        history = self.data_.series if history is None else history
        return self._fitted().read(history, self._events(history, events))

    def _events(self, history: Data | Series, events: AnyPath | None) -> AnyPath | None:
        """Return the table of events to read: the given one, or that of the fit."""
        has_own = isinstance(history, Series) and history.calendar.events is not None
        fitted = self.asked.window.events
        is_table = Path(fitted).suffix.lower() == ".csv"  # Else the kinds of a fitted model.
        return fitted if events is None and is_table and not has_own else events

    def plot(
        self,
        history: Data | Series | None = None,
        *,
        cells: Sequence[Any] | None = None,
        steps: int | None = None,
        ax: Axes | None = None,
    ) -> Axes:
        """Draw the end of a history and the forecast that follows it, with its bounds.

        Args:
            history: as for `predict`.
            cells: ids of the cells to draw, at most six; by default the one of the highest mean.
            steps: as for `predict`.
            ax: axes to draw on; by default those of a new figure, `plot().figure`.

        Raises:
            InputError: as `predict`; for an unknown cell; if it was loaded and no history is given.
        """
        from stforecast.plots.outlook import draw_outlook

        series = self.read(history)
        return draw_outlook(series, *self.outlook(series, steps), cells, ax)

    def find_leaks(self, history: Data | Series) -> list[Leak]:
        """Find windows of a history's last quarter that depend on later values.

        Returns:
            The leaks, see `stforecast.forecasting.leaks`; empty if none was found.

        Raises:
            InputError: as `predict`.
        """
        return model_leaks(self._fitted(), self.read(history))

    def evaluate(self, data: Data | Series | None = None, by: By = "cell") -> pd.DataFrame:
        """Compute the errors on the data it was fitted on, or on other data.

        Args:
            data: other data of the fitted cells, all of which is tested, from the first step that
                the model's inputs reach back from; by default the validation and test parts of the
                data it was fitted on.
            by: whose errors the rows have, in the column `client`: each `cell`'s, or each
                `client`'s for all its cells together.

        Returns:
            One row for each client (and "all"), horizon step (and "all"), split, selection and
            metric: `mse`, `mae`, `rmse` of z-scores; `raw_…` in the data's units; with intervals,
            also `coverage`, `width`, `pinball` and `crps` on the test part. Selections are "last"
            and "best", and e.g. "last (global)" for a method's other models. A split without
            windows has no rows. Other data have rows of the split "test" and of the selected model;
            `mase` and `rmsse`, which need training data, are left out, and errors of intervals are
            of the widest alone. The attribute `select` names the selection that `predict` uses.

        Raises:
            InputError: without `data`, if it was loaded rather than fitted here; if `data` do not
                suit the model, or for an unknown `by`.
        """
        if by not in get_args(By):
            raise choose("by", by, get_args(By))
        select, found = self.config.run.select, self._evaluations
        if data is None:
            self._evaluation()
        else:
            found = {select: self._on(data)}
        table = pd.concat(evaluations.error_tables(found, by), ignore_index=True)
        table.attrs["select"] = select
        return table

    def errors(self, by: By = "cell") -> Iterator[pd.DataFrame]:
        """Yield `evaluate` in parts, of which one is in memory at a time."""
        self._evaluation()
        return evaluations.error_tables(self._evaluations, by)

    def score(self, data: Data | Series | None = None, y: None = None) -> float:
        """Return the coefficient of determination R² of the forecasts; the highest is best.

        1 for no error; 0 for the mean of each cell over the tested data. It is of z-scores, over
        all cells and steps ahead. scikit-learn's searches maximise it, and pass `y`.

        Args:
            data: as for `evaluate`; by default the test part of the data it was fitted on.
            y: without effect.

        Raises:
            InputError: as `evaluate`.
        """
        return (self._evaluation() if data is None else self._on(data)).r2()

    def _on(self, data: Data | Series) -> Evaluation:
        return evaluations.on_new_data(self.model_, self.read(data))

    def test_forecasts(self, data: Data | Series | None = None) -> xr.Dataset:
        """Return the forecasts of the test part, or of other data, with the observed targets.

        With more than about 1,000 cells they are computed again at each call.

        Args:
            data: as for `evaluate`; by default the test part of the data it was fitted on.

        Returns:
            `y_hat` and `y` (NaN where missing) with dimensions `(cell, time, horizon)`, in the
            data's units; `time` is the first forecast step, `horizon` counts from 1. With
            intervals, also `lower` and `upper` of the widest and the attribute `coverage`; bounds
            that cover 50 % are `lower_50` and `upper_50`, and so on. The forecasts of other
            selections, such as those of the last round, are `y_hat_last` and the like; the
            attribute `selection` of each names its selections. `seasonal_naive` repeats the day
            or the week before, whichever was nearer in the test part, unless there is none. By
            `cell` alone: `std`, of the z-scores, `seasonal_mae` and `seasonal_rmse`, which scaled
            errors divide by, and `lon` and `lat` if known.
            Attributes are `service`, `method`, `step_minutes`, `clock` ("utc" or "local"),
            `time_zone` if the clock is UTC, and `lower_limit` and `upper_limit`, if any: `predict`
            moves forecasts to these limits, but those here, and their errors, are as they were.

        Raises:
            InputError: as `evaluate`.
        """
        select = self.config.run.select
        if data is None:
            self._evaluation()
            found = evaluations.forecasts_dataset(self._evaluations, select)
        else:
            found = evaluations.forecasts_dataset({select: self._on(data)}, select)
        return self._limited(found)

    def dump_forecasts(
        self, target: h5netcdf.File, checkpointer: Checkpointer | None = None
    ) -> None:
        """Write `test_forecasts` into an open file, block by block of the cells.

        Forecasts and bounds are rounded by less than 0.0005 of the deviation of their cell's
        values, and compressed. The errors of those that are not rounded are summed on the way, so
        that `errors` forecasts nothing again. A checkpointer keeps finished shards for a resumed
        run.
        """
        select, std = self.config.run.select, self.data_.scaler.std
        std = np.broadcast_to(std, len(self.cells))[:, None, None]
        summed = all(of.tables is not None for of in self._evaluations.values())
        blocks = evaluations.forecast_blocks(
            self._evaluations, select, errors=not summed, checkpointer=checkpointer
        )
        observed = "y", "seasonal_naive"

        def rounded(first: int, found: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
            of_cells = std[first : first + len(found["y"])]
            unit = 2.0 ** (np.floor(np.log2(of_cells)) - BITS)
            return {n: v if n in observed else np.round(v / unit) * unit for n, v in found.items()}

        begin = next(blocks)
        shapes = {name: part.shape[1:] for name, part in begin[1].items()}
        like = {n: np.broadcast_to(np.nan, (len(self.cells), *s)) for n, s in shapes.items()}
        described = evaluations.forecasts_dataset(self._evaluations, select, like)
        rows = {n: IN_CHUNK // max(1, math.prod(s)) for n, s in shapes.items()}
        chunks = {n: (max(1, min(rows[n], len(self.cells))), *s) for n, s in shapes.items()}
        parts = ((first, rounded(first, found)) for first, found in chain([begin], blocks))
        overlapping = observed if self.config.window.horizon > 1 else ()
        dump_blocks(
            self._limited(described), chunks, parts, target, packed=True, overlapping=overlapping
        )

    def _limited(self, found: xr.Dataset) -> xr.Dataset:
        """Note the limits in the attributes of forecasts."""
        limits = dict(zip(("lower_limit", "upper_limit"), self.limits, strict=True))
        return found.assign_attrs({name: v for name, v in limits.items() if np.isfinite(v)})

    @property
    def predict_seconds_(self) -> float:
        """Seconds that the selected model's forecasts of the test part took."""
        return self._evaluation().seconds

    def to_frame(self) -> pd.DataFrame:
        """Return the forecasts of the test part, a row for each cell, step and window.

        Returns:
            Columns `cell`, `time` (of the target, in the cube's time zone if it has one), `horizon`
            (steps ahead), and those of `test_forecasts`: `y`, `y_hat`, bounds and the like.

        Raises:
            InputError: if it was loaded rather than fitted here.
        """
        return tidy(self.test_forecasts())

    def adapt(
        self,
        history: Data | Series,
        days: float = 3.0,
        *,
        rounds: int = 10,
        fine_tune: int = 0,
        events: AnyPath | None = None,
    ) -> Forecaster:
        """Make a forecaster of the cells of a history, of which some are new to this one.

        Cells that it knows keep the part that they have. New ones get forecasts from the shared
        part, and train a personal part of their own by the method's local update, as
        `stforecast.forecasting.adapt` says; nothing is sent. This forecaster stays as it is, and
        the new one is as if loaded: it has no data to evaluate on.

        Args:
            history: data of new cells, with or without cells that it knows. It may be shorter than
                the inputs reach back: steps before it count as missing. New cells are scaled by
                all of it, and by the mean scale of the trained cells without a reading.
            days: days at the end of the history that train new cells; 0 for the shared part alone.
            rounds: local updates of what a new cell keeps to itself.
            fine_tune: epochs in which a new cell fits the global model to its own data, for methods
                that average one model; none by default.
            events: table of the events in the history, for a model that reads events.

        Raises:
            InputError: if no cell is new, the history is too short for the days, or the method
                cannot be adapted.
        """
        options = AdaptOptions(days, rounds, fine_tune)
        series = read_series(history, self._fitted(), self._events(history, events))
        return self._holding(adapt(self.model_, series, options))

    def update(
        self,
        history: Data,
        how: How = "trained further",
        days: float = 14.0,
        *,
        events: AnyPath | None = None,
    ) -> Forecaster:
        """Make a forecaster of the same cells that is renewed with a newer history.

        The last days are left out of its training: they calibrate its bounds, and on them it can be
        compared with this one, which stays as it is. `stforecast update` does all of this.

        Args:
            history: as for `predict`, long enough to train on.
            how: `calibrated`: bounds alone; `trained further`: three rounds (`refit_rounds`, with
                `refit`) from the present weights; `trained anew`: a fit with the same settings.
            days: days at the end to leave out; at least four horizons are.
            events: table of the events in the history, for a model that reads events.

        Raises:
            InputError: if the history is too short, or as `predict` and `fit`.
        """
        if how not in get_args(How):
            raise choose("how", how, get_args(How))
        model = self.model_
        series = self.read(history, events)
        n_steps = trial_steps(model, series, days)
        if how != "trained anew":
            renew = calibrated if how == "calibrated" else trained_further
            return self._holding(renew(model, series, n_steps))
        settings = {**self.asked.flat(), "split": split_before(series, n_steps)}
        settings |= {"events": os.fspath(events)} if events else {}
        anew = Forecaster.recorded(settings).fit(open_history(history, model))
        anew._model = with_bounds_of(model, anew.model_)
        return anew

    def learn_all(self, history: Data | Series) -> Forecaster:
        """Return one that is trained further on all of a history; its bounds stay as they are."""
        return self._holding(trained_further(self.model_, self.read(history), 0))

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
        model only. `folds` to `train` are the settings of `stforecast.data.folds.FoldOptions`,
        lengths of time such as "7d".

        Returns:
            Errors, forecasts and dates of all folds.

        Raises:
            InputError: if the folds do not fit in the data, or the windows in a fold.
        """
        options = FoldOptions(folds, test, validation, gap, train)
        series = as_series(data, self.asked.data.service)
        windows = {self.asked.method: self.asked.window}
        plan = plan_folds(len(series.values), series.calendar, windows, options)
        asked = self.asked.flat()
        if asked["refit"] == "final":  # Nothing is forecast after a fold.
            asked["refit"] = "once"

        def tested(split: str) -> FoldResult:
            fitted = Forecaster.recorded({**asked, "split": split}).fit(data, progress=False)
            of_fold, select = fitted._evaluations, fitted.config.run.select
            found = evaluations.forecasts_dataset(of_fold, select, errors=True)
            return FoldResult(fitted.evaluate(), fitted._limited(found), fitted.data_.parts())

        splits = each(plan.splits, plan.description, "fold", progress=progress)
        return Backtest(plan.description, [tested(split) for split in splits])

    def save(self, folder: AnyPath) -> Path:
        """Save the forecaster as `forecaster.json` and `state.safetensors`; return the folder.

        Args:
            folder: created if it does not exist.
        """
        self.model_.save(Path(folder))
        return Path(folder)

    @classmethod
    def load(cls, folder: AnyPath, device: str = "auto", *, mapped: bool = False) -> Forecaster:
        """Load a saved forecaster or that of a run folder; nothing is unpickled.

        Args:
            folder: a run folder, or the folder given to `save`.
            device: device to compute on, regardless of the one used for training.
            mapped: whether to read arrays only when they are used, which saves memory if nobody
                writes over the files meanwhile.

        Raises:
            InputError: naming the file that is missing, damaged or of another version.
        """
        self = cls._holding(FittedModel.load(Path(folder), device, mapped=mapped))
        self._folder = Path(folder)
        return self

    @classmethod
    def _holding(cls, model: FittedModel) -> Forecaster:
        """Return a forecaster that holds a model without its data."""
        self = cls.recorded(model.config.flat())
        self._model = model
        return self

    def __repr__(self) -> str:
        """Return the call that makes it, and what it was fitted on."""
        return call_in_one_line(self.get_params(), self._model)

    def _repr_html_(self) -> str:
        """Return a table for notebooks."""
        parts = self.data_.parts() if self._evaluations else {}
        return as_html(self.get_params(), self._model, parts, self.train_seconds_)
