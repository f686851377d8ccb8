"""Options of ridge and trees that are chosen on the validation part."""

import dataclasses
import itertools

import numpy as np
import pandas as pd
import pytest

from data_prep.base.errors import InputError
from stforecast import Forecaster
from stforecast.baselines import trees as pooled_trees
from stforecast.baselines.ridge import ALPHAS, Ridge, RidgeConfig
from stforecast.baselines.trees import Boosting, BoostingConfig, LightGBM, LightGBMOptions
from stforecast.data.clock import Calendar
from stforecast.data.window_spec import WindowSpec
from stforecast.data.windows import target_windows
from stforecast.forecasting.config import read_by

HOURLY = Calendar(pd.Timestamp("2013-11-01"), pd.Timedelta("1h"))
TRAIN, VALIDATION = np.arange(30, 180), np.arange(180, 260)
SPEC = WindowSpec(closeness=3, periods=1, period=24, horizon=2)
KINDS = {Ridge: RidgeConfig, Boosting: BoostingConfig, LightGBM: LightGBMOptions}
GIVEN = {
    Ridge: {"alpha": 7.0},
    Boosting: {"max_iter": 4, "learning_rate": 0.3, "max_leaf_nodes": 5},
    LightGBM: {"num_iterations": 4, "learning_rate": 0.3, "num_leaves": 5},
}


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(pooled_trees, "MOST_TREES", 6)


def series():
    rng = np.random.default_rng(0)
    values = np.sin(2 * np.pi * np.arange(300) / 24)[:, None] + 0.5 * rng.normal(size=(300, 3))
    values[rng.random(values.shape) < 0.05] = np.nan
    return values


def fitted(kind, validation=VALIDATION, values=None, **options):
    if kind is LightGBM:
        pytest.importorskip("lightgbm", reason="the extra peers is not installed")
    values = series() if values is None else values
    return kind(KINDS[kind](**options)).fit(values, TRAIN, SPEC, HOURLY, validation)


def validation_error(model):
    y, mask = target_windows(series(), VALIDATION, SPEC)
    y_hat = model.predict(series(), VALIDATION, HOURLY)
    return np.square((y_hat - y)[mask], dtype=np.float64).mean()


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_chosen_has_the_lowest_validation_error_of_all(kind):
    tuned = fitted(kind, tune=True)
    if kind is Ridge:
        choices = {"alpha": ALPHAS}
    else:
        trees, leaves = kind.trees[0], kind.leaves[0]
        choices = {
            "learning_rate": pooled_trees.RATES,
            leaves: pooled_trees.LEAVES,
            trees: (2, getattr(tuned.config, trees)),
        }
    errors = [
        validation_error(fitted(kind, tune=True, **dict(zip(choices, values, strict=True))))
        for values in itertools.product(*choices.values())
    ]
    assert validation_error(tuned) == pytest.approx(min(errors), rel=1e-6)
    assert len({round(error, 6) for error in errors}) > 3


@pytest.mark.parametrize("kind", KINDS)
def test_options_that_are_given_stay(kind):
    for name, value in GIVEN[kind].items():
        tuned = fitted(kind, tune=True, **{name: value})
        assert getattr(tuned.config, name) == value
        assert None not in [getattr(tuned.config, other) for other in GIVEN[kind]]
    # With all of them given there is nothing to choose, and no validation part is needed.
    fixed = fitted(kind, validation=None, tune=True, **GIVEN[kind])
    plain = fitted(kind, **GIVEN[kind])
    np.testing.assert_allclose(
        fixed.predict(series(), VALIDATION, HOURLY),
        plain.predict(series(), VALIDATION, HOURLY),
        rtol=0, atol=1e-6,
    )  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_the_model_is_fitted_to_the_training_part_alone(kind):
    tuned = fitted(kind, tune=True)
    options = {name: getattr(tuned.config, name) for name in GIVEN[kind]}
    cut = series()
    cut[TRAIN[-1] + SPEC.horizon :] = np.nan
    again = fitted(kind, validation=None, values=cut, tune=True, **options)
    np.testing.assert_allclose(
        again.predict(series(), VALIDATION, HOURLY),
        tuned.predict(series(), VALIDATION, HOURLY),
        rtol=0, atol=1e-6,
    )  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_chosen_without_validation_targets(kind):
    gap = series()
    gap[180:] = np.nan
    for validation, values in ((None, None), (VALIDATION[:0], None), (VALIDATION, gap)):
        with pytest.raises(InputError, match="tune needs observed targets in the validation part"):
            fitted(kind, validation, values, tune=True)


@pytest.mark.parametrize("method", ["ridge", "boosting", "lightgbm"])
def test_a_forecaster_keeps_what_it_chose(table, method, tmp_path):
    if method == "lightgbm":
        pytest.importorskip("lightgbm", reason="the extra peers is not installed")
    settings = {"split": "days:6,1,3", "target": "validation", "tune": True, "refit": "daily"}
    forecaster = Forecaster(method, **read_by(method, settings)).fit(table)
    chosen = forecaster.config
    assert chosen.window.target != "validation"
    assert None not in dataclasses.asdict(chosen.method_options).values()
    # Loaded, refitted and asked for by name, these options give the same forecasts.
    loaded = Forecaster.load(forecaster.save(tmp_path))
    assert loaded.config == chosen
    pd.testing.assert_frame_equal(loaded.predict(table), forecaster.predict(table))
    by_name = Forecaster.recorded(chosen.flat()).fit(table)
    assert by_name.test_forecasts().identical(forecaster.test_forecasts())
