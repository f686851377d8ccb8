import json

import numpy as np
import pandas as pd
import pytest
import xarray as xr
from mentions import mentions
from safetensors.numpy import load_file

from data_prep.base.errors import InputError
from stforecast import Forecaster
from stforecast.data.prepared import prepare
from stforecast.data.scaling import Limits
from stforecast.data.series import as_series
from stforecast.data.window_spec import WindowSpec
from stforecast.federated.runs.model_files import write_model
from stforecast.forecasting.config import read_by
from stforecast.intervals.bands import Bands, IntervalOptions, clip, widened
from stforecast.intervals.calibration import Calibration, WindowBands, calibrate
from stforecast.intervals.radii import ErrorScale
from stforecast.methods import METHODS
from stforecast.metrics.interval import pair_coverages
from stforecast.metrics.point import evaluate_intervals


def shaped(values):
    """One cell and one step ahead."""
    return np.array(values, dtype=float).reshape(1, -1, 1)


def prepared(values, split="days:6,2,2", **window):
    """Ten days of hours of the cells in columns."""
    values = np.asarray(values, dtype=float).reshape(240, -1)
    hours = pd.date_range("2013-11-01", periods=240, freq="h")
    return prepare(
        as_series(pd.DataFrame(values, hours)),
        WindowSpec(**{"period": 24, **window}),
        split,
        "cell",
    )


def test_bounds_never_pass_the_forecast():
    bands = Bands(shaped([5.0]), {0.9: (shaped([3.0]), shaped([8.0]))})
    narrow = widened(bands, {0.9: shaped([-9.0])[..., None].repeat(2, -1)}).bounds[0.9]
    assert [b.item() for b in narrow] == [5.0, 5.0]
    wide = widened(bands, {0.9: np.array([1.0, 2.0]).reshape(1, 1, 1, 2)}).bounds[0.9]
    assert [b.item() for b in wide] == [2.0, 10.0]


def test_quantiles_are_conformalised_from_where_they_are():
    data = prepared(np.arange(-120.0, 120.0))
    y, mask = shaped(range(9)), np.ones((1, 9, 1), bool)
    # Too wide by 1 everywhere: every score is -1.
    known = WindowBands(np.arange(9), Bands(y, {0.8: (y - 1, y + 1)}), y, mask)
    bands = Bands(shaped([50.0]), {0.8: (shaped([40.0]), shaped([60.0]))})
    test = WindowBands(np.array([9]), bands, shaped([50]), mask[:, :1])
    calibrated, after = calibrate(data, known, test, IntervalOptions("conformal"))
    assert [b.item() for b in calibrated.bounds[0.8]] == [41.0, 59.0]
    assert after[0.8].radius.ravel().tolist() == [-1.0, -1.0]


def test_bounds_are_moved_to_the_limits_and_forecasts_are_not():
    bands = Bands(shaped([-3.0, 2.0]), {0.9: (shaped([-5.0, -1.0]), shaped([-2.0, 4.0]))})
    low, high, none = np.full((1, 1, 1), -1.5), np.full((1, 1, 1), 3.0), np.full((1, 1, 1), np.inf)
    clip(bands, -none, none)
    assert bands.bounds[0.9][0].min() == -5.0
    clip(bands, low, high)
    assert [b.ravel().tolist() for b in bands.bounds[0.9]] == [[-1.5, -1.0], [-1.5, 3.0]]
    assert bands.centre.ravel().tolist() == [-3.0, 2.0]


def test_limits_are_scored_as_the_targets_of_their_values():
    data = prepared(np.arange(240.0))
    low, high = Limits(0.0, 7.0).scores(data.scaler, 1)
    assert (low.item(), high.item()) == tuple(data.z[[0, 7], 0].astype(np.float32))
    assert [score.item() for score in Limits().scores(data.scaler, 1)] == [-np.inf, np.inf]


