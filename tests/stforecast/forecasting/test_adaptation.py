"""Adaptation to new cells: the table's third cell is new, or copies of the cells are."""

import numpy as np
import pandas as pd
import pytest
import torch

from data_prep.base.errors import InputError
from stforecast import Forecaster
from stforecast.forecasting.config import read_by

KEEPING = ["fedlean", "fedavg", "fedrep", "fuels", "ditto", "pfedme", "fedda_clusters", "fedtrees"]
BASELINES = ["ridge", "historical_average", "boosting", "seasonal_day"]


@pytest.fixture(scope="module")
def fitted(table, tiny):
    """A forecaster of the first two cells for each method, fitted once."""
    cache = {}

    def fit(method, **settings):
        key = (method, *settings.items())
        if key not in cache:
            asked = {**tiny, **settings}
            if method == "fedtrees" or "model" in settings:  # models without this option
                del asked["hidden_size"]
            if method == "fedtrees":
                asked["extra_lags"] = "23h"
            cache[key] = Forecaster(method, **read_by(method, asked)).fit(table[[11, 22]])
        return cache[key]

    return fit


@pytest.mark.quick(2)
@pytest.mark.sampled(6)
@pytest.mark.parametrize("method", [*KEEPING, *BASELINES])
def test_known_cells_keep_their_forecasts_and_a_saved_model_has_those_of_all(
    fitted, method, table, tmp_path
):
    before = fitted(method).predict(table[[11, 22]])
    adapted = fitted(method).adapt(table[[33, 11, 22]], days=2)
    after = adapted.predict(table)
    assert after.columns.tolist() == [33, 11, 22]
    assert np.isfinite(after.to_numpy()).all()
    np.testing.assert_allclose(after[[11, 22]], before, rtol=1e-5)
    loaded = Forecaster.load(adapted.save(tmp_path), device="cpu")
    pd.testing.assert_frame_equal(loaded.predict(table), after)


@pytest.mark.quick(3)
@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "method", ["fedlean", "fedavg", "fedda", "fedtrees", "central", "boosting"]
)
def test_a_copy_of_a_known_cell_has_its_forecast_from_the_shared_part(fitted, method, table):
    settings = {"shrinkage": 0.0} if method == "fedlean" else {}
    copied = table[[11]].rename(columns={11: 44})
    forecaster = fitted(method, scale="global", **settings)
    adapted = forecaster.adapt(copied, days=0)
    known = forecaster.predict(table[[11, 22]])
    np.testing.assert_allclose(adapted.predict(copied)[44], known[11], rtol=1e-5)


@pytest.mark.quick(2)
@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    "method", ["fedlean", "fedrep", "fuels", "ditto", "pfedme", "solo", "fedcp", "fedala"]
)
def test_days_of_history_change_the_personal_part_alone(fitted, method, table):
    forecaster, new = fitted(method, scale="global"), table[[33]]
    adapted = [forecaster.adapt(new, days) for days in (1, 4)]
    first, second = (a.predict(new) for a in adapted)
    assert not np.array_equal(first, second)
    servers = [a.model_.predictor.snapshot.server for a in adapted]
    for name, t in servers[0].items():
        assert torch.equal(t, servers[1][name])


def test_only_the_last_days_train_and_the_steps_before_are_inputs(fitted, table):
    """Ridge reads three days back, so two days depend on the last five."""
    forecaster, new = fitted("ridge", scale="global"), table[[33]]
    older, inputs = new.copy(), new.copy()
    older.iloc[: 24 * 5], inputs.iloc[24 * 5 : 24 * 6] = 300.0, 300.0
    same, other = (forecaster.adapt(h, 2).predict(new) for h in (older, inputs))
    expected = forecaster.adapt(new, 2).predict(new)
    np.testing.assert_allclose(same, expected, rtol=1e-9)
    assert not np.allclose(other, expected, rtol=1e-6)


def test_a_new_cell_is_scaled_by_its_history_or_by_the_mean_of_the_trained_ones(fitted, table):
    forecaster = fitted("fedavg")
    silent = table[[33]].assign(**{"44": np.nan, "55": 7.0}).rename(columns=int)
    scaler = forecaster.adapt(silent, days=1).model_.scaler
    mean, std = forecaster.model_.scaler.mean.mean(), forecaster.model_.scaler.std.mean()
    np.testing.assert_allclose(scaler.mean, [table[33].mean(), mean, 7.0])
    np.testing.assert_allclose(scaler.std, [table[33].std(ddof=0), std, std])


