"""Histories that a fitted model forecasts from: checks and warnings."""

from __future__ import annotations

import dataclasses
import logging
import os
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
import xarray as xr

from data_prep.base.errors import InputError, Words, check_zeros, counted, in_minutes
from data_prep.preparation import open_again
from data_prep.readers.times import counts_rows
from stforecast.data.cubes import Data, is_table, name_of, open_cube
from stforecast.data.dates import DAY, WEEK, in_words
from stforecast.data.scaling import Limits, warn_of_wild
from stforecast.data.series import Series, as_series, cells_as_text
from stforecast.data.windows import RECENT, fill_gaps, source_steps
from stforecast.intervals.bands import ranges_outside

if TYPE_CHECKING:
    from stforecast.data.prepared import PreparedSeries
    from stforecast.forecasting.model import FittedModel

log = logging.getLogger(__name__)


FAR_LEVEL = 10.0
"""Standard deviations from the training mean of which a warning is due."""

ADAPT = "`stforecast adapt` or Forecaster.adapt makes a model of them, too"
"""Advice for cells that a model has not seen."""

FAR = 3.0
"""Number of observed ranges outside the observed values from which a bound is warned of."""

HIDDEN = 1e3
"""Standard deviation, in distances between the quartiles, above which outliers hide the others."""


def read_history(
    history: Data | Series, model: FittedModel, events: str | os.PathLike[str] | None = None
) -> Series:
    """Read the series of the fitted cells from a history; a warning names cells it does not know.

    If the model was adapted, missing steps precede a history that is shorter than it reads back.
    """
    series, cells, reach = read_series(history, model, events), model.cells, model.reach
    given, fitted = cells_as_text(series.cells), cells_as_text(cells)
    unseen, absent = ~given.isin(fitted), ~fitted.isin(given)
    if unseen.any() and absent.any():
        check_zeros(given[unseen], fitted[absent], series.name)
        raise InputError(
            f"{series.name} lacks {absent.sum()} of the {len(cells)} cells that the model was "
            f"fitted on, such as {cells[absent][0]}, and has {counted(int(unseen.sum()), 'cell')} "
            f"that it has not seen, such as {series.cells[unseen][0]}; {ADAPT}"
        )
    if len(series.values) < reach and model.adapted:
        series = series.preceded(reach - len(series.values))
    if len(series.values) < reach:
        raise InputError(
            f"{series.name} has {len(series.values)} steps; the model reads "
            f"{reach} steps back, so give a longer history"
        )
    known = series.select(cells)
    if not isinstance(history, Series):
        times = known.calendar.local_times(np.arange(len(known.values)))
        warn_of_wild(model.scaler, known.values, times, cells, series.name)
        warn_of_values_outside(known, model.limits)
    if extra := len(series.cells) - len(cells):
        text = "%s: no forecasts for %s that the model has not seen; %s"
        log.warning(text, series.name, counted(extra, "cell"), ADAPT)
    return known


def open_history(history: Data, model: FittedModel) -> xr.Dataset | pd.DataFrame:
    """Open the file of a history, a table or raw days as the model's own data were prepared."""
    if isinstance(history, pd.DataFrame):
        as_file = counts_rows(history) and model.preparation.get("data_set") == "table"
        return open_again(history, model.preparation) if as_file else history
    if isinstance(history, xr.Dataset):
        return history
    if model.preparation and isinstance(history, str | os.PathLike):
        return open_again(history, model.preparation)
    return open_cube(history)


def read_series(
    history: Data | Series, model: FittedModel, events: str | os.PathLike[str] | None = None
) -> Series:
    """Read all cells of a history, in the unit and the zone of the model.

    The values of a table (time × cell) are of the model's service, and in its unit unless `attrs`
    name another; times of `events` without an offset are those of the model's zone. Values of 0
    are missing if they were in the data of the model.
    """
    window, step = model.config.window, model.step
    if isinstance(history, Series):
        series = history
    else:
        data = open_history(history, model)
        named = not isinstance(data, pd.DataFrame) and (
            bool(model.preparation) or not is_table(history) or model.service in data
        )
        series = as_series(data, model.service if named else None, window, model.unread)
        series = dataclasses.replace(series, name=name_of(history))
        if is_table(history) and not (named and model.preparation):
            units = str(getattr(history, "attrs", {}).get("units", model.units))
            series = dataclasses.replace(series, units=units)
        if model.zero_is_missing and (series.values == 0).any():
            log.info("%s: values of 0 are missing, as in the data of the model", series.name)
            values = np.where(series.values == 0, np.nan, series.values)
            series = dataclasses.replace(series, values=values, zero_is_missing=True)
    if series.calendar.step != step:
        raise InputError(
            f"{series.name} has steps of {in_minutes(series.calendar.step)}, the model was "
            f"fitted on {in_minutes(step)}; prepare the history with that step"
        )
    series = series.in_units(model.units, "the model").in_zone(model.time_zone, "the model")
    if events is not None:
        if not window.kinds:
            raise InputError(Words("the model reads no events; leave out {events}"))
        return series.with_events(events, window.kinds)
    held = series.calendar.events
    if window.kinds and held is None:
        raise InputError(
            f"the model reads events ({window.events}), which the history does not hold: ",
            Words("give a table of those known for the times that are forecast ({events} of "),
            "predict or update); a table with its header alone says that there are none",
        )
    if held is not None and window.kinds and held.kinds != window.kinds:
        raise InputError(
            f"the model reads events of the kinds {window.events}, but the history was read with "
            f"{', '.join(held.kinds)}; read it with Forecaster.read(history, events=FILE)"
        )
    return series


