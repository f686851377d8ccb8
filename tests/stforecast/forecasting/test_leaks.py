import dataclasses

import numpy as np
import pandas as pd
import pytest

from data_prep.base.errors import InputError
from data_prep.cube import observed
from stforecast import Forecaster
from stforecast.baselines.seasonal import LastValue
from stforecast.data.clock import Calendar
from stforecast.data.cubes import open_cube
from stforecast.data.scaling import fit_scaler
from stforecast.data.series import as_series
from stforecast.data.splits import make_split
from stforecast.data.window_spec import WindowSpec
from stforecast.forecasting.config import read_by
from stforecast.forecasting.leaks import changes_of, forecast_leaks

CLOCK = Calendar(pd.Timestamp("2013-11-01"), pd.Timedelta("1h"))
STARTS = np.arange(30, 60)
SPEC = WindowSpec(closeness=3, periods=0, horizon=2, period=24)


@pytest.fixture
def series():
    return np.random.default_rng(0).normal(size=(62, 2))


def last_value(series):
    return LastValue().fit(series, np.arange(3, 20), SPEC, CLOCK)


class PeeksAtTheTarget(LastValue):
    """A planted leak: a little of the first target is in the forecast."""

    def _forecast(self, series, starts, calendar):
        ahead = series[np.minimum(starts, len(series) - 1)].T[..., None]
        return super()._forecast(series, starts, calendar) + 0.01 * ahead


class PeeksPastTheTarget(LastValue):
    """Another: gaps are filled from behind, which is seen only where there is one."""

    def _forecast(self, series, starts, calendar):
        filled = pd.DataFrame(series).bfill().to_numpy()
        return super()._forecast(filled, starts, calendar)


def test_an_honest_forecaster_has_no_leak(series):
    assert forecast_leaks(last_value(series), series, STARTS, SPEC, CLOCK) == []


def test_a_forecast_that_holds_its_target_is_found(series):
    planted = PeeksAtTheTarget().fit(series, np.arange(3, 20), SPEC, CLOCK)
    leaks = forecast_leaks(planted, series, STARTS, SPEC, CLOCK)
    assert {leak.what for leak in leaks} == {"forecast"}
    assert len(leaks) == 8
    assert "forecast of the window at step 30 changed by" in str(leaks[0])


def test_gaps_filled_from_behind_are_found(series):
    series[::2] = np.nan
    planted = PeeksPastTheTarget().fit(series, np.arange(3, 20), SPEC, CLOCK)
    leaks = forecast_leaks(planted, series, STARTS, SPEC, CLOCK)
    assert {leak.what for leak in leaks} == {"forecast"}


def test_a_target_among_the_inputs_is_found(series, monkeypatch):
    monkeypatch.setattr(WindowSpec, "lags", property(lambda self: (2, 1, 0)))
    leaks = forecast_leaks(last_value(series), series, STARTS, SPEC, CLOCK)
    assert {leak.what for leak in leaks} == {"inputs"}


def fitting_leaks(method, data, **settings):
    """Fit to the data, and to the data with another test part: what comes out otherwise?

    What may change is the scaler, or the forecast of the first window of which no step lies in the
    validation part.
    """
    cube = open_cube(data)
    service = as_series(cube, settings.get("service")).service
    first = Forecaster(method, **read_by(method, settings)).fit(cube)
    start = int(first.data_.split.test[0]) + first.config.window.horizon - 1
    second = Forecaster(method, **read_by(method, settings)).fit(other_future(cube, service, start))
    history = cube.isel(time=slice(start))
    before, after = (f.predict(history).to_numpy() for f in (first, second))
    scalers = (np.stack([f.model_.scaler.mean, f.model_.scaler.std]) for f in (first, second))
    scale = first.model_.scaler.std
    return [
        *changes_of("scaler", start, *(s / scale for s in scalers)),
        *changes_of("model", start, before / scale, after / scale),
    ]


def other_future(cube, service, start):
    """The cube with other values of one service from a step on, as observed as before."""
    values = observed(cube, service)
    changed = values.to_numpy().astype(np.float64, copy=True)
    spread = np.nanstd(changed[:start])
    noise = np.random.default_rng(0).uniform(1.0, 5.0, changed[start:].shape)
    changed[start:] = changed[start:] * 2 + spread * noise
    return cube.assign({service: values.copy(data=changed)})


@pytest.mark.parametrize(
    ("method", "target"), [("ridge", "validation"), ("fuels", "level"), ("boosting", "day")]
)
def test_fitting_does_not_look_at_the_test_part(cube, tiny, method, target):
    settings = {**(tiny if method == "fuels" else {"split": tiny["split"]}), "target": target}
    assert fitting_leaks(method, cube, service="internet", horizon=2, **settings) == []


def test_a_scaler_that_saw_the_whole_series_is_found(cube, monkeypatch):
    def fit_to_all(series, fit, *settings):
        return fit_scaler(series, slice(0, len(series)), *settings)

    monkeypatch.setattr("stforecast.data.prepared.fit_scaler", fit_to_all)
    leaks = fitting_leaks("ridge", cube, service="internet", split="days:7,1,2")
    assert "scaler" in {leak.what for leak in leaks}


def everything(*given):
    """A split whose training windows go on to the last test window."""
    split = make_split(*given)
    return dataclasses.replace(split, train=np.arange(split.train[0], split.test[-1] + 1))


def test_training_windows_from_the_test_part_are_found(cube, monkeypatch):
    monkeypatch.setattr("stforecast.data.prepared.make_split", everything)
    leaks = fitting_leaks("ridge", cube, service="internet", split="days:7,1,2")
    assert [leak.what for leak in leaks] == ["model"]


def test_a_saved_model_can_be_checked(cube, tiny):
    assert Forecaster("fuels", service="internet", **tiny).fit(cube).find_leaks(cube) == []


def test_a_history_without_a_step_to_test_is_refused(table):
    forecaster = Forecaster("ridge", split="days:7,1,2").fit(table)
    with pytest.raises(InputError, match=r"72 steps, .*72 "):
        forecaster.find_leaks(table[:72])
    assert not forecaster.find_leaks(table[:73])
