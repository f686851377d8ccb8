"""Evaluation of a fitted model on the validation and the test part of its data.

Seasonal naive is the yardstick of skill. Its season is a day or a week, whichever was nearer in the
test part itself, so that another split does not choose a weaker one; where a step does not divide a
day, it is one step, so that the forecast is the last value. Scaled errors are divided by those of a
day's season in the training part, so that they can be compared.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, Literal

import numpy as np
import pandas as pd
import xarray as xr

from data_prep.base.errors import InputError, counted
from data_prep.base.errors import some as some_of
from data_prep.base.progress import noting
from stforecast.data.anchors import repeat_season
from stforecast.data.clock import Calendar
from stforecast.data.dates import DAY, WEEK, divides_a_day
from stforecast.data.prepared import PreparedSeries, Targets
from stforecast.data.series import Series
from stforecast.data.splits import Split
from stforecast.forecasting.config import Config
from stforecast.forecasting.history import warn_of_far_bounds
from stforecast.forecasting.model import FittedModel
from stforecast.intervals.bands import Bands, clip, include_constant, raw_bands
from stforecast.intervals.calibration import Calibration, Forecasts, calibrate, fewest_scores
from stforecast.metrics import INTERVAL_METRICS, METRICS
from stforecast.metrics.metric import Scale, Sums, joined_sums
from stforecast.metrics.point import ROWS, error_sums, interval_sums, tabulated

log = logging.getLogger(__name__)


def season_of(calendar: Calendar) -> int:
    """Return the steps of a season.

    >>> import pandas as pd
    >>> start = pd.Timestamp("2013-11-01")
    >>> season_of(Calendar(start, pd.Timedelta("10min"))), season_of(Calendar(start, 7 * DAY))
    (144, 1)
    """
    return int(DAY // calendar.step) if divides_a_day(calendar.step) else 1


def better_season(data: PreparedSeries) -> int:
    """Return the steps of a season: a week if it is nearer in the test part than a day.

    They are compared by mean absolute errors in the data's units, if a week is known before the
    first window.
    """
    day, calendar, starts = season_of(data.calendar), data.calendar, data.split.test
    if not divides_a_day(calendar.step) or not len(starts):
        return day
    week = calendar.steps_in(WEEK)
    if starts.min() < week:
        return day
    (y, mask), off = data.test_targets, np.zeros(2)
    std = np.broadcast_to(data.scaler.std, len(y))[:, None, None]
    for some in (slice(i, i + CELLS) for i in range(0, len(y), CELLS)):
        for i, season in enumerate((day, week)):
            naive = repeat_season(data.z[:, some], starts, data.window.horizon, season, calendar)
            error = np.abs(naive - y[some]) * std[some]
            off[i] += error.sum(where=mask[some], dtype=float)
    return week if off[1] < off[0] else day


def seasonal_forecast(data: PreparedSeries, some: slice, season: int) -> np.ndarray | None:
    """Forecast the test part of some cells by the latest value at the same time, z-scored.

    The result is None if the first window has less than a season of history.
    """
    starts = data.split.test
    if starts.min() < season:
        return None
    return repeat_season(data.z[:, some], starts, data.window.horizon, season, data.calendar)


def seasonal_scale(data: PreparedSeries) -> Scale:
    """Return the errors one day ahead of seasonal naive on the steps to fit a scaler on.

    Hyndman and Koehler: Another Look at Measures of Forecast Accuracy, International Journal of
    Forecasting 22, 2006, equation in section 3 (MASE); Makridakis et al.: The M5 Accuracy
    Competition, International Journal of Forecasting 38, 2022, section 4.1 (RMSSE). Both papers
    divide by the errors one step ahead of the last value; here a season takes the place of a step.
    They are NaN for a cell without two observed values a season apart, and where all are equal.
    """
    values, fit, season = data.believed, data.split.fit, season_of(data.calendar)
    steps = np.arange(fit.start + season, fit.stop)
    before = data.calendar.before(steps, season) if season > 1 else steps - season
    differences = values[steps] - values[np.maximum(before, fit.start)]
    seen = np.isfinite(differences)
    counts = np.maximum(seen.sum(axis=0), 1)
    squares, sizes = (np.where(seen, d, 0.0) for d in (differences**2, np.abs(differences)))
    mae, mse = sizes.sum(axis=0) / counts, squares.sum(axis=0) / counts
    return Scale(np.where(mae > 0, mae, np.nan), np.where(mse > 0, np.sqrt(mse), np.nan))


CELLS = 512
"""Cells whose forecasts are converted at a time: temporary arrays are in double precision."""

SUMMED = 32
"""Cells whose errors are summed at a time, so that temporary arrays stay in the cache."""

MOST_CROSSED = 10_000
"""Most errors of each cell at each step ahead that tables have; of more, they have the margins."""

FAR_OFF, FEWEST_OUTSIDE = 1.5, 10
"""Values outside bounds that are warned of: in those promised, and the fewest promised."""

By = Literal["cell", "client"]
"""Whose errors a table has, beside those of all together."""


@dataclass(frozen=True, eq=False)
class Evaluation:
    """Forecasts of the validation and the test part by one model, each computed once.

    The intervals of a model that is not calibrated are calibrated on the validation part.
    """

    model: FittedModel
    data: PreparedSeries

    @property
    def config(self) -> Config:
        """Settings of the model."""
        return self.model.config

    @cached_property
    def _limits(self) -> tuple[np.ndarray, np.ndarray]:
        return self.model.limits.scores(self.data.scaler, len(self.data.series.cells))

    @cached_property
    def scale(self) -> Scale | None:
        """What scaled metrics divide by; None without a training part."""
        return seasonal_scale(self.data) if len(self.data.split.train) else None

    @cached_property
    def season(self) -> int:
        """Steps of the season of seasonal naive."""
        return better_season(self.data)

    @cached_property
    def _validation(self) -> Forecasts:
        return self._forecasts(self.data.split.validation, self.data.validation_targets)

    @cached_property
    def _timed_test(self) -> tuple[Forecasts, float]:
        begin = time.perf_counter()
        forecasts = self._forecasts(self.data.split.test, self.data.test_targets)
        return forecasts, time.perf_counter() - begin

    @property
    def _test(self) -> Forecasts:
        return self._timed_test[0]

    @property
    def seconds(self) -> float:
        """Seconds that the forecasts of the test part took."""
        return self._timed_test[1]

    def _forecasts(self, starts: np.ndarray, targets: Targets) -> Forecasts:
        data, coverages = self.data, self.config.coverages
        bands = raw_bands(self.model.predictor, data.z, starts, data.calendar, coverages)
        return Forecasts(starts, bands, *targets)

    @cached_property
    def _calibrated(self) -> tuple[Bands, dict[float, Calibration]]:
        """Return the bands of the test part, and what calibrates the window after it."""
        bands, after = self._widened()
        if bands is self._test.bands:
            bands = bands.map(np.copy)
        include_constant(bands, self.data.z[: self._test.starts.min()])
        clip(bands, *self._limits)
        lower, upper = bands.bounds[self.config.coverage]
        extremes = lower.min(axis=(1, 2), keepdims=True), upper.max(axis=(1, 2), keepdims=True)
        raw = (self.raw(scores, slice(None))[:, 0, 0] for scores in extremes)
        warn_of_far_bounds(self.data.series, *raw)
        return bands, after

    def _widened(self) -> tuple[Bands, dict[float, Calibration]]:
        data, options, test = self.data, self.config.interval, self._test
        if (known := self.model.calibration) is not None:
            coverage = self.config.coverage
            widest = Bands(test.bands.centre, {coverage: test.bands.bounds[coverage]})
            bands = known.calibrated(widest, data.z, test.starts, data.calendar)
            return bands, {coverage: known}
        if options.intervals == "none":
            shape = (len(test.y), test.y.shape[2], 2)
            as_it_is = Calibration(np.zeros(shape), np.full(shape, np.inf))
            return test.bands, dict.fromkeys(test.bands.bounds, as_it_is)
        starts, validation = data.calibration, self._validation
        if len(starts) < len(data.split.validation):
            validation = self._forecasts(starts, data.targets(starts))
        fewest = fewest_scores((1 + self.config.coverage) / 2)
        if options.intervals == "normalised" and len(starts) < fewest:
            log.warning(
                "%s: bounds are calibrated on %s, fewer than %d, so errors of all steps ahead are "
                "taken together; look at the coverage, or give a longer history",
                data.series.name,
                counted(len(starts), "window"),
                fewest,
            )
        bands, after = calibrate(data, validation, test, options)
        endless = np.isinf(after[self.config.coverage].radius).any(axis=(1, 2))
        if endless.any():
            log.warning(
                "%s: too few validation targets for an interval of coverage %g of %s: %s; their "
                "bounds are infinite, or stay as they were if the model is renewed; give more "
                "readings of them, or a longer validation part",
                data.series.name,
                self.config.coverage,
                counted(int(endless.sum()), "cell"),
                some_of(data.series.cells[endless]),
            )
        return bands, after

    def sum_up(self, is_chosen: bool) -> None:
        """Tabulate all errors, and drop what takes gigabytes of many cells and is not read again.

        That is the validation part, and the bounds of a selection that is not the chosen one.
        """
        for split in ("validation", "test"):
            self.errors(split)
        if is_chosen and self.config.has_intervals and len(self.data.split.test):
            self._warn_of_coverage()
        for name in ("_validation", *(() if is_chosen else ("_calibrated",))):
            self.__dict__.pop(name, None)

    def _warn_of_coverage(self) -> None:
        """Warn of bounds that contain far fewer values of the test part than they promise."""
        test, coverage = self._test, self.config.coverage
        lower, upper = self._calibrated[0].bounds[coverage]
        found = ((lower <= test.y) & (test.y <= upper)).mean(where=test.mask)
        promised = (1 - coverage) * test.mask.sum()
        if promised < FEWEST_OUTSIDE or (1 - found) < FAR_OFF * (1 - coverage):
            return
        why = "they are the model's own, which nothing calibrates"
        if self.config.interval.intervals != "none":
            why = "values are unlike the earlier ones that bounds are calibrated on"
            errors = [
                np.abs(of.bands.centre - of.y).mean(where=of.mask)
                for of in (test, *([self._validation] if len(self.data.split.validation) else ()))
            ]
            if len(errors) == 2 and errors[0] > errors[1] > 0:
                why = (
                    f"errors there are {errors[0] / errors[1]:.2g} times those in the validation "
                    "part, which bounds are calibrated on"
                )
        log.warning(
            "%s: bounds of %.0f %% contain %.1f %% of the test values, as %s; expect no more of "
            "the next bounds",
            self.data.series.name,
            *(100 * coverage, 100 * found, why),
        )

    def errors(self, split: str, by: By = "cell") -> list[pd.DataFrame]:
        """Return tables of the errors on `validation` or `test`; none without windows."""
        by = "cell" if self.data.clients.by_cell else by
        if split == "validation":
            return self._validation_errors[by] if len(self.data.split.validation) else []
        return self._test_errors[by] if len(self.data.split.test) else []

    def test_forecasts(self, some: slice) -> dict[str, np.ndarray]:
        """Return `y_hat` of some cells in the test part, in the data's units, and its bounds.

        Each is `(cells, windows, horizon)`. `lower` and `upper` are the bounds of the widest
        interval; `lower_50` and `upper_50` cover half.
        """
        values = dict[str, np.ndarray]()
        bounds = self._calibrated[0].bounds if self.config.has_intervals else {}
        for coverage, (lower, upper) in bounds.items():
            which = "" if coverage == self.config.coverage else f"_{100 * coverage:g}"
            values |= {f"lower{which}": lower, f"upper{which}": upper}
        found = {name: self.raw(bound[some], some) for name, bound in values.items()}
        return {"y_hat": self.forecast(some), **found}

    def forecast(self, some: slice) -> np.ndarray:
        """Return `y_hat` of `test_forecasts` alone."""
        return self.raw(self._test.bands.centre[some], some)

    def r2(self) -> float:
        """Return the coefficient of determination of the test part's forecasts.

        1 minus the sum of squared errors divided by that of differences from each cell's mean, both
        of z-scores and over all cells; 1 is the best, 0 is that of the mean of the part itself.
        """
        y, y_hat, seen = self._test.y, self._test.bands.centre, self._test.mask
        seen_of_cell = np.maximum(seen.sum(axis=(1, 2), keepdims=True), 1)
        mean = np.where(seen, y, 0.0).sum(axis=(1, 2), keepdims=True) / seen_of_cell
        errors, spread = (
            np.square(other - y)[seen].sum(dtype=np.float64)
            for other in (y_hat, np.broadcast_to(mean, y.shape))
        )
        return float(1 - errors / spread) if spread else float("nan")

    def calibration(self) -> Calibration:
        """Return what calibrates the bands of the window after the data."""
        return self._calibrated[1][self.config.coverage]

    @cached_property
    def blocks(self) -> list[slice]:
        """Cells whose values are converted at a time."""
        return self._blocks_of(CELLS)

    def _blocks_of(self, size: int) -> list[slice]:
        n_cells = len(self.data.series.cells)
        return [slice(i, min(i + size, n_cells)) for i in range(0, n_cells, size)]

    def raw(self, values: np.ndarray, some: slice) -> np.ndarray:
        """Convert z-scores `(cells, windows, horizon)` of some cells to the data's units.

        A target or bound at a limit is exactly that, whatever the rounding of its z-score.
        """
        found = self.data.scaler.of_cells(some).inverse(values, cell_axis=0)
        for limit, score in zip(self.model.limits, self._limits, strict=True):
            found = np.where(values == score[some].astype(values.dtype), limit, found)
        return found

    @cached_property
    def _validation_errors(self) -> dict[By, list[pd.DataFrame]]:
        return self._tabulated(self._errors(self._validation))

    @cached_property
    def _test_errors(self) -> dict[By, list[pd.DataFrame]]:
        intervals = self._interval_errors() if self.config.has_intervals else []
        return self._tabulated([*self._errors(self._test), *intervals])

    def _tabulated(self, found: list[NamedSums]) -> dict[By, list[pd.DataFrame]]:
        """Tabulate sums, which take more memory than the tables of many cells."""
        ids: dict[By, Sequence[object] | np.ndarray] = {"cell": self.data.series.cells}
        if not self.data.clients.by_cell:
            ids["client"] = self.data.clients.labels
        return {
            by: [t for sums, names in found for t in tabulated(sums, own, names, MOST_CROSSED)]
            for by, own in ids.items()
        }

    def _errors(self, forecasts: Forecasts) -> list[NamedSums]:
        """Return the sums of errors of z-scores, and of those in the data's units."""
        of_scores = [name for name, metric in METRICS.items() if not metric.relative]
        scaled, raw = [], []
        for some in noting(self._blocks_of(SUMMED), "summing errors"):
            y_hat, y = forecasts.bands.centre[some], forecasts.y[some]
            mask, scale = forecasts.mask[some], self.scale and self.scale.of_cells(some)
            scaled.append(error_sums(y_hat, y, mask, of_scores))
            y_hat, y = self.raw(y_hat, some), self.raw(y, some)
            raw.append(error_sums(y_hat, y, mask, scale=scale))
        return [
            (joined_sums(scaled), {}),
            (joined_sums(raw), {n: m.raw_name for n, m in METRICS.items()}),
        ]

    def _interval_errors(self) -> list[NamedSums]:
        bands, _ = self._calibrated
        coverage, test = self.config.coverage, self._test
        scaled, raw = [], []
        for some in noting(self._blocks_of(SUMMED), "summing errors of bounds"):
            own, y, mask = bands.of_cells(some), test.y[some], test.mask[some]
            scale = self.scale and self.scale.of_cells(some)
            scaled.append(interval_sums(own, y, mask, coverage))
            own = own.map(partial(self.raw, some=some))
            raw.append(interval_sums(own, self.raw(y, some), mask, coverage, scale))
        names = {n: m.raw_name for n, m in INTERVAL_METRICS.items()}
        known, further = joined_sums(scaled), joined_sums(raw)
        further = {n: sums for n, sums in further.items() if names[n] not in known}
        return [(known, {}), (further, names)]


