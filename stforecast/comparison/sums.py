"""Sums of a run's errors: all that the tables of a benchmark read of its forecasts, in a few KB.

With them, one row of a benchmark can be made again and compared with rows whose forecasts are gone,
see `stforecast.bench.kept`.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import numpy as np
import pandas as pd
import xarray as xr

from stforecast.bench.run_groups import ALL, select
from stforecast.comparison import errors
from stforecast.forecasting.results import FORECASTS, SUMS, ForecastRun, bounds_of, without_bounds
from stforecast.intervals.bands import ranges_outside

METRIC = "mse"
"""Metric of the comparisons of a benchmark, whose sums are kept by cell and day."""


def sums_of(run: ForecastRun) -> xr.Dataset:
    """Return the sums of a run's errors on its test part, from its forecasts if it has them.

    Variables:
        total, weight: `(model, cell, day)` and `(cell, day)` sums of `METRIC`. A model is
            `SEASONAL`, or a selection of the round that the run keeps.
        std: `(cell,)` scale of the z-scores.
        absolute: `(model, hour)` absolute errors by hour of local time, in the data's units.
        load, count: `(hour,)` sum and number of the targets.
        inside, known: `(horizon,)` targets inside the widest bounds, and all targets; only with
            bounds, as the rest.
        inside_by_hour: `(hour,)` targets inside the widest bounds.
        below, above: shares of the targets below and above their bounds.
        furthest: how far a bound lies outside its cell's values at most, in ranges of these.
    """
    path = run.folder / (SUMS if run.kept else FORECASTS)
    found = path.stat() if path.is_file() else None
    return _sums(path, found and (found.st_mtime_ns, found.st_size)).copy()


@lru_cache(maxsize=512)
def _sums(path: Path, changed: tuple[int, int] | None) -> xr.Dataset:
    """Return the sums of a run; another time of change or size is another file."""
    run = ForecastRun.open(path.parent)
    if run.kept:
        return run.kept_sums()
    with run.open_forecasts() as forecasts:
        parts = [_of_cells(b, run.kept_round) for b in run.in_blocks(without_bounds(forecasts))]
        facts = {n: forecasts.attrs[n] for n in ("time_zone",) if n in forecasts.attrs}
        facts["units"] = str(forecasts["y"].attrs.get("units", "1"))
        facts["of_speed"] = int(errors.are_of_speed(forecasts))
        has_bounds = bool(bounds_of(forecasts))
    by_cell, by_hour = (xr.concat(some, "cell") for some in zip(*parts, strict=True))
    bounds = _of_bounds(run.forecasts()) if has_bounds else xr.Dataset()
    return xr.merge([by_cell, by_hour.sum("cell"), bounds]).assign_attrs(facts)


def _of_cells(forecasts: xr.Dataset, kept_round: str) -> tuple[xr.Dataset, xr.Dataset]:
    """Return sums of some cells by cell and day, and, with their sums as one cell, by hour."""
    known = errors.variables(forecasts)
    models = [n for n in known if n == errors.SEASONAL or n.partition(" ")[0] == kept_round]
    squared = [errors.model_errors(forecasts, METRIC, model) for model in models]
    absolute = [errors.model_errors(forecasts, "raw_mae", model) for model in models]
    by_day = [of_model.by_day() for of_model in squared]
    load, count = errors.targets_by_hour(forecasts)
    by_cell = xr.Dataset(
        {
            "total": (("model", "cell", "day"), np.stack([total for total, _ in by_day])),
            "weight": (("cell", "day"), by_day[0][1]),
            **{
                n: ("cell", forecasts[n].to_numpy())
                for n in ("std", "lon", "lat")
                if n in forecasts
            },
        },
        {"model": models, "cell": forecasts["cell"].to_numpy(), "day": squared[0].days.to_numpy()},
    )
    hours = [of_model.by_cell_and_hour()[0].sum(axis=0) for of_model in absolute]
    by_hour = {
        "absolute": (("cell", "model", "hour"), np.stack(hours)[None]),
        "load": (("cell", "hour"), load[None]),
        "count": (("cell", "hour"), count[None]),
    }
    return by_cell, xr.Dataset(by_hour, {"model": models})


def _of_bounds(forecasts: xr.Dataset) -> xr.Dataset:
    """Return the sums on the widest bounds."""
    found = errors.coverages(forecasts)
    widest = found[max(found)]
    y, lower, upper = (forecasts[name].to_numpy() for name in ("y", "lower", "upper"))
    seen, values = np.isfinite(y), y.reshape(len(y), -1).T
    furthest = np.nanmax(ranges_outside(lower.min((1, 2)), upper.max((1, 2)), values))
    return xr.Dataset(
        {
            "inside": ("horizon", widest.total.sum(axis=(0, 1))),
            "known": ("horizon", widest.weight.sum(axis=(0, 1))),
            "inside_by_hour": ("hour", widest.by_cell_and_hour()[0].sum(axis=0)),
            "below": float((y < lower)[seen].mean()),
            "above": float((y > upper)[seen].mean()),
            "furthest": float(furthest),
        }
    )


def errors_to_keep(run: ForecastRun) -> pd.DataFrame:
    """Return the rows of `metrics.csv` that the tables of a benchmark read."""
    table = select(run.metrics(), split="test").drop(columns="fold", errors="ignore")
    table = table[table["selection"].str.partition(" ")[0] == run.kept_round]
    of_clients = (table["horizon"] == ALL) & table["metric"].isin([METRIC, "coverage"])
    return table[(table["client"] == ALL) | of_clients]