def test_only_data_that_were_never_negative_have_a_lowest_value():
    ramp = np.arange(240.0)
    settings = Forecaster("last_value").asked.data
    lowest = [
        settings.limits(non_negative=prepared(data).non_negative).lower for data in (ramp, ramp - 2)
    ]
    assert lowest == [0, -np.inf]
    assert prepared(150 - ramp).non_negative, "what follows training is not read"


def test_interval_metrics_by_hand():
    y = np.array([[[1.0], [5.0], [9.0], [0.0]]])
    mask = np.array([True, True, True, False]).reshape(1, 4, 1)
    centre, lower, upper = np.full_like(y, 4.0), np.full_like(y, 2.0), np.full_like(y, 6.0)
    table = evaluate_intervals(Bands(centre, {0.8: (lower, upper)}), y, mask, ["a"], 0.8)
    values = table[(table.client == "all") & (table.horizon == "all")].set_index("metric")["value"]
    # Pinball losses of 1, 5, 9: level 0.1 at 2: 0.9, 0.3, 0.7; 0.5 at 4: 1.5, 0.5, 2.5; 0.9 at 6:
    # 0.5, 0.1, 2.7. Levels stand for 0.3, 0.4 and 0.3 of (0, 1).
    low, middle, high = 1.9 / 3, 4.5 / 3, 3.3 / 3
    expected = {
        "coverage": 1 / 3,
        "width": 4.0,
        "pinball": (low + middle + high) / 3,
        "crps": 2 * (0.3 * low + 0.4 * middle + 0.3 * high),
    }
    assert values.to_dict() == pytest.approx(expected)


def test_the_crps_of_many_levels_is_that_of_the_distribution():
    # Of a uniform distribution on (0, 1) at y: (y³ + (1 - y)³) / 3.
    coverages = np.arange(0.02, 1, 0.02)
    y = shaped([0.1, 0.5, 0.9])
    bounds = {c: (np.full_like(y, (1 - c) / 2), np.full_like(y, (1 + c) / 2)) for c in coverages}
    bands = Bands(np.full_like(y, 0.5), bounds)
    table = evaluate_intervals(bands, y, np.ones(y.shape, bool), ["a"], coverages[-1])
    found = table[(table.metric == "crps") & (table.client == "all")].value.iloc[0]
    assert found == pytest.approx(((y**3 + (1 - y) ** 3) / 3).mean(), rel=2e-3)


def test_pairs_are_told_by_their_coverage():
    assert pair_coverages((0.5,)) == {}
    assert pair_coverages((0.1, 0.5, 0.9)) == {0.8: (0, 2)}


def rows(table, metric):
    found = table[(table.metric == metric) & (table.split == "test") & (table.horizon == "all")]
    return found[found.selection == "best"].set_index("client")["value"]


@pytest.mark.quick(3)
@pytest.mark.parametrize("how", ["conformal", "normalised"])
@pytest.mark.parametrize("method", ["last_value", "fuels"])
def test_any_forecaster_gets_intervals(cube, tiny, method, how):
    settings = {**tiny, "service": "internet", "intervals": how, "horizon": 2}
    settings = (
        settings if method == "fuels" else {k: v for k, v in settings.items() if k != "hidden_size"}
    )
    forecaster = Forecaster(method, **read_by(method, settings)).fit(cube)
    table, forecasts = forecaster.evaluate(), forecaster.test_forecasts()
    inside = (forecasts.lower <= forecasts.y) & (forecasts.y <= forecasts.upper)
    share = inside.where(forecasts.y.notnull()).mean(["time", "horizon"])
    np.testing.assert_allclose(rows(table, "coverage")[["11", "22", "33"]], share)
    width = (forecasts.upper - forecasts.lower).where(forecasts.y.notnull())
    assert rows(table, "raw_width")["11"] == pytest.approx(width.sel(cell=11).mean().item())
    assert forecasts.attrs["coverage"] == 0.9
    assert not (
        (table.metric == "raw_coverage") | (table.split != "test") & (table.metric == "crps")
    ).any()