NamedSums = tuple[dict[str, Sums], dict[str, str]]
"""Sums of metrics, and the names of these in tables."""


def on_new_data(model: FittedModel, series: Series) -> Evaluation:
    """Return the evaluation of a calibrated model on other data, all of which is the test part."""
    window, n_steps = model.config.window, len(series.values)
    if n_steps < window.reach + window.horizon:
        raise InputError(
            f"{series.name} has {n_steps} steps; an evaluation needs {window.reach} that the model "
            f"reads and {window.horizon} that it forecasts; give longer data"
        )
    starts, none = np.arange(window.reach, n_steps - window.horizon + 1), np.array([], dtype=int)
    return Evaluation(model, model.prepared(series, Split(none, none, starts, slice(0, 0))))


def error_table(evaluations: Mapping[str, Evaluation], by: By = "cell") -> pd.DataFrame:
    """Tabulate the errors of several selections; see `Forecaster.evaluate`."""
    return pd.concat(error_tables(evaluations, by), ignore_index=True)


def error_tables(evaluations: Mapping[str, Evaluation], by: By = "cell") -> Iterator[pd.DataFrame]:
    """Yield the parts of `error_table`, which are too many for the memory with many cells."""

    def is_chosen(evaluation: Evaluation) -> bool:
        return evaluation is evaluations.get(evaluation.config.run.select)

    # The chosen one is last, as its bounds are kept.
    for evaluation in sorted(dict.fromkeys(evaluations.values()), key=is_chosen):
        evaluation.sum_up(is_chosen(evaluation))
    for split in ("validation", "test"):
        for selection, evaluation in evaluations.items():
            part: list[pd.DataFrame] = []
            of = {"split": split, "selection": selection}
            for errors in evaluation.errors(split, by):
                part.append(errors)
                if sum(map(len, part)) >= ROWS:
                    yield pd.concat(part, ignore_index=True).assign(**of)
                    part.clear()
            if part:
                yield pd.concat(part, ignore_index=True).assign(**of)


