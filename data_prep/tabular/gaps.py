"""Rows that a table lacks: between its times, and within the periods of its cells."""

from __future__ import annotations

import logging

import numpy as np
import pandas as pd

from data_prep.errors import InputError
from data_prep.limits import check_size
from data_prep.tabular.origin import Origin

log = logging.getLogger(__name__)


def refuse_gap(message: str, origin: Origin, allow_gaps: bool) -> None:
    """Raise for missing rows, or log a warning if gaps are allowed.

    Args:
        message: what is missing.
        origin: the table.
        allow_gaps: log instead of raising.

    Raises:
        InputError: if gaps are not allowed.
    """
    message = f"{origin.name}: {message}"
    if not allow_gaps:
        advice = origin.either("pass --allow-gaps", "cube = open_cube(df, allow_gaps=True)")
        raise InputError(f"{message}; add what is missing or {advice} to leave NaN there")
    log.warning("%s; left as NaN", message)


def check_steps(axis: pd.DatetimeIndex, at: np.ndarray, origin: Origin, allow_gaps: bool) -> None:
    """Refuse or log steps without a row.

    Args:
        axis: `(steps,)` times.
        at: `(rows,)` position of each row on it.
        origin: the table.
        allow_gaps: log instead of raising.

    Raises:
        InputError: if a step has no row and gaps are not allowed.
    """
    present = np.zeros(len(axis), dtype=bool)
    present[at] = True
    if not present.all():
        first = int(np.argmin(present))
        after = first + int(np.argmax(present[first:]))
        message = (
            f"{np.sum(~present)} of {len(axis)} time steps have no row, the first after "
            f"{axis[first - 1]} (next row {axis[after]})"
        )
        refuse_gap(message, origin, allow_gaps)


def check_periods(
    axis: pd.DatetimeIndex,
    time_at: np.ndarray,
    cells: np.ndarray,
    cell_at: np.ndarray,
    origin: Origin,
    allow_gaps: bool,
) -> None:
    """Refuse or log missing rows within the cells' periods; log cells of shorter periods.

    A cell's period reaches from its first row to its last. Outside of it the cell is masked.

    Args:
        axis: `(steps,)` times.
        time_at: `(rows,)` position of each row on it.
        cells: `(cells,)` ids.
        cell_at: `(rows,)` position of each row's cell.
        origin: the table.
        allow_gaps: log instead of raising.

    Raises:
        InputError: if a row is missing and gaps are not allowed.
    """
    check_size(4 * len(axis) * len(cells), f"{origin.name}: the cube")
    present = np.zeros((len(axis), len(cells)), dtype=bool)
    present[time_at, cell_at] = True
    first = present.argmax(axis=0)
    last = len(axis) - 1 - present[::-1].argmax(axis=0)
    steps = np.arange(len(axis))[:, None]
    inside = (first <= steps) & (steps <= last)
    holes = ~present & inside
    whole = inside.any(axis=1) & ~present.any(axis=1)
    if whole.any():
        step = int(whole.argmax())
        row = step + int(present[step:].any(axis=1).argmax())
        message = (
            f"{whole.sum()} of {len(axis)} time steps have no row, the first after "
            f"{axis[step - 1]} (next row {axis[row]})"
        )
        refuse_gap(message, origin, allow_gaps)
    if (partly := holes & ~whole[:, None]).any():
        step, cell = divmod(int(partly.argmax()), len(cells))
        message = (
            f"{partly.sum()} of {partly.size} (time, cell) pairs have no row, the first is "
            f"{axis[step]}, cell {cells[cell]}"
        )
        refuse_gap(message, origin, allow_gaps)
    shorter = np.flatnonzero((first > 0) | (last < len(axis) - 1))
    if len(shorter):
        i = int(shorter[0])
        log.warning(
            "%s: %d of %d cells have rows in a part of the time only, such as cell %s from %s to "
            "%s; left as NaN outside of it (%.1f %% of all values)",
            origin.name, len(shorter), len(cells), cells[i], axis[first[i]], axis[last[i]],
            100 * float(np.mean(~inside)),
        )  # fmt: skip
