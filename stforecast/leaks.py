"""Looking for leaks: does a forecast depend on what it could not know?

Two experiments, both on the data alone, whatever the model. `forecast_leaks` changes everything
from a window's first target on: the window's inputs and its forecast must stay what they were.
`fitting_leaks` changes the test part and fits again: scaler and model must come out the same. A
difference of either kind is a leak; none is no proof, but finds the usual ones: a target among the
inputs, windows off by one, a gap filled from behind, a scaler that saw the whole series.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import xarray as xr

from data_prep.cube import observed
from data_prep.errors import InputError
from stforecast.data.series import Data, as_cube, as_series
from stforecast.data.windows import Calendar, WindowSpec, input_windows
from stforecast.evaluation import Fitted

TOLERANCE = 1e-5
"""Smaller changes, in z-scores, are rounding."""

N_PROBES = 8
"""Windows that are tried, spread evenly."""

SEED = 0


@dataclass(frozen=True)
class Leak:
    """Something that depends on what it could not know.

    Attributes:
        what: what changed: "inputs", "forecast", "scaler", "model".
        step: first target step of the window concerned.
        change: largest change, in z-scores.
    """

    what: str
    step: int
    change: float

    def __str__(self) -> str:
        return f"{self.what} of the window at step {self.step} changed by {self.change:.3g}"


def forecast_leaks(
    fitted: Fitted,
    series: np.ndarray,
    starts: np.ndarray,
    spec: WindowSpec,
    calendar: Calendar,
) -> list[Leak]:
    """Leaks of inputs and forecasts: change the future of some windows and compare.

    Args:
        fitted: the forecaster.
        series: `(steps, cells)`, z-scored, NaN where missing.
        starts: `(windows,)` first target steps to choose from.
        spec: the windows' shape.
        calendar: the series' wall clock.

    Returns:
        What changed, in order of the windows; empty if nothing did.
    """
    probes = starts[np.unique(np.linspace(0, len(starts) - 1, N_PROBES).astype(int))]
    rng = np.random.default_rng(SEED)
    leaks = []
    for start in probes:
        altered = series.copy()
        altered[start:] = rng.normal(3.0, 10.0, altered[start:].shape)
        one = np.array([start])
        inputs = (input_windows(s, one, spec, calendar)[0] for s in (series, altered))
        forecasts = (fitted.predict(s, one, calendar) for s in (series, altered))
        for what, (before, after) in {"inputs": inputs, "forecast": forecasts}.items():
            leaks += _compare(what, int(start), before, after)
    return leaks


def fitting_leaks(method: str, data: Data, **settings: Any) -> list[Leak]:
    """Leaks of fitting: fit to the data, and to the data with another test part, and compare.

    Args:
        method: name of a method; it is fitted twice, so choose few rounds.
        data: a cube, a wide table or the path of a cube.
        **settings: as for `stforecast.Forecaster`; `refit` must be never, since it is there to
            learn from the test part.

    Returns:
        What changed: the scaler, or the forecast of the first window of which no step lies in
        the validation part.

    Raises:
        InputError: if the data cannot be used with these settings.
    """
    from stforecast.forecaster import Forecaster

    if settings.get("refit", "never") != "never":
        raise InputError("refit learns from the test part: look for leaks with refit never")
    cube, _ = as_cube(data)
    service = as_series(cube, settings.get("service")).service
    first = Forecaster(method, **settings).fit(cube)
    start = int(first.split.test[0]) + first.config.window.horizon - 1
    second = Forecaster(method, **settings).fit(_other_future(cube, service, start))
    history = cube.isel(time=slice(start))
    before, after = (f.predict(history).to_numpy() for f in (first, second))
    scalers = (np.stack([f.scaler.mean, f.scaler.std]) for f in (first, second))
    scale = first.scaler.std
    return [
        *_compare("scaler", start, *(s / scale for s in scalers)),
        *_compare("model", start, before / scale, after / scale),
    ]


def _other_future(cube: xr.Dataset, service: str, start: int) -> xr.Dataset:
    """The cube with other values of one service from a step on, as observed as before."""
    values = observed(cube, service)
    changed = values.to_numpy().astype(np.float64, copy=True)
    spread = np.nanstd(changed[:start])
    noise = np.random.default_rng(SEED).uniform(1.0, 5.0, changed[start:].shape)
    changed[start:] = changed[start:] * 2 + spread * noise
    return cube.assign({service: values.copy(data=changed)})


def _compare(what: str, step: int, before: np.ndarray, after: np.ndarray) -> list[Leak]:
    """A leak, if the arrays differ."""
    change = np.abs(np.subtract(before, after, dtype=np.float64))
    change[np.isnan(before) & np.isnan(after)] = 0.0
    largest = float(change.max(initial=0.0))
    return [] if largest <= TOLERANCE else [Leak(what, step, largest)]
