"""Parts of a forecast: they add up for any method, and are exact where a model is linear."""

import numpy as np
import pandas as pd
import pytest

from data_prep.base.errors import InputError
from stforecast import Forecaster
from stforecast.forecasting import mixed_forecasts
from stforecast.forecasting.explain import bar_rows, explain, shapley
from stforecast.forecasting.mixture import mixed

HOURS = pd.date_range("2024-03-04", periods=24 * 28, freq="h")


@pytest.fixture(scope="module")
def town():
    noise = np.random.default_rng(0).normal(size=(len(HOURS), 3))
    wave = np.sin(2 * np.pi * HOURS.hour.to_numpy() / 24)[:, None]
    return pd.DataFrame((10 + 4 * wave + noise) * [1, 3, 2], HOURS, ["a", "b", "c"])


def test_shapley_values_are_those_of_the_glove_game():
    """One left glove, two right ones: a pair is worth 1 (a textbook's game)."""
    base, found = shapley(
        lambda of: np.array([float("left" in of and len(of) > 1)]), ["left", "r1", "r2"]
    )
    assert base == 0
    values = {name: float(value[0]) for name, value in found.items()}
    assert values == pytest.approx({"left": 2 / 3, "r1": 1 / 6, "r2": 1 / 6})


@pytest.mark.parametrize(
    ("method", "settings"),
    [
        ("ridge", {}),
        ("ridge", {"calendar": "week", "holidays": "IE"}),
        ("boosting", {}),
        ("fedavg", {"rounds": 1}),
        ("fedavg", {"rounds": 1, "calendar": "day", "model": "mlp"}),
        ("fedtrees", {"rounds": 6}),
        ("fedlean", {"rounds": 2}),
        ("fedlean", {"rounds": 2, "pretrained": "none"}),
        ("fedlean", {"rounds": 2, "split": "days:10,7,11"}),
        ("fedlean", {"rounds": 2, "pretrained": "none", "split": "days:10,7,11"}),
        ("fedlean", {"rounds": 2, "holidays": "IE", "refit": "final"}),
        ("fedlean", {"rounds": 2, "loss": "quantile", "quantiles": "0.05,0.5,0.95"}),
        ("seasonal_week", {}),
    ],
)
def test_parts_add_up_to_the_forecast(town, method, settings):
    fitted = Forecaster(method, **{"horizon": 3, "split": "days:14,7,7", **settings}).fit(town)
    town = changed(town)
    found, expected = fitted.explain("b", town), fitted.predict(town)["b"]
    for table in filter(lambda of: of is not None, (found.read, found.model)):
        np.testing.assert_allclose(table.to_numpy().sum(axis=1), found.forecast, rtol=1e-6)
        assert table.any().all()
    np.testing.assert_allclose(found.forecast, expected, rtol=1e-5)
    assert ("holidays and events" in found.read) == ("holidays" in settings)
    names = [] if found.model is None else [*found.model]
    always, sometimes = parts_of(method, settings)
    assert {*always} <= {*names}
    assert names == [name for name in [*always, *sometimes] if name in names]


def changed(town):
    """Return readings whose last two days are higher, which recent errors show."""
    return pd.concat([town[:-48], town[-48:] * 1.5])


def parts_of(method, settings):
    """Return the names of a model's parts, and of those whose weights may be 0."""
    if method == "fedlean":
        own = ["map of all cells", "calendar and events", "own correction", "network of all cells"]
        network = ["pretrained network"] * ("pretrained" not in settings)
        weeks = ["weekly profile"] * ("split" not in settings)
        last = ["newest reading", "recent errors"] * bool(weeks or network)
        return own, [*weeks, *network, *last]
    reads = method == "fedtrees" or "calendar" in settings
    return (["trained model", "calendar and events"], []) if reads else ([], [])


