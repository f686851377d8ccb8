"""Evaluation of a fitted model on the validation and the test part of its data.

Seasonal naive is the yardstick of skill. Its season is a day or a week, whichever was nearer in the
test part itself, so that another split does not choose a weaker one; where a step does not divide a
day, it is one step, so that the forecast is the last value. Scaled errors are divided by those of a
day's season in the training part, so that they can be compared.
"""

from __future__ import annotations

import dataclasses
import logging
import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, Literal, NamedTuple

import numpy as np
import pandas as pd
import xarray as xr

from data_prep.base.errors import InputError, counted
from data_prep.base.errors import some as some_of
from data_prep.base.progress import noting
from stforecast.bench import RAY
from stforecast.data.anchors import repeat_season
from stforecast.data.clock import Calendar
from stforecast.data.dates import DAY, WEEK, divides_a_day
from stforecast.data.prepared import PreparedSeries, Targets
from stforecast.data.series import Series
from stforecast.data.splits import Split
from stforecast.federated.core.state import State
from stforecast.federated.runs.unfinished_run import Checkpointer
from stforecast.forecasting.config import Config, RunOptions
from stforecast.forecasting.history import warn_of_far_bounds
from stforecast.forecasting.kept_shards import KeptShards, NamedSums, ShardResult
from stforecast.forecasting.model import FittedModel
from stforecast.forecasting.rolling import Rolling
from stforecast.forecasting.trained_method import TrainedMethod
from stforecast.intervals.bands import Bands, clip, include_constant, raw_bands
from stforecast.intervals.calibration import (
    Calibration,
    WindowBands,
    calibrate,
    fewest_scores,
    fit_scale,
)
from stforecast.intervals.radii import ErrorScale, fitted
from stforecast.metrics import INTERVAL_METRICS, METRICS
from stforecast.metrics.metric import Scale, joined_sums
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
    off = np.zeros(2)
    for some in shards_of(len(data.series.cells)):
        own = data.of_cells(some)
        y, mask = own.test_targets
        std = np.broadcast_to(own.scaler.std, len(y))[:, None, None]
        for i, season in enumerate((day, week)):
            naive = repeat_season(own.z, starts, data.window.horizon, season, calendar)
            error = np.abs(naive - y) * std
            off[i] += error.sum(where=mask, dtype=float)
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


CELLS = 128
"""Cells whose forecasts are converted at a time: temporary arrays are in double precision."""

SHARD = 512
"""Cells whose forecasts are in memory together, if the model forecasts each cell by itself; of the
last ones, fewer than twice as many."""

SUMMED = 32
"""Cells whose errors are summed at a time, so that temporary arrays stay in the cache."""

MOST_CROSSED = 10_000
"""Most errors of each cell at each step ahead that tables have; of more, they have the margins."""

FAR_OFF, FEWEST_OUTSIDE = 1.5, 10
"""Values outside bounds that are warned of: in those promised, and the fewest promised."""

By = Literal["cell", "client"]
"""Whose errors a table has, beside those of all together."""


def shards_of(n_cells: int) -> list[slice]:
    """Return the shards of so many cells.

    None is a few cells that remain, so each cell has the same sums over steps in any shards.

    >>> shards_of(1500)
    [slice(0, 512, None), slice(512, 1500, None)]
    """
    firsts = range(0, max(n_cells - SHARD, 0) + 1, SHARD)
    return [slice(i, j) for i, j in zip(firsts, [*firsts[1:], n_cells], strict=True)]


def blocks_of(n_cells: int, size: int) -> list[slice]:
    """Return blocks of so many cells; the last one may be smaller."""
    return [slice(i, min(i + size, n_cells)) for i in range(0, n_cells, size)]


