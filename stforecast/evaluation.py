"""Evaluation of a predictor on the validation and the test part of its data."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr

from data_prep.errors import InputError
from stforecast.config import Config
from stforecast.data.prepared import PreparedSeries, Targets
from stforecast.intervals import Bands, calibrated, raw_bands
from stforecast.metrics import INTERVAL_METRICS, METRICS
from stforecast.metrics.tables import evaluate, evaluate_intervals
from stforecast.predictor import Predictor

log = logging.getLogger(__name__)

Forecasts = tuple[Bands, np.ndarray, np.ndarray]
"""Bands, targets and mask of one part, `(cells, windows, horizon)`, z-scored."""


@dataclass(frozen=True, eq=False)
class Evaluation:
    """Forecasts of the validation and the test part by one predictor, each computed once.

    Attributes:
        config: settings of the run.
        data: the series.
        predictor: the predictor to evaluate.
    """

    config: Config
    data: PreparedSeries
    predictor: Predictor

    @cached_property
    def _validation(self) -> Forecasts:
        return self._forecasts(self.data.split.validation, self.data.validation_targets)

    @cached_property
    def _test(self) -> Forecasts:
        return self._forecasts(self.data.split.test, self.data.test_targets)

    def _forecasts(self, starts: np.ndarray, targets: Targets) -> Forecasts:
        data, coverages = self.data, self.config.coverages
        bands = raw_bands(self.predictor, data.z, starts, data.calendar, coverages)
        return bands, *targets

    @cached_property
    def _calibrated(self) -> tuple[Bands, dict[float, np.ndarray]]:
        """Return the bands of the test part and the radii of the window after it."""
        options, test = self.config.interval, self._test
        if options.intervals == "none":
            n_cells, _, horizon = test[1].shape
            return test[0], dict.fromkeys(test[0].bounds, np.zeros((n_cells, 1, horizon)))
        starts, known = self.data.calibration, self._validation
        if len(starts) < len(self.data.split.validation):
            known = self._forecasts(starts, self.data.targets(starts))
        bands, after = calibrated(known, test, options)
        if np.isinf(after[self.config.coverage]).any():
            log.warning(
                "%s: too few validation targets for an interval of coverage %g of some cells: "
                "those are infinite", self.data.series.name, self.config.coverage,
            )  # fmt: skip
        return bands, after

    def errors(self) -> dict[str, pd.DataFrame]:
        """Compute the errors on `validation` and `test`, each if it has windows."""
        found = {}
        if len(self.data.split.validation):
            found["validation"] = self._errors(self._validation)
        if len(self.data.split.test):
            found["test"] = self._errors(self._test)
            if self.config.has_intervals:
                found["test"] = pd.concat([found["test"], self._interval_errors()])
        return found

    def test_forecasts(self) -> xr.Dataset:
        """Return forecasts and targets of the test part; see `Forecaster.test_forecasts`."""
        bands, y, mask = self._test
        values = {"y_hat": (bands.centre, "forecast"), "y": (y, "observed")}
        if self.config.has_intervals:
            lower, upper = self._calibrated[0].bounds[self.config.coverage]
            values |= {"lower": (lower, "lower bound"), "upper": (upper, "upper bound")}
        series, dims = self.data.series, ("cell", "time", "horizon")
        attrs = {"units": series.units}
        ds = xr.Dataset(
            {k: (dims, self.raw(v), {**attrs, "long_name": n}) for k, (v, n) in values.items()},
            coords={
                "cell": series.cells,
                "time": series.times[self.data.split.test],
                "horizon": np.arange(1, y.shape[2] + 1),
            },
            attrs={
                "service": series.service,
                "method": self.config.method,
                "clock": series.clock,
            },
        )
        if "lower" in ds:
            ds.attrs["coverage"] = self.config.coverage
        ds["y"] = ds["y"].where(mask)
        return ds

    def radius(self) -> np.ndarray:
        """Return the calibration radius `(cells, horizon)` of the window after the data."""
        return self._calibrated[1][self.config.coverage][:, 0]

    def raw(self, values: np.ndarray) -> np.ndarray:
        """Convert z-scores `(cells, …)` to the data's units."""
        return self.data.scaler.inverse(values, cell_axis=0)

    def _errors(self, forecasts: Forecasts) -> pd.DataFrame:
        bands, y, mask = forecasts
        cells = self.data.series.cells
        of_scores = [name for name, metric in METRICS.items() if not metric.relative]
        scaled = evaluate(bands.centre, y, mask, cells, of_scores)
        raw = evaluate(self.raw(bands.centre), self.raw(y), mask, cells)
        raw["metric"] = "raw_" + raw["metric"]
        return pd.concat([scaled, raw], ignore_index=True)

    def _interval_errors(self) -> pd.DataFrame:
        bands, _ = self._calibrated
        _, y, mask = self._test
        rest: tuple[Any, ...] = (mask, self.data.series.cells, self.config.coverage)
        scaled = evaluate_intervals(bands, y, *rest)
        raw = evaluate_intervals(bands.map(self.raw), self.raw(y), *rest)
        with_unit = [name for name, metric in INTERVAL_METRICS.items() if not metric.relative]
        raw = raw[raw["metric"].isin(with_unit)].copy()
        raw["metric"] = "raw_" + raw["metric"]
        return pd.concat([scaled, raw], ignore_index=True)


def error_table(evaluations: Iterable[tuple[str, Evaluation]]) -> pd.DataFrame:
    """Tabulate the errors of several predictors; see `Forecaster.evaluate`.

    Args:
        evaluations: pairs of a selection's name and its evaluation. Each is released after use,
            unless the caller keeps it.
    """
    tables: dict[str, list[pd.DataFrame]] = {"validation": [], "test": []}
    for selection, evaluation in evaluations:
        for split, errors in evaluation.errors().items():
            tables[split].append(errors.assign(split=split, selection=selection))
    return pd.concat([t for split in tables.values() for t in split], ignore_index=True)


def check_calibration(config: Config, data: PreparedSeries) -> None:
    """Refuse intervals that cannot be calibrated.

    Raises:
        InputError: if intervals are asked for and no validation window is known in time.
    """
    if config.interval.intervals != "none" and not len(data.calibration):
        raise InputError(
            f"intervals are calibrated on the validation part: split {config.data.split} "
            "has none long enough; choose another --split, or --intervals none"
        )
