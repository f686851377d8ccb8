import numpy as np
import pandas as pd

from stforecast.data.clock import Calendar
from stforecast.data.covariates import neighbour_inputs, strongest_neighbours
from stforecast.data.window_spec import WindowSpec

HOURLY = Calendar(pd.Timestamp("2013-11-01"), pd.Timedelta("1h"))


def test_the_strongest_roads_of_either_direction_come_first():
    roads = np.zeros((4, 4))
    np.fill_diagonal(roads, 1.0)
    roads[0, 1], roads[2, 0], roads[3, 2] = 0.2, 0.6, 0.9
    assert strongest_neighbours(roads, 2).tolist() == [[2, 1], [0, -1], [3, 0], [2, -1]]
    assert strongest_neighbours(roads, 1).tolist() == [[2], [0], [3], [2]]
    assert strongest_neighbours(roads, 5).shape == (4, 5)
    assert np.diag(roads).all()  # The argument stays as it is.


def test_readings_are_those_just_before_the_window():
    series = np.arange(30.0).reshape(10, 3)
    series[6, 2] = np.nan
    spec = WindowSpec(closeness=4, periods=1, period=5, extra_lags="7", calendar="week")
    near = np.array([[2, 1], [0, -1], [-1, -1]])
    found = neighbour_inputs(series, np.array([7, 10]), spec, HOURLY, near)
    first = neighbour_inputs(series, np.array([1]), spec, HOURLY, near)
    np.testing.assert_array_equal(first[0], [[2, 0, 1, 0]])  # Nothing lies before the series.
    expected = [
        [[0, 17, 19, 16], [29, 26, 28, 25]],  # One step before, then two; 0 where missing.
        [[18, 15, 0, 0], [27, 24, 0, 0]],
        [[0] * 4, [0] * 4],
    ]
    np.testing.assert_array_equal(found, expected)
    assert found.dtype == np.float32
