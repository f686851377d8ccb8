"""Looking for leaks: does a forecast depend on what it could not know?

An experiment on the data alone, whatever the model: everything from a window's first target on is
changed, and the window's inputs and its forecast must stay what they were. A difference is a leak;
none is no proof, but finds the usual ones: a target among the inputs, windows off by one, a gap
filled from behind.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from stforecast.data.windows import Calendar, WindowSpec, input_windows
from stforecast.predictor import Predictor

TOLERANCE = 1e-5
"""Smaller changes, in z-scores, are rounding."""

N_PROBES = 8
"""Windows that are tried, spread evenly."""

SEED = 0


@dataclass(frozen=True)
class Leak:
    """Something that depends on what it could not know.

    Attributes:
        what: what changed: "inputs" or "forecast".
        step: first target step of the window concerned.
        change: largest change, in z-scores.
    """

    what: str
    step: int
    change: float

    def __str__(self) -> str:
        return f"{self.what} of the window at step {self.step} changed by {self.change:.3g}"


def forecast_leaks(
    predictor: Predictor,
    series: np.ndarray,
    starts: np.ndarray,
    spec: WindowSpec,
    calendar: Calendar,
) -> list[Leak]:
    """Leaks of inputs and forecasts: change the future of some windows and compare.

    Args:
        predictor: what forecasts.
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
        inputs = (input_windows(s, one, spec, calendar) for s in (series, altered))
        forecasts = (predictor.predict(s, one, calendar) for s in (series, altered))
        for what, (before, after) in {"inputs": inputs, "forecast": forecasts}.items():
            leaks += compare(what, int(start), before, after)
    return leaks


def compare(what: str, step: int, before: np.ndarray, after: np.ndarray) -> list[Leak]:
    """A leak, if the arrays differ by more than rounding."""
    change = np.abs(np.subtract(before, after, dtype=np.float64))
    change[np.isnan(before) & np.isnan(after)] = 0.0
    largest = float(change.max(initial=0.0))
    return [] if largest <= TOLERANCE else [Leak(what, step, largest)]
