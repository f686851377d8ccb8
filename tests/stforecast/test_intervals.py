import json

import numpy as np
import pandas as pd
import pytest
from safetensors.numpy import load_file

from data_prep.errors import InputError
from stforecast import Forecaster
from stforecast.federated.runs.model_files import write_model
from stforecast.intervals import (
    Bands,
    IntervalOptions,
    adaptive_radii,
    calibrated,
    conformal_radius,
    scores,
    widened,
)
from stforecast.methods import METHODS
from stforecast.metrics.quantiles import pair_coverages
from stforecast.metrics.tables import evaluate_intervals


def shaped(values):
    """One cell and one step ahead."""
    return np.array(values, dtype=float).reshape(1, -1, 1)


def test_scores_are_negative_inside_and_nan_where_nothing_was_observed():
    bounds = (shaped([0, 0, 0, 0]), shaped([4, 4, 4, 4]))
    mask = np.array([True, True, True, False]).reshape(1, 4, 1)
    found = scores(bounds, shaped([-2, 1, 7, 9]), mask)
    np.testing.assert_array_equal(found, shaped([2, -1, 3, np.nan]))


@pytest.mark.parametrize(
    # ⌈(n + 1) c⌉ of n = 9 scores 1 … 9; the tenth of nine is not there.
    ("coverage", "radius"),
    [(0.5, 5.0), (0.8, 8.0), (0.85, 9.0), (0.9, 9.0), (0.91, np.inf)],
)
def test_the_radius_is_the_corrected_quantile(coverage, radius):
    known = np.random.default_rng(0).permutation(np.arange(1.0, 10.0))
    assert conformal_radius(shaped(known), coverage).item() == radius


def test_what_was_not_observed_does_not_count():
    known = shaped([3, np.nan, 1, 2, np.nan, 4])
    assert conformal_radius(known, 0.8).item() == 4.0
    assert np.isinf(conformal_radius(shaped([np.nan, np.nan]), 0.5).item())


def test_clients_and_steps_are_calibrated_apart():
    known = np.stack([np.arange(1.0, 10), 10 * np.arange(1.0, 10)])[..., None]
    known = np.concatenate([known, 100 * known], axis=-1)
    np.testing.assert_array_equal(conformal_radius(known, 0.5), [[5, 500], [50, 5000]])


def test_exchangeable_errors_are_covered_as_promised():
    rng = np.random.default_rng(1)
    trials, n, coverage = 4000, 19, 0.9
    radius = conformal_radius(np.abs(rng.normal(size=(trials, n, 1))), coverage)
    inside = np.abs(rng.normal(size=(trials, 1))) <= radius
    # Exactly 18 / 20 on average; without the correction it would be 17.1 / 20.
    assert inside.mean() == pytest.approx(0.9, abs=0.015)


def test_adaptive_levels_follow_the_papers_rule():
    known, coming = shaped(range(1, 10)), shaped([9.5, 0, 0, 12])
    radii = adaptive_radii(known, coming, 0.8, rate=0.1)
    # α: 0.2, missed → 0.12, held → 0.14, held → 0.16, missed → 0.08; ranks ⌈10 (1 - α)⌉.
    np.testing.assert_array_equal(radii.ravel(), [8, 9, 9, 9, 12])


def test_adaptive_intervals_know_a_miss_only_when_its_target_is_past():
    known = np.repeat(shaped(range(1, 10)), 3, axis=2)
    coming = np.zeros((1, 6, 3))
    coming[0, 0] = 99.0
    radii = adaptive_radii(known, coming, 0.5, rate=0.3)
    # The miss of window 0, h + 1 steps ahead, moves the radius of window h + 1 and not before.
    for h in range(3):
        assert set(radii[0, : h + 1, h]) == {5.0}
        assert radii[0, h + 1, h] > 5.0
    changed = coming.copy()
    changed[0, 3:] = 50.0
    again = adaptive_radii(known, changed, 0.5, rate=0.3)
    np.testing.assert_array_equal(radii[:, :4], again[:, :4])


def test_a_missing_target_changes_no_level():
    known = shaped(range(1, 10))
    radii = adaptive_radii(known, shaped([np.nan] * 5), 0.5, rate=0.5)
    assert set(radii.ravel()) == {5.0}


def test_adaptive_intervals_reach_their_coverage_after_a_drift():
    rng = np.random.default_rng(2)
    known, drifted = rng.normal(size=(20, 100, 1)), 3 * rng.normal(size=(20, 400, 1))
    known, drifted = np.abs(known), np.abs(drifted)
    fixed = conformal_radius(known, 0.9)[:, None]
    adaptive = adaptive_radii(known, drifted, 0.9, rate=0.05)[:, :-1]
    assert (drifted <= fixed).mean() < 0.5
    assert (drifted[:, 100:] <= adaptive[:, 100:]).mean() == pytest.approx(0.9, abs=0.03)


def test_bounds_never_pass_the_forecast():
    bands = Bands(shaped([5.0]), {0.9: (shaped([3.0]), shaped([8.0]))})
    narrow = widened(bands, {0.9: shaped([-9.0])}).bounds[0.9]
    assert [b.item() for b in narrow] == [5.0, 5.0]
    wide = widened(bands, {0.9: shaped([1.0])}).bounds[0.9]
    assert [b.item() for b in wide] == [2.0, 9.0]