def missing_inputs(series: Series, model: FittedModel) -> np.ndarray:
    """Return which inputs of the forecast after a series are missing, `(inputs, cells)`."""
    window, values = model.config.window, model.scaler.believed(series.values, at_end=True)
    if model.predictor.reads_windows:
        filled = fill_gaps(values, window, series.calendar)
        steps = source_steps(np.array([len(filled)]), window, series.calendar)[0]
        missing = np.isnan(filled[steps[steps >= 0]])
    else:
        missing = np.isnan(values).all(axis=0, keepdims=True)
    if missing.all():
        raise InputError(
            f"{series.name}: {series.service} has no observed inputs for the forecast; give a "
            "history with observations at its end"
        )
    return missing


def warn_of_missing(series: Series, missing: np.ndarray, unknown: np.ndarray) -> None:
    """Warn of missing inputs `(inputs, cells)`, and of the `unknown` cells without a forecast."""
    partly = missing.any(axis=0) & ~unknown
    for cells, what in (
        (unknown, "no observed inputs: they get no forecast"),
        (partly, "missing inputs, which are replaced by the training mean"),
    ):
        if cells.any():
            log.warning(
                "%s: %d of %d cells, such as %s, have %s",
                series.name,
                cells.sum(),
                len(cells),
                series.cells[cells][0],
                what,
            )


def warn_of_late(series: Series, model: FittedModel, said: np.ndarray) -> None:
    """Warn of cells without a reading in the last hour or longer, as their inputs were filled.

    Cells that were `said` `(cells,)` to have missing inputs are left out, and those that had no
    reading at the same times of the week before either, such as a metro at night.
    """
    known = np.isfinite(model.scaler.believed(series.values, at_end=True))
    absent = np.where(known.any(axis=0), known[::-1].argmax(axis=0), 0)
    late = (absent > RECENT / series.calendar.step) & ~said
    week_before = series.calendar.before(np.arange(len(known)), series.calendar.steps_in(WEEK))
    for cell in np.flatnonzero(late):
        then = week_before[-absent[cell] :]
        late[cell] = then[0] < 0 or known[then, cell].any()
    if late.any():
        i = int(np.argmax(np.where(late, absent, 0)))
        log.warning(
            "%s: %d of %d cells have no reading just before the forecast, such as %s, which lacks "
            "the last %s: their forecasts follow from older readings, and may be worse than their "
            "bounds say; give a history with the newest readings",
            series.name,
            late.sum(),
            len(late),
            series.cells[i],
            in_words(int(absent[i]), series.calendar.step),
        )


def warn_of_level(series: Series, model: FittedModel) -> None:
    """Warn of cells whose last values are far from those of the training, as in another unit."""
    believed = model.scaler.believed(series.values)[-model.config.window.reach :]
    recent = model.scaler.scores(believed)
    known = np.isfinite(recent).any(axis=0)
    level = np.zeros(len(known))
    level[known] = np.abs(np.nanmedian(recent[:, known], axis=0))
    if (far := level > FAR_LEVEL).any():
        log.warning(
            "%s: %d of %d cells, such as %s, were lately %.3g standard deviations away from the "
            "mean of the training; check the unit of the history, or fit the model anew",
            series.name,
            far.sum(),
            len(far),
            series.cells[level.argmax()],
            level.max(),
        )


