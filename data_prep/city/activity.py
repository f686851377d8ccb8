"""Simulated Internet activity of an invented city, day by day.

The activity of cell c in the ten-minute interval t is

    scale[c] · profile[kind[c]](t) · event[c, t] · exp(shared[t] + slow[c, t] + fast[c, t])

with a weekly profile for each of four kinds of cell, a log-normal scale per cell, AR(1) noise for
the city and for each cell, white noise, and occasional events. The noise is fitted to the 25 public
cells of Milan (November 2013): the residuals from their workday and weekend means have standard
deviation 0.24 in the logarithm and autocorrelation 0.7 after 10 minutes and 0.5 after an hour, and
a fifth of their variance is shared between cells. SMS and calls follow Internet activity, scaled by
time of day. There are no public holidays.

This is the preset `heterogeneous`; `data_prep.city.presets` has others. In `sparse`, activity is a
Poisson count of the above, with scales that give each cell its mean activity an hour.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from datetime import date, timedelta

import numpy as np
import pandas as pd

from data_prep.city.kinds import KINDS
from data_prep.city.presets import Preset

ZONE = "Europe/Rome"
MEMORY = 0.96  # AR(1) coefficient per ten-minute interval
PER_HOUR = 6


def simulated_days(
    kinds: np.ndarray, first: date, days: int, seed: int, preset: Preset
) -> Iterator[tuple[pd.DatetimeIndex, np.ndarray, np.random.Generator]]:
    """Yield each day's steps `(step,)`, Internet activity `(step, cell)` and random generator.

    Only the state of the AR(1) noise is carried from one day to the next.
    """
    n_cells = len(kinds)
    rng = np.random.default_rng([seed, 0])
    scale = _scales(kinds, preset, rng)
    spread = np.array([preset.slow] * n_cells + [preset.shared])
    state = rng.normal(size=(1, n_cells + 1))
    for day in range(days):
        rng = np.random.default_rng([seed, 1 + day])
        midnight = pd.Timestamp(first + timedelta(days=day))
        times = pd.date_range(
            midnight, midnight + pd.Timedelta(days=1), freq="10min", tz=ZONE, inclusive="left"
        )
        hours = np.asarray(times.day_of_week * 24 + times.hour + times.minute / 60)
        shocks = math.sqrt(1 - MEMORY**2) * rng.normal(size=(len(times), n_cells + 1))
        from scipy.signal import lfilter  # slow to import

        noise, _ = lfilter([1.0], [1.0, -MEMORY], shocks, axis=0, zi=MEMORY * state)
        state = noise[-1:]
        noise = noise * spread
        white = preset.fast * rng.normal(size=(len(times), n_cells))
        log_noise = noise[:, :-1] + noise[:, -1:] + white
        curves = {kind: weekly(KINDS[kind].week(), hours) for kind in KINDS}
        profile = np.stack([curves[k] for k in kinds], axis=1)
        events = _events(hours % 24, n_cells, preset.event_rate, rng)
        activity = scale * profile * events * np.exp(log_noise)
        yield times, rng.poisson(activity).astype(float) if preset.hourly else activity, rng


def _scales(kinds: np.ndarray, preset: Preset, rng: np.random.Generator) -> np.ndarray:
    """Return the factor of each cell's profile, `(cell,)`."""
    n_cells = len(kinds)
    if preset.hourly is None:
        peaks = np.array([KINDS[k].peak for k in kinds])
        return peaks * np.exp(preset.scale * rng.normal(size=n_cells))
    low, high = preset.hourly
    hourly = low * (high / low) ** rng.permutation(np.linspace(0, 1, n_cells))
    of_noise = math.exp((preset.shared**2 + preset.slow**2 + preset.fast**2) / 2)  # Its mean.
    means = np.array([np.mean(KINDS[k].week()) for k in kinds])
    return hourly / PER_HOUR / means / of_noise


def _events(hours: np.ndarray, n_cells: int, rate: float, rng: np.random.Generator) -> np.ndarray:
    """Return the factor of events `(step, cell)`: 1 plus a bell of about an hour per event."""
    gain = np.exp(rng.normal(0.3, 0.6, n_cells)) * (rng.random(n_cells) < rate)
    peak, width = rng.uniform(10, 21, n_cells), rng.uniform(0.3, 0.8, n_cells)
    return 1 + gain * np.exp(-0.5 * ((hours[:, None] - peak) / width) ** 2)


def weekly(values: tuple[float, ...], hours: np.ndarray) -> np.ndarray:
    """Interpolate values spaced evenly over a week at `hours` since Monday 0 h, periodically."""
    knots = np.linspace(0, 7 * 24, len(values) + 1)
    around = np.concatenate([knots[-3:-1] - 168, knots, knots[1:3] + 168])
    closed = np.array(values)[np.arange(-2, len(values) + 3) % len(values)]
    from scipy.interpolate import PchipInterpolator  # slow to import

    return PchipInterpolator(around, closed)(hours)
