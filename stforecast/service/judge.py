"""The readings of a service beside what was expected: broken counters and the day's anomalies."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd
import xarray as xr

from data_prep.cube import local_time, observed, step_of
from stforecast.forecasting.results import ForecastRun
from stforecast.service.cells import Found, find_states, in_words
from stforecast.service.expected import Expected, Measure, Values, expect, measure, tested
from stforecast.service.folder import ServiceState
from stforecast.service.settings import MonitorOptions

SPAN = 35
"""Last days of a history whose readings are compared with what was expected of them."""

NEAREST = 8
"""Neighbours of a cell."""

COLUMNS = (
    "cell", "begin", "end", "hours", "readings", "seen", "expected", "lower", "upper", "one_in",
    "neighbours", "of",
)  # fmt: skip
"""Columns of the list of anomalies."""


@dataclass(frozen=True, eq=False)
class Judged:
    """What the readings of a service were, beside what was expected of them.

    Attributes:
        readings: all readings (time × cell), NaN where missing, on the clock of the history.
        local: local time of each.
        expected: what was expected of the last `SPAN` days.
        rarity: how rare these were, `(last steps, cells)`: one in so many.
        found: the states of the cells.
        day: steps of a day.
    """

    readings: pd.DataFrame
    local: pd.DatetimeIndex
    expected: Expected
    rarity: Values
    found: Found
    day: int

    def since(self, steps: Values) -> Values:
        """Return the local times of steps as text; empty for -1."""
        return np.where(steps >= 0, self.local.astype(str).to_numpy()[steps], "")

    @property
    def broken(self) -> list[str]:
        """What is said of the cells whose readings count as missing."""
        state = np.where(self.found.state == "drifted", "", self.found.state)
        said = in_words(
            self.readings.columns.tolist(), state.tolist(), self.since(self.found.since).tolist()
        )
        return [f"{one}; their readings count as missing" for one in said]

    @property
    def n_judged(self) -> int:
        """Number of readings of the last day that could be judged."""
        return int(np.isfinite(self.rarity[-self.day :]).sum())


def readings_of(history: xr.Dataset, issued: xr.Dataset) -> pd.DataFrame:
    """Return the readings (time × cell) of the cells that are forecast."""
    values = observed(history, str(issued.attrs["service"])).sel(cell=issued["cell"])
    return pd.DataFrame(values.to_numpy(), history.indexes["time"], issued["cell"].to_numpy())


def measure_of(
    run: ForecastRun, state: ServiceState, readings: pd.DataFrame
) -> tuple[Expected, Measure]:
    """Return what was expected of the last days, and how rare distances from it are.

    `readings` are all of the state's, from which what is known to be broken may be left out.
    """
    day = round(pd.Timedelta(days=1) / step_of(state.history))
    recent = readings.iloc[-SPAN * max(day, 1) :]
    expected = expect(state.issued, recent)
    return expected, measure(tested(run), state.issued, expected, recent.to_numpy())


def judge(run: ForecastRun, state: ServiceState, options: MonitorOptions) -> Judged:
    """Compare the readings of a service with what was expected of them."""
    readings = readings_of(state.history, state.issued)
    believed = readings if state.broken is None else readings.mask(state.broken)
    day = max(round(pd.Timedelta(days=1) / step_of(state.history)), 1)
    expected, scale = measure_of(run, state, believed)
    rarity = scale.rarity(expected, readings.to_numpy()[-len(expected.times) :])
    begun = state.issued.indexes["time"].min() if state.issued.sizes["time"] else state.end
    in_service = np.asarray(expected.times > begun - pd.Timedelta(days=1))
    found = find_states(
        readings.to_numpy(), expected, np.where(in_service[:, None], rarity, np.nan), day,
        options.stuck_hours, options.anomaly_in,
    )  # fmt: skip
    return Judged(readings, local_time(state.history), expected, rarity, found, day)


def anomalies(judged: Judged, history: xr.Dataset, one_in: float) -> pd.DataFrame:
    """Return the anomalies of the last day, a row for each spell of a cell, the rarest first.

    `seen`, `expected` and the bounds are of the spell's rarest reading. `neighbours` counts those
    of the nearest cells, or of all others where places are unknown, with anomalies at that time.
    """
    n = min(judged.day, len(judged.rarity))
    rarity, expected = judged.rarity[-n:], judged.expected.of(slice(-n, None))
    readings, local = judged.readings.to_numpy()[-n:], judged.local[-n:]
    with np.errstate(invalid="ignore"):
        odd = rarity >= one_in
    near = _neighbours(history, judged.readings.columns)
    hours, rows = pd.Timedelta(hours=1), []
    step = local[1] - local[0] if n > 1 else hours
    for cell in np.flatnonzero(odd.any(axis=0)):
        steps = np.flatnonzero(odd[:, cell])
        for spell in np.split(steps, np.flatnonzero(np.diff(steps) > 1) + 1):
            at = spell[np.argmax(rarity[spell, cell])]
            value = expected.values[at, cell]
            others = odd[spell].any(axis=0)[near[cell]]
            rows.append((
                judged.readings.columns[cell], local[spell[0]], local[spell[-1]] + step,
                len(spell) * step / hours, len(spell), readings[at, cell], value,
                value - expected.below[at, cell], value + expected.above[at, cell],
                rarity[at, cell], int(others.sum()), len(others),
            ))  # fmt: skip
    found = pd.DataFrame(rows, columns=list(COLUMNS))
    return found.sort_values("one_in", ascending=False, kind="stable").reset_index(drop=True)


def _neighbours(history: xr.Dataset, cells: pd.Index) -> np.ndarray:
    """Return the places of each cell's neighbours, `(cells, neighbours)`: the nearest, or all."""
    n, near = len(cells), min(NEAREST, len(cells) - 1)
    if "lon" in history and "lat" in history and n > 1:
        lon, lat = (np.radians(history[name].sel(cell=cells.to_numpy()).to_numpy())
                    for name in ("lon", "lat"))  # fmt: skip
        plane = np.stack([lon * np.cos(np.nanmean(lat)), lat], axis=1)
        if np.isfinite(plane).all():
            from scipy.spatial import cKDTree  # slow to import

            found = cKDTree(plane).query(plane, near + 1)[1]
            own = np.arange(n)[:, None]
            return np.array([row[row != i][:near] for i, row in zip(own, found, strict=True)])
    return np.array([np.delete(np.arange(n), i) for i in range(n)]) if n <= 500 else _none(n)


def _none(n: int) -> np.ndarray:
    return np.zeros((n, 0), dtype=int)
