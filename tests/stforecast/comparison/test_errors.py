"""Errors read from forecasts on disk, by day, step and cell."""

import numpy as np
import pandas as pd
import pytest

from data_prep.base.errors import InputError
from stforecast import Forecaster
from stforecast.comparison.errors import SEASONAL, model_errors
from stforecast.forecasting.config import read_by
from stforecast.metrics.metric import mean

METRICS = ("mse", "mae", "rmse", "bias", "raw_mse", "raw_mae", "raw_rmse", "raw_mape", "raw_wape",
           "raw_smape", "mase", "rmsse")  # fmt: skip


@pytest.fixture(scope="module")
def fitted(cube, tiny):
    gaps = cube.copy(deep=True)
    gaps["internet"][200:206, 0] = np.nan
    forecaster = Forecaster("perfedavg", service="internet", horizon=3, **tiny).fit(gaps)
    return forecaster.evaluate().query("split == 'test'"), forecaster.test_forecasts()


@pytest.mark.parametrize("selection", ["best", "last", "last (global)"])
@pytest.mark.parametrize("metric", METRICS)
def test_they_are_those_of_the_table_of_errors(fitted, metric, selection):
    table, forecasts = fitted
    table = table.query("metric == @metric and selection == @selection")
    table = table.set_index(["client", "horizon"])["value"]
    errors = model_errors(forecasts, metric, selection)
    clients = [str(cell) for cell in forecasts.indexes["cell"]]
    np.testing.assert_allclose(errors.by_cell(), table[:, "all"][clients], rtol=1e-5)
    np.testing.assert_allclose(errors.by_step(), table["all"][["1", "2", "3"]], rtol=1e-5)
    pooled = errors.finalise(*(values.sum() for values in errors.by_day()))
    assert float(pooled) == pytest.approx(table["all", "all"], rel=1e-5)


def test_a_day_is_one_of_local_time(cube, tiny):
    """Steps are hours of UTC; in Rome a day begins one of them earlier."""
    ds = (
        Forecaster("last_value", service="internet", **read_by("last_value", tiny))
        .fit(cube)
        .test_forecasts()
    )
    errors = model_errors(ds, "raw_mae")
    assert errors.days.tolist() == [pd.Timestamp(f"2013-11-{day}") for day in ("09", "10", "11")]
    total, weight = errors.by_day()
    assert weight[0].tolist() == [23, 24, 1]
    off = np.abs(ds.y_hat - ds.y).to_numpy()[..., 0]
    np.testing.assert_allclose(total[:, 1], off[:, 23:47].sum(axis=1))
    np.testing.assert_allclose(mean(total, weight)[:, 2], off[:, 47])


def test_seasonal_naive_is_a_model_of_every_run(cube, tiny):
    forecaster = Forecaster("ridge", service="internet", **read_by("ridge", tiny)).fit(cube)
    naive = Forecaster("seasonal_day", service="internet", **read_by("seasonal_day", tiny)).fit(
        cube
    )
    found, expected = (
        model_errors(f.test_forecasts(), "mse", s)
        for f, s in ((forecaster, SEASONAL), (naive, None))
    )
    np.testing.assert_array_equal(found.total, expected.total)


def test_mistakes_are_one_line(fitted):
    _, ds = fitted
    with pytest.raises(InputError, match=r"'first'; .*: best, best"):
        model_errors(ds, "mse", "first")
    with pytest.raises(InputError, match="unknown metric 'mze'"):
        model_errors(ds, "raw_mze")
    with pytest.raises(InputError, match=r"'std', .* delete"):
        model_errors(ds.drop_vars("std"), "mse")