@dataclass(eq=False)
class Evaluation:
    """Forecasts and bounds of the validation and the test part by one model.

    Each is computed once. Of many cells, each shard has an evaluation of its own, a `part`; of the
    whole, only errors and calibration are kept. The intervals of a model that is not calibrated
    are calibrated on the validation part.

    Attributes:
        model: the model.
        data: the data, split and scaled.
        run: engine, actors and workers that evaluate shards; None for this process.
        whole: the evaluation that it is a part of; None for the evaluation of all cells.
        some: its cells there.
        took: seconds that the forecasts of the test part took.
        after: what calibrates the window after the test part.
        tables: tables of errors by split, and whose they are.
    """

    model: FittedModel
    data: PreparedSeries
    run: RunOptions | None = None
    whole: Evaluation | None = None
    some: slice = field(default_factory=lambda: slice(None))
    took: float | None = field(default=None, init=False)
    after: Calibration | None = field(default=None, init=False)
    tables: dict[str, dict[By, list[pd.DataFrame]]] | None = field(default=None, init=False)

    @property
    def config(self) -> Config:
        """Settings of the model."""
        return self.model.config

    @cached_property
    def shards(self) -> list[slice]:
        """The cells of each shard; all are one if forecasts of a cell may read others."""
        n_cells = len(self.data.series.cells)
        by_cell = self.data.clients.by_cell and isinstance(self.model.latest, TrainedMethod)
        return shards_of(n_cells) if by_cell else [slice(0, n_cells)]

    @property
    def is_one(self) -> bool:
        """Whether there is one shard."""
        return len(self.shards) == 1

    def part(self, some: slice, data: PreparedSeries | None = None) -> Evaluation:
        """Return the evaluation of some cells, if each is a client; `data` are theirs."""
        if self.is_one:
            return self
        model, data = self.model, data or self.data.of_cells(some)
        assert isinstance(model.predictor, Rolling | TrainedMethod)
        of_cells = dataclasses.replace(
            model,
            cells=data.series.cells,
            clients=data.clients,
            scaler=data.scaler,
            predictor=model.predictor.of_cells(some),
            calibration=model.calibration and model.calibration.of_cells(some),
        )
        return Evaluation(of_cells, data, whole=self, some=some)

    def __getstate__(self) -> dict[str, Any]:
        """Return what another process needs: of the whole, what all parts share."""
        if self.whole:
            _ = self.scale, self.season, self.error_scale  # They are cached, so in `vars`.
        return {**vars(self), "whole": None}

    @property
    def states(self) -> list[State]:
        """States of its trained models, refits included."""
        predictor = self.model.predictor
        models = predictor.models if isinstance(predictor, Rolling) else [predictor]
        return [model.snapshot for model in models if isinstance(model, TrainedMethod)]

    def release(self) -> None:
        """Take what the model holds in files out of the memory, until it is read again."""
        if isinstance(self.model.predictor, Rolling | TrainedMethod):
            self.model.predictor.release()

    @cached_property
    def scale(self) -> Scale | None:
        """What scaled metrics divide by; None without a training part."""
        if self.whole:
            return self.whole.scale and self.whole.scale.of_cells(self.some)
        if not len(self.data.split.train):
            return None
        shards = shards_of(len(self.data.series.cells))
        parts = [seasonal_scale(self.data.of_cells(some)) for some in shards]
        return Scale(*(np.concatenate(part) for part in zip(*parts, strict=True)))

    @cached_property
    def season(self) -> int:
        """Steps of the season of seasonal naive."""
        return self.whole.season if self.whole else better_season(self.data)

    @cached_property
    def error_scale(self) -> ErrorScale | None:
        """Size of errors by time, whose weights are fitted once for all shards; None for one."""
        if self.whole:
            return self.whole.error_scale
        calibrated = self.model.calibration is not None or not len(self.data.split.test)
        if self.is_one or calibrated or self.config.interval.intervals != "normalised":
            return None
        part = self.part(fitted(len(self.data.series.cells)))
        return fit_scale(part.data, part.known)

    @property
    def seconds(self) -> float:
        """Seconds that the forecasts of the test part took."""
        if self.took is None:
            _run_through({"": self}, errors=False)
        return self.took or 0.0

    def calibration(self) -> Calibration:
        """Return what calibrates the bands of the window after the data."""
        if self.after is None:
            _run_through({"": self}, errors=False)
        assert self.after is not None
        return self.after

    @cached_property
    def _limits(self) -> tuple[np.ndarray, np.ndarray]:
        return self.model.limits.scores(self.data.scaler, len(self.data.series.cells))

    @cached_property
    def validation(self) -> WindowBands:
        """Forecasts of the validation part."""
        return self._forecasts(self.data.split.validation, self.data.validation_targets)

    @cached_property
    def known(self) -> WindowBands:
        """Forecasts of the validation part whose targets precede the test part."""
        data = self.data
        if len(data.calibration) == len(data.split.validation):
            return self.validation
        return self._forecasts(data.calibration, data.targets(data.calibration))

    @cached_property
    def _timed_test(self) -> tuple[WindowBands, float]:
        begin = time.perf_counter()
        forecasts = self._forecasts(self.data.split.test, self.data.test_targets)
        return forecasts, time.perf_counter() - begin

    @property
    def test(self) -> WindowBands:
        """Forecasts of the test part."""
        return self._timed_test[0]

    def _forecasts(self, starts: np.ndarray, targets: Targets) -> WindowBands:
        data, predictor = self.data, self.model.predictor
        bands = raw_bands(predictor, data.z, starts, data.calendar, self.config.coverages)
        return WindowBands(starts, bands, *targets)

    @cached_property
    def calibrated(self) -> tuple[Bands, dict[float, Calibration]]:
        """The bands of the test part, and what calibrates the window after it, by coverage."""
        bands, after = self._widened()
        if bands is self.test.bands:
            bands = bands.map(np.copy)
        include_constant(bands, self.data.z[: self.test.starts.min()])
        clip(bands, *self._limits)
        return bands, after

    def _widened(self) -> tuple[Bands, dict[float, Calibration]]:
        data, test, coverage = self.data, self.test, self.config.coverage
        if (known := self.model.calibration) is not None:
            widest = Bands(test.bands.centre, {coverage: test.bands.bounds[coverage]})
            bands = known.calibrated(widest, data.z, test.starts, data.calendar)
            return bands, {coverage: known}
        if (options := self.config.interval).intervals == "none":
            shape = (len(test.y), test.y.shape[2], 2)
            as_it_is = Calibration(np.zeros(shape), np.full(shape, np.inf))
            return test.bands, dict.fromkeys(test.bands.bounds, as_it_is)
        return calibrate(data, self.known, test, options, self.error_scale)

    def found(self, *, errors: bool, forecasts: bool, is_chosen: bool) -> ShardResult:
        """Compute what is asked for, and drop what is not read again.

        That is the validation part, and the bounds of a selection that is not the chosen one.
        """
        split, calibration, extremes = self.data.split, None, np.empty((2, 0))
        sums = dict[str, list[NamedSums]]()
        has_bounds = self.config.has_intervals and len(split.test) > 0
        if errors and len(split.validation):
            sums["validation"] = self._errors(self.validation)
        if errors and len(split.test):
            intervals = self._interval_errors() if has_bounds else []
            sums["test"] = [*self._errors(self.test), *intervals]
        if has_bounds and (errors or is_chosen):
            bands, after = self.calibrated
            calibration = after[self.config.coverage]
            lower, upper = bands.bounds[self.config.coverage]
            ends = lower.min(axis=(1, 2), keepdims=True), upper.max(axis=(1, 2), keepdims=True)
            extremes = np.stack([self.raw(end, slice(None))[:, 0, 0] for end in ends])
        seconds = self._timed_test[1] if len(split.test) else 0.0
        forecast = None
        if forecasts:
            has_bounds = is_chosen and self.config.has_intervals
            bounds = self.calibrated[0].bounds if has_bounds else {}
            forecast = Bands(self.test.bands.centre, bounds)
        if errors:
            for name in ("validation", "known", *(() if is_chosen else ("calibrated",))):
                self.__dict__.pop(name, None)
        return ShardResult(seconds, calibration, extremes, sums, forecast)

    def raw(self, values: np.ndarray, some: slice) -> np.ndarray:
        """Convert z-scores `(cells, windows, horizon)` of some of its cells to the data's units.

        A target or bound at a limit is exactly that, whatever the rounding of its z-score.
        """
        found = self.data.scaler.of_cells(some).inverse(values, cell_axis=0)
        for limit, score in zip(self.model.limits, self._limits, strict=True):
            found = np.where(values == score[some].astype(values.dtype), limit, found)
        return found

    def _errors(self, forecasts: WindowBands) -> list[NamedSums]:
        """Return the sums of errors of z-scores, and of those in the data's units."""
        of_scores = [name for name, metric in METRICS.items() if not metric.relative]
        scaled, raw = [], []
        for some in blocks_of(len(forecasts.y), SUMMED):
            y_hat, y = forecasts.bands.centre[some], forecasts.y[some]
            mask, scale = forecasts.mask[some], self.scale
            scale = scale and scale.of_cells(some)
            scaled.append(error_sums(y_hat, y, mask, of_scores))
            y_hat, y = self.raw(y_hat, some), self.raw(y, some)
            raw.append(error_sums(y_hat, y, mask, scale=scale))
        return [
            (joined_sums(scaled), {}),
            (joined_sums(raw), {n: m.raw_name for n, m in METRICS.items()}),
        ]

    def _interval_errors(self) -> list[NamedSums]:
        bands, _ = self.calibrated
        test, scaled, raw = self.test, [], []
        for some in blocks_of(len(test.y), SUMMED):
            own, y, mask = bands.of_cells(some), test.y[some], test.mask[some]
            scale = self.scale and self.scale.of_cells(some)
            scaled.append(interval_sums(own, y, mask, self.config.coverage))
            own = own.map(partial(self.raw, some=some))
            raw.append(interval_sums(own, self.raw(y, some), mask, self.config.coverage, scale))
        names = {n: m.raw_name for n, m in INTERVAL_METRICS.items()}
        known, further = joined_sums(scaled), joined_sums(raw)
        further = {n: sums for n, sums in further.items() if names[n] not in known}
        return [(known, {}), (further, names)]

    def keep(self, parts: Sequence[ShardResult], *, is_chosen: bool) -> None:
        """Join what is kept of the shards, and warn of it."""
        data, self.took = self.data, sum(part.seconds for part in parts)
        found = [part.calibration for part in parts if part.calibration is not None]
        if found and self.after is None:
            self.after = found[0] if self.is_one else Calibration.of_parts(found)
            self._warn_of_bounds(self.after)
            extremes = np.concatenate([part.extremes for part in parts], axis=1)
            warn_of_far_bounds(data.series, *extremes)
        if not any(part.sums for part in parts):
            return
        ids: dict[By, Sequence[object] | np.ndarray] = {"cell": data.series.cells}
        if not data.clients.by_cell:
            ids["client"] = data.clients.labels
        self.tables, sums = {}, dict[str, list[NamedSums]]()
        for split in list(parts[0].sums):
            # Sums take more memory than the tables of many cells.
            of_shards = zip(*(part.sums.pop(split) for part in parts), strict=True)
            sums[split] = [(joined_sums([sums for sums, _ in of]), of[0][1]) for of in of_shards]
            self.tables[split] = {
                by: [t for of in sums[split] for t in tabulated(of[0], own, of[1], MOST_CROSSED)]
                for by, own in ids.items()
            }
        if is_chosen and found:
            self._warn_of_coverage(sums)

    def _warn_of_bounds(self, after: Calibration) -> None:
        """Warn of bounds that are calibrated on too few errors, or on none."""
        data, intervals = self.data, self.config.interval.intervals
        if self.model.calibration is not None or intervals == "none":
            return
        n, fewest = len(data.calibration), fewest_scores((1 + self.config.coverage) / 2)
        if intervals == "normalised" and n < fewest:
            log.warning(
                "%s: bounds are calibrated on %s, fewer than %d, so errors of all steps ahead are "
                "taken together; look at the coverage, or give a longer history",
                data.series.name,
                counted(n, "window"),
                fewest,
            )
        endless = np.isinf(after.radius).any(axis=(1, 2))
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

    def _warn_of_coverage(self, sums: Mapping[str, list[NamedSums]]) -> None:
        """Warn of bounds that contain far fewer values of the test part than they promise."""
        # First come errors of z-scores, then errors in the data's units, then bounds.
        coverage, (within, seen) = self.config.coverage, sums["test"][2][0]["coverage"]
        found = within.sum() / max(seen.sum(), 1)
        if (1 - coverage) * seen.sum() < FEWEST_OUTSIDE or (1 - found) < FAR_OFF * (1 - coverage):
            return
        why = "they are the model's own, which nothing calibrates"
        if self.config.interval.intervals != "none":
            why = "values are unlike the earlier ones that bounds are calibrated on"
            totals = [sums[split][0][0]["mae"] for split in ("test", "validation") if split in sums]
            errors = [total.sum() / max(weight.sum(), 1) for total, weight in totals]
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
        return (self.tables or {}).get(split, {}).get(by, [])

    def r2(self) -> float:
        """Return the coefficient of determination of the test part's forecasts.

        1 minus the sum of squared errors divided by that of differences from each cell's mean, both
        of z-scores and over all cells; 1 is the best, 0 is that of the mean of the part itself.
        """
        errors = spread = 0.0
        for some in self.shards:
            test = self.part(some).test
            y, seen = test.y, test.mask
            seen_of_cell = np.maximum(seen.sum(axis=(1, 2), keepdims=True), 1)
            mean = np.where(seen, y, 0.0).sum(axis=(1, 2), keepdims=True) / seen_of_cell
            errors += np.square(test.bands.centre - y)[seen].sum(dtype=np.float64)
            spread += np.square(np.broadcast_to(mean, y.shape) - y)[seen].sum(dtype=np.float64)
        return float(1 - errors / spread) if spread else float("nan")


