import numpy as np
import pandas as pd
import pytest
from mentions import mentions

from data_prep.base.errors import InputError
from stforecast import Forecaster
from stforecast.forecasting.config import read_by
from stforecast.forecasting.fit import Fitted

WINDOW = {"closeness": 3, "periods": 0}


@pytest.mark.parametrize("method", ["historical_average", "ridge", "fedavg"])
def test_a_sliding_window_learns_nothing_from_before_it(table, tiny, method):
    """Values before the training part and its inputs change neither scaler nor model."""
    first, validation, test, end = (table.index[24 * day] for day in (3, 6, 7, 9))
    split = f"dates:{first}/{validation},{validation}/{test},{test}/{end}"
    changed = table.copy()
    changed.iloc[: 24 * 3 - 3] = np.random.default_rng(0).uniform(1, 99, (24 * 3 - 3, 3))
    settings = {**(tiny if method == "fedavg" else {}), **WINDOW, "split": split}
    forecasters = [
        Forecaster(method, **read_by(method, settings)).fit(data) for data in (table, changed)
    ]
    before, after = (f.predict(table.iloc[: 24 * 7]) for f in forecasters)
    pd.testing.assert_frame_equal(before, after)
    scalers = (f.model_.scaler for f in forecasters)
    np.testing.assert_array_equal(*(scaler.mean for scaler in scalers))
    assert forecasters[0].data_.parts()["training"]["first"] == str(table.index[24 * 3])


def drifting(n_days=10):
    """Three random walks: the last value says nearly all, the mean of the training part nothing."""
    hours = pd.date_range("2013-11-01", periods=24 * n_days, freq="h")
    steps = np.random.default_rng(0).normal(size=(len(hours), 3))
    return pd.DataFrame(steps.cumsum(0), hours, pd.Index([11, 22, 33]))


LEARNERS = {
    "ridge": {"horizon": 30},
    "boosting": {"horizon": 2, "max_iter": 5},
    "fedavg": {"horizon": 30, "model": "mlp", "loss": "quantile", "rounds": 1, "device": "cpu"},
    "central": {"horizon": 30, "model": "mlp", "rounds": 1, "device": "cpu"},
}


@pytest.mark.quick(3)
@pytest.mark.sampled(4)
@pytest.mark.parametrize("target", ["change", "day", "validation"])
@pytest.mark.parametrize("method", LEARNERS)
def test_forecasts_of_every_target_are_levels_before_and_after_saving(
    table, method, target, tmp_path
):
    settings = {**WINDOW, "split": "days:6,2,2", "target": target, **LEARNERS[method]}
    # Far from the mean of the training part, so that a lost anchor is seen.
    far = table.copy()
    far.iloc[-48:] += 10 * table.std()
    forecaster = Forecaster(method, **read_by(method, settings)).fit(far)
    forecast = forecaster.predict(far)
    loaded = Forecaster.load(forecaster.save(tmp_path), device="cpu")
    assert loaded.config.window.target == forecaster.config.window.target != "validation"
    pd.testing.assert_frame_equal(loaded.predict(far), forecast)
    assert forecaster.find_leaks(far) == []


@pytest.mark.repeats
@pytest.mark.sampled(3)
@pytest.mark.parametrize("method", ["ridge", "boosting", "fedavg"])
def test_the_target_of_the_lowest_validation_error_is_kept(method, caplog):
    data = drifting()
    settings = {**WINDOW, "split": "days:6,2,2"}
    if method == "fedavg":
        settings |= {"rounds": 2, "device": "cpu", "model": "mlp"}

    def validated(target):
        fitted = Forecaster(method, target=target, **read_by(method, settings)).fit(data)
        errors = fitted.evaluate().set_index(["split", "selection", "metric", "client", "horizon"])
        return fitted, errors["value"].loc["validation", "best", "mse", "all", "all"]

    with caplog.at_level("INFO", "stforecast"):
        chosen, error = validated("validation")
    each = {target: validated(target) for target in ("level", "change", "day", "week")}
    assert error == min(e for _, e in each.values())
    target = chosen.config.window.target
    assert each[target][1] == error
    assert chosen.asked.window.target == "validation"
    assert mentions(caplog.text, f"target: {target},", "MSE (level ")
    pd.testing.assert_frame_equal(chosen.predict(data), each[target][0].predict(data))
    if method != "ridge":  # Its inputs hold the last value, so level and change are alike.
        assert target == "change"


def test_equal_errors_keep_the_level(table):
    """Before a week has passed, every anchor of a week is 0."""
    settings = {**WINDOW, "split": "days:4,1,1", "alpha": 1e9}
    data = table.iloc[: 24 * 6]
    each = [
        Forecaster("ridge", target=target, **read_by("ridge", settings))
        .fit(data)
        .evaluate()["value"]
        for target in ("level", "week")
    ]
    assert each[0].equals(each[1])
    lowest = Forecaster("ridge", target="validation", **read_by("ridge", settings)).fit(data)
    assert lowest.config.window.target != "week"


def test_a_target_cannot_be_chosen_without_validation_targets(table):
    gap = table.copy()
    gap.iloc[24 * 6 : 24 * 8] = np.nan
    with pytest.raises(InputError, match="observed validation"):
        Forecaster(
            "ridge", **read_by("ridge", WINDOW), split="days:6,2,2", target="validation"
        ).fit(gap)


@pytest.mark.quick(2)
@pytest.mark.parametrize("loss", ["mse", "quantile"])
def test_a_model_that_adds_the_last_value_learns_level_and_change_alike(table, loss):
    settings = {**WINDOW, "split": "days:6,2,2", "model": "linear", "rounds": 2, "device": "cpu"}
    level, change = (
        Forecaster("fedavg", target=target, loss=loss, **settings).fit(table).predict(table)
        for target in ("level", "change")
    )
    pd.testing.assert_frame_equal(level, change, rtol=1e-4)


@pytest.mark.parametrize("target", ["change", "validation"])
def test_the_naive_do_not_read_it_and_say_so(table, target):
    with pytest.raises(InputError, match=r"seasonal_day.*target"):
        Forecaster("seasonal_day", target=target)
    naive, same = (Forecaster("seasonal_day", split="days:6,2,2") for _ in range(2))
    naive.asked = naive.asked.with_target(target)
    assert naive.fit(table).config == same.fit(table).config
    pd.testing.assert_frame_equal(naive.predict(table), same.predict(table))


def test_a_history_must_reach_back_to_the_anchors(table):
    forecaster = Forecaster(
        "ridge", **read_by("ridge", WINDOW), split="days:8,1,1", target="week"
    ).fit(table)
    with pytest.raises(InputError, match="168 steps"):
        forecaster.predict(table.iloc[-100:])


def test_a_target_whose_error_is_not_finite_is_not_kept(table, monkeypatch):
    def error(fitted):
        return {"level": np.nan, "change": 2.0, "day": 1.0}.get(fitted.config.window.target, 3.0)

    monkeypatch.setattr(Fitted, "validation_mse", property(error))
    forecaster = Forecaster(
        "ridge", **read_by("ridge", WINDOW), split="days:6,2,2", target="validation"
    ).fit(table)
    assert forecaster.config.window.target == "day"
