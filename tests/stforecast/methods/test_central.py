"""Central training against plain gradient steps on all cells' records together."""

import numpy as np
import pandas as pd
import pytest

from data_prep.base.errors import InputError
from stforecast import Forecaster
from stforecast.data.clients import Partition
from stforecast.data.clock import Calendar
from stforecast.data.prepared import PreparedSeries
from stforecast.data.scaling import Scaler
from stforecast.data.series import Series
from stforecast.data.splits import Split
from stforecast.forecasting.config import resolve
from stforecast.forecasting.trained_method import TrainedMethod, train

CALENDAR = Calendar(pd.Timestamp("2013-11-01"), pd.Timedelta("1h"))
WINDOW = {"closeness": 3, "periods": 0, "period": 24, "horizon": 2}
STARTS = np.arange(3, 43)
ALL = Partition.from_labels(["all"] * 4)
SPLIT = Split(STARTS[:30], STARTS[30:35], STARTS[35:], slice(0, 33))


@pytest.fixture
def series():
    values = np.random.default_rng(0).normal(size=(44, 4))
    values[10:14, 2] = np.nan
    return values


def fit(series, adjacency=None, **settings):
    config = resolve("central", **{**WINDOW, "device": "cpu", "rounds": 2, **settings})
    times = CALENDAR.local_times(np.arange(len(series)))
    raw = Series(series, np.arange(4), times, CALENDAR, "value", "1", "noise", adjacency=adjacency)
    scaler = Scaler(np.zeros(1), np.ones(1))
    return train(config, PreparedSeries(raw, config.window, SPLIT, scaler, series, ALL))


def test_a_step_is_a_gradient_step_on_the_pooled_records(series):
    """Of Linear without normalising: ∂/∂W of the mean of (x W + b - y)² over observed targets."""
    settings = {"optimizer": "sgd", "lr": 0.3, "rounds": 2, "batch_size": 30}
    fitted, federation = fit(series, model="linear", normalise="none", **settings)
    initial = federation.method.population.initial()
    w = initial["encoder.weight"][0].double().numpy()
    b = initial["head.bias"][0].double().numpy()
    x = np.concatenate([series[s - 3 : s].T for s in SPLIT.train])
    y = np.concatenate([series[s : s + 2].T for s in SPLIT.train])
    x, seen = np.nan_to_num(x), ~np.isnan(y)
    for _ in range(2):
        error = np.where(seen, x @ w + b - np.nan_to_num(y), 0) * 2 / seen.sum()
        w, b = w - 0.3 * x.T @ error, b - 0.3 * error.sum(0)
    params = fitted["last"].snapshot.clients.params
    np.testing.assert_allclose(params["encoder.weight"], w[None], atol=1e-6)
    np.testing.assert_allclose(params["head.bias"], b[None], atol=1e-6)


def test_there_is_one_client_that_sends_nothing(series):
    _, federation = fit(series, model="mlp", calendar="day", batch_size=10)
    assert len(federation.state.clients) == 1
    assert [(r.participants, r.bytes_up, r.bytes_down) for r in federation.reports] == [
        (1, 0, 0)
    ] * 2


@pytest.mark.quick(4)
@pytest.mark.parametrize(
    "settings",
    [
        {"model": "stid", "calendar": "week"},
        {"model": "graph_wavenet", "graph": "both", "blocks": 1, "channels": 4},
        {"model": "dual_gru", "hidden_size": 4},
        {"model": "linear", "loss": "quantile"},
    ],
    ids=lambda s: s["model"],
)
def test_forecasts_are_by_cell_survive_saving_and_read_no_future(series, settings):
    fitted, _ = fit(series, np.eye(4) + 0.5, batch_size=10, **settings)
    last = fitted["last"]
    starts = np.array([30, 44])
    y_hat = last.predict(series, starts, CALENDAR)
    assert y_hat.shape == (4, 2, 2)
    assert np.isfinite(y_hat).all()
    loaded = TrainedMethod.from_state(last.config, last.state(), last.round, ALL)
    np.testing.assert_array_equal(loaded.predict(series, starts, CALENDAR), y_hat)
    expected = loaded.method.population.initial()
    assert {n: t.shape for n, t in last.snapshot.clients.params.items()} == {
        n: expected[n].shape for n in last.snapshot.clients.params
    }
    future = series.copy()
    future[30:] = 99.0
    unmoved = last.predict(future, starts[:1], CALENDAR)
    np.testing.assert_allclose(unmoved, y_hat[:, :1], rtol=1e-4, atol=1e-5)
    past = series.copy()
    past[29, 0] += 1.0
    moved = last.predict(past, starts[:1], CALENDAR) - unmoved
    assert (np.abs(moved[0]) > 1e-4).all()


def test_a_graph_model_lets_one_cell_read_another_and_other_models_do_not(series):
    changed = series.copy()
    changed[29, 0] += 1.0
    start = np.array([30])
    for model, sees in (("graph_wavenet", True), ("stid", False)):
        fitted, _ = fit(series, model=model, batch_size=10)
        before, after = (fitted["last"].predict(v, start, CALENDAR) for v in (series, changed))
        moved = np.abs(after - before)[1:]
        assert (moved > 1e-6).all() if sees else (moved < 1e-6).all()


@pytest.mark.parametrize("settings", [{"participation": 0.5}, {"bits": 8}, {"robust": "median"}])
def test_settings_of_a_federation_are_refused(settings):
    with pytest.raises(InputError, match=rf"central.*{min(settings)}"):
        Forecaster("central", model="mlp", **settings)


def test_errors_are_given_for_every_cell(table, tiny):
    settings = {**tiny, "model": "linear"}
    settings.pop("hidden_size")
    errors = Forecaster("central", **settings).fit(table).evaluate()
    assert set(errors["client"]) == {"11", "22", "33", "all"}
    assert np.isfinite(errors["value"]).all()
