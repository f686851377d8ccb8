"""Description of a cube: period, cells, services, gaps and origin."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr

from data_prep.cube import local_time, observed, services_of

SLAB = 2**22
"""Number of values to read at once."""

SHOWN = 5
"""Number of cells to name."""


def describe_cube(ds: xr.Dataset) -> dict[str, Any]:
    """Describe a cube in plain numbers and texts, as JSON can hold them.

    Args:
        ds: a cube; each value is read once, a part at a time.

    Returns:
        `title`, `source`, `license`, `time_zone`, `clock`; `first` and `last` step in local time,
        `steps` and `step_minutes`; `cells` and `first_cells`; `places` and `roads`, whether they
        are known; `services`, see `describe_service`; and `checksums` of the source files.

    >>> from data_prep.readers.frames import from_frame
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
        "first_cells": cells[:SHOWN].tolist(),
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