def forecast_values(
    evaluations: Mapping[str, Evaluation], select: str, some: slice
) -> dict[str, np.ndarray]:
    """Return the variables of `forecasts_dataset` by cell, window and step ahead, of some cells."""
    chosen = evaluations[select]
    y, mask = chosen.data.test_targets
    found = chosen.test_forecasts(some)
    found["y"] = np.where(mask[some], chosen.raw(y[some], some), np.nan)
    for selection, evaluation in evaluations.items():
        if evaluation is not chosen:
            found[_name_of(selection)] = evaluation.forecast(some)
    if (naive := seasonal_forecast(chosen.data, some, chosen.season)) is not None:
        found["seasonal_naive"] = chosen.raw(naive, some)
    return found


def _name_of(selection: str) -> str:
    return f"y_hat_{'_'.join(re.findall('[a-z]+', selection))}"


def forecasts_dataset(
    evaluations: Mapping[str, Evaluation],
    select: str,
    found: Mapping[str, np.ndarray] | None = None,
) -> xr.Dataset:
    """Return the forecasts of the test part by all selections.

    `select` is the own selection of the model. For a description alone, `found` stands for the
    `forecast_values` of all cells.
    """
    chosen = evaluations[select]
    data, config = chosen.data, chosen.config
    series, units = data.series, {"units": data.series.units}
    found = forecast_values(evaluations, select, slice(None)) if found is None else found
    about: dict[str, dict[str, Any]] = {
        name: {**units, "long_name": LONG_NAMES[name]} for name in ("y_hat", "y")
    }
    about["seasonal_naive"] = {**units, **_naive(chosen)}
    for selection, evaluation in evaluations.items():
        name = "y_hat" if evaluation is chosen else _name_of(selection)
        of_name = about.setdefault(name, {**units, "long_name": f"forecast, {selection}"})
        of_name["selection"] = ", ".join(filter(None, [of_name.get("selection"), selection]))
    about |= {name: {**units, **_bound(name, config)} for name in found if name not in about}
    dims = ("cell", "time", "horizon")
    scale = chosen.scale
    by_cell = {} if scale is None else {"seasonal_mae": scale.mae, "seasonal_rmse": scale.rmse}
    by_cell["std"] = np.broadcast_to(data.scaler.std, len(series.cells))
    lon_lat = () if series.locations is None else series.locations.T
    zone = series.calendar.time_zone
    return xr.Dataset(
        {name: (dims, values, about[name]) for name, values in found.items()}
        | {name: ("cell", values, units) for name, values in by_cell.items()},
        coords={
            "cell": series.cells,
            "time": series.times[data.split.test],
            "horizon": np.arange(1, data.window.horizon + 1),
            **{n: ("cell", values) for n, values in zip(("lon", "lat"), lon_lat, strict=False)},
        },
        attrs={
            "service": series.service,
            "method": config.method,
            "clock": series.clock,
            **({} if zone is None else {"time_zone": zone}),
            "step_minutes": series.calendar.step / pd.Timedelta(minutes=1),
            **({"coverage": config.coverage} if config.has_intervals else {}),
        },
    )


def _naive(evaluation: Evaluation) -> dict[str, Any]:
    """Describe seasonal naive."""
    calendar, season = evaluation.data.calendar, evaluation.season
    span = season * calendar.step
    of_span = {DAY: "value one day before", WEEK: "value one week before"}
    return {"long_name": of_span.get(span, "last value"), "season_steps": season}


def _bound(name: str, config: Config) -> dict[str, Any]:
    """Describe a variable such as `lower` or `upper_50`."""
    side, _, percent = name.partition("_")
    coverage = float(percent) / 100 if percent else config.coverage
    return {"long_name": LONG_NAMES[side], "coverage": coverage}


LONG_NAMES = {"y": "observed", "y_hat": "forecast", "lower": "lower bound", "upper": "upper bound"}
"""Descriptions of variables in `forecasts.nc`."""