def test_a_mixed_forecast_adds_its_weight_times_its_difference(town, monkeypatch):
    calls = []

    def noted(*args):
        calls.append((args[0], mixed(*args)[1]))
        return mixed(*args)

    fitted = Forecaster("fedlean", horizon=3, split="days:14,7,7", rounds=2).fit(town)
    monkeypatch.setattr(mixed_forecasts, "mixed", noted)
    parts = fitted.explain("b", changed(town)).model
    always, sometimes = parts_of("fedlean", {})
    parts = parts.reindex(columns=[*always, *sometimes], fill_value=0.0)
    forecasts, weights = calls[-1]
    steady, weekly, *others = (of[0, -1].double().numpy() for of in forecasts)
    own, *weights = weights[:, 0, -1].tolist()
    so_far, std = steady + own * (weekly - steady), fitted.model_.scaler.std[1]
    names = ["weekly profile", "pretrained network", "newest reading"]
    for name, other, weight in zip(names, others, weights, strict=False):
        np.testing.assert_allclose(
            parts[name], std * weight * (other - so_far), rtol=1e-4, atol=1e-4
        )
        so_far += weight * (other - so_far)
    assert parts["pretrained network"].abs().min() > 0.01
    assert parts["recent errors"].abs().max() > 0.01


def test_the_calendar_adds_its_coefficients_times_its_inputs(town):
    settings = {"calendar": "week", "holidays": "IE"}
    fitted = Forecaster("ridge", horizon=3, split="days:14,7,7", **settings).fit(town)
    found, model = fitted.explain("b", town), fitted.model_
    weights = model.latest.arrays["weights"][1]
    monday = [0, 1, 0, 1, 0, 0, 1]  # Midnight, neither Saturday nor Sunday, Easter Monday.
    expected = model.scaler.std[1] * (weights[:, -len(monday) :] @ monday)
    np.testing.assert_allclose(found.model["calendar and events"], expected, rtol=1e-4)
    holiday = model.scaler.std[1] * weights[:, -1]
    np.testing.assert_allclose(found.read["holidays and events"], holiday, rtol=1e-4)


def test_parts_that_are_zero_are_left_out(town):
    settings = {"horizon": 3, "split": "days:14,7,7", "holidays": "IE"}
    fitted = Forecaster("ridge", **settings).fit(town)
    assert "holidays and events" in fitted.explain("b", town).read
    plain = fitted.explain("b", town[:-24])
    assert "holidays and events" not in plain.read
    np.testing.assert_allclose(plain.read.sum(axis=1), plain.forecast, rtol=1e-6)


def test_parts_of_a_linear_model_are_its_weights_times_what_is_unusual(town):
    fitted = Forecaster("ridge", horizon=1, split="days:14,7,7", extra_lags="").fit(town)
    higher = town.copy()
    higher.iloc[-1, 0] += 10
    before, after = (fitted.explain("a", of).read.iloc[0] for of in (town, higher))
    moved = fitted.predict(higher)["a"].iloc[0] - fitted.predict(town)["a"].iloc[0]
    assert (after - before).sum() == pytest.approx(moved, rel=1e-4)
    # What is usual has moved, too, by a quarter of the change of one of four weeks.
    assert (after - before)["last three hours"] == pytest.approx(0.75 * moved, rel=1e-3)


@pytest.mark.parametrize("method", ["ridge", pytest.param("fedlean", marks=pytest.mark.repeats)])
def test_cells_that_are_explained_together_have_the_parts_of_each(town, method):
    settings = {"rounds": 2} if method == "fedlean" else {}
    fitted = Forecaster(method, horizon=3, split="days:14,7,7", **settings).fit(town)
    chosen = np.array([2, 0])
    together = explain(fitted.model_, fitted.read(town), chosen, of_model=False)
    for found, cell in zip(together, "ca", strict=True):
        alone = fitted.explain(cell, town)
        pd.testing.assert_frame_equal(found.read, alone.read, rtol=1e-4, atol=1e-4)
        assert found.model is None


def test_words_name_a_part_only_if_it_says_so(town):
    fitted = Forecaster("last_value", horizon=2, split="days:14,7,7").fit(town)
    higher = town.copy()
    higher.iloc[-1, 0] += 50
    found = fitted.explain("a", higher)
    text = found.words(found.forecast.index[0])
    assert text.endswith("above it mainly by last three hours")
    assert bar_rows(found.read.iloc[0])[2]["part"] == "last three hours"
    with pytest.raises(InputError, match="unknown cell 'z'"):
        fitted.explain("z", town)