def test_quantiles_are_conformalised_from_where_they_are():
    y, mask = shaped(range(9)), np.ones((1, 9, 1), bool)
    low, high = y - 1, y + 1  # Too wide by 1 everywhere: every score is -1.
    known = (Bands(y, {0.8: (low, high)}), y, mask)
    test = (
        Bands(shaped([50.0]), {0.8: (shaped([40.0]), shaped([60.0]))}),
        shaped([50]),
        mask[:, :1],
    )
    bands, after = calibrated(known, test, IntervalOptions("conformal"))
    assert [b.item() for b in bands.bounds[0.8]] == [41.0, 59.0]
    assert after[0.8].item() == -1.0


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


@pytest.mark.parametrize("how", ["conformal", "adaptive"])
@pytest.mark.parametrize("method", ["last_value", "fuels"])
def test_any_forecaster_gets_intervals(cube, tiny, method, how):
    settings = {**tiny, "service": "internet", "intervals": how, "horizon": 2}
    settings = (
        settings if method == "fuels" else {k: v for k, v in settings.items() if k != "hidden_size"}
    )
    forecaster = Forecaster(method, **settings).fit(cube)
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


def test_a_saved_model_gives_the_same_bounds(cube, tiny, tmp_path):
    forecaster = Forecaster("fuels", service="internet", intervals="conformal", **tiny).fit(cube)
    forecaster.save(tmp_path)
    loaded = Forecaster.load(tmp_path, device="cpu")
    history = cube.isel(time=slice(200))
    before, after = (f.predict_interval(history, 3) for f in (forecaster, loaded))
    pd.testing.assert_frame_equal(before.lower, after.lower)
    point = loaded.predict(history, 3)
    assert (after.lower.iloc[0] < point.iloc[0]).all()
    assert (point.iloc[0] < after.upper.iloc[0]).all()
    assert after.upper.iloc[1:].isna().all(axis=None), "nothing is known beyond the horizon"
    # In the test part the first window's bounds are those that the run reports.
    start = cube.isel(time=slice(int(forecaster.split.test[0])))
    first = forecaster.test_forecasts().isel(time=0, horizon=0)
    np.testing.assert_allclose(loaded.predict_interval(start).upper.iloc[0], first.upper, rtol=1e-5)


def test_a_quantile_head_forecasts_its_levels_in_order(cube, tiny):
    settings = {**tiny, "loss": "quantile", "quantiles": "0.1,0.3,0.5,0.7,0.9", "horizon": 2}
    forecaster = Forecaster("fuels", service="internet", **settings).fit(cube)
    fitted = forecaster._chosen()
    z = forecaster.scaler.transform(cube["internet"].to_numpy())
    starts, calendar = np.arange(200, 206), forecaster._evaluated().data.calendar
    quantiles = fitted.quantiles(z, starts, calendar)
    assert quantiles.shape == (3, 6, 2, 5)
    assert (np.diff(quantiles) >= 0).all()
    np.testing.assert_array_equal(fitted.predict(z, starts, calendar), quantiles[..., 2])
    table = forecaster.evaluate()
    assert forecaster.test_forecasts().attrs["coverage"] == pytest.approx(0.8)
    assert rows(table, "crps")["all"] > 0
    assert forecaster.predict_interval(cube).lower.attrs["coverage"] == pytest.approx(0.8)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("method", METHODS)
def test_any_federated_method_trains_a_quantile_head(cube, tiny, method):
    settings = {**tiny, "loss": "quantile", "model": "mlp", "calendar": "none", "extra_lags": ""}
    settings |= {"service": "internet", "horizon": 2, "closeness": 3}
    forecaster = Forecaster(method, **settings).fit(cube)
    forecasts = forecaster.test_forecasts()
    assert ((forecasts.lower <= forecasts.y_hat) & (forecasts.y_hat <= forecasts.upper)).all()
    assert 0 < rows(forecaster.evaluate(), "coverage")["all"] <= 1


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
    with pytest.raises(InputError, match="calibrated on the validation part"):
        forecaster.fit(cube)
    with pytest.raises(InputError, match=r"quantiles is '0\.5'; intervals need a pair"):
        Forecaster("last_value", intervals="conformal", quantiles="0.5")


@pytest.mark.parametrize("method", ["ridge", "fedlean"])
def test_coverage_on_milan_is_near_what_is_asked_for(traffic_dir, method, tmp_path):
    from data_prep.milan import prepare

    path = prepare(traffic_dir / "milan-25cells-raw", tmp_path / "milan.nc")
    settings = {"closeness": 6, "extra_lags": "23,25,167,168,169", "calendar": "week"}
    settings |= {"rounds": 3, "device": "cpu"} if method == "fedlean" else {}
    forecaster = Forecaster(
        method,
        service="internet",
        split="days:20,5,5",
        intervals="adaptive",
        adapt_rate=0.05,
        **settings,
    ).fit(path)
    coverage = rows(forecaster.evaluate(), "coverage")
    assert coverage["all"] == pytest.approx(0.9, abs=0.03)
    assert coverage.drop("all").between(0.83, 0.97).all()


def test_bounds_that_are_gone_or_do_not_fit_are_refused(cube, tmp_path):
    settings = {"service": "internet", "split": "days:7,1,2", "intervals": "conformal"}
    forecaster = Forecaster("last_value", **settings).fit(cube)
    about = json.loads((forecaster.save(tmp_path) / "forecaster.json").read_text())
    arrays = load_file(tmp_path / "state.safetensors")
    assert arrays["interval/radius"].shape == (3, 1)
    for wrong, message in ((None, "no 'interval/radius'"), (np.zeros((2, 1)), r"shape \(2, 1\)")):
        kept = {k: v for k, v in arrays.items() if k != "interval/radius"}
        arrays = kept if wrong is None else kept | {"interval/radius": wrong}
        write_model(tmp_path, "forecaster.json", about, arrays)
        with pytest.raises(InputError, match=message):
            Forecaster.load(tmp_path)