def test_a_cell_without_a_reading_and_a_short_history_are_forecast(fitted, table):
    adapted = fitted("fedavg").adapt(
        table[[33]].assign(**{"44": np.nan}).rename(columns=int)[-24:], days=1
    )
    forecast = adapted.predict(table[[33]].assign(**{"44": np.nan}).rename(columns=int)[-5:])
    assert np.isfinite(forecast.to_numpy()).all()
    assert forecast.index[0] == pd.Timestamp("2013-11-11")


def test_fine_tuning_makes_a_model_of_fedavg_ft_whose_known_cells_are_as_before(fitted, table):
    forecaster = fitted("fedavg")
    tuned = forecaster.adapt(table, days=3, fine_tune=5)
    plain = forecaster.adapt(table, days=3)
    assert (tuned.config.method, tuned.config.method_options.personal_epochs) == ("fedavg_ft", 5)
    known, new = [11, 22], 33
    np.testing.assert_allclose(tuned.predict(table)[known], plain.predict(table)[known], rtol=1e-5)
    assert not np.allclose(tuned.predict(table)[new], plain.predict(table)[new], rtol=1e-6)


@pytest.mark.parametrize(
    ("method", "settings", "options", "message"),
    [
        ("solo", {}, {"days": 0}, "shares nothing"),
        ("ridge", {}, {"days": 0}, "each cell"),
        ("boosting", {"cell_id": True}, {}, "distinguishes"),
        ("central", {"model": "stid"}, {}, "distinguishes"),
        ("fedavg", {"clients": "many.csv"}, {}, "clients is"),
        ("fedavg", {}, {"days": 11}, "10 days, .*11"),
        ("fedavg", {"horizon": 30, "split": "days:6,2,2"}, {"days": 1}, "30 steps"),
        ("fedavg", {}, {"days": -1}, "days is -1"),
        ("fedavg", {}, {"days": 0, "fine_tune": 1}, "fine_tune needs days"),
        ("fedtrees", {}, {"fine_tune": 1}, "be fine-tuned"),
        ("ridge", {}, {"fine_tune": 1}, "in rounds"),
    ],
)  # fmt: skip
def test_what_cannot_be_adapted_is_refused_in_one_line(
    fitted, method, settings, options, message, table, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "many.csv").write_text("cell,client\n11,a\n22,a\n")
    with pytest.raises(InputError, match=message) as e:
        fitted(method, **settings).adapt(table, **options)
    assert "\n" not in str(e.value)
    assert "--" not in str(e.value)


def test_a_history_without_new_cells_is_refused(fitted, table):
    with pytest.raises(InputError, match="its 2 cells"):
        fitted("fedavg").adapt(table[[11, 22]])


def test_bounds_of_a_new_cell_have_the_mean_width_of_the_known_ones(table, tiny):
    forecaster = Forecaster(
        "seasonal_day", **read_by("seasonal_day", tiny), intervals="conformal"
    ).fit(table[[11, 22]])
    adapted = forecaster.adapt(table)
    lower, upper = adapted.predict_interval(table, limits=(-np.inf, np.inf))
    width = (upper - lower).iloc[0] / adapted.model_.scaler.std
    known = forecaster.predict_interval(table[[11, 22]], limits=(-np.inf, np.inf))
    np.testing.assert_allclose(
        width[[11, 22]], (known.upper - known.lower).iloc[0] / forecaster.model_.scaler.std
    )
    half = adapted.model_.calibration.radius[:, 0]
    np.testing.assert_allclose(half[2], half[:2].mean())


def test_errors_of_new_cells_are_measured_on_other_data(fitted, table):
    adapted = fitted("fedlean").adapt(table[:192], days=3)
    errors = adapted.evaluate(table)
    assert set(errors["client"]) == {"11", "22", "33", "all"}


@pytest.mark.quick(4)
@pytest.mark.parametrize("method", ["fuels", "fedda", "fedtrees", "fedavg"])
def test_the_servers_state_of_the_same_clients_is_unchanged(method, fitted):
    trained = fitted(method).model_.predictor
    server = trained.snapshot.server
    again = trained.method.server_for(server, torch.arange(2))
    assert server.keys() == again.keys()
    for name, t in server.items():
        assert torch.equal(t, again[name])


def test_a_new_client_of_fedlean_has_a_penalty_that_counts_its_windows(fitted):
    method = fitted("fedlean").model_.predictor.models[-1].method
    assert method.for_share(0.25).options.shrinkage == 4 * method.options.shrinkage
    assert method.for_share(0.25).options.ridge == method.options.ridge
