import functools
import io
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.linear_model import Ridge as SklearnRidge
from threadpoolctl import threadpool_limits

from data_prep.base.errors import InputError
from stforecast import Forecaster
from stforecast.baselines import BASELINES
from stforecast.baselines.base import Baseline, Peer
from stforecast.baselines.ridge import Ridge, RidgeConfig
from stforecast.baselines.trees import Boosting
from stforecast.data.clock import Calendar
from stforecast.data.scaling import fit_scaler
from stforecast.data.splits import make_split
from stforecast.data.window_spec import WindowSpec
from stforecast.data.windows import input_windows, target_windows
from stforecast.metrics import METRICS

SPEC = WindowSpec(closeness=3, periods=2, period=24, horizon=3)
HOURLY = Calendar(pd.Timestamp("2013-11-01"), pd.Timedelta("1h"))  # a Friday
TRAIN = np.arange(48, 300)
TEST = np.arange(300, 334)


def series(n_steps: int = 336, n_cells: int = 3) -> np.ndarray:
    """Two weeks of hours with a daily rhythm, noise and 5 % missing, z-score-like."""
    rng = np.random.default_rng(0)
    day = np.sin(2 * np.pi * np.arange(n_steps) / 24)[:, None] * np.linspace(0.5, 1, n_cells)
    values = day + 0.3 * rng.normal(size=(n_steps, n_cells))
    values[rng.random(values.shape) < 0.05] = np.nan
    return values


QUICK = {
    "boosting": {"max_iter": 5},
    "lightgbm": {"num_iterations": 5},
    **{name: {"max_steps": 2, "input_size": 48} for name in ("dlinear", "nhits", "patchtst")},
}
"""Options that make a fit quick."""

SLOW = ("auto_arima", "mstl")
"""Those that take seconds or minutes here; they have quick tests of their own."""


def make(name: str) -> Baseline:
    kind = BASELINES[name]
    if issubclass(kind, Peer):
        pytest.importorskip(kind.package, reason="the extra peers is not installed")
    return kind(kind.Options(**QUICK.get(name, {})))


@functools.cache
def fitted(name: str) -> Baseline:
    return make(name).fit(series(), TRAIN, SPEC, HOURLY)


def assert_same(y_hat: np.ndarray, expected: np.ndarray) -> None:
    """Equal but for rounding, which depends on the size of a batch."""
    np.testing.assert_allclose(y_hat, expected, rtol=0, atol=1e-5)


def test_the_registry_is_in_order_and_says_what_is_not_federated():
    assert list(BASELINES) == [
        "last_value",
        "seasonal_day",
        "seasonal_week",
        "historical_average",
        "pretrained",
        "ridge",
        "boosting",
        "auto_arima",
        "auto_ets",
        "chronos",
        "mstl",
        "timesfm",
        "tirex",
        "toto",
        "dlinear",
        "lightgbm",
        "nhits",
        "patchtst",
    ]
    pooled = [name for name, kind in BASELINES.items() if kind.pooled]
    assert pooled == ["boosting", "dlinear", "lightgbm", "nhits", "patchtst"]
    assert all(kind.summary for kind in BASELINES.values())


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(n, marks=pytest.mark.slow if n in SLOW else ())
        for n in BASELINES
        if n != "chronos"  # It needs weights.
    ],
)
class TestContract:
    def test_forecasts_are_finite_and_client_first(self, name):
        y_hat = fitted(name).predict(series(), TEST, HOURLY)
        assert y_hat.shape == (3, len(TEST), 3)
        assert y_hat.dtype == np.float32
        assert np.isfinite(y_hat).all()

    def test_only_the_past_is_read(self, name):
        baseline, values = fitted(name), series()
        y_hat = baseline.predict(values, TEST, HOURLY)
        values[TEST[-1] :] = np.nan
        last = baseline.predict(values, TEST[-1:], HOURLY)
        assert_same(last, y_hat[:, -1:])
        values[TEST[0] :] = np.nan
        first = baseline.predict(values, TEST[:1], HOURLY)
        assert_same(first, y_hat[:, :1])

    def test_the_step_after_the_series_is_forecast(self, name):
        baseline = fitted(name)
        ahead = baseline.predict(series()[:320], np.array([320]), HOURLY)
        known = baseline.predict(series(), np.array([320]), HOURLY)
        assert_same(ahead, known)
        with pytest.raises(InputError, match=r"step 321 .*320 "):
            baseline.predict(series()[:320], np.array([321]), HOURLY)

    def test_fitting_reads_nothing_after_the_last_training_target(self, name):
        cut = series()
        cut[TRAIN[-1] + SPEC.horizon :] = np.nan
        refitted = make(name).fit(cut, TRAIN, SPEC, HOURLY)
        assert_same(
            refitted.predict(series(), TEST, HOURLY), fitted(name).predict(series(), TEST, HOURLY)
        )

    def test_saved_arrays_forecast_the_same(self, name):
        baseline, file = fitted(name), io.BytesIO()
        np.savez(file, **baseline.state())
        file.seek(0)
        with np.load(file, allow_pickle=False) as state:
            loaded = BASELINES[name].from_state(dict(state), SPEC, baseline.config)
        assert_same(
            loaded.predict(series(), TEST, HOURLY), baseline.predict(series(), TEST, HOURLY)
        )

    def test_no_windows_give_no_forecasts(self, name):
        assert fitted(name).predict(series(), TEST[:0], HOURLY).shape == (3, 0, 3)

    def test_misuse_is_told(self, name):
        with pytest.raises(InputError, match=f"{name}: not fitted"):
            make(name).predict(series(), TEST, HOURLY)
        with pytest.raises(InputError, match=rf"{name}: no .*windows"):
            make(name).fit(series(), TRAIN[:0], SPEC, HOURLY)
        if BASELINES[name].learned:
            with pytest.raises(InputError, match=f"{name}: saved state"):
                BASELINES[name].from_state({}, SPEC)