@pytest.mark.quick(2)
@pytest.mark.parametrize("how", ["conformal", "normalised"])
def test_a_saved_model_gives_the_same_bounds(cube, tiny, tmp_path, how):
    forecaster = Forecaster("fuels", service="internet", intervals=how, **tiny).fit(cube)
    forecaster.save(tmp_path)
    loaded = Forecaster.load(tmp_path, device="cpu")
    history = cube.isel(time=slice(200))
    before, after = (f.predict_interval(history, 3) for f in (forecaster, loaded))
    pd.testing.assert_frame_equal(before.lower, after.lower)
    assert after.lower.attrs["units"] == "MB"
    point = loaded.predict(history, 3)
    assert (after.lower.iloc[0] < point.iloc[0]).all()
    assert (point.iloc[0] < after.upper.iloc[0]).all()
    assert after.upper.iloc[1:].isna().all(axis=None), "nothing is known beyond the horizon"
    if how == "conformal":
        # In the test part the first window's bounds are those that the run reports.
        start = cube.isel(time=slice(int(forecaster.data_.split.test[0])))
        first = forecaster.test_forecasts().isel(time=0, horizon=0)
        np.testing.assert_allclose(
            loaded.predict_interval(start).upper.iloc[0], first.upper, rtol=1e-5
        )


@pytest.mark.repeats
def test_refitted_models_keep_their_bounds(cube, tmp_path):
    settings = {"split": "days:6,1,3", "service": "internet", "refit": "daily", "horizon": 2}
    forecaster = Forecaster("ridge", intervals="normalised", **read_by("ridge", settings)).fit(cube)
    assert len(forecaster.refits_) == 2
    loaded = Forecaster.load(forecaster.save(tmp_path))
    before, after = (f.predict_interval(cube) for f in (forecaster, loaded))
    pd.testing.assert_frame_equal(before.lower, after.lower)
    pd.testing.assert_frame_equal(before.upper, after.upper)
    assert np.isfinite(after.upper).all(axis=None)
    assert rows(forecaster.evaluate(), "coverage")["all"] > 0.7


def test_bounds_after_the_data_are_those_of_a_further_test_window():
    # The second table is longer by a day, which the same split leaves out of its first parts.
    table = noisy_days(20)
    days = "dates:2013-11-11,2013-11-16"
    shorter, longer = (
        Forecaster("historical_average", intervals="normalised", split=days).fit(part)
        for part in (table.iloc[: 19 * 24], table)
    )
    ahead = shorter.predict_interval(table.iloc[: 19 * 24])
    tested = longer.test_forecasts().isel(time=4 * 24, horizon=0)
    assert tested.time == np.datetime64("2013-11-20")
    np.testing.assert_allclose(ahead.lower.iloc[0], tested.lower, rtol=1e-5, atol=1e-4)
    np.testing.assert_allclose(ahead.upper.iloc[0], tested.upper, rtol=1e-5)


def noisy_days(n_days):
    """Hours of six cells: noise, ten times as large from 8 to 11."""
    hours = pd.date_range("2013-11-01", periods=24 * n_days, freq="h")
    sizes = np.where((hours.hour >= 8) & (hours.hour < 11), 10.0, 1.0)
    noise = np.random.default_rng(8).normal(size=(len(hours), 6))
    return pd.DataFrame(100 + sizes[:, None] * noise, hours)


def test_normalised_intervals_cover_the_busy_hours_too():
    table = noisy_days(60)
    covered = {}
    for how in ("conformal", "normalised"):
        settings = {"intervals": how, "split": "days:30,10,20"}
        found = (
            Forecaster("historical_average", **read_by("historical_average", settings))
            .fit(table)
            .test_forecasts()
        )
        inside = ((found.lower <= found.y) & (found.y <= found.upper)).isel(horizon=0)
        busy = (found.time.dt.hour >= 8) & (found.time.dt.hour < 11)
        covered[how] = [float(inside.sel(time=when).mean()) for when in (busy, ~busy)]
    # Three hours of 24 have nearly all large errors: a tenth of all errors lies outside.
    assert covered["conformal"][0] < 0.5
    # 360 errors in the busy hours: a standard error of 0.016.
    assert covered["normalised"] == pytest.approx([0.9, 0.9], abs=0.07)


