"""Search for leaks: dependence of a forecast on values after its start.

The test works for any model: it changes all values from a window's first target on, those of
further services included; the window's inputs and forecast must not change. What is known in
advance, the calendar and a table of events, stays as it is. A difference is a leak;
its absence is no proof, but the test finds the usual leaks: a target among the inputs, windows off
by one, gaps filled with later values.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import numpy as np

from data_prep.base.errors import InputError
from stforecast.data.clock import Calendar
from stforecast.data.series import Series
from stforecast.data.window_spec import WindowSpec
from stforecast.data.windows import input_windows
from stforecast.forecasting.fit import Predictor
from stforecast.forecasting.model import FittedModel


@dataclass(frozen=True)
class Leak:
    """A change of inputs or forecast of the window at a step by later values, in z-scores."""

    what: str
    step: int
    change: float

    def __str__(self) -> str:
        return f"{self.what} of the window at step {self.step} changed by {self.change:.3g}"


def model_leaks(model: FittedModel, series: Series) -> list[Leak]:
    """Find leaks of a model in windows of the last quarter of a series of its cells.

    Raises:
        InputError: if the series has no step after those that the model reads back.
    """
    z = model.scaler.transform(series.values)
    starts = np.arange(max(model.reach, len(z) - len(z) // 4), len(z))
    if not len(starts):
        raise InputError(
            f"{series.name} has {len(z)} steps, and none after the {model.reach} that the model "
            "reads back; give a longer history"
        )
    calendar = model.scaler.calendar(series)
    return forecast_leaks(model.predictor, z, starts, model.config.window, calendar)


def forecast_leaks(
    predictor: Predictor,
    series: np.ndarray,
    starts: np.ndarray,
    spec: WindowSpec,
    calendar: Calendar,
) -> list[Leak]:
    """Find leaks in inputs and forecasts by changing the future of eight windows of `starts`."""
    probes = starts[np.unique(np.linspace(0, len(starts) - 1, 8).astype(int))]
    rng = np.random.default_rng(0)
    leaks = []
    for start in probes:
        altered = series.copy()
        altered[start:] = rng.normal(3.0, 10.0, altered[start:].shape)
        one, both = np.array([start]), [(series, calendar), (altered, calendar)]
        if calendar.covariates is not None:
            covariates = calendar.covariates.altered(int(start), rng)
            both[1] = altered, dataclasses.replace(calendar, covariates=covariates)
        inputs = (input_windows(s, one, spec, at) for s, at in both)
        forecasts = (predictor.predict(s, one, at) for s, at in both)
        for what, (before, after) in {"inputs": inputs, "forecast": forecasts}.items():
            leaks += changes_of(what, int(start), before, after)
    return leaks


def changes_of(what: str, step: int, before: np.ndarray, after: np.ndarray) -> list[Leak]:
    """Return a leak if z-scores differ by more than rounding, else nothing."""
    change = np.abs(np.subtract(before, after, dtype=np.float64))
    change[np.isnan(before) & np.isnan(after)] = 0.0
    largest = float(change.max(initial=0.0))
    return [] if largest <= 1e-5 else [Leak(what, step, largest)]