class ShardWork(NamedTuple):
    """What is to be computed of a shard, here or in another process.

    Attributes:
        parts: the evaluation of its cells by the model of each selection.
        select: the chosen selection, whose bounds are kept.
        errors: whether errors are summed.
        forecasts: whether forecasts are returned.
    """

    parts: Mapping[str, Evaluation]
    select: str
    errors: bool
    forecasts: bool


def evaluate_shard(work: ShardWork) -> list[ShardResult]:
    """Evaluate a shard by each of its models."""
    models = list(dict.fromkeys(work.parts.values()))
    chosen = work.parts.get(work.select, models[-1])
    asked = {"errors": work.errors, "forecasts": work.forecasts}
    return [model.found(**asked, is_chosen=model is chosen) for model in models]


def _run_through(evaluations: Mapping[str, Evaluation], *, errors: bool) -> None:
    select = next(iter(evaluations.values())).config.run.select
    for _ in forecast_blocks(evaluations, select, errors=errors, forecasts=False):
        pass


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


def error_tables(evaluations: Mapping[str, Evaluation], by: By = "cell") -> Iterator[pd.DataFrame]:
    """Yield parts of the table of errors, see `Forecaster.evaluate`; all may not fit in memory."""
    if any(evaluation.tables is None for evaluation in evaluations.values()):
        _run_through(evaluations, errors=True)
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
    work: ShardWork, bands: Mapping[str, Bands], some: slice
) -> dict[str, np.ndarray]:
    """Return the variables of `forecasts_dataset` of some cells of a shard, in the data's units.

    Each is `(cells, windows, horizon)`. `lower` and `upper` are the bounds of the widest interval;
    `lower_50` and `upper_50` cover half. `bands` are those of each selection.
    """
    chosen = work.parts[work.select]
    config, data, raw = chosen.config, chosen.data, partial(chosen.raw, some=some)
    y, mask = data.test_targets
    own = bands[work.select].of_cells(some).map(raw)
    found = {"y_hat": own.centre}
    for coverage, (lower, upper) in own.bounds.items():
        which = "" if coverage == config.coverage else f"_{100 * coverage:g}"
        found |= {f"lower{which}": lower, f"upper{which}": upper}
    found["y"] = np.where(mask[some], raw(y[some]), np.nan)
    for selection, part in work.parts.items():
        if part is not chosen:
            found[_name_of(selection)] = part.raw(bands[selection].centre[some], some)
    if (naive := seasonal_forecast(data, some, chosen.season)) is not None:
        found["seasonal_naive"] = raw(naive)
    return found


