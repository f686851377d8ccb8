"""Sample paths: joint futures of all cells and steps, whose margins are the bounds.

The Schaake shuffle (Clark, Gangopadhyay, Hay, Rajagopalan, Wilby, "The Schaake shuffle", Journal
of Hydrometeorology 5, 2004): each path has the ranks of the errors of one tested forecast, of all
cells and steps ahead together. The values of these ranks are the quantiles of the cell's and step's
own distribution, which follows from forecast and bounds as in `stforecast.forecasting.planning`.

The probability of a span in a plan is not read from these paths. They have one error of the own
cell in each tested forecast, and with a dozen of tested forecasts a dozen of values for the
probability; `planning.error_paths` pools the errors of all cells, which was better. Bounds of sums
(`stforecast.forecasting.groups`) follow the newest errors, which paths of equal weight do not.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import xarray as xr
from scipy.special import ndtri

from data_prep.base.errors import InputError
from data_prep.base.files import atomic_path
from data_prep.netcdf import dump, netcdf_target
from stforecast.forecasting.tables import Interval

PATHS = 100
"""Number of paths by default."""


def sample_paths(
    forecast: pd.DataFrame,
    interval: Interval,
    tested: xr.Dataset,
    n: int | None = PATHS,
    limits: tuple[float, float] = (-np.inf, np.inf),
) -> xr.DataArray:
    """Draw joint paths around a forecast.

    Sums, maxima and spans of any cells are read from them: the share of paths in which something
    happens is its probability.

    Args:
        forecast: table (time × cell), not cut at limits: `predict(…, limits=planning.ANY)`.
        interval: its bounds, likewise.
        tested: tested forecasts with bounds, see `Forecaster.test_forecasts`.
        n: number of paths; each takes the errors of another tested forecast. None for all.
        limits: lowest and highest possible value, at which paths are cut.

    Returns:
        `(path, cell, time)` in the data's units; NaN for cells and steps without finite bounds.

    Raises:
        InputError: if there are no bounds, fewer tested forecasts than paths, or more steps than
            were tested.
    """
    if "upper" not in tested:
        raise InputError("the tested forecasts have no bounds; train with intervals")
    most, horizon = tested.sizes["time"], tested.sizes["horizon"]
    n = most if n is None else n
    check_number(n, most)
    if len(forecast) > horizon:
        raise InputError(
            f"paths of {len(forecast)} steps: forecasts were tested, and have bounds, for {horizon}"
        )
    drawn = tested.isel(time=np.linspace(0, most - 1, n).round().astype(int))
    ranks = _ranks(drawn.reindex(cell=forecast.columns))[:, :, : len(forecast)]
    scores = ndtri((ranks + 0.5) / n) / ndtri((1 + interval.upper.attrs["coverage"]) / 2)
    centre, lower, upper = (t.to_numpy().T for t in (forecast, *interval))
    with np.errstate(invalid="ignore"):
        values = centre + scores * np.where(scores > 0, upper - centre, centre - lower)
    values = np.where(np.isfinite(lower) & np.isfinite(upper), values.clip(*limits), np.nan)
    times = pd.DatetimeIndex(forecast.index)
    about = {"clock": "utc" if times.tz else "local", "time_zone": str(times.tz or "")}
    return xr.DataArray(
        values,
        {
            "path": np.arange(1, n + 1),
            "cell": forecast.columns.to_numpy(),
            "time": times.tz_convert("UTC").tz_localize(None) if times.tz else times,
        },
        name=str(forecast.attrs["service"]),
        attrs={"units": forecast.attrs["units"], **{k: v for k, v in about.items() if v}},
    )


def check_number(n: int, most: int) -> None:
    """Refuse a number of paths above the number of tested forecasts, or below 2."""
    if not 2 <= n <= most:
        raise InputError(
            f"paths is {n}; each takes the errors of one of {most} tested forecasts, so give 2 to "
            f"{most}"
        )


def write_paths(paths: xr.DataArray, path: Path) -> Path:
    """Write paths as netCDF, whole or not at all; return the file's path."""
    with atomic_path(path) as part, netcdf_target(part) as target:
        dump(paths.astype("float32").to_dataset(), target)
    return path


def _ranks(tested: xr.Dataset) -> np.ndarray:
    """Return the ranks `(paths, cells, horizon)` of errors among all paths.

    Errors are in distances from forecast to bound. A missing one is drawn at random, and equal
    ones, as of counts, are ordered at random.
    """
    y, y_hat, lower, upper = (
        tested[name].transpose("time", "cell", "horizon").to_numpy()
        for name in ("y", "y_hat", "lower", "upper")
    )
    with np.errstate(divide="ignore", invalid="ignore"):
        errors = (y - y_hat) / np.where(y > y_hat, upper - y_hat, y_hat - lower)
    chance = np.random.default_rng(0).normal(size=errors.shape)
    errors = np.where(np.isfinite(errors), errors + 1e-9 * chance, chance)
    return np.asarray(errors.argsort(axis=0).argsort(axis=0))