def test_earlier_bounds_do_not_depend_on_later_targets():
    table = noisy_days(20)
    changed = table.copy()
    changed.iloc[17 * 24 :] = 1e4
    settings = {"intervals": "normalised", "split": "days:10,5,5", "horizon": 3}
    before, after = (
        Forecaster("last_value", **read_by("last_value", settings)).fit(t).test_forecasts()
        for t in (table, changed)
    )
    same = before.time <= np.datetime64("2013-11-18T00:00")
    assert same.sum() == 2 * 24 + 1
    for name in ("lower", "upper"):
        xr.testing.assert_equal(before[name].sel(time=same), after[name].sel(time=same))
        assert (before[name] != after[name]).sel(time=~same).all()


@pytest.mark.quick(2)
@pytest.mark.parametrize("how", ["conformal", "normalised"])
def test_traffic_has_no_bounds_below_zero(how):
    hours = pd.date_range("2013-11-01", periods=24 * 20, freq="h")
    traffic = np.random.default_rng(9).exponential(size=(len(hours), 3)).round(1)
    settings = {"intervals": how, "split": "days:10,5,5", "horizon": 2}
    table = pd.DataFrame(traffic, hours)
    below = Forecaster("historical_average", **read_by("historical_average", settings)).fit(
        table - 1
    )
    assert below.test_forecasts().lower.min() < -1, "data below zero have such bounds"
    forecaster = Forecaster("historical_average", **read_by("historical_average", settings)).fit(
        table
    )
    found = forecaster.test_forecasts()
    assert found.lower.min() == 0
    at_zero = (found.y == 0) & (found.lower == 0)
    assert at_zero.any()
    assert rows(forecaster.evaluate(), "coverage")["all"] == pytest.approx(
        float(((found.lower <= found.y) & (found.y <= found.upper)).mean())
    )
    assert forecaster.predict_interval(table).lower.min(axis=None) == 0


def test_a_quantile_head_forecasts_its_levels_in_order(cube, tiny):
    settings = {**tiny, "loss": "quantile", "quantiles": "0.1,0.3,0.5,0.7,0.9", "horizon": 2}
    forecaster = Forecaster("fuels", service="internet", **settings).fit(cube)
    fitted = forecaster.model_.predictor
    z = forecaster.model_.scaler.transform(cube["internet"].to_numpy())
    starts, calendar = np.arange(200, 206), forecaster._evaluation().data.calendar
    quantiles = fitted.quantiles(z, starts, calendar)
    assert quantiles.shape == (3, 6, 2, 5)
    assert (np.diff(quantiles) >= 0).all()
    np.testing.assert_array_equal(fitted.predict(z, starts, calendar), quantiles[..., 2])
    table = forecaster.evaluate()
    assert forecaster.test_forecasts().attrs["coverage"] == pytest.approx(0.8)
    assert rows(table, "crps")["all"] > 0
    assert forecaster.predict_interval(cube).lower.attrs["coverage"] == pytest.approx(0.8)


def test_quantiles_are_normalised_from_where_they_are():
    data = prepared(np.random.default_rng(4).normal(size=240))
    bands, parts = {}, {}
    for name, starts in (("known", data.calibration), ("coming", data.split.test)):
        y, mask = data.targets(starts)
        centre = np.zeros(y.shape)
        bands[name] = Bands(centre, {0.8: (centre - 5.0, centre + 5.0)})
        parts[name] = WindowBands(starts, bands[name], y, mask)
    found, after = calibrate(data, parts["known"], parts["coming"], IntervalOptions("normalised"))
    lower, upper = found.bounds[0.8]
    assert ((lower > -5) & (lower < 0) & (upper > 0) & (upper < 5)).all(), "they were too wide"
    assert (after[0.8].radius < 0).all()
    inside = (lower <= parts["coming"].y) & (parts["coming"].y <= upper)
    # 48 targets: a standard error of 0.06.
    assert inside.mean() == pytest.approx(0.8, abs=0.2)


