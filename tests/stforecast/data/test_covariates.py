"""Covariates: a town whose calls follow one hour after its messages, and whose areas differ."""

import numpy as np
import pandas as pd
import pytest

from data_prep.base.errors import InputError
from data_prep.cube import make_cube
from stforecast import Forecaster
from stforecast.data.clock import Calendar
from stforecast.data.covariates import Covariates, CovariateScaler
from stforecast.data.series import as_series
from stforecast.data.window_spec import WindowSpec
from stforecast.data.windows import input_windows
from stforecast.forecasting.config import read_by
from stforecast.forecasting.leaks import forecast_leaks

SETTINGS = {
    "service": "call", "split": "days:7,1,2", "closeness": 1, "periods": 0, "inputs": "sms",
    "input_steps": 1, "device": "cpu",
}  # fmt: skip


@pytest.fixture(scope="module")
def town():
    """Calls are the messages of the hour before, so these tell all that can be known."""
    rng = np.random.default_rng(3)
    sms = rng.normal(50.0, 10.0, size=(241, 3))
    cube = make_cube(
        {"sms": sms[1:], "call": sms[:-1], "internet": sms[1:]},
        pd.date_range("2013-11-01", periods=240, freq="h"), np.array([11, 22, 33]),
        title="a town", source="invented", license="none", units="1", time_zone="Europe/Rome",
    )  # fmt: skip
    return cube.assign(area=("cell", [1.0, 2.0, 6.0]))


def test_a_window_reads_the_newest_steps_of_services_then_static_columns():
    spec = WindowSpec(closeness=1, periods=0, inputs="a, b", input_steps=2, static="area")
    observed = np.arange(20.0).reshape(5, 2, 2)  # steps, cells, services
    calendar = Calendar(
        pd.Timestamp("2013-11-01"), pd.Timedelta("1h"),
        covariates=Covariates(observed, np.array([[-1.0], [1.0]])),
    )  # fmt: skip
    x = input_windows(np.zeros((5, 2)), np.array([1, 5]), spec, calendar)
    assert x.shape == (2, 2, spec.n_inputs) == (2, 2, 6)
    np.testing.assert_array_equal(x[0, 1], [0, 16, 17, 12, 13, -1])
    np.testing.assert_array_equal(x[1, 0], [0, 2, 3, 0, 0, 1])  # before the series: missing


def test_scales_are_of_the_training_part_and_of_other_cells_where_there_is_none():
    observed = np.array([[1.0, np.nan], [3.0, np.nan], [90.0, 4.0]])[..., None]
    covariates = Covariates(observed, np.array([[2.0], [6.0]]))
    scaler = CovariateScaler.fit(covariates, slice(0, 2))
    np.testing.assert_allclose(scaler.mean[:, 0], [2, 2])
    np.testing.assert_allclose(scaler.std[:, 0], [1, 1])
    scaled = scaler.transform(covariates)
    np.testing.assert_allclose(scaled.observed[:, 0, 0], [-1, 1, 88])
    np.testing.assert_allclose(scaled.static[:, 0], [-1, 1])
    again = CovariateScaler.from_state(scaler.state())
    np.testing.assert_array_equal(again.transform(covariates).observed, scaled.observed)


@pytest.mark.parametrize(
    ("method", "settings"),
    [
        ("ridge", {"alpha": 1e-6}),
        ("fedlean", {"extra_lags": "", "calendar": "none", "ridge": 1e-6, "shrinkage": 1e-6}),
    ],
)  # fmt: skip
def test_a_service_that_tells_all_leaves_no_error(method, settings, town):
    errors = {}
    for inputs in ("", "sms"):
        forecaster = Forecaster(
            method, **read_by(method, {**SETTINGS, **settings, "inputs": inputs})
        ).fit(town)
        errors[inputs] = -forecaster.score() + 1
    assert errors[""] > 0.5
    assert errors["sms"] < 0.05


