"""New records in a history: what they add, what they correct, and what they lack."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd
import xarray as xr

from data_prep.base.errors import InputError, Words, check_zeros, counted, in_minutes, some
from data_prep.cube import local_time, observed, services_of, step_of
from data_prep.readers.units import factor


@dataclass(frozen=True)
class Change:
    """What new records changed in a history.

    Attributes:
        steps: steps after its former end.
        changed: values that were added or corrected.
        notes: what a person should know, as sentences.
    """

    steps: int
    changed: int
    notes: tuple[str, ...]


def append(history: xr.Dataset, new: xr.Dataset, name: str) -> tuple[xr.Dataset, Change]:
    """Return a history with new records, which replace those of the same time and cell.

    An empty field replaces nothing. Steps between the history and the records are missing, and so
    are cells that the records lack. Cells that the history lacks are left out.

    Args:
        history: a cube.
        new: a cube of later records, or corrected ones.
        name: name of the records in messages.

    Raises:
        InputError: if the records have other steps, units or clocks, no known cell or service, or
            begin longer after the history than this is.
    """
    at, to = _places(history, new, name)
    cells, rows, notes = _cells(history, new, name)
    begin, between = int(at[0]), int(at[-1] - at[0]) + 1 - len(at)
    if between:
        notes.append(f"{counted(between, 'step')} missing between its rows")
    if begin > 0 and (gap := begin - history.sizes["time"]) > 0:
        notes.append(
            f"{counted(gap, 'step')} missing between the history's end and {local_time(new)[0]}"
        )
    merged, changed, n_before = history.reindex(time=to), 0, history.sizes["time"]
    inside = at >= 0
    if not inside.all():
        notes.append(f"{counted(int((~inside).sum()), 'step')} before the history are left out")
    for service in services_of(history):
        if service not in services_of(new):
            raise InputError(
                f"{name}: no service {service!r} (found {', '.join(services_of(new))}); the model "
                "reads it, so give records with it"
            )
        values = merged[service].transpose("time", "cell").to_numpy().astype(np.float64, copy=True)
        given = observed(new, service).to_numpy()[:, rows][inside]
        given = given * _scale(history[service], new[service], name)
        place = np.ix_(at[inside], cells)
        filled = np.where(np.isfinite(given), given, values[place])
        changed += int((~np.isclose(filled, values[place], rtol=1e-12, equal_nan=True)).sum())
        values[place] = filled
        merged[service] = (("time", "cell"), values, history[service].attrs)
    return merged, Change(len(to) - n_before, changed, tuple(notes))


def _places(history: xr.Dataset, new: xr.Dataset, name: str) -> tuple[np.ndarray, pd.DatetimeIndex]:
    """Return the position of each new step in the history, and its times up to the later end."""
    clocks = [str(ds.attrs.get("clock", "utc")) for ds in (history, new)]
    words = {"utc": "UTC", "local": "a wall clock"}
    if clocks[0] != clocks[1]:
        raise InputError(
            f"{name}: times are of {words[clocks[1]]}, the history's of {words[clocks[0]]}; ",
            Words("prepare them with the {clock} and {time_zone} of the run's data"),
        )
    own, given, step = history.indexes["time"], new.indexes["time"], step_of(history)
    begins, ended = local_time(new)[0], local_time(history)[-1]
    if len(given) > 1 and step_of(new) % step:
        raise InputError(
            f"{name}: steps of {in_minutes(step_of(new))}, but the history has steps of "
            f"{in_minutes(step)}; ",
            Words("prepare them with that step, such as by {resample}"),
        )
    at, rest = np.divmod((given - own[0]).to_numpy(), step.to_timedelta64())
    if (rest != np.timedelta64(0)).any():
        raise InputError(
            f"{name}: time {begins} is not on the steps of {in_minutes(step)} of the history, "
            f"which ends at {ended}; correct the times"
        )
    if at[0] > 2 * len(own):
        raise InputError(
            f"{name}: begins at {begins}, {pd.Timedelta(given[0] - own[-1])} after the history's "
            f"end at {ended}, which is longer than the history; check the times (day and month, "
            "year, zone), or train a new run"
        )
    n_steps = max(len(own), int(at[-1]) + 1)
    return at.astype(int), pd.date_range(own[0], periods=n_steps, freq=step)


def _cells(
    history: xr.Dataset, new: xr.Dataset, name: str
) -> tuple[np.ndarray, np.ndarray, list[str]]:
    """Return the positions of the cells that both have, in each, and notes on the others."""
    own, given = (pd.Index([str(c) for c in ds["cell"].to_numpy()]) for ds in (history, new))
    at = own.get_indexer(given)
    if (at < 0).all():
        raise InputError(
            f"{name}: none of its {counted(len(given), 'cell')}, such as {given[0]}, is one of the "
            f"model's {len(own)}, such as {own[0]}; give records of the same cells"
        )
    notes, absent = [], own.difference(given).tolist()
    if unknown := given[at < 0].tolist():
        check_zeros(unknown, absent, name)
        notes.append(
            f"{counted(len(unknown), 'cell')} that the model does not know: {some(unknown)} "
            "(`stforecast adapt` makes a model of them)"
        )
    if absent:
        notes.append(f"{counted(len(absent), 'cell')} of the model without records: {some(absent)}")
    return at[at >= 0], np.flatnonzero(at >= 0), notes


def _scale(own: xr.DataArray, given: xr.DataArray, name: str) -> float:
    """Return what to multiply new values by to have them in the history's unit."""
    to, of = (str(v.attrs.get("units", "1")) for v in (own, given))
    try:
        return 1.0 if of == to else factor(of, to)
    except InputError as e:
        raise InputError(
            f"{name}: {own.name} is in {of!r}, that of the history in {to!r}; ",
            Words("prepare it with {units}", units=to),
        ) from e