@pytest.mark.quick(3)
@pytest.mark.sampled(10)
@pytest.mark.parametrize("method", [m for m in METHODS if "loss" not in METHODS[m].unread])
def test_any_federated_method_trains_a_quantile_head(cube, tiny, method):
    settings = {**tiny, "loss": "quantile", "model": "mlp", "calendar": "none", "extra_lags": ""}
    settings |= {"service": "internet", "horizon": 2, "closeness": 3}
    forecaster = Forecaster(method, **read_by(method, settings)).fit(cube)
    forecasts = forecaster.test_forecasts()
    assert ((forecasts.lower <= forecasts.y_hat) & (forecasts.y_hat <= forecasts.upper)).all()
    assert 0 < rows(forecaster.evaluate(), "coverage")["all"] <= 1


@pytest.mark.repeats
def test_quantiles_learn_where_the_targets_lie():
    # Noise without pattern: the best 10 % and 90 % quantiles are those of the noise.
    hours = pd.date_range("2013-11-01", periods=24 * 40, freq="h")
    noise = np.random.default_rng(3).exponential(size=(len(hours), 4))
    settings = {"loss": "quantile", "quantiles": "0.1,0.5,0.9", "model": "mlp", "rounds": 20}
    settings |= {"split": "days:28,4,8", "periods": 0, "lr": 5e-3, "device": "cpu"}
    forecaster = Forecaster("fedavg", **settings).fit(pd.DataFrame(noise, hours))
    assert rows(forecaster.evaluate(), "coverage")["all"] == pytest.approx(0.8, abs=0.06)
    first = forecaster.test_forecasts()
    assert float(first.lower.mean()) == pytest.approx(-np.log(0.9), abs=0.12)
    assert float(first.y_hat.mean()) == pytest.approx(np.log(2), abs=0.12)


def test_no_intervals_are_asked_for_by_default(cube, tiny):
    forecaster = Forecaster("fuels", service="internet", **tiny).fit(cube)
    assert forecaster.predict_interval(cube) is None
    assert "lower" not in forecaster.test_forecasts()
    assert "coverage" not in set(forecaster.evaluate().metric)


def test_intervals_need_a_validation_part_and_a_pair(cube):
    forecaster = Forecaster(
        "last_value", service="internet", intervals="conformal", split="days:8,0,2"
    )
    with pytest.raises(InputError, match="validation"):
        forecaster.fit(cube)
    with pytest.raises(InputError, match=r"quantiles is '0\.5'"):
        Forecaster("last_value", intervals="conformal", quantiles="0.5")


@pytest.mark.repeats
@pytest.mark.sampled(2)
@pytest.mark.parametrize("method", ["ridge", "fedlean"])
def test_coverage_on_milan_is_near_what_is_asked_for(traffic_dir, method, tmp_path):
    from data_prep.sets.milan import prepare

    path = prepare(traffic_dir / "milan-25cells-raw", tmp_path / "milan.nc")
    settings = {"closeness": 6, "extra_lags": "23,25,167,168,169", "calendar": "week"}
    settings |= {"rounds": 3, "device": "cpu"} if method == "fedlean" else {}
    forecaster = Forecaster(
        method,
        service="internet",
        split="days:20,5,5",
        intervals="normalised",
        **settings,
    ).fit(path)
    coverage = rows(forecaster.evaluate(), "coverage")
    assert coverage["all"] == pytest.approx(0.9, abs=0.03)
    assert coverage.drop("all").between(0.83, 0.97).all()


