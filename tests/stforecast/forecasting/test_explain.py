"""Parts of a forecast: they add up for any method, and are exact where a model is linear."""

import numpy as np
import pandas as pd
import pytest

from data_prep.base.errors import InputError
from stforecast import Forecaster
from stforecast.forecasting.explain import bars, explain, shapley

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
        ("boosting", {}),
        ("fedavg", {"rounds": 1}),
        ("fedlean", {"rounds": 2}),
        ("seasonal_week", {}),
    ],
)
def test_parts_add_up_to_the_forecast(town, method, settings):
    fitted = Forecaster(method, horizon=3, split="days:14,7,7", **settings).fit(town)
    found, expected = fitted.explain("b", town), fitted.predict(town)["b"]
    for table in filter(lambda of: of is not None, (found.read, found.model)):
        np.testing.assert_allclose(table.to_numpy().sum(axis=1), found.forecast, rtol=1e-6)
    np.testing.assert_allclose(found.forecast, expected, rtol=1e-5)
    assert (found.model is not None) == (method == "fedlean")
    if found.model is not None:
        assert [*found.model][:3] == ["map of all cells", "own correction", "network of all cells"]


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
    assert bars(found.read.iloc[0])[2]["part"] == "last three hours"
    with pytest.raises(InputError, match="unknown cell 'z'"):
        fitted.explain("z", town)
