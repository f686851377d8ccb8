"""Judging a fitted forecaster on the validation and the test part of its data."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import pandas as pd
import xarray as xr

from data_prep.errors import InputError
from stforecast.config import Config
from stforecast.data.scaling import Scaler
from stforecast.data.series import Series
from stforecast.data.splits import Split
from stforecast.data.windows import Calendar, target_windows
from stforecast.intervals import Bands, calibrated, raw_bands
from stforecast.metrics import INTERVAL_METRICS, METRICS
from stforecast.metrics.tables import evaluate, evaluate_intervals

log = logging.getLogger(__name__)

Judged = tuple[Bands, np.ndarray, np.ndarray]
"""Bands, targets and mask of one part, `(cells, windows, horizon)`, z-scored."""


class Fitted(Protocol):
    """What a method or a reference forecaster is after fitting.

    One that forecasts quantiles has `levels` and `quantiles` besides, as `FittedMethod` does.
    """

    def predict(self, series: np.ndarray, starts: np.ndarray, calendar: Calendar) -> np.ndarray:
        """Forecasts `(cells, windows, horizon)` of z-scores, each from what lies before it."""
        ...


@dataclass(frozen=True, eq=False)
class Evaluation:
    """The data that a forecaster was fitted on, to judge it by.

    Attributes:
        config: settings of the run.
        series: the data.
        split: its parts.
        scaler: fitted on the training part.

    Raises:
        InputError: if intervals are asked for and there is no validation part to calibrate them on.
    """

    config: Config
    series: Series
    split: Split
    scaler: Scaler

    def __post_init__(self) -> None:
        """Refuse intervals that nothing could calibrate."""
        if self.config.interval.intervals != "none" and not len(self._calibration_starts()):
            raise InputError(
                f"intervals are calibrated on the validation part: split {self.config.data.split} "
                "has none long enough; choose another --split, or --intervals none"
            )

    def _calibration_starts(self) -> np.ndarray:
        """Validation windows whose targets are all known when the test part begins."""
        starts = self.split.validation
        return starts[starts + self.config.window.horizon <= self.split.test[0]]

    def table(self, fitted: Mapping[str, Fitted]) -> pd.DataFrame:
        """Errors of every selection on the validation and test part; see `Forecaster.evaluate`."""
        splits = [name for name in ("validation", "test") if len(getattr(self.split, name))]
        tables = []
        for split in splits:
            for selection, model in fitted.items():
                judged = self._part(getattr(self.split, split), model)
                table = self._errors(judged)
                if split == "test" and self.config.has_intervals:
                    table = pd.concat([table, self._interval_errors(model, judged)])
                tables.append(table.assign(split=split, selection=selection))
        return pd.concat(tables, ignore_index=True)

    def test_forecasts(self, model: Fitted) -> xr.Dataset:
        """Forecasts of the test part beside what was observed; see `Forecaster.test_forecasts`."""
        judged = self._part(self.split.test, model)
        bands, y, mask = judged
        values = {"y_hat": (bands.centre, "forecast"), "y": (y, "observed")}
        if self.config.has_intervals:
            bands, _ = self._calibrated(model, judged)
            lower, upper = bands.bounds[self.config.coverage]
            values |= {"lower": (lower, "lower bound"), "upper": (upper, "upper bound")}
        dims = ("cell", "time", "horizon")
        attrs = {"units": self.series.units}
        ds = xr.Dataset(
            {k: (dims, self.raw(v), {**attrs, "long_name": n}) for k, (v, n) in values.items()},
            coords={
                "cell": self.series.cells,
                "time": self.series.times[self.split.test],
                "horizon": np.arange(1, y.shape[2] + 1),
            },
            attrs={
                "service": self.series.service,
                "method": self.config.method,
                "clock": self.series.clock,
            },
        )
        if "lower" in ds:
            ds.attrs["coverage"] = self.config.coverage
        ds["y"] = ds["y"].where(mask)
        return ds

    def radius(self, model: Fitted) -> np.ndarray:
        """How far calibration moves the bounds of the window after the data, `(cells, horizon)`."""
        _, after = self._calibrated(model, self._part(self.split.test, model))
        return after[self.config.coverage][:, 0]

    def raw(self, values: np.ndarray) -> np.ndarray:
        """Z-scores `(cells, …)` in the data's units."""
        return self.scaler.inverse(values, cell_axis=0)

    def _part(self, starts: np.ndarray, model: Fitted) -> Judged:
        z = self.scaler.transform(self.series.values)
        bands = raw_bands(model, z, starts, self.series.calendar, self.config.coverages)
        return bands, *target_windows(z, starts, self.config.window)

    def _calibrated(self, model: Fitted, test: Judged) -> tuple[Bands, dict[float, np.ndarray]]:
        options = self.config.interval
        if options.intervals == "none":
            n_cells, _, horizon = test[1].shape
            return test[0], dict.fromkeys(test[0].bounds, np.zeros((n_cells, 1, horizon)))
        bands, after = calibrated(self._part(self._calibration_starts(), model), test, options)
        if np.isinf(after[self.config.coverage]).any():
            log.warning(
                "%s: too few validation targets for an interval of coverage %g of some cells: "
                "those have no end", self.series.name, self.config.coverage,
            )  # fmt: skip
        return bands, after

    def _errors(self, judged: Judged) -> pd.DataFrame:
        bands, y, mask = judged
        cells = self.series.cells
        of_scores = [name for name, metric in METRICS.items() if not metric.relative]
        scaled = evaluate(bands.centre, y, mask, cells, of_scores)
        raw = evaluate(self.raw(bands.centre), self.raw(y), mask, cells)
        raw["metric"] = "raw_" + raw["metric"]
        return pd.concat([scaled, raw], ignore_index=True)

    def _interval_errors(self, model: Fitted, test: Judged) -> pd.DataFrame:
        bands, _ = self._calibrated(model, test)
        _, y, mask = test
        rest: tuple[Any, ...] = (mask, self.series.cells, self.config.coverage)
        scaled = evaluate_intervals(bands, y, *rest)
        raw = evaluate_intervals(bands.map(self.raw), self.raw(y), *rest)
        with_unit = [name for name, metric in INTERVAL_METRICS.items() if not metric.relative]
        raw = raw[raw["metric"].isin(with_unit)].copy()
        raw["metric"] = "raw_" + raw["metric"]
        return pd.concat([scaled, raw], ignore_index=True)
