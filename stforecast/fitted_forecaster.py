"""A fitted forecaster: forecasts, bounds, drawings and descriptions."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from data_prep.base.errors import InputError
from stforecast.config import Config
from stforecast.data.clients import Partition
from stforecast.data.events import is_table
from stforecast.data.scaling import Scaler
from stforecast.data.series import Data, Series
from stforecast.description import in_words
from stforecast.evaluation import (
    Evaluation,
)
from stforecast.forecast_tables import Interval, bound_tables, forecast_table, reach
from stforecast.history import Trained, read_history
from stforecast.intervals.calibration import Calibration
from stforecast.leaks import Leak, forecast_leaks
from stforecast.limits import Limits
from stforecast.parameters import Parameters
from stforecast.predictor import Predictor
from stforecast.saved_forecaster import SavedForecaster

if TYPE_CHECKING:
    from matplotlib.axes import Axes


class FittedForecaster(Parameters):
    """What a forecaster does once it is fitted or loaded; see `stforecast.Forecaster`."""

    asked: Config
    config: Config
    train_seconds_: float
    cells: np.ndarray
    step: pd.Timedelta
    service: str
    units: str
    time_zone: str | None
    scaler: Scaler
    non_negative: bool
    clients: Partition
    adapted: bool
    trained_on: Mapping[str, str]

    _fitted: dict[str, Predictor]
    _evaluations: dict[str, Evaluation]
    _calibration: Calibration | None

    def predict(
        self,
        history: Data | Series,
        steps: int | None = None,
        *,
        limits: tuple[float, float] | None = None,
        events: str | os.PathLike[str] | None = None,
    ) -> pd.DataFrame:
        """Forecast what follows the end of `history`, in the data's own units.

        Args:
            history: data of at least the cells that the model was fitted on; of others a warning
                says how to adapt to them. The values of a table (time × cell) are taken to be of
                the fitted service, in its unit. A `Series` from `read` is used directly. Times in
                another zone are converted to the model's, which calendar and lags follow.
            steps: number of steps to forecast; by default the model's horizon. Beyond the horizon,
                forecasts are fed back as inputs.
            limits: lowest and highest possible value, infinite for none; forecasts outside become
                these. By default the settings `lower_limit` and `upper_limit`, and 0 as the lowest
                if no value of the training part was below 0, as in counts, traffic and speeds.
            events: table of the events known for the forecast's times, for a model that reads
                events (`stforecast.data.events`); by default that of the fit, which is not saved.

        Returns:
            Table (time × cell) with the times of the forecast steps, in the time zone of the
            history: that of a table's index, or that of a cube; without one if the times of the
            history have none. `attrs` names `service` and `units`, and the lowest and highest
            possible value as `limits`.

        Missing inputs are replaced by the cell's mean, as in training, with a warning; a cell
        without any observed input gets no forecast (NaN).

        Raises:
            InputError: if the history lacks cells, has another step length or unit, is too short,
                has no observed input, or times that cannot be placed in the model's zone.
        """
        model = self._model()
        series = self.read(history, events)
        return forecast_table(model, series, steps, Limits(*(limits or model.limits)))

    def predict_interval(
        self,
        history: Data | Series,
        steps: int | None = None,
        *,
        limits: tuple[float, float] | None = None,
        events: str | os.PathLike[str] | None = None,
    ) -> Interval | None:
        """Return bounds of the forecast; those beyond the model's horizon are NaN.

        Args:
            history: as for `predict`.
            steps: as for `predict`.
            limits: as for `predict`; bounds outside become these.
            events: as for `predict`.

        Returns:
            Lower and upper bounds in the data's own units, with the nominal `coverage` in `attrs`;
            None if the settings ask for no intervals.

        Raises:
            InputError: as `predict`.
        """
        model = self._model(calibrated=True)
        series = self.read(history, events)
        return bound_tables(model, series, steps, Limits(*(limits or model.limits)))

    @property
    def limits(self) -> Limits:
        """Lowest and highest value of its forecasts and bounds, in the data's units."""
        return self._model().limits

    def read(self, history: Data | Series, events: str | os.PathLike[str] | None = None) -> Series:
        """Read the series of the fitted cells from a history, to forecast from it repeatedly.

        Args:
            history: as for `predict`.
            events: as for `predict`.

        Raises:
            InputError: as `predict`, except for missing values.
        """
        self._chosen()
        needed = reach(self._model())
        return read_history(
            history, self._trained(), self.cells, needed, self._events(history, events),
            lengthened=self.adapted,
        )  # fmt: skip

    def _trained(self) -> Trained:
        """Return what a history is compared with."""
        return Trained(self.service, self.units, self.step, self.time_zone, self.config.window)

    def _events(
        self, history: Data | Series, events: str | os.PathLike[str] | None
    ) -> str | os.PathLike[str] | None:
        """Return the table of events to read: the given one, or that of the fit."""
        has_own = isinstance(history, Series) and history.calendar.events is not None
        fitted = self.asked.window.events
        return fitted if events is None and is_table(fitted) and not has_own else events

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
            history: as for `predict`; by default the data it was fitted on.
            cells: ids of the cells to draw, at most six; by default the one of the highest mean.
            steps: as for `predict`.
            ax: axes to draw on; by default those of a new figure, `plot().figure`.

        Returns:
            The axes.

        Raises:
            InputError: as `predict`; for an unknown cell; if it was loaded and no history is given.
        """
        from stforecast.plots.outlook import draw_outlook

        series = self._evaluated().data.series if history is None else self.read(history)
        tables = self.predict(series, steps), self.predict_interval(series, steps)
        return draw_outlook(series, *tables, cells, ax)

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
        starts = np.arange(max(reach(self._model()), len(z) - len(z) // 4), len(z))
        calendar = self.scaler.calendar(series)
        return forecast_leaks(self._chosen(), z, starts, window, calendar)

    def _model(self, *, calibrated: bool = False) -> SavedForecaster:
        """Return the fitted model without its data.

        Args:
            calibrated: whether to include the calibration of its intervals, if it has any.

        Raises:
            InputError: if it is not fitted.
        """
        predictor = self._chosen()
        return SavedForecaster(
            self.config, self.cells, self.step, self.service, self.units, self.scaler, predictor,
            self._interval_calibration() if calibrated else None, self.non_negative, self.clients,
            self.adapted, self.trained_on, self.time_zone,
        )  # fmt: skip

    def __repr__(self) -> str:
        """Return the call that makes it, and what it was fitted on."""
        return in_words(self.get_params(), self._model() if self._fitted else None)

    def _chosen(self) -> Predictor:
        if not self._fitted:
            raise InputError("this forecaster is not fitted; call fit or Forecaster.load first")
        return self._fitted[self.config.run.select]

    def _evaluated(self) -> Evaluation:
        """Return the evaluation of the selected model."""
        if not self._evaluations:
            raise InputError("evaluation needs the data: fit this forecaster, do not load it")
        return self._evaluations[self.config.run.select]

    def _interval_calibration(self) -> Calibration | None:
        """Return what calibrates bounds; None without intervals."""
        if self._calibration is None and self._evaluations and self.config.has_intervals:
            self._calibration = self._evaluated().calibration()
        return self._calibration
