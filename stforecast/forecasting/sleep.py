"""Which cells can sleep: spans in which neighbours can carry the load of a carrier.

In each group, carriers are taken by their mean load, the lowest first. Each gets the longest span
in which its load stays below a limit, and the spare capacity of its awake neighbours is above the
load of all that sleep. Both must hold at all steps of the span, on a share of joint sample paths
(`stforecast.forecasting.paths`) that is at least the wanted probability. A carrier does not sleep
if an earlier promise would then hold on too few paths.

The longest span that just passes on some paths holds less often on others. So spans are chosen on
the first half of the paths, and the probability of each is its share of the second half, the newer
tested forecasts. The benchmark `sleep` measures how often promises held.

Energy follows from the linear power model of Auer and others, "How much energy is needed to run a
wireless network?", IEEE Wireless Communications 18(5), 2011, Eq. 1: P = P0 + slope × output, or
P_sleep. The output is in proportion to the load, and is the highest at the carrier's threshold.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr
from pydantic import NonNegativeFloat, PositiveFloat

from data_prep.base.errors import InputError, some
from stforecast.federated.core.options import CheckedOptions, Probability
from stforecast.forecasting.groups import ALL, Groups
from stforecast.forecasting.planning import ANY, Threshold, cell_limits, no_values


@dataclass(frozen=True)
class Sleep(CheckedOptions):
    """What is wanted of a carrier that sleeps, and its power in watts.

    By default, a macro cell takes 130 W, 4.7 × 20 W more at full output, and 75 W asleep (Table 2
    of the paper).

    Attributes:
        below: limit of a sleeping carrier's own load, in the data's units.
        probability: least share of paths on which spans are chosen.
        idle: power of a carrier without load.
        full: power of a carrier at its threshold.
        asleep: power of a sleeping carrier.
    """

    below: PositiveFloat
    probability: Probability = 0.95
    idle: NonNegativeFloat = 130.0
    full: NonNegativeFloat = 224.0
    asleep: NonNegativeFloat = 75.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.asleep < self.idle <= self.full:
            raise InputError(
                f"power is {self.asleep:g} W asleep, {self.idle:g} W idle and {self.full:g} W "
                "full; it must rise in this order"
            )

    @classmethod
    def read(cls, text: str) -> Sleep:
        """Return what a text such as `below=10,probability=0.9` asks for.

        Raises:
            InputError: if a name is unknown, a value is no number or out of its range, or `below`
                is missing.
        """
        known = [field.name for field in fields(cls)]
        pairs = [part.partition("=")[::2] for part in text.split(",")]
        values: dict[str, Any] = {name.strip(): value for name, value in pairs}
        if "below" in values and len(values) == len(pairs) and values.keys() <= {*known}:
            return cls(**values)
        raise InputError(
            f"sleep is {text!r}; give below=LOAD and, separated by commas, any of "
            f"{', '.join(known[1:])}, each once, such as below=10,probability=0.9"
        )


@dataclass(frozen=True, eq=False)
class SleepPlan:
    """Spans in which carriers can sleep.

    Attributes:
        table: a row for each carrier that can sleep, by the number of its cell: `cell`, `group`,
            `begin` and `end` of its span, `hours`, the `probability` that the promise holds for all
            of it, and `moved_load`, the mean load that its neighbours carry, in the data's units.
        energy_saved: share of the energy of all carriers over all steps.
        asleep: `(cells, steps)` whether a carrier sleeps.
        groups: `(cells,)` numbers of groups.
        limits: `(cells,)` largest load of each carrier.
        sleep: what was wanted.
    """

    table: pd.DataFrame
    energy_saved: float
    asleep: np.ndarray
    groups: np.ndarray
    limits: np.ndarray
    sleep: Sleep

    @property
    def promise(self) -> str:
        """The wanted probability, and the lowest that was found, in a sentence."""
        wanted, found = self.sleep.probability, self.table["probability"].min()
        text = f"spans are chosen for {100 * wanted:g} % on half of the tested forecasts"
        if not len(self.table):
            return text
        return f"{text}; on the other half, each holds with at least {100 * found:.0f} %"

    @property
    def power(self) -> str:
        """Power of a carrier, in words."""
        own = self.sleep
        awake = f"{own.idle:g} W idle, {own.full:g} W at its threshold"
        return f"a cell takes {awake} and {own.asleep:g} W asleep"

    def held(self, loads: np.ndarray) -> np.ndarray:
        """Return on which paths the promise of each row holds, `(rows, paths)`.

        Args:
            loads: `(paths, cells, steps)` of all cells, forecast or observed. A carrier of unknown
                load carries nothing, and breaks its own promise.
        """
        loads = np.nan_to_num(loads, nan=np.inf)
        found = np.ones((len(self.groups), len(loads)), dtype=bool)
        for group in np.unique(self.groups[self.table.index]):
            own = self.groups == group
            found[own] = _kept(loads[:, own], self.asleep[own], self.limits[own], self.sleep.below)
        return np.asarray(found[self.table.index])


def plan_sleep(paths: xr.DataArray, cover: Groups, threshold: Threshold, sleep: Sleep) -> SleepPlan:
    """Find the spans in which carriers can sleep.

    A carrier without finite bounds neither sleeps nor carries load.

    Args:
        paths: `(path, cell, time)` from `Forecaster.sample_paths`.
        cover: groups of carriers that cover the same area, see `read_groups`. Loads in % add up
            only if carriers of a group have equal capacities.
        threshold: largest load of a carrier in the data's units, one of all or one of each.
        sleep: what is wanted.

    Raises:
        InputError: if paths are too few for the probability or have one step, groups have several
            levels, or a threshold is missing or not above 0.

    >>> loads = np.array([[[5.0, 2.0, 1.0], [4.0, 4.0, 4.0]]]).repeat(8, axis=0)
    >>> where = {"cell": ["a", "b"], "time": pd.date_range("2024-03-04", periods=3, freq="h")}
    >>> paths = xr.DataArray(loads, where, ("path", "cell", "time"), "calls", {"units": "1"})
    >>> site = Groups.of_columns({"site": ["x", "x"]}, paths["cell"].to_numpy())
    >>> found = plan_sleep(paths, site, 7.0, Sleep(below=3, probability=0.8))
    >>> found.table[["cell", "hours", "probability", "moved_load"]].to_numpy().tolist()
    [['a', 2.0, 0.8, 1.5]]
    """
    half, cells = paths.sizes["path"] // 2, paths["cell"].to_numpy()
    if half < (least := math.ceil(sleep.probability / (1 - sleep.probability) - 1e-9)):
        raise InputError(
            f"{2 * half} tested forecasts are too few for a probability of {sleep.probability:g}, "
            f"which needs {2 * least}; ask for less, or make a run with a longer test part"
        )
    if paths.sizes["time"] < 2:
        raise InputError("forecasts of one step have no spans; make a run with a longer horizon")
    levels = [level for level in dict.fromkeys(cover.levels) if level != ALL] or [ALL]
    if len(levels) > 1:
        raise InputError(f"groups have several levels, {some(levels)}; give one")
    empty = no_values(cells, str(paths.name), paths.attrs["units"])
    limits = cell_limits(threshold, empty, ANY)
    if (low := limits <= 0).any():
        raise InputError(f"threshold is {limits[low][0]:g}; loads need one above 0")
    loads, groups = paths.to_numpy(), cover.of[0]
    known = np.isfinite(loads).all(axis=(0, 2))
    mean, asleep, saved = loads.mean(axis=0), np.zeros(loads.shape[1:], dtype=bool), 0.0
    for group in np.unique(groups[known]):
        own = np.flatnonzero((groups == group) & known)
        asleep[own] = _sleepers(loads[:half, own], limits[own], sleep)
        saved += _saved(mean[own], asleep[own], limits[own], sleep)
    power = sleep.idle + (sleep.full - sleep.idle) * mean / limits[:, None]
    rows = np.flatnonzero(asleep.any(axis=1))
    names = [cover.names[group] for group in groups[rows]]
    table = pd.DataFrame({"cell": cells[rows], "group": names}, rows)
    table = table.join(_spans(paths, asleep[rows]).set_axis(rows))
    share = saved / float(power[known].sum()) if saved else 0.0
    found = SleepPlan(table, share, asleep, groups, limits, sleep)
    # The future is one more path, on which a promise may fail.
    table["probability"] = (found.held(loads[half:]).sum(axis=1) / (len(loads) - half + 1)).round(4)
    table["moved_load"] = [float(f"{mean[row, asleep[row]].mean():.4g}") for row in rows]
    return found


def _spans(paths: xr.DataArray, asleep: np.ndarray) -> pd.DataFrame:
    """Return `begin`, `end` and `hours` of the span of each row `(rows, steps)`."""
    times = pd.DatetimeIndex(paths["time"].to_numpy())
    step = times[1] - times[0]
    times = pd.date_range(times[0], periods=len(times) + 1, freq=step)
    if zone := paths.attrs.get("time_zone"):
        times = times.tz_localize("UTC").tz_convert(zone)
    begin, length = asleep.argmax(axis=1), asleep.sum(axis=1)
    hours = length * (step / pd.Timedelta("1h"))
    return pd.DataFrame({"begin": times[begin], "end": times[begin + length], "hours": hours})


def _sleepers(loads: np.ndarray, limits: np.ndarray, sleep: Sleep) -> np.ndarray:
    """Return which carriers `(cells, steps)` of a group sleep, by their loads on paths."""
    n_steps, least = loads.shape[2], sleep.probability * (len(loads) + 1) - 1e-9
    asleep = np.zeros(loads.shape[1:], dtype=bool)
    for cell in loads.mean(axis=(0, 2)).argsort(kind="stable"):
        longest, length = asleep, 0
        for begin in range(n_steps):
            for end in range(begin + length + 1, n_steps + 1):
                trial = asleep.copy()
                trial[cell, begin:end] = True
                if _kept(loads, trial, limits, sleep.below).sum(axis=1).min() < least:
                    break
                longest, length = trial, end - begin
        asleep = longest
    return asleep


def _kept(loads: np.ndarray, asleep: np.ndarray, limits: np.ndarray, below: float) -> np.ndarray:
    """Return on which paths each carrier of a group keeps its promise `(cells, paths)`."""
    loads = loads.clip(0)
    spare = np.where(asleep, -loads, (limits[:, None] - loads).clip(0)).sum(axis=1)
    # If all sleep, nothing is above 0: nobody covers the area, even without load.
    return np.asarray((((spare > 0)[:, None] & (loads < below)) | ~asleep).all(axis=2).T)


def _saved(loads: np.ndarray, asleep: np.ndarray, limits: np.ndarray, sleep: Sleep) -> float:
    """Return the energy that sleep saves in a group at mean loads `(cells, steps)`, in watt-steps.

    Loads move to the awake carriers in proportion to their limits.
    """
    rise, awake = sleep.full - sleep.idle, np.where(asleep, 0.0, limits[:, None])
    slope = rise * (~asleep).sum(axis=0) / awake.sum(axis=0)
    saved = sleep.idle - sleep.asleep + (rise / limits[:, None] - slope) * loads
    return float(saved[asleep].sum())