def forecast_blocks(
    evaluations: Mapping[str, Evaluation],
    select: str,
    *,
    errors: bool = False,
    forecasts: bool = True,
    checkpointer: Checkpointer | None = None,
) -> Iterator[tuple[int, dict[str, np.ndarray]]]:
    """Evaluate shard by shard; yield the first cell and the `forecast_values` of blocks of cells.

    Args:
        evaluations: the model of each selection, on the same data.
        select: the chosen selection, whose bounds are kept.
        errors: whether errors are summed and tabulated, too.
        forecasts: whether to yield anything.
        checkpointer: keeps the results of finished shards of a run, which a resumed run reads.
    """
    models = list(dict.fromkeys(evaluations.values()))
    chosen = evaluations.get(select, models[-1])

    def work_on(some: slice) -> ShardWork:
        data = None if chosen.is_one else chosen.data.of_cells(some)
        parts = {model: model.part(some, data) for model in models}
        by_name = {name: parts[model] for name, model in evaluations.items()}
        return ShardWork(by_name, select, errors, forecasts)

    kept = None
    if checkpointer and not chosen.is_one:
        states = {id(state): state for model in models for state in model.states}
        kept = KeptShards(checkpointer, states.values(), select, errors, forecasts)
        for model in models:
            model.release()
    todo = [some for some in chosen.shards if kept is None or some not in kept]
    if len(todo) < len(chosen.shards):
        log.info("resuming with the last %d of %d shards of cells", len(todo), len(chosen.shards))
    spread: Iterator[list[ShardResult]] | None = None
    if (run := chosen.run) and run.engine == RAY and not chosen.is_one:
        from stforecast.bench.ray_actors import map_tensors  # Importing it takes a while.

        spread = map_tensors(evaluate_shard, map(work_on, todo), run.actors, run.workers or 1)
    of_models = dict[Evaluation, list[ShardResult]]()
    for some in noting(chosen.shards, "evaluating"):
        work = work_on(some)
        results = kept.load(some) if kept and some not in todo else None
        if results is None:
            results = next(spread) if spread and some in todo else evaluate_shard(work)
            if kept:
                kept.save(some, results)
        if forecasts:
            yield from _blocks(work, results, some.start)
        for model, found in zip(models, results, strict=True):
            of_models.setdefault(model, []).append(found._replace(bands=None))
            model.release()
        del work, results, found  # Before the next shard is forecast.
    for model, of_shards in of_models.items():
        model.keep(of_shards, is_chosen=model is chosen)