def warn_of_further_services(series: Series, model: FittedModel) -> None:
    """Warn of further services that are missing before the forecast, or far from the training."""
    window, scaler = model.config.window, model.scaler.covariates
    if not window.services or scaler is None or series.covariates is None:
        return
    newest = scaler.transform(series.covariates).observed[-window.input_steps :]
    for i, service in enumerate(window.services):
        sizes = np.abs(newest[..., i])
        missing = np.isnan(sizes).any(axis=0)
        if missing.any():
            log.warning(
                "%s: %s lacks newest values in %d of %d cells, such as %s; the training mean "
                "replaces them",
                *(series.name, service, missing.sum(), len(missing)),
                series.cells[missing][0],
            )
        level = np.where(np.isnan(sizes), 0.0, sizes).max(axis=0)
        if (far := level > FAR_LEVEL).any():
            log.warning(
                "%s: %s of %d of %d cells, such as %s, was lately %.3g standard deviations away "
                "from the mean of the training; check its unit",
                *(series.name, service, far.sum(), len(far)),
                *(series.cells[level.argmax()], level.max()),
            )


def warn_of_past_events(series: Series) -> None:
    """Warn if all events of a table end before the forecast begins, as in one of last month."""
    events, begin = series.calendar.events, series.calendar.time(len(series.values))
    if events is not None and len(events.end) and (events.end <= begin.to_datetime64()).all():
        first = series.calendar.local_times(np.array([len(series.values)]))[0]
        log.warning(
            "%s: all events end before the forecast begins at %s local time, so it assumes that "
            "there are none; give a table with later ones if there are",
            events.name,
            first,
        )


def warn_of_set_back(series: Series, steps: int) -> None:
    """Warn if a forecast of whole days does not cover them, as the clock is set back within it."""
    calendar, begin = series.calendar, len(series.values)
    before, after = calendar.shifts(np.array([begin, begin + steps]))
    if after < before and steps * calendar.step % DAY == pd.Timedelta(0):
        absent = calendar.local_times(begin + steps + np.arange(before - after))
        log.warning(
            "%s: the clock is set back within the %d steps, which leave %s without a forecast; %s",
            *(series.name, steps),
            " to ".join(dict.fromkeys(f"{absent[i]:%Y-%m-%d %H:%M}" for i in (0, -1))),
            Words(
                "predict {steps}, of which the last have no bounds, or train with {horizon}",
                steps=steps + int(before - after),
                horizon=steps + int(before - after),
            ),
        )


def warn_of_constants(series: Series, fit: slice) -> None:
    """Warn of cells that never change in the training part, whose steps are `fit`."""
    seen = pd.DataFrame(series.values[fit])
    if n := int((seen.max() == seen.min()).sum()):
        log.warning(
            "%s: %d of %d cells never change in the training part of %s; their errors are not "
            "meaningful",
            *(series.name, n, len(series.cells), series.service),
        )


def warn_of_values_outside(series: Series, limits: Limits) -> None:
    """Warn of values outside the limits of their service: no bound holds them."""
    values = series.values
    outside = (values < limits.lower) | (values > limits.upper)
    if n := int(outside.sum()):
        _, cell = np.argwhere(outside)[0]
        log.warning(
            "%s: %s outside the limits %g and %g, such as %.6g of cell %s; forecasts and bounds "
            "stay inside: %s, or these values",
            *(series.name, counted(n, "value"), *limits, values[outside][0], series.cells[cell]),
            Words("check {lower_limit} and {upper_limit} of its training"),
        )


def warn_of_outliers(data: PreparedSeries) -> None:
    """Warn of cells of which a few values hide all others, as z-scores are single precision."""
    series, values = data.series, data.believed[data.split.fit]
    low, high = np.nanquantile(values, (0.25, 0.75), axis=0)
    hidden = (high > low) & (np.nanstd(values, axis=0) > HIDDEN * (high - low))
    if n := int(hidden.sum()):
        i = int(np.argmax(hidden))
        log.warning(
            "%s: %s with values that are so far from the others that these cannot be told apart, "
            "such as %.6g in cell %s, where half of all are from %.6g to %.6g; correct or remove "
            "them: errors and forecasts of such a cell are wrong",
            *(series.name, counted(n, "cell"), values[:, i][np.nanargmax(np.abs(values[:, i]))]),
            *(series.cells[i], low[i], high[i]),
        )


def warn_of_far_bounds(series: Series, lowest: np.ndarray, highest: np.ndarray) -> None:
    """Warn of finite bounds `(cells,)` several observed ranges away from a cell's values."""
    away = ranges_outside(lowest, highest, series.values)
    far = np.isfinite(lowest) & np.isfinite(highest) & (away > FAR)
    if far.any():
        i = int(np.argmax(np.where(far, away, 0)))
        seen = series.values[:, i]
        log.warning(
            "%s: bounds of %d of %d cells are more than %g observed ranges outside the observed "
            "values, such as %.4g to %.4g of cell %s, whose values are %.4g to %.4g; look for odd "
            "values, %s",
            *(series.name, far.sum(), len(far), FAR, lowest[i], highest[i], series.cells[i]),
            *(np.nanmin(seen), np.nanmax(seen)),
            Words("or train with {lower_limit} and {upper_limit}"),
        )
