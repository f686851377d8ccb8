"""Boosting's further inputs: the cell and its neighbours on the road."""

import numpy as np
import pandas as pd
import pytest
from sklearn.ensemble import HistGradientBoostingRegressor

from data_prep.base.errors import InputError
from data_prep.cube import make_cube
from stforecast import Forecaster
from stforecast.baselines.trees import Boosting, BoostingConfig
from stforecast.data.clock import Calendar
from stforecast.data.window_spec import WindowSpec
from stforecast.data.windows import input_windows, target_windows
from stforecast.forecasting.leaks import forecast_leaks

HOURLY = Calendar(pd.Timestamp("2013-11-01"), pd.Timedelta("1h"))
SPEC = WindowSpec(closeness=3, periods=0)
TRAIN, TEST = np.arange(3, 300), np.arange(320, 340)
ROADS = np.array([[1.0, 0.0, 0.0], [0.8, 1.0, 0.3], [0.0, 0.0, 1.0]])


def series():
    """The first cell follows the second a step later; the third has a level of its own."""
    values = np.random.default_rng(0).normal(size=(340, 3))
    values[1:, 0] = values[:-1, 1]
    values[:, 2] += 5
    return values


def fitted(adjacency=None, **options):
    boosting = Boosting(BoostingConfig(max_iter=10, **options))
    return boosting.fit(series(), TRAIN, SPEC, HOURLY, adjacency=adjacency)


def test_the_cell_is_a_category_of_the_library():
    def records(starts):
        x = input_windows(series(), starts, SPEC, HOURLY).reshape(-1, 3)
        return np.column_stack([x, np.repeat(np.arange(3.0), len(starts))])

    y, _ = target_windows(series(), TRAIN, SPEC)
    model = HistGradientBoostingRegressor(max_iter=10, categorical_features=[3], random_state=0)
    expected = model.fit(records(TRAIN), y.ravel()).predict(records(TEST)).reshape(3, -1)
    found = fitted(cell_id=True).predict(series(), TEST, HOURLY)[..., 0]
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6)


def test_readings_of_neighbours_tell_what_is_to_come():
    y, _ = target_windows(series(), TEST, SPEC)

    def error(model):
        return np.square(model.predict(series(), TEST, HOURLY) - y)[0].mean()

    assert error(fitted(ROADS, neighbours=1)) < 0.5 * error(fitted())


@pytest.mark.quick(2)
@pytest.mark.parametrize("options", [{"cell_id": True}, {"neighbours": 2}])
def test_it_forecasts_the_cells_it_knows_from_what_came_before(options):
    model = fitted(ROADS, **options)
    assert forecast_leaks(model, series(), TEST, SPEC, HOURLY) == []
    with pytest.raises(InputError, match=r"boosting: .*3 cells, .*2"):
        model.predict(series()[:, :2], TEST, HOURLY)


def test_neighbours_need_roads():
    with pytest.raises(InputError, match="neighbours is 2"):
        fitted(neighbours=2)


def test_too_many_cells_are_no_categories():
    model = Boosting(BoostingConfig(cell_id=True))
    with pytest.raises(InputError, match=r"cell_id .*255 cells, .*256"):
        model.fit(np.zeros((20, 256)), np.arange(3, 19), SPEC, HOURLY)


def test_a_saved_forecaster_knows_the_roads(tmp_path):
    hours = pd.date_range("2013-11-01", periods=340, freq="h")
    cells = np.array([5, 6, 7])
    about = {"title": "roads", "source": "invented", "license": "none", "units": "mph"}
    cube = make_cube({"speed": series()}, hours, cells, **about)
    cube["cell_to"] = cells
    cube["adjacency"] = (("cell", "cell_to"), ROADS)
    options = {"neighbours": 2, "cell_id": True, "max_iter": 5, "target": "change"}
    forecaster = Forecaster("boosting", split="days:10,2,2", **options).fit(cube)
    table = pd.DataFrame(series(), hours, pd.Index(cells))
    expected = forecaster.predict(table)
    loaded = Forecaster.load(forecaster.save(tmp_path))
    pd.testing.assert_frame_equal(loaded.predict(table), expected)
