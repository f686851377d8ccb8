"""Description of a cube: period, cells, services, gaps and origin, and a profile of its values."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr

from data_prep.cube import local_time, observed, services_of
from data_prep.notices import counters_among

SLAB = 2**22
"""Number of values to read at once."""


def describe_cube(ds: xr.Dataset) -> dict[str, Any]:
    """Describe a cube in plain numbers and texts, as JSON can hold them.

    Returns:
        `title`, `source`, `license`, `time_zone`, `clock`; `first` and `last` step in local time,
        `steps` and `step_minutes`; `cells` and `first_cells`; `places` and `roads`, whether they
        are known; `services`, see `describe_service`; and `checksums` of the source files.

    >>> from data_prep.readers.steps import from_frame
    >>> hours = pd.date_range("2024-01-01", periods=3, freq="h")
    >>> about = describe_cube(from_frame(pd.DataFrame({7: [1.0, 2.0, 3.0]}, index=hours)))
    >>> about["steps"], about["step_minutes"], about["services"]["value"]["mean"]
    (3, 60.0, 2.0)
    """
    times, cells = local_time(ds), ds.indexes["cell"]
    step = (times[1] - times[0]) / pd.Timedelta(minutes=1) if len(times) > 1 else None
    return {
        **{name: str(ds.attrs.get(name, "not stated")) for name in ("title", "source", "license")},
        **span_of(ds),
        "steps": len(times),
        "step_minutes": step,
        "cells": len(cells),
        "first_cells": cells[:5].tolist(),
        "places": {"lon", "lat"} <= set(ds.coords),
        "roads": "adjacency" in ds,
        "services": {name: describe_service(ds, name) for name in services_of(ds)},
        "checksums": json.loads(str(ds.attrs.get("source_checksums", "{}"))),
    }


def span_of(ds: xr.Dataset) -> dict[str, str]:
    """Return the first and the last step of a cube in local time, and its zone and clock."""
    times = local_time(ds)
    return {
        "time_zone": str(ds.attrs.get("time_zone", "UTC")),
        "clock": str(ds.attrs.get("clock", "utc")),
        "first": times[0].isoformat(sep=" "),
        "last": times[-1].isoformat(sep=" "),
    }


def describe_service(ds: xr.Dataset, name: str) -> dict[str, Any]:
    """Describe the values of one service.

    Returns:
        `units` and `zero_is_missing`; `missing`, the share of missing values; `empty_steps` and
        `empty_cells`, the numbers of steps and cells without values; `blank`, whether nothing but
        0 was recorded, or nothing at all; and `min`, `mean` and `max`, None without values.
    """
    values = observed(ds, name)
    n_steps, n_cells = values.shape
    rows = max(1, SLAB // n_cells)
    total, count = 0.0, 0
    low, high = np.inf, -np.inf
    cells = np.zeros(n_cells, dtype=bool)
    empty_steps = 0
    for first in range(0, n_steps, rows):
        part = values[first : first + rows].to_numpy().astype(np.float64, copy=False)
        seen = ~np.isnan(part)
        cells |= seen.any(axis=0)
        empty_steps += int((~seen.any(axis=1)).sum())
        if n := int(seen.sum()):
            total, count = total + float(part[seen].sum()), count + n
            low, high = min(low, float(part[seen].min())), max(high, float(part[seen].max()))
    return {
        "units": str(ds[name].attrs.get("units", "1")),
        "zero_is_missing": bool(int(ds[name].attrs.get("zero_is_missing", 0))),
        "missing": 1 - count / values.size,
        "empty_steps": empty_steps,
        "empty_cells": int((~cells).sum()),
        "blank": not count or low == high == 0.0,
        "min": low if count else None,
        "mean": total / count if count else None,
        "max": high if count else None,
    }


def profile(ds: xr.Dataset, name: str) -> dict[str, Any]:
    """Describe the values of a service in plain numbers and texts, as JSON can hold them.

    Returns:
        `cells_seen` of all cells; `missing`, `zeros`: shares of all values, and of those present;
        `missing_cells`, `missing_days`: the worst ones with their shares; `constant`: cells with
        one value; `counters`: those that run on like a counter, if most do; `stuck`: steps in
        spans of a quarter of a day or more without a change, zeros aside, with the longest;
        `outliers` and `shifts`: their number and the largest;
        `daily`, `weekly`: the share of a cell's variance that the mean of each time of day, and of
        each time of the week, explains; None where the time is too short.

    >>> from data_prep.readers.steps import from_frame
    >>> hours = pd.date_range("2024-01-01", periods=96, freq="h")
    >>> about = profile(from_frame(pd.DataFrame({7: hours.hour + 1.0}, hours)), "value")
    >>> round(about["daily"], 6), about["zeros"], about["weekly"]
    (1.0, 0.0, None)
    """
    times, cells = local_time(ds), ds["cell"].to_numpy()
    # Of a service with more than about 4 million values, evenly chosen cells.
    chosen = slice(None, None, max(1, len(cells) * len(times) // 2**22))
    cells = cells[chosen]
    values = observed(ds, name)[:, chosen].to_numpy().astype(np.float64, copy=False)
    known = np.isfinite(values)
    step = (times[1] - times[0]) / pd.Timedelta(days=1) if len(times) > 1 else 1.0
    per_day = max(1, round(1 / step)) if step else 1
    days = pd.factorize(times.normalize())[0]
    by_day = 1 - _means(known.mean(axis=1, keepdims=True), days)[:, 0]
    dates = times.normalize().unique().strftime("%Y-%m-%d")
    with np.errstate(invalid="ignore", divide="ignore"):
        spread = np.nanmax(values, axis=0, initial=-np.inf, where=known)
        spread -= np.nanmin(values, axis=0, initial=np.inf, where=known)
    return {
        "cells_seen": len(cells),
        "missing": float(1 - known.mean()),
        "zeros": float((values == 0).sum() / max(1, known.sum())),
        "missing_cells": _worst(1 - known.mean(axis=0), cells),
        "missing_days": _worst(by_day, dates),
        "constant": [str(cell) for cell in cells[(spread == 0) & (known.sum(axis=0) > 1)]],
        "counters": [str(cell) for cell in counters_among(values, cells)],
        "stuck": _stuck(values, max(4, per_day // 4), times, cells),
        "outliers": _outliers(values, times, cells),
        "shifts": _shifts(values, times, cells),
        "daily": _strength(values, per_day, 3 * per_day),
        "weekly": _strength(values, 7 * per_day, 21 * per_day),
    }


def _worst(shares: np.ndarray, names: np.ndarray | pd.Index) -> dict[str, float]:
    """Return the three names with the largest shares above zero."""
    order = np.argsort(-shares, kind="stable")[:3]
    return {str(names[i]): float(shares[i]) for i in order if shares[i] > 0}


def _means(values: np.ndarray, groups: np.ndarray) -> np.ndarray:
    """Return the means of rows of each group, `(groups, cells)`, NaN where none is known."""
    known = np.isfinite(values)
    order = np.argsort(groups, kind="stable")
    begins = np.flatnonzero(np.diff(groups[order], prepend=-1))
    filled = values if known.all() else np.where(known, values, 0.0)
    totals = np.add.reduceat(filled[order], begins, axis=0)
    counts = np.add.reduceat(known[order], begins, axis=0, dtype=np.int64)
    return np.where(counts > 0, totals / np.maximum(counts, 1), np.nan)


def _stuck(
    values: np.ndarray, length: int, times: pd.DatetimeIndex, cells: np.ndarray
) -> dict[str, Any]:
    """Return the spans without a change of `length` steps or more, zeros aside."""
    same = np.zeros(values.shape, dtype=bool)
    same[1:] = (values[1:] == values[:-1]) & (values[1:] != 0)
    last = np.where(same, 0, np.arange(len(values))[:, None])
    run = np.arange(len(values))[:, None] - np.maximum.accumulate(last, axis=0) + 1
    ends = run * np.concatenate([~same[1:], np.ones((1, values.shape[1]), dtype=bool)])
    spans = ends >= length
    if not spans.any():
        return {"spans": 0}
    end, at = np.unravel_index(int(ends.argmax()), ends.shape)
    return {
        "spans": int(spans.sum()),
        "steps": int(ends[spans].sum()),
        "longest": int(ends.max()),
        "cell": str(cells[at]),
        "first": str(times[int(end) - int(ends.max()) + 1]),
    }


def _outliers(values: np.ndarray, times: pd.DatetimeIndex, cells: np.ndarray) -> dict[str, Any]:
    """Return values that are far from the median of their cell.

    An outlier's distance is ten times that of the 10 % and 90 % quantiles.
    """
    usual = values[:: max(1, len(values) // 2000)]
    with np.errstate(invalid="ignore"):
        low, middle, high = _quantiles(usual)
        distance = np.abs(values - middle) / np.where(high > low, high - low, np.nan)
        far = distance > 10
    if not far.any():
        return {"count": 0}
    step, at = np.unravel_index(int(np.nanargmax(distance)), values.shape)
    largest = {
        "value": float(values[step, at]),
        "cell": str(cells[at]),
        "time": str(times[int(step)]),
    }
    return {"count": int(far.sum()), **largest}


def _quantiles(values: np.ndarray) -> np.ndarray:
    """Return the 10 %, 50 % and 90 % quantiles of each cell `(3, cells)`; NaN where unknown."""
    ordered = np.sort(values, axis=0)  # NaN last
    count = np.isfinite(values).sum(axis=0)
    at = (np.array([0.1, 0.5, 0.9])[:, None] * np.maximum(count - 1, 0)).round().astype(int)
    return np.take_along_axis(ordered, at, axis=0)


def _shifts(values: np.ndarray, times: pd.DatetimeIndex, cells: np.ndarray) -> dict[str, Any]:
    """Return changes of the weekly mean that stay for two weeks and are far from usual ones.

    A shift is five times the usual change from week to week, and half of the level.
    """
    weeks = ((times - times[0]) // pd.Timedelta(days=7)).to_numpy()
    means = _means(values, weeks)
    if len(means) < 6:
        return {"count": 0}
    with np.errstate(invalid="ignore"):
        change = np.diff(means, axis=0)
        usual = _quantiles(np.abs(change))[1]
        level = np.abs(means[1:-2] + means[2:-1]) / 2
        after, before = (means[2:-1] + means[3:]) / 2, (means[:-3] + means[1:-2]) / 2
        size = np.abs(after - before)
        found = (size > 5 * usual) & (size > 0.5 * level)
        size = np.where(found, size, 0.0)
    if not found.any():
        return {"count": 0}
    peak = found.copy()
    peak[1:] &= ~found[:-1]
    at, cell = np.unravel_index(int(size.argmax()), size.shape)
    day = (times[0] + pd.Timedelta(days=7 * (int(at) + 2))).strftime("%Y-%m-%d")
    sizes = {"before": float(before[at, cell]), "after": float(after[at, cell])}
    return {"count": int(peak.sum()), "cell": str(cells[cell]), "week": day, **sizes}


def _strength(values: np.ndarray, n_slots: int, fewest: int) -> float | None:
    """Return the mean share of the cells' variance that the means of each slot of time explain.

    It is adjusted for the number of slots, so that noise has none.
    """
    if len(values) < fewest or n_slots == 1:
        return None
    known = np.isfinite(values)
    count = known.sum(axis=0)
    mean = values.sum(axis=0, where=known) / np.maximum(count, 1)
    centred = np.where(known, values - mean, 0.0)
    total = np.einsum("ij,ij->j", centred, centred)
    explained = np.zeros_like(total)
    for slot in range(n_slots):
        known_in_slot = np.maximum(known[slot::n_slots].sum(axis=0), 1)
        explained += centred[slot::n_slots].sum(axis=0) ** 2 / known_in_slot
    rest = np.maximum(total - explained, 0.0)
    cells = (total > 0) & (count > n_slots)
    if not cells.any():
        return None
    left = rest[cells] / (count[cells] - n_slots) / (total[cells] / (count[cells] - 1))
    return float(np.maximum(0.0, 1 - left).mean())
