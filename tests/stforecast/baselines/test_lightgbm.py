import sys

import numpy as np
import pandas as pd
import pytest

from data_prep.base.errors import InputError
from stforecast import Forecaster
from stforecast.baselines import BASELINES
from stforecast.baselines.tree_inputs import inputs_of_steps
from stforecast.baselines.trees import LightGBM, LightGBMOptions
from stforecast.data.clock import Calendar
from stforecast.data.window_spec import WindowSpec
from stforecast.data.windows import target_windows
from stforecast.forecasting.leaks import forecast_leaks

lightgbm = pytest.importorskip("lightgbm", reason="the extra peers is not installed")

SPEC = WindowSpec(closeness=3, periods=1, horizon=2, period=24)
HOURLY = Calendar(pd.Timestamp("2013-11-01"), pd.Timedelta("1h"))
TRAIN, TEST = np.arange(24, 380), np.arange(400, 430)


def series(n_steps=432, n_cells=3):
    rng = np.random.default_rng(0)
    values = np.sin(2 * np.pi * np.arange(n_steps) / 24)[:, None] + np.arange(n_cells)
    values = values + 0.3 * rng.normal(size=(n_steps, n_cells))
    values[rng.random(values.shape) < 0.05] = np.nan
    return values


def fitted(**options):
    config = LightGBMOptions(**{"num_iterations": 5, **options})
    return LightGBM(config).fit(series(), TRAIN, SPEC, HOURLY)


def observed(values, starts):
    y, mask = (np.moveaxis(part, 2, 0) for part in target_windows(values, starts, SPEC))
    x = np.stack(list(inputs_of_steps(values, starts, 2, HOURLY)))
    return x[mask], y[mask]


def test_it_is_the_library_on_the_same_records():
    x, y = observed(series(), TRAIN)
    data = lightgbm.Dataset(x, y, categorical_feature=[x.shape[1] - 1])
    params = {"verbosity": -1, "num_leaves": 15}
    model = lightgbm.train(params, data, num_boost_round=5)
    steps = inputs_of_steps(series(), TEST, 2, HOURLY)
    expected = [model.predict(x.reshape(-1, x.shape[-1])).reshape(3, -1) for x in steps]
    y_hat = fitted().predict(series(), TEST, HOURLY)
    np.testing.assert_allclose(y_hat, np.stack(expected, axis=-1), rtol=0, atol=1e-5)


def test_the_validation_part_chooses_the_number_of_trees_which_a_refit_keeps():
    validation, options = np.arange(382, 400), LightGBMOptions(learning_rate=0.5)
    model = LightGBM(options).fit(series(), TRAIN, SPEC, HOURLY, validation=validation)
    n_trees = model.options_of_refit.num_iterations
    x, y = observed(series(), validation)
    by_trees = [model.model.predict(x, num_iteration=n) for n in range(1, n_trees + 1)]
    errors = [np.square(y_hat - y).mean() for y_hat in by_trees]
    assert errors[n_trees - 1] <= min(errors) * (1 + 1e-6)
    refitted = LightGBM(model.options_of_refit).fit(series(), TRAIN, SPEC, HOURLY)
    assert refitted.model.num_trees() == n_trees


def test_without_a_validation_part_it_has_the_usual_number_of_trees():
    assert LightGBM().fit(series(), TRAIN[:40], SPEC, HOURLY).model.num_trees() == 200


@pytest.mark.parametrize("last", [np.nan, 1.0])
def test_a_validation_part_without_readings_or_of_constants_chooses_a_usable_number(last):
    values = np.ones((432, 3))
    values[380:] = last
    model = LightGBM().fit(values, TRAIN, SPEC, HOURLY, validation=np.arange(382, 400))
    again = LightGBM(model.options_of_refit).fit(values, TRAIN, SPEC, HOURLY)
    np.testing.assert_allclose(again.predict(values, TEST, HOURLY), 1.0, atol=1e-6)


def test_fitting_reads_nothing_after_the_last_validation_target():
    validation, cut = np.arange(382, 400), series()
    cut[402:] = np.nan
    options = LightGBMOptions(learning_rate=0.5)
    one, two = (
        LightGBM(options).fit(values, TRAIN, SPEC, HOURLY, validation=validation)
        for values in (series(), cut)
    )
    np.testing.assert_array_equal(one.state()["model"], two.state()["model"])


def test_forecasts_read_nothing_from_their_start_on():
    values = series()
    assert forecast_leaks(fitted(), values, TEST, SPEC, HOURLY) == []


def test_other_cells_are_refused():
    with pytest.raises(InputError, match=r"lightgbm: .*3 cells, .*2"):
        fitted().predict(series()[:, :2], TEST, HOURLY)


def test_it_stops_at_the_time_limit():
    expected = r"^lightgbm: stopped by its time limit of 1e-06 s after 0 of 5 trees; raise "
    with pytest.raises(InputError, match=expected):
        fitted(time_limit=1e-6)


def test_a_missing_package_names_its_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "lightgbm", None)
    with pytest.raises(InputError, match=r"^lightgbm .*'stforecast\[peers\]'$"):
        BASELINES["lightgbm"]()


@pytest.fixture
def hours():
    times = pd.date_range("2013-11-01", periods=432, freq="h")
    return pd.DataFrame(series(), times, pd.Index(["a", "b", "c"]))


def test_by_default_it_learns_the_validation_part_with_the_trees_that_this_part_chose(hours):
    forecaster = Forecaster("lightgbm", split="days:12,3,3", learning_rate=0.5).fit(hours)
    first, refitted = forecaster.model_.predictor.models
    assert refitted.model.num_trees() == first.model.num_trees()
    assert refitted.state()["model"].tolist() != first.state()["model"].tolist()
    assert not forecaster.find_leaks(hours)


def test_a_saved_forecaster_forecasts_the_same(hours, tmp_path):
    forecaster = Forecaster("lightgbm", split="days:12,3,3", horizon=2, num_iterations=5).fit(hours)
    loaded = Forecaster.load(forecaster.save(tmp_path))
    pd.testing.assert_frame_equal(loaded.predict(hours), forecaster.predict(hours))