def _blocks(
    work: ShardWork, results: Sequence[ShardResult], first: int
) -> Iterator[tuple[int, dict[str, np.ndarray]]]:
    """Yield the `forecast_values` of blocks of a shard, whose first cell is given."""
    of_part = dict(zip(dict.fromkeys(work.parts.values()), results, strict=True))
    bands = {n: found for n, part in work.parts.items() if (found := of_part[part].bands)}
    for some in blocks_of(len(work.parts[work.select].data.series.cells), CELLS):
        yield first + some.start, forecast_values(work, bands, some)


def _joined(
    blocks: Iterable[tuple[int, Mapping[str, np.ndarray]]], n_cells: int
) -> dict[str, np.ndarray]:
    """Join the blocks of so many cells."""
    found = dict[str, np.ndarray]()
    for first, values in blocks:
        for name, part in values.items():
            whole = found.setdefault(name, np.empty((n_cells, *part.shape[1:]), part.dtype))
            whole[first : first + len(part)] = part
    return found


def _name_of(selection: str) -> str:
    return f"y_hat_{'_'.join(re.findall('[a-z]+', selection))}"


def forecasts_dataset(
    evaluations: Mapping[str, Evaluation],
    select: str,
    found: Mapping[str, np.ndarray] | None = None,
    *,
    errors: bool = False,
) -> xr.Dataset:
    """Return the forecasts of the test part by all selections.

    `select` is the own selection of the model. For a description alone, `found` stands for the
    forecasts. `errors` is as for `forecast_blocks`.
    """
    chosen = evaluations[select]
    data, config = chosen.data, chosen.config
    series, units = data.series, {"units": data.series.units}
    found = found or _joined(forecast_blocks(evaluations, select, errors=errors), len(series.cells))
    about: dict[str, dict[str, Any]] = {
        name: {**units, "long_name": LONG_NAMES[name]} for name in ("y_hat", "y")
    }
    about["seasonal_naive"] = {**units, **_naive(chosen)}
    for selection, evaluation in evaluations.items():
        name = "y_hat" if evaluation is chosen else _name_of(selection)
        of_name = about.setdefault(name, {**units, "long_name": f"forecast, {selection}"})
        of_name["selection"] = ", ".join(filter(None, [of_name.get("selection"), selection]))
    for name in found:
        if name not in about:  # `lower`, or `upper_50`
            side, _, percent = name.partition("_")
            coverage = float(percent) / 100 if percent else config.coverage
            about[name] = {**units, "long_name": LONG_NAMES[side], "coverage": coverage}
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
    if np.isnan(evaluation.data.z).mean() > 0.01:
        last = "last known value of the same time of"
        of_span = {DAY: f"{last} day", WEEK: f"{last} the week"}
    return {"long_name": of_span.get(span, "last value"), "season_steps": season}


LONG_NAMES = {"y": "observed", "y_hat": "forecast", "lower": "lower bound", "upper": "upper bound"}
"""Descriptions of variables in `forecasts.nc`."""