def test_last_value_carries_the_last_observation_forward():
    values = np.array([[np.nan, 1.0], [np.nan, 2.0], [np.nan, np.nan], [7.0, 8.0]])
    last = BASELINES["last_value"]().fit(
        values, np.array([1]), WindowSpec(horizon=2, period=24), HOURLY
    )
    y_hat = last.predict(values, np.array([3, 4]), HOURLY)
    np.testing.assert_array_equal(y_hat[0], [[0, 0], [7, 7]])
    np.testing.assert_array_equal(y_hat[1], [[2, 2], [8, 8]])


@pytest.mark.parametrize(("name", "season"), [("seasonal_day", 24), ("seasonal_week", 168)])
def test_seasonal_repeats_the_last_season(name, season):
    values = np.arange(400.0)[:, None]
    values[380 - season] = np.nan
    spec = WindowSpec(horizon=season + 2, period=24)
    naive = BASELINES[name]().fit(values, np.array([200]), spec, HOURLY)
    y_hat = naive.predict(values, np.array([379]), HOURLY)[0, 0]
    ahead = np.arange(season)
    expected = 379 - season + ahead
    expected[1] = 380 - 2 * season  # missing a season ago, so a season before
    np.testing.assert_array_equal(y_hat, [*expected, 379 - season, 380 - 2 * season])


def test_seasonal_week_needs_a_week():
    week = BASELINES["seasonal_week"]().fit(series(), TRAIN, SPEC, HOURLY)
    week.predict(series(), np.array([168]), HOURLY)
    with pytest.raises(InputError, match=r"seasonal_week: .*168 .*167"):
        week.predict(series(), np.array([167]), HOURLY)


def test_seasonal_day_refuses_a_step_that_does_not_divide_a_day():
    odd = Calendar(pd.Timestamp("2013-11-01"), pd.Timedelta("7min"))
    day = BASELINES["seasonal_day"]().fit(series(), TRAIN, SPEC, odd)
    with pytest.raises(InputError, match="not divide"):
        day.predict(series(), TEST, odd)


def test_historical_average_by_weekday_then_by_time_of_day():
    six_hours = Calendar(pd.Timestamp("2013-11-01"), pd.Timedelta("6h"))
    values = np.arange(40.0)[:, None]  # Friday to the Sunday of the week after
    values[5] = np.nan
    spec = WindowSpec(closeness=1, periods=0, period=24)
    average = BASELINES["historical_average"]()
    average.fit(values, np.arange(1, 32), spec, six_hours)  # Friday to Friday
    y_hat = average.predict(values, np.array([32, 36]), six_hours)[0, :, 0]
    np.testing.assert_array_equal(y_hat, [4, 8])
    friday = average.predict(values, np.array([28, 29]), six_hours)[0, :, 0]
    np.testing.assert_array_equal(friday, [(0 + 28) / 2, (1 + 29) / 2])
    unseen_saturday_slot = average.predict(values, np.array([33]), six_hours)[0, 0, 0]
    others = [1, 9, 13, 17, 21, 25, 29]
    assert unseen_saturday_slot == pytest.approx(np.mean(others))


def test_historical_average_of_a_time_never_observed_is_the_training_mean():
    values = np.ones((336, 1))
    values[3::24] = np.nan
    average = BASELINES["historical_average"]().fit(values, TRAIN, WindowSpec(period=24), HOURLY)
    y_hat = average.predict(values, np.array([242, 243]), HOURLY)
    np.testing.assert_array_equal(y_hat[0, :, 0], [1, 0])


@pytest.mark.parametrize("alpha", [1.0, 25.0])
def test_ridge_is_that_of_scikit_learn_on_the_observed_targets(alpha):
    values = series()
    y_hat = Ridge(RidgeConfig(alpha)).fit(values, TRAIN, SPEC, HOURLY).predict(values, TEST, HOURLY)
    x = input_windows(values, TRAIN, SPEC, HOURLY)
    y, mask = target_windows(values, TRAIN, SPEC)
    x_test = input_windows(values, TEST, SPEC, HOURLY)
    for n in range(3):
        for k in range(3):
            seen = mask[n, :, k]
            reference = SklearnRidge(alpha).fit(x[n, seen], y[n, seen, k])
            np.testing.assert_allclose(y_hat[n, :, k], reference.predict(x_test[n]), atol=1e-5)


