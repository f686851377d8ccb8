"""Sample paths: their margins are the bounds, and errors go together as in the tested forecasts."""

import numpy as np
import pandas as pd
import pytest
import xarray as xr
from scipy.stats import spearmanr

from data_prep.base.errors import InputError
from data_prep.netcdf import open_netcdf
from stforecast.forecasting.paths import sample_paths, write_paths
from stforecast.forecasting.tables import Interval

TIMES = pd.date_range("2024-03-01 08:00", periods=2, freq="h", tz="Europe/Rome")


def table(*columns):
    found = pd.DataFrame(np.transpose(columns), TIMES, ["a", "b"])
    found.attrs = {"service": "calls", "units": "1", "coverage": 0.9}
    return found


def forecasts_of(errors):
    dims, zero = ("cell", "time", "horizon"), np.zeros(errors.shape)
    values = {"y": errors, "y_hat": zero, "lower": zero - 1, "upper": zero + 2}
    return xr.Dataset({n: (dims, v) for n, v in values.items()}, {"cell": ["a", "b"]})


def opposed(n=400):
    """Errors of which the second cell has the first's with the other sign."""
    one = np.random.default_rng(0).normal(size=(1, n, 2))
    return forecasts_of(np.concatenate([one, -one]))


CENTRE, BOUNDS = (
    table([10.0, 20.0], [5.0, 6.0]),
    Interval(table([8.0, 15.0], [1.0, 2.0]), table([14.0, 30.0], [7.0, 8.0])),
)


def test_margins_are_the_bounds_and_ranks_are_the_errors():
    found = sample_paths(CENTRE, BOUNDS, opposed(), 200)
    assert found.sizes == {"path": 200, "cell": 2, "time": 2}
    lower, upper = (bound.to_numpy().T for bound in BOUNDS)
    inside = ((found.to_numpy() >= lower) & (found.to_numpy() <= upper)).mean(axis=0)
    assert inside == pytest.approx(np.full((2, 2), 0.9), abs=1e-9)
    assert np.median(found, axis=0) == pytest.approx(CENTRE.to_numpy().T, abs=0.2)
    for step in range(2):
        assert spearmanr(found[:, 0, step], found[:, 1, step]).statistic == pytest.approx(-1)
    assert abs(spearmanr(found[:, 0, 0], found[:, 0, 1]).statistic) < 0.3


def test_counts_that_err_equally_do_not_go_together():
    equal = forecasts_of(np.ones((2, 400, 2)))
    found = sample_paths(CENTRE, BOUNDS, equal, 200)
    assert abs(spearmanr(found[:, 0, 0], found[:, 1, 0]).statistic) < 0.3


def test_limits_hold_and_cells_without_bounds_have_no_paths():
    endless = BOUNDS.upper.copy()
    endless["b"] = np.inf
    found = sample_paths(CENTRE, Interval(BOUNDS.lower, endless), opposed(), 50, (9.0, np.inf))
    assert found.sel(cell="a").min() == 9.0
    assert found.sel(cell="b").isnull().all()


def test_the_file_has_times_in_utc_and_says_the_zone(tmp_path):
    path = write_paths(sample_paths(CENTRE, BOUNDS, opposed(), 20), tmp_path / "paths.nc")
    with open_netcdf(path) as ds:
        assert ds["calls"].sizes == {"path": 20, "cell": 2, "time": 2}
        assert str(ds["time"].values[0])[:16] == "2024-03-01T07:00"
        assert ds["calls"].attrs["time_zone"] == "Europe/Rome"


def test_what_was_not_tested_has_no_paths():
    with pytest.raises(InputError, match=r"paths is 500; .* 2 to 400"):
        sample_paths(CENTRE, BOUNDS, opposed(), 500)
    with pytest.raises(InputError, match=r"paths .*2 steps: .* 1"):
        sample_paths(CENTRE, BOUNDS, opposed().isel(horizon=[0]), 20)
    with pytest.raises(InputError, match="no bounds"):
        sample_paths(CENTRE, BOUNDS, opposed().drop_vars("upper"), 20)
