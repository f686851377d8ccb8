"""A forecaster with the data that it was fitted on: errors and tested forecasts."""

from __future__ import annotations

from typing import get_args

import numpy as np
import pandas as pd
import xarray as xr

from data_prep.base.errors import choose
from stforecast.bench.run_groups import pooled
from stforecast.data.series import Data, Series
from stforecast.description import as_html
from stforecast.evaluation import (
    By,
    Evaluation,
    error_table,
    forecasts_dataset,
    on_new_data,
)
from stforecast.fitted_forecaster import FittedForecaster
from stforecast.forecast_tables import tidy


class EvaluatedForecaster(FittedForecaster):
    """What a forecaster tells of its errors; see `stforecast.Forecaster`."""

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
            of the widest alone.

        Raises:
            InputError: without `data`, if it was loaded rather than fitted here; if `data` do not
                suit the model, or for an unknown `by`.
        """
        if by not in get_args(By):
            raise choose("by", by, get_args(By))
        if data is None:
            self._evaluated()
            return error_table(self._evaluations, by)
        return error_table({self.config.run.select: self._on(data)}, by)

    def score(self, data: Data | Series | None = None, y: None = None) -> float:
        """Return the coefficient of determination R² of the forecasts; the highest is best.

        1 for no error; 0 for the mean of each cell over the tested data. It is of z-scores, over
        all cells and steps ahead. scikit-learn's searches maximise it.

        Args:
            data: as for `evaluate`; by default the test part of the data it was fitted on.
            y: without effect; scikit-learn passes it.

        Raises:
            InputError: as `evaluate`.
        """
        return (self._evaluated() if data is None else self._on(data)).r2()

    def _on(self, data: Data | Series) -> Evaluation:
        model = self._model(calibrated=True)
        return on_new_data(
            model.config, self.read(data), model.scaler, model.predictor, model.calibration,
            model.limits, self.clients,
        )  # fmt: skip

    def test_forecasts(self, data: Data | Series | None = None) -> xr.Dataset:
        """Return the forecasts of the test part, or of other data, with the observed targets.

        Args:
            data: as for `evaluate`; by default the test part of the data it was fitted on.

        Returns:
            `y_hat` and `y` (NaN where missing) with dimensions `(cell, time, horizon)`, in the
            data's units; `time` is the first forecast step, `horizon` counts from 1. With
            intervals, also `lower` and `upper` of the widest and the attribute `coverage`; bounds
            that cover 50 % are `lower_50` and `upper_50`, and so on. The forecasts of other
            selections, such as those of the last round, are `y_hat_last` and the like; the
            attribute `selection` of each names its selections. `seasonal_naive` repeats the day
            before, unless there is none. By `cell` alone: `std`, of the z-scores, `seasonal_mae`
            and `seasonal_rmse`, which scaled errors divide by, and `lon` and `lat` if known.
            Attributes are `service`, `method`, `step_minutes`, `clock` ("utc" or "local"),
            `time_zone` if the clock is UTC, and `lower_limit` and `upper_limit`, if any, to which
            `predict` moves forecasts. Those here are as the model gives them, and so are their
            errors.

        Raises:
            InputError: as `evaluate`.
        """
        select = self.config.run.select
        if data is None:
            self._evaluated()
            found = forecasts_dataset(self._evaluations, select)
        else:
            found = forecasts_dataset({select: self._on(data)}, select)
        limits = {f"{k}_limit": v for k, v in self.limits._asdict().items() if np.isfinite(v)}
        return found.assign_attrs(limits)

    @property
    def predict_seconds_(self) -> float:
        """Seconds that the selected model's forecasts of the test part took."""
        return self._evaluated().seconds

    def to_frame(self) -> pd.DataFrame:
        """Return the forecasts of the test part, a row for each cell, step and window.

        Returns:
            Columns `cell`, `time` (of the target, in the cube's time zone if it has one), `horizon`
            (steps ahead), and those of `test_forecasts`: `y`, `y_hat`, bounds and the like.

        Raises:
            InputError: if it was loaded rather than fitted here.
        """
        return tidy(self.test_forecasts())

    def parts(self) -> dict[str, dict[str, str] | None]:
        """Return the first and last target step of each part of the data it was fitted on.

        Returns:
            `training`, `validation` and `test`, each with `first` and `last` in local time; None
            for a part without windows.

        Raises:
            InputError: if it was loaded rather than fitted here.
        """
        return self._evaluated().data.parts()

    def roads(self) -> np.ndarray | None:
        """Return the weights `(cells, cells)` of the roads in the data it was fitted on, if known.

        Raises:
            InputError: if it was loaded rather than fitted here.
        """
        return self._evaluated().data.series.adjacency

    def _pooled_errors(self) -> dict[str, float]:
        """Return the errors over all cells and steps, by split and metric: `test/mse`."""
        table = self.evaluate()
        table = pooled(table[table["selection"] == self.config.run.select])
        names = table["split"] + "/" + table["metric"]
        return dict(zip(names, table["value"].astype(float), strict=True))

    def _repr_html_(self) -> str:
        """Return a table for notebooks."""
        model = self._model() if self._fitted else None
        parts = self.parts() if self._evaluations else {}
        return as_html(self.get_params(), model, parts, self.train_seconds_)