def test_bounds_that_are_gone_or_do_not_fit_are_refused(cube, tmp_path):
    settings = {"service": "internet", "split": "days:7,1,2", "intervals": "normalised"}
    forecaster = Forecaster("last_value", **read_by("last_value", settings)).fit(cube)
    about = json.loads((forecaster.save(tmp_path) / "forecaster.json").read_text())
    arrays = load_file(tmp_path / "state.safetensors")
    assert arrays["interval/radius"].shape == (3, 1, 2)
    for name, wrong, message in (
        ("interval/radius", None, "no 'interval/radius'"),
        ("interval/radius", np.zeros((2, 1, 2)), r"shape \(2, 1, 2\)"),
        ("interval/most", np.full((3, 1, 2), np.nan), "most has values that are not numbers"),
        ("interval/scale/weights", None, "no 'interval/scale/weights'"),
    ):
        kept = {k: v for k, v in arrays.items() if k != name}
        damaged = kept if wrong is None else kept | {name: wrong}
        write_model(tmp_path, "forecaster.json", about, damaged)
        with pytest.raises(InputError, match=message):
            Forecaster.load(tmp_path)


def test_bounds_saved_by_earlier_versions_load(cube, tmp_path):
    settings = {"service": "internet", "split": "days:7,1,2", "intervals": "normalised"}
    forecaster = Forecaster("last_value", **settings).fit(cube)
    about = json.loads((forecaster.save(tmp_path) / "forecaster.json").read_text())
    for name in ("lower_limit", "upper_limit"):
        del about["settings"][name]
    arrays = load_file(tmp_path / "state.safetensors")
    arrays["interval/floor"] = np.zeros(3, dtype=np.float32)
    write_model(tmp_path, "forecaster.json", about, arrays)
    before, after = (f.predict_interval(cube) for f in (forecaster, Forecaster.load(tmp_path)))
    pd.testing.assert_frame_equal(before.lower, after.lower)
    pd.testing.assert_frame_equal(before.upper, after.upper)


def test_each_side_of_skewed_errors_misses_its_own_share():
    """Of bursts from a low level, as many lie above the upper bound as below the lower one."""
    data = prepared(np.random.default_rng(5).exponential(size=24 * 80))
    parts = [
        WindowBands(starts, Bands(y * 0, {0.8: (y * 0, y * 0)}), y, mask)
        for starts in (data.calibration, data.split.test)
        for y, mask in [data.targets(starts)]
    ]
    lower, upper = calibrate(data, *parts, IntervalOptions("normalised"))[0].bounds[0.8]
    y = parts[1].y
    below, above = (y < lower).mean(), (y > upper).mean()
    n = y.size  # Three standard errors of a share of 0.1.
    assert below == pytest.approx(0.1, abs=0.9 / n**0.5)
    assert above == pytest.approx(0.1, abs=0.9 / n**0.5)


def per_cent(n_days=24):
    """Hours of three cells between 0 and 100, often at 100."""
    hours = pd.date_range("2013-11-01", periods=24 * n_days, freq="h")
    daily = 80 + 40 * np.sin(2 * np.pi * hours.hour / 24)
    noise = 10 * np.random.default_rng(2).normal(size=(len(hours), 3))
    return pd.DataFrame((daily.to_numpy()[:, None] + noise).clip(0, 100), hours)


