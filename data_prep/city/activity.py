"""The Internet activity of an invented city, day by day.

That of cell c in the 10 minutes t is

    scale[c] · profile[kind[c]](t) · event[c, t] · exp(shared[t] + slow[c, t] + fast[c, t])

with a weekly profile for each of four kinds of cell, a log-normal scale per cell, a city-wide and
a cell's own AR(1) noise, white noise, and now and then an event. The noise was fitted to the 25
cells of Milan (November 2013) that are public: what their workday and weekend means leave has
standard deviation 0.24 in the logarithm and autocorrelation 0.7 after 10 minutes, 0.5 after an
hour, and a fifth of its variance is shared. SMS and calls follow the Internet while people are
awake. There are no public holidays.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from datetime import date, timedelta

import numpy as np
import pandas as pd
from scipy.interpolate import PchipInterpolator
from scipy.signal import lfilter

from data_prep.city.kinds import KINDS

ZONE = "Europe/Rome"
SCALE = 0.35  # standard deviation in the logarithm of the cells' scales within a kind
SHARED, SLOW, FAST = 0.10, 0.17, 0.12  # standard deviations in the logarithm
MEMORY = 0.96  # of the AR(1) noise, from one 10 minutes to the next
EVENT_RATE = 0.03  # events a cell and day


def simulated_days(
    kinds: np.ndarray, first: date, days: int, seed: int
) -> Iterator[tuple[pd.DatetimeIndex, np.ndarray, np.random.Generator]]:
    """Day by day: its steps `(step,)`, Internet activity `(step, cell)`, the day's generator.

    Only the state of the AR(1) noise passes from a day to the next.
    """
    n_cells = len(kinds)
    rng = np.random.default_rng([seed, 0])
    scale = np.array([KINDS[k].peak for k in kinds]) * np.exp(SCALE * rng.normal(size=n_cells))
    spread = np.array([SLOW] * n_cells + [SHARED])
    state = rng.normal(size=(1, n_cells + 1))
    for day in range(days):
        rng = np.random.default_rng([seed, 1 + day])
        midnight = pd.Timestamp(first + timedelta(days=day))
        times = pd.date_range(
            midnight, midnight + pd.Timedelta(days=1), freq="10min", tz=ZONE, inclusive="left"
        )
        hours = np.asarray(times.day_of_week * 24 + times.hour + times.minute / 60)
        shocks = math.sqrt(1 - MEMORY**2) * rng.normal(size=(len(times), n_cells + 1))
        noise, _ = lfilter([1.0], [1.0, -MEMORY], shocks, axis=0, zi=MEMORY * state)
        state = noise[-1:]
        noise = noise * spread
        log_noise = noise[:, :-1] + noise[:, -1:] + FAST * rng.normal(size=(len(times), n_cells))
        curves = {kind: weekly(KINDS[kind].week(), hours) for kind in KINDS}
        profile = np.stack([curves[k] for k in kinds], axis=1)
        yield times, scale * profile * _events(hours % 24, n_cells, rng) * np.exp(log_noise), rng


def _events(hours: np.ndarray, n_cells: int, rng: np.random.Generator) -> np.ndarray:
    """Factor `(step, cell)`: 1, and a bell of about an hour where a crowd gathers."""
    gain = np.exp(rng.normal(0.3, 0.6, n_cells)) * (rng.random(n_cells) < EVENT_RATE)
    peak, width = rng.uniform(10, 21, n_cells), rng.uniform(0.3, 0.8, n_cells)
    return 1 + gain * np.exp(-0.5 * ((hours[:, None] - peak) / width) ** 2)


def weekly(values: tuple[float, ...], hours: np.ndarray) -> np.ndarray:
    """A smooth curve through values at even distances over a week, at `hours` since Monday 0 h."""
    knots = np.linspace(0, 7 * 24, len(values) + 1)
    around = np.concatenate([knots[-3:-1] - 168, knots, knots[1:3] + 168])
    closed = np.array(values)[np.arange(-2, len(values) + 3) % len(values)]
    return PchipInterpolator(around, closed)(hours)
