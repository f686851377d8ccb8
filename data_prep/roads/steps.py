"""Even time steps of detector records, and longer ones."""

from __future__ import annotations

import logging
from collections.abc import Mapping

import numpy as np
import pandas as pd

from data_prep.errors import InputError
from data_prep.tabular.gaps import check_steps
from data_prep.tabular.origin import Origin
from data_prep.tabular.times import regular_steps
from data_prep.text import in_minutes

CALIFORNIA = "America/Los_Angeles"
"""Time zone of the detectors of Caltrans."""

log = logging.getLogger(__name__)


def step_length(step: str, base: pd.Timedelta) -> pd.Timedelta:
    """Read the length of a step that published steps can be put into.

    Args:
        step: such as `15min`.
        base: length of the published steps.

    Raises:
        InputError: if it is no multiple of them that divides a day.

    >>> step_length("1h", pd.Timedelta("5min"))
    Timedelta('0 days 01:00:00')
    """
    try:
        length = pd.Timedelta(step)
    except ValueError as e:
        raise InputError(f"step {step!r} is not a length of time; write one like 15min") from e
    if length < base or length % base or pd.Timedelta("1D") % length:
        raise InputError(
            f"step {step!r} does not fit, expected a multiple of {in_minutes(base)} that divides "
            "a day; choose one such as 15min or 1h"
        )
    return length


def average(frame: pd.DataFrame, length: pd.Timedelta, zero_is_missing: bool) -> pd.DataFrame:
    """Average the observed values over longer steps, counted from midnight.

    Args:
        frame: `(time, cell)` values in even steps, NaN where missing.
        length: length of the longer steps.
        zero_is_missing: whether a 0 was not observed either.

    Returns:
        `(step, cell)` means, NaN where nothing was observed; the frame itself if its steps have
        this length.
    """
    if len(frame) > 1 and frame.index[1] - frame.index[0] == length:
        return frame
    known = frame.where(frame != 0) if zero_is_missing else frame
    return known.resample(length, origin="start_day").mean()


def even_steps(
    frame: pd.DataFrame, name: str, base: pd.Timedelta, zone: str, allow_gaps: bool
) -> pd.DataFrame:
    """Put a frame on even steps, NaN in the steps that have no row.

    Args:
        frame: `(time, cell)` values at local times.
        name: name of the file in errors.
        base: length of the published steps.
        zone: IANA name of the time zone. Steps that its clocks skip are no gaps.
        allow_gaps: leave NaN at other missing steps instead of refusing the file.

    Raises:
        InputError: if times do not increase, are of another step, or are missing.
    """
    times = pd.DatetimeIndex(frame.index)
    backwards = np.flatnonzero(np.diff(times) <= np.timedelta64(0))
    if backwards.size:
        row = int(backwards[0])
        raise InputError(
            f"{name}: {times[row + 1]} follows {times[row]}, expected increasing times without "
            "repeats; sort the frame and drop duplicates"
        )
    axis, at = regular_steps(times, name)
    rows = np.append(at, _skipped(axis, at, zone, name))
    check_steps(axis, rows, Origin(name, is_file=True), allow_gaps)
    if len(axis) > 1 and axis[1] - axis[0] != base:
        raise InputError(
            f"{name}: time steps of {axis[1] - axis[0]}, expected {in_minutes(base)}; give the "
            "published file and choose longer steps with --step"
        )
    return frame if len(axis) == len(times) else frame.reindex(axis)


def _skipped(axis: pd.DatetimeIndex, at: np.ndarray, zone: str, name: str) -> np.ndarray:
    """Return the positions of missing steps that the clocks skip when summer time begins."""
    absent = np.setdiff1d(np.arange(len(axis)), at)
    local = axis[absent].tz_localize(
        zone, ambiguous=np.ones(len(absent), dtype=bool), nonexistent="NaT"
    )
    skipped = absent[local.isna()]
    if skipped.size:
        log.info(
            "%s: no row in %d steps from %s, which the clocks skip; left as NaN",
            name, len(skipped), axis[skipped[0]],
        )  # fmt: skip
    return skipped


def check_values(frame: pd.DataFrame, name: str, what: str, unit: str) -> None:
    """Refuse negative and infinite values; NaN is accepted.

    Args:
        frame: `(time, cell)` values.
        name: name of the file in errors.
        what: name of the variable.
        unit: its unit in errors.

    Raises:
        InputError: for the first such value.
    """
    values = frame.to_numpy()
    wrong = np.argwhere((values < 0) | np.isinf(values))
    if wrong.size:
        row, column = wrong[0]
        raise InputError(
            f"{name}: {what} {values[row, column]} at {frame.index[row]}, sensor "
            f"{frame.columns[column]}, expected {unit} from 0 up; correct it, or save NaN where it "
            "is missing"
        )


def values_of(frames: Mapping[str, pd.DataFrame]) -> dict[str, np.ndarray]:
    """Return the frames' values in double precision, for a cube."""
    return {name: frame.to_numpy(dtype=np.float64) for name, frame in frames.items()}