@pytest.mark.quick(4)
@pytest.mark.parametrize("method", ["ridge", "boosting", "fedlean", "fedtrees"])
def test_a_saved_forecaster_reads_covariates_and_has_no_leak(method, town, tmp_path):
    settings = {**SETTINGS, "static": "area"}
    if method.startswith("fed"):
        settings |= {"rounds": 3, "extra_lags": "2"}
    forecaster = Forecaster(method, **read_by(method, settings)).fit(town)
    forecast = forecaster.predict(town, 2)
    assert np.isfinite(forecast.to_numpy()).all()
    loaded = Forecaster.load(forecaster.save(tmp_path), device="cpu")
    pd.testing.assert_frame_equal(loaded.predict(town, 2), forecast)
    assert not loaded.find_leaks(town)
    later = town.copy(deep=True)
    later["sms"][-1] = 1000.0
    assert not np.allclose(loaded.predict(later), forecast[:1])


def test_a_further_service_that_is_missing_or_in_another_unit_is_told_of(town, caplog):
    forecaster = Forecaster("ridge", **read_by("ridge", SETTINGS)).fit(town)
    forecaster.predict(town)
    assert not caplog.messages
    later = town.copy(deep=True)
    later["sms"][-1, 0], later["sms"][-1, 1] = np.nan, 50e3
    forecaster.predict(later)
    missing, far = caplog.messages
    assert "sms lacks newest values in 1 of 3 cells, such as 11; the training mean" in missing
    assert "sms of 1 of 3 cells, such as 22, was lately" in far


def test_a_forecast_that_reads_a_service_of_its_own_hour_is_found(town, monkeypatch):
    forecaster = Forecaster("ridge", **read_by("ridge", SETTINGS)).fit(town)

    series = forecaster.read(town)
    calendar = forecaster.model_.scaler.calendar(series)
    z, window = forecaster.model_.scaler.transform(series.values), forecaster.config.window
    read = Covariates.inputs

    def ahead(self, starts, spec):
        return read(self, np.minimum(starts + 1, 240), spec)

    monkeypatch.setattr(Covariates, "inputs", ahead)
    leaks = forecast_leaks(forecaster.model_.predictor, z, np.array([200]), window, calendar)
    assert {leak.what for leak in leaks} == {"inputs", "forecast"}


def test_new_cells_read_covariates_in_their_own_scale(town):
    forecaster = Forecaster("ridge", **read_by("ridge", SETTINGS), static="area", alpha=1e-3)
    forecaster.fit(town.isel(cell=[0, 1]))
    adapted = forecaster.adapt(town.isel(time=slice(0, 200)), days=5)
    errors = adapted.evaluate(town.isel(time=slice(190, None)))
    mine = errors[(errors["metric"] == "mse") & (errors["horizon"] == "all")].set_index("client")
    assert mine.loc["33", "value"] < 0.05


@pytest.mark.parametrize(
    ("method", "settings", "message"),
    [
        ("ridge", {"inputs": "mms"}, "unknown further service"),
        ("ridge", {"inputs": "call"}, "internet, sms"),
        ("ridge", {"static": "height"}, "area"),
        ("seasonal_day", {}, "seasonal_day .*services"),
        ("fuels", {"periods": 1}, "dual_gru .*linear, mixed, mlp"),
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_refused_in_one_line(method, settings, message, town):
    with pytest.raises(InputError, match=message) as e:
        Forecaster(method, **read_by(method, {**SETTINGS, **settings})).fit(town)
    assert "\n" not in str(e.value)


def test_a_calendar_alone_has_no_covariates():
    spec = WindowSpec(closeness=1, periods=0, inputs="sms")
    calendar = Calendar(pd.Timestamp("2013-11-01"), pd.Timedelta("1h"))
    with pytest.raises(InputError, match="without them"):
        input_windows(np.zeros((9, 1)), np.array([5]), spec, calendar)


def test_values_that_were_not_recorded_are_missing(town):
    cube = town.copy()
    cube["sms"] = cube["sms"].copy()
    cube["sms"][5, 0] = np.nan
    series = as_series(cube, "call", WindowSpec(inputs="sms"))
    assert np.isnan(series.covariates.observed[5, 0, 0])
    assert np.isfinite(series.covariates.observed).sum() == 240 * 3 - 1
