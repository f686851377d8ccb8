"""The readings of a service beside what was expected: broken counters and the day's anomalies."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd
import xarray as xr

from data_prep.cube import local_time, step_of
from stforecast.data.scaling import Scaler
from stforecast.service.cells import CellStates, find_states, sentences, spells_of
from stforecast.service.expected import Expected, Values, rarity_of, readings_of, steps_of_day
from stforecast.service.folder import ServiceState
from stforecast.service.settings import MonitorOptions

NEAREST, MOST_OTHERS = 8, 500
"""Neighbours of a cell, and others that are asked where places are unknown."""

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
        expected: what was expected of the last steps, at most of `SPAN` days, from the day before
            the service began.
        rarity: how rare these were, `(last steps, cells)`: one in so many.
        found: the states of the cells.
        missing: `(steps, cells)` whether a reading counts as missing.
        day: steps of a day.
    """

    readings: pd.DataFrame
    local: pd.DatetimeIndex
    expected: Expected
    rarity: Values
    found: CellStates
    missing: Values
    day: int

    def since(self, steps: Values) -> Values:
        """Return the local times of steps as text; empty for -1."""
        return np.where(steps >= 0, self.local.astype(str).to_numpy()[steps], "")

    @property
    def broken(self) -> list[str]:
        """What is said of the cells whose readings count as missing."""
        state = np.where(self.found.state == "drifted", "", self.found.state)
        said = sentences(
            self.readings.columns.tolist(), state.tolist(), self.since(self.found.since).tolist()
        )
        return [
            f"{one}; {'its' if one.startswith('1 cell ') else 'their'} readings count as missing"
            for one in said
        ]

    @property
    def n_judged(self) -> int:
        """Number of readings of the last day that could be judged."""
        return int(np.isfinite(self.rarity[-self.day :]).sum())


def _unbelieved(given: Values, scaler: Scaler) -> Values:
    """Return which readings a model does not believe."""
    return np.isfinite(given) & np.isnan(scaler.believed(given))


def judge(
    before: xr.Dataset, state: ServiceState, options: MonitorOptions, scaler: Scaler
) -> Judged:
    """Compare the readings of a service with their expected values.

    Args:
        before: the `tested` forecasts of the run in service.
        state: its state.
        options: the settings.
        scaler: of the model in service: what it does not believe counts as missing.
    """
    readings = readings_of(state.history, state.issued)
    given = readings.to_numpy()
    unbelieved = _unbelieved(given, scaler)
    step = step_of(state.history)
    day = steps_of_day(step)
    begun = state.issued.indexes["time"].min() if state.issued.sizes["time"] else state.end + step
    since = begun - pd.Timedelta(days=1)
    missing = unbelieved
    for _ in range(2):  # What is broken is no measure of what follows it.
        rare = rarity_of(
            before, state.issued, readings, readings.mask(missing), since, options.anomaly_in
        )
        in_service = np.asarray(rare.expected.times >= since)
        found = find_states(
            given, rare.expected, np.where(in_service[:, None], rare.surely, np.nan),
            day, options.stuck_hours, options.anomaly_in, unbelieved,
        )  # fmt: skip
        missing = unbelieved | found.broken
        if not found.broken.any():
            break
    again = found.broken
    while again.any():  # Without what is broken, fewer readings show a fault that lasts.
        found.broken[again] = True
        again = unbelieved & ~found.broken
        again &= ~_unbelieved(np.where(found.broken, np.nan, given), scaler)
    missing = missing | np.isnan(given)
    return Judged(
        readings, local_time(state.history), rare.expected, rare.listed, found, missing, day
    )


def anomalies(judged: Judged, state: ServiceState, one_in: float) -> pd.DataFrame:
    """Return the anomalies of the last day, a row for each spell of a cell, the rarest first.

    `seen`, `expected` and the bounds are of the spell's rarest reading. `neighbours` counts those
    of the nearest cells, or of all others where places are unknown, with anomalies at that time.
    """
    n = min(judged.day, len(judged.rarity))
    rarity, expected = judged.rarity[-n:], judged.expected.of(slice(-n, None))
    readings, local = judged.readings.to_numpy()[-n:], judged.local[-n:]
    with np.errstate(invalid="ignore"):
        odd: Values = np.asarray(rarity >= one_in)
    near = _neighbours(state) if odd.any() else np.array([])
    cells = state.issued["cell"].to_numpy()
    hours, rows = pd.Timedelta(hours=1), []
    step = local[1] - local[0] if n > 1 else hours
    for cell, begin, end in spells_of(odd):
        at, n_steps = begin + np.argmax(rarity[begin:end, cell]), end - begin
        value, others = expected.values[at, cell], odd[begin:end].max(axis=0)[near[cell]]
        rows.append((
            cells[cell], local[begin], local[end - 1] + step, n_steps * step / hours, n_steps,
            readings[at, cell], value, value - expected.below[at, cell],
            value + expected.above[at, cell], rarity[at, cell], int(others.sum()), len(others),
        ))  # fmt: skip
    found = pd.DataFrame(rows, columns=list(COLUMNS))
    return found.sort_values("one_in", ascending=False, kind="stable").reset_index(drop=True)


def _neighbours(state: ServiceState) -> np.ndarray:
    """Return the places of each cell's neighbours, `(cells, neighbours)`: the nearest, or all."""
    from scipy.spatial import cKDTree  # They are slow to import.

    from stforecast.plots.cell_map import find_places

    n = state.issued.sizes["cell"]
    found, everyone = find_places(state.issued, state.history), np.arange(n)
    if found.kind == "tiles" or n <= NEAREST:
        few = everyone[: MOST_OTHERS + 1]
        return np.array([few[few != i][:MOST_OTHERS] for i in everyone]).reshape(n, -1)
    places = np.stack([found.east, found.north], axis=1)
    near = cKDTree(places).query(places, NEAREST + 1)[1]
    return np.array([row[row != i][:NEAREST] for i, row in zip(everyone, near, strict=True)])
