"""Simulated Internet activity of an invented city, day by day.

The activity of cell c in the ten-minute interval t is

    scale[c] · profile[kind[c]](t) · event[c, t] · exp(shared[t] + slow[c, t] + fast[c, t])

with a weekly profile for each of four kinds of cell, a log-normal scale per cell, AR(1) noise for
the city and for each cell, white noise, and occasional events. The noise is fitted to the 25 public
cells of Milan (November 2013): the residuals from their workday and weekend means have standard
deviation 0.24 in the logarithm and autocorrelation 0.7 after 10 minutes and 0.5 after an hour, and
a fifth of their variance is shared between cells. SMS and calls follow Internet activity, scaled by
time of day. There are no public holidays.

This is the preset `heterogeneous`. In `sparse`, activity is a
Poisson count of the above, with scales that give each cell its mean activity an hour.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date, timedelta

import numpy as np
import pandas as pd


@dataclass(frozen=True)
class CellKind:
    """A kind of cell.

    Args:
        peak: median over its cells of the Internet activity in a busy ten-minute interval.
        foreign: activity of other countries, relative to a city mean of about 1.
        workday: activity relative to `peak` at 0, 2, …, 22 h local time, Monday to Thursday.
        saturday: the same for Saturday.
        sunday: the same for Sunday.
        friday: the same for Friday; None to use `workday`.
    """

    peak: float
    foreign: float
    workday: tuple[float, ...]
    saturday: tuple[float, ...]
    sunday: tuple[float, ...]
    friday: tuple[float, ...] | None = None

    def week(self) -> tuple[float, ...]:
        """Return the profile from Monday 0 h to Sunday 22 h, every two hours, `(84,)`."""
        friday = self.friday or self.workday
        return self.workday * 4 + friday + self.saturday + self.sunday


KINDS = {
    "centre": CellKind(  # offices and shops: a plateau by day, shoppers on Saturday, a quiet Sunday
        peak=650.0,
        foreign=2.0,
        workday=(0.35, 0.26, 0.23, 0.28, 0.66, 0.93, 1.00, 0.95, 0.98, 0.92, 0.66, 0.50),
        saturday=(0.42, 0.31, 0.25, 0.25, 0.42, 0.68, 0.80, 0.84, 0.88, 0.78, 0.64, 0.54),
        sunday=(0.43, 0.32, 0.25, 0.23, 0.31, 0.48, 0.58, 0.62, 0.64, 0.58, 0.49, 0.42),
    ),
    "suburb": CellKind(  # homes: a step in the morning, busiest in the evening
        peak=220.0,
        foreign=0.5,
        workday=(0.50, 0.39, 0.35, 0.42, 0.72, 0.66, 0.69, 0.69, 0.79, 0.94, 1.00, 0.82),
        saturday=(0.55, 0.42, 0.36, 0.37, 0.54, 0.74, 0.80, 0.77, 0.81, 0.90, 0.89, 0.76),
        sunday=(0.57, 0.44, 0.36, 0.35, 0.48, 0.70, 0.82, 0.79, 0.83, 0.95, 0.99, 0.77),
    ),
    "nightlife": CellKind(  # bars and clubs: quiet by day, busy on Friday and Saturday nights
        peak=360.0,
        foreign=1.5,
        workday=(0.40, 0.26, 0.21, 0.23, 0.36, 0.45, 0.50, 0.48, 0.56, 0.70, 0.74, 0.62),
        friday=(0.40, 0.26, 0.21, 0.23, 0.36, 0.46, 0.52, 0.51, 0.62, 0.82, 1.08, 1.35),
        saturday=(1.30, 0.85, 0.42, 0.27, 0.32, 0.44, 0.52, 0.54, 0.63, 0.85, 1.15, 1.45),
        sunday=(1.40, 0.95, 0.45, 0.28, 0.30, 0.40, 0.48, 0.48, 0.51, 0.56, 0.54, 0.46),
    ),
    "industrial": CellKind(  # plants and warehouses: shifts on workdays, very little otherwise
        peak=170.0,
        foreign=0.4,
        workday=(0.20, 0.18, 0.19, 0.38, 0.90, 1.00, 0.88, 0.98, 0.82, 0.42, 0.27, 0.22),
        saturday=(0.20, 0.18, 0.18, 0.23, 0.33, 0.37, 0.34, 0.29, 0.27, 0.24, 0.22, 0.20),
        sunday=(0.19, 0.17, 0.16, 0.17, 0.19, 0.21, 0.22, 0.22, 0.22, 0.21, 0.20, 0.19),
    ),
}


@dataclass(frozen=True)
class Preset:
    """Settings of a city's activity, see `data_prep.city.activity`.

    Args:
        cells: default number of cells.
        days: default number of days.
        kind: the only kind of cell; empty for all four.
        scale: standard deviation of the logarithm of the cells' scales within a kind.
        shared: standard deviation of the logarithm of the city's AR(1) noise.
        slow: the same of each cell's AR(1) noise.
        fast: the same of its white noise.
        event_rate: events per cell and day.
        hourly: lowest and highest mean activity of a cell in an hour, between which cells are
            spread evenly in the logarithm; activity is then a whole number, drawn from a Poisson
            distribution. None for the kinds' own scales and activity that is not counted.
    """

    cells: int = 100
    days: int = 14
    kind: str = ""
    scale: float = 0.35
    shared: float = 0.10
    slow: float = 0.17
    fast: float = 0.12
    event_rate: float = 0.03
    hourly: tuple[float, float] | None = None


PRESETS = {
    "heterogeneous": Preset(),  # Noise and events are fitted to Milan's public cells.
    "dense": Preset(kind="centre", scale=0.1, shared=0.17, slow=0.08, fast=0.05),
    # As in rural Trentino, most of a cell's variance is noise: counts, bursts and level changes.
    "sparse": Preset(
        cells=24, days=62, shared=0.05, slow=0.4, fast=0.3, event_rate=0.5, hourly=(3.0, 60.0)
    ),
}
"""Preset by name; the first is the default."""


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
            *(midnight, midnight + pd.Timedelta(days=1)),
            freq="10min",
            tz="Europe/Rome",
            inclusive="left",
        )
        hours = np.asarray(times.day_of_week * 24 + times.hour + times.minute / 60)
        shocks = math.sqrt(1 - MEMORY**2) * rng.normal(size=(len(times), n_cells + 1))
        from scipy.signal import lfilter  # slow to import

        noise, _ = lfilter([1.0], [1.0, -MEMORY], shocks, axis=0, zi=MEMORY * state)
        state = noise[-1:]
        noise = noise * spread
        white = preset.fast * rng.normal(size=(len(times), n_cells))
        log_noise = noise[:, :-1] + noise[:, -1:] + white
        curves = {kind: interpolated_week(KINDS[kind].week(), hours) for kind in KINDS}
        profile = np.stack([curves[k] for k in kinds], axis=1)
        # The factor of events is 1 plus a bell of about an hour per event.
        occurs = np.exp(rng.normal(0.3, 0.6, n_cells)) * (rng.random(n_cells) < preset.event_rate)
        peak, width = rng.uniform(10, 21, n_cells), rng.uniform(0.3, 0.8, n_cells)
        events = 1 + occurs * np.exp(-0.5 * (((hours % 24)[:, None] - peak) / width) ** 2)
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
    return np.asarray(hourly / PER_HOUR / means / of_noise)


def interpolated_week(values: tuple[float, ...], hours: np.ndarray) -> np.ndarray:
    """Interpolate values spaced evenly over a week at `hours` since Monday 0 h, periodically."""
    knots = np.linspace(0, 7 * 24, len(values) + 1)
    around = np.concatenate([knots[-3:-1] - 168, knots, knots[1:3] + 168])
    closed = np.array(values)[np.arange(-2, len(values) + 3) % len(values)]
    from scipy.interpolate import PchipInterpolator  # slow to import

    return np.asarray(PchipInterpolator(around, closed)(hours))