@pytest.mark.quick(3)
@pytest.mark.parametrize("how", ["conformal", "normalised", "none"])
def test_limits_hold_for_forecasts_and_bounds_and_are_saved(how, tmp_path):
    table = per_cent()
    settings = {"split": "days:14,5,5", "horizon": 6, "upper_limit": 100, "intervals": how}
    if how == "none":
        learned = {"loss": "quantile", "quantiles": "0.1,0.5,0.9", "rounds": 2}
        forecaster = Forecaster("fedavg", model="mlp", device="cpu", **settings, **learned)
    else:
        forecaster = Forecaster("ridge", **settings)
    loaded = Forecaster.load(forecaster.fit(table).save(tmp_path))
    tested = forecaster.test_forecasts()
    assert (tested.attrs["lower_limit"], tested.attrs["upper_limit"]) == (0, 100)
    assert float(tested.upper.max()) <= 100
    if how != "none":
        assert float(tested.upper.max()) == 100
        assert float((tested.upper >= tested.y).sel(cell=0).where(tested.y == 100, 1).mean()) > 0.8
    for model in (forecaster, loaded):
        assert model.limits == (0, 100)
        # The history stands at 400, from which the forecast leaves the limits.
        lower, upper = model.predict_interval(4 * table)
        assert upper.max(axis=None) == model.predict(4 * table).max(axis=None) == 100
        assert lower.max(axis=None) <= 100
        further = model.predict(4 * table, limits=(0, np.inf))
        for odd in ((50, 10), (np.nan, 10), (0, np.nan)):
            with pytest.raises(InputError, match="be lower"):
                model.predict(table, limits=odd)
        assert further.max(axis=None) > 100
    on_new = loaded.test_forecasts(table)
    assert float(on_new.upper.max()) <= 100


def test_limits_that_exclude_values_are_named(caplog):
    Forecaster("last_value", split="days:14,5,5", upper_limit=90).fit(per_cent())
    assert "-inf and 90" in caplog.text
    with pytest.raises(InputError, match="lower_limit is 5 and upper_limit is 5"):
        Forecaster("last_value", lower_limit=5, upper_limit=5)


def series_of_all_kinds(n):
    """Quarters of an hour: noise, drift, growing and heavy-tailed noise, constants, rare events."""
    rng, step = np.random.default_rng(n), np.arange(n)
    found = {
        "random": rng.normal(size=n),
        "drifting": np.cumsum(rng.normal(size=n)),
        "growing": rng.normal(size=n) * np.linspace(1, 9, n),
        "heavy": rng.standard_t(1.5, size=n),
        "constant": np.full(n, 7.0),
        "constant at first": np.where(step < 0.7 * n, 7.0, rng.random(n)),
        "tiny": 1e6 + np.sin(step),
        "rare": 100.0 * (rng.random(n) < 0.02),
    }
    return pd.DataFrame(found, pd.date_range("2024-01-01", periods=n, freq="15min"))


@pytest.mark.quick(3)
@pytest.mark.parametrize("horizon", [1, 24, 96, pytest.param(336, marks=pytest.mark.slow)])
def test_bounds_are_as_far_as_errors_were(horizon):
    table = series_of_all_kinds(3 * horizon + 300).sort_index(axis=1)
    settings = {"split": "steps:0.35,0.33,0.32", "horizon": horizon, "intervals": "normalised"}
    forecaster = Forecaster("last_value", quantiles="0.05,0.5,0.95", **settings).fit(table)
    tested, ahead = forecaster.test_forecasts(), forecaster.predict_interval(table)
    # Forecasts are values, so errors lie in the range; a bound is at most twice as far as an error.
    least, most = table.min(), table.max()
    reach = 2 * (most - least) + 1e-5 * table.abs().max()
    for lower, upper in (
        (tested.lower.min(["time", "horizon"]), tested.upper.max(["time", "horizon"])),
        (ahead.lower.min(), ahead.upper.max()),
    ):
        assert (lower.to_numpy() >= least - reach).all()
        assert (upper.to_numpy() <= most + reach).all()