def test_ridge_of_a_target_never_observed_is_the_training_mean():
    values = series()
    values[TRAIN[0] : TRAIN[-1] + SPEC.horizon, 1] = np.nan
    y_hat = Ridge().fit(values, TRAIN, SPEC, HOURLY).predict(values, TEST, HOURLY)
    np.testing.assert_array_equal(y_hat[1], 0)
    assert np.abs(y_hat[0]).min() > 0


def test_boosting_is_that_of_scikit_learn_on_the_pooled_records():
    values = series()
    y_hat = fitted("boosting").predict(values, TEST, HOURLY)
    x = input_windows(values, TRAIN, SPEC, HOURLY)
    y, mask = target_windows(values, TRAIN, SPEC)
    x_test = input_windows(values, TEST, SPEC, HOURLY)
    for k in range(3):
        seen = mask[:, :, k]
        with threadpool_limits(1, user_api="openmp"):
            reference = HistGradientBoostingRegressor(max_iter=5).fit(x[seen], y[seen, k])
            expected = reference.predict(x_test.reshape(-1, SPEC.n_inputs)).reshape(3, -1)
        np.testing.assert_allclose(y_hat[:, :, k], expected, atol=1e-6)


def test_boosting_may_forecast_cells_it_was_not_fitted_on():
    assert fitted("boosting").predict(series()[:, :2], TEST, HOURLY).shape[0] == 2


def test_boosting_needs_an_observed_target():
    values = series()
    values[TRAIN[0] :] = np.nan
    with pytest.raises(InputError, match=r"target .*step 1"):
        Boosting().fit(values, TRAIN, SPEC, HOURLY)


@pytest.mark.parametrize("name", ["historical_average", "ridge"])
def test_a_baseline_of_each_cell_refuses_other_cells(name):
    with pytest.raises(InputError, match=rf"{name}: .*3 cells, .*2"):
        fitted(name).predict(series()[:, :2], TEST, HOURLY)


def hourly_milan(folder: Path) -> tuple[np.ndarray, Calendar]:
    """Internet of the 25 real cells summed per hour, (720, 25)."""
    days = [
        pd.read_csv(file, sep="\t", header=None, usecols=[0, 1, 7]).set_axis(
            ["cell", "time", "internet"], axis=1
        )
        for file in sorted(folder.glob("*.txt"))
    ]
    records = pd.concat(days)
    table = records.pivot_table("internet", records.time // 3_600_000, "cell", aggfunc="sum")
    start = pd.Timestamp(int(table.index[0]), unit="h")
    return table.to_numpy(), Calendar(start, pd.Timedelta("1h"), "Europe/Rome")


@pytest.mark.repeats
def test_the_order_on_the_real_milan_cells(traffic_dir):
    traffic, calendar = hourly_milan(traffic_dir / "milan-25cells-raw")
    spec = WindowSpec(period=24)
    local_times = calendar.local_times(np.arange(len(traffic)))
    split = make_split("days:20,5,5", len(traffic), calendar.step, spec, local_times)
    z = fit_scaler(traffic, split.fit).transform(traffic)
    y, mask = target_windows(z, split.test, spec)

    mse = {}
    own = {name: kind for name, kind in BASELINES.items() if not issubclass(kind, Peer)}
    for name, kind in own.items():
        y_hat = kind().fit(z, split.train, spec, calendar).predict(z, split.test, calendar)
        mse[name] = METRICS["mse"](y_hat, y, mask)
    expected = {
        "last_value": 0.2416,
        "seasonal_day": 0.4512,
        "seasonal_week": 0.4671,
        "historical_average": 0.3982,
        "ridge": 0.1689,
    }
    boosting, pretrained = mse.pop("boosting"), mse.pop("pretrained")
    assert mse == pytest.approx(expected, abs=1e-4)
    assert boosting == pytest.approx(0.161, abs=0.01)
    assert pretrained < mse["last_value"]


@pytest.mark.parametrize("method", ["seasonal_day", "seasonal_week"])
def test_a_forecaster_that_looks_back_beyond_its_windows_can_be_loaded(method, tmp_path):
    hours = pd.date_range("2013-11-01", periods=24 * 20, freq="h")
    table = pd.DataFrame({"a": np.sin(hours.hour), "b": np.cos(hours.hour)}, hours)
    forecaster = Forecaster(method, split="days:12,4,4", closeness=3, periods=0).fit(table)
    forecaster.save(tmp_path)
    loaded = Forecaster.load(tmp_path).predict(table)
    pd.testing.assert_frame_equal(loaded, forecaster.predict(table))


def test_a_forecast_of_another_shape_is_refused():
    class Flat(Baseline):
        name = ""

        def _forecast(self, series, starts, calendar):
            return series[starts]

    found = r"its forecasts have the shape \(34, 3\), expected \(3, 34, 3\): cells, windows, hor"
    with pytest.raises(InputError, match=found):
        Flat().fit(series(), TRAIN, SPEC, HOURLY).predict(series(), TEST, HOURLY)
