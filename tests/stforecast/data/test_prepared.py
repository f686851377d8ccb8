import numpy as np
import pytest
from cut_windows import cut_windows

from data_prep.base.errors import InputError
from stforecast.data import windows
from stforecast.data.prepared import prepare
from stforecast.data.series import as_series
from stforecast.data.window_spec import WindowSpec
from stforecast.data.windows import target_windows

WINDOW = WindowSpec(horizon=2, impute="ffill", period=24)


@pytest.fixture
def series(cube):
    return as_series(cube, "internet")


@pytest.fixture
def data(series):
    return prepare(series, WINDOW, "days:7,1,2", "cell")


def test_z_scores_are_those_of_the_training_part(series, data):
    training = series.values[: 24 * 7]
    expected = (series.values - np.nanmean(training, axis=0)) / np.nanstd(training, axis=0)
    np.testing.assert_allclose(data.z, expected)


def test_windows_are_those_of_the_z_scores(series, data):
    expected = cut_windows(data.z, data.split.train, WINDOW, series.calendar)
    found = data.windows(data.split.train)
    assert found.x_next is expected.x_next is None
    for name in ("x", "y", "mask", "slot"):
        np.testing.assert_array_equal(getattr(found, name), getattr(expected, name))
    np.testing.assert_array_equal(
        data.windows(data.split.train, with_next=True).x_next[:, :-1], found.x[:, 1:]
    )


def test_gaps_are_filled_once(data, monkeypatch):
    filled, fill_gaps = [], windows.fill_gaps
    monkeypatch.setattr(windows, "fill_gaps", lambda *a: filled.append(a) or fill_gaps(*a))
    for part in (data.split.train, data.split.validation, data.split.test):
        data.windows(part, with_next=part is data.split.train)
    assert len(filled) == 1


def test_targets_of_windows_one_step_apart_are_views(data):
    starts = data.split.test
    for part in (starts, starts[::2]):
        for found, copied in zip(
            data.targets(part), target_windows(data.z, part, WINDOW), strict=True
        ):
            np.testing.assert_array_equal(found, copied)
            assert found.dtype == copied.dtype
    y, _ = data.targets(starts)
    assert np.shares_memory(y[:, 0, 1], y[:, 1, 0])


def test_windows_whose_targets_reach_into_the_test_part_calibrate_nothing(series):
    shares = prepare(series, WINDOW, "windows:0.7,0.1,0.2", "cell")
    assert shares.calibration.tolist() == shares.split.validation[:-1].tolist()
    days = prepare(series, WINDOW, "days:7,1,2", "cell")
    assert days.calibration.tolist() == days.split.validation.tolist()


def test_what_is_known_by_a_step_keeps_its_z_scores(data):
    known = data.until(200)
    np.testing.assert_array_equal(known.z, data.z[:200])
    assert len(known.series.values) == len(known.series.times) == 200
    np.testing.assert_array_equal(
        known.windows(data.split.train).x, data.windows(data.split.train).x
    )
    with pytest.raises(InputError, match="steps 0 to 199"):
        known.targets(np.array([199]))