def test_a_scale_does_not_carry_bounds_further_than_errors_were(monkeypatch):
    # The scale of a high level is e³; that of the validation part is 1.
    steep = ErrorScale(np.ones(1), np.ones((24, 1)), np.zeros(4), np.ones(4), np.eye(4)[2])
    monkeypatch.setattr(ErrorScale, "fit", lambda *_: steep)
    data = prepared(np.random.default_rng(8).normal(size=240))
    (y, mask), (later, seen) = map(data.targets, (data.calibration, data.split.test))
    zero, far = np.zeros(y.shape), np.full(later.shape, 9.0)
    known = WindowBands(data.calibration, Bands(zero, {0.8: (zero, zero)}), y, mask)
    coming = WindowBands(data.split.test, Bands(far, {0.8: (far, far)}), far + later, seen)
    found, after = calibrate(data, known, coming, IntervalOptions("normalised"))
    largest = np.maximum.accumulate(np.append(np.abs(y).max(), np.abs(later)))
    assert (found.bounds[0.8][1].ravel() - 9 <= 2 * largest[:-1] + 1e-5).all()
    band = Bands(far[:, :1], {0.8: (far[:, :1], far[:, :1])})
    ahead = after[0.8].calibrated(band, data.z, np.array([240]), data.calendar)
    assert ahead.bounds[0.8][1].item() - 9 <= 2 * largest[-1] + 1e-5


def test_far_bounds_are_warned_of(cube, caplog):
    settings = {"service": "internet", "split": "days:7,1,2", "intervals": "normalised"}
    forecaster = Forecaster("last_value", **settings).fit(cube)
    forecaster.predict_interval(cube)
    assert "observed ranges" not in caplog.text
    forecaster.model_.calibration.radius[1] = 1e4
    forecaster.model_.calibration.most[1] = np.inf
    forecaster.predict_interval(cube)
    assert mentions(caplog.text, "1 of 3", "3 observed")
    assert "cell 22, " in caplog.text


def test_renewed_radii_widen_at_once_and_narrow_halfway():
    before, newer = [4.0, 2.0, np.inf, 6.0], [2.0, 5.0, 3.0, np.inf]
    expected = [3.0, 5.0, 3.0, 6.0]  # The last counter was silent for as long.
    found = Calibration(*[np.array(before).reshape(1, 4, 1)] * 2).renewed(
        Calibration(*[np.array(newer).reshape(1, 4, 1)] * 2)
    )
    assert found.radius.ravel().tolist() == found.most.ravel().tolist() == expected


def test_bounds_that_contain_too_little_of_the_test_part_are_warned_of(caplog):
    hours = pd.date_range("2024-01-01", periods=24 * 28, freq="h")
    values = 100 + np.random.default_rng(0).normal(size=(len(hours), 2))
    forecaster = Forecaster("last_value", split="days:14,7,7", intervals="normalised")
    forecaster.fit(pd.DataFrame(values, hours)).evaluate()
    assert "test values" not in caplog.text
    values[-7 * 24 :] = 100 + 4 * (values[-7 * 24 :] - 100)
    shaken = forecaster.fit(pd.DataFrame(values, hours))
    errors = shaken.evaluate().query("metric == 'coverage' and client == 'all'")
    held = float(errors["value"].iloc[0])
    assert held < 0.85
    assert mentions(caplog.text, "90 %", f"{100 * held:.1f} %", "test")
    assert "validation part" in caplog.text


@pytest.mark.parametrize("intervals", ["normalised", "conformal"])
def test_the_value_of_a_constant_cell_is_within_its_bounds(intervals):
    hours = pd.date_range("2024-01-01", periods=24 * 21, freq="h")
    wave = np.random.default_rng(0).normal(size=len(hours))
    table = pd.DataFrame({"a": wave, "b": 7.3, "c": 2 * wave}, hours)
    settings = {"split": "days:11,5,5", "model": "linear", "rounds": 3, "intervals": intervals}
    forecaster = Forecaster("fedavg", **settings).fit(table)
    found = forecaster.test_forecasts().sel(cell="b")
    assert bool(((found.lower <= found.y) & (found.y <= found.upper)).all())
    lower, upper = forecaster.predict_interval(table)
    assert (lower["b"] <= 7.3).all()
    assert (upper["b"] >= 7.3).all()
