import re

import numpy as np
import pandas as pd
import pytest
from sklearn import metrics as reference
from utilsforecast import losses

from data_prep.base.errors import InputError
from stforecast import Forecaster
from stforecast.intervals.bands import Bands
from stforecast.metrics import METRICS, find_metric, point
from stforecast.metrics.metric import IntervalMetric, Metric, Scale
from stforecast.metrics.point import evaluate, evaluate_intervals, squared_errors

REFERENCE = {
    "mse": reference.mean_squared_error,
    "mae": reference.mean_absolute_error,
    "rmse": reference.root_mean_squared_error,
    "mape": reference.mean_absolute_percentage_error,
    "wape": lambda y, y_hat: np.abs(y - y_hat).sum() / np.abs(y).sum(),
    "smape": lambda y, y_hat: np.mean(2 * np.abs(y - y_hat) / (np.abs(y) + np.abs(y_hat))),
    "bias": lambda y, y_hat: np.mean(y_hat - y),
    # Of forecasts and targets that are divided by the scale already.
    "mase": reference.mean_absolute_error,
    "rmsse": reference.root_mean_squared_error,
}
ONES = Scale(np.ones(3), np.ones(3))


def forecasts(seed: int = 0):
    """Forecasts, targets and mask of 3 clients, 7 windows, 4 steps; NaN where masked."""
    rng = np.random.default_rng(seed)
    y = rng.normal(loc=3, size=(3, 7, 4))
    y_hat = y + rng.normal(size=y.shape)
    mask = rng.random(y.shape) < 0.7
    y[~mask] = np.nan
    return y_hat, y, mask


def lookup(table, metric, client="all", horizon="all") -> float:
    rows = table[(table.metric == metric) & (table.client == client) & (table.horizon == horizon)]
    assert len(rows) == 1
    return rows.value.item()


@pytest.mark.parametrize("name", METRICS)
def test_a_metric_agrees_with_scikit_learn_on_the_observed(name):
    y_hat, y, mask = forecasts()
    assert METRICS[name](y_hat, y, mask) == pytest.approx(REFERENCE[name](y[mask], y_hat[mask]))


@pytest.mark.parametrize("name", METRICS)
def test_evaluate_judges_each_client_and_step_and_all(name):
    y_hat, y, mask = forecasts()
    table = evaluate(y_hat, y, mask, clients=[5060, 5061, 5160], metrics=[name], scale=ONES)
    assert list(table.columns) == ["client", "horizon", "metric", "value"]
    assert len(table) == 4 * 5
    for c, client in enumerate(["5060", "5061", "5160", "all"]):
        for h, horizon in enumerate(["1", "2", "3", "4", "all"]):
            part = (slice(None) if client == "all" else c, slice(None))
            part = (*part, slice(None) if horizon == "all" else h)
            seen = mask[part]
            expected = REFERENCE[name](y[part][seen], y_hat[part][seen])
            assert lookup(table, name, client, horizon) == pytest.approx(expected)


def test_by_hand():
    y = np.array([[[1.0], [2.0], [4.0]]])
    y_hat = np.array([[[2.0], [4.0], [4.0]]])
    scale = Scale(mae=np.array([2.0]), rmse=np.array([0.5]))
    table = evaluate(y_hat, y, np.ones_like(y, dtype=bool), scale=scale)
    expected = {
        "mse": 5 / 3, "mae": 1.0, "rmse": np.sqrt(5 / 3), "mape": 2 / 3, "wape": 3 / 7,
        "smape": 2 / 3 * (1 / 3 + 2 / 6), "bias": 1.0, "mase": 0.5, "rmsse": 2 * np.sqrt(5 / 3),
    }  # fmt: skip
    assert {name: lookup(table, name) for name in expected} == pytest.approx(expected)
    assert set(table.client) == {"0", "all"}


def test_rows_of_one_client_are_pooled():
    y = np.zeros((3, 2, 1))
    mask = np.array([[[True], [True]], [[True], [True]], [[True], [False]]])
    y_hat = np.array([[[1.0], [1.0]], [[5.0], [5.0]], [[4.0], [9.0]]])
    table = evaluate(y_hat, y, mask, clients=["a", "b", "a"], metrics=["mae"])
    assert lookup(table, "mae", "a") == (1 + 1 + 4) / 3
    assert lookup(table, "mae", "b", "1") == 5.0
    assert lookup(table, "mae") == 16 / 5


def test_batches_add_up_and_are_no_mean_of_means():
    error = np.array([3.0, 0.0, 0.0, 0.0])
    mask = np.array([True, True, True, False])
    batches = [slice(0, 1), slice(1, 4)]
    sums = [squared_errors(error[b], np.zeros(4)[b], mask[b]) for b in batches]
    total, weight = (sum(part) for part in zip(*sums, strict=True))
    assert METRICS["mse"].finalise(total, weight) == 3.0
    assert np.mean([METRICS["mse"].finalise(*s) for s in sums]) == 4.5


def test_a_client_seen_more_often_weighs_more_in_all():
    y_hat = np.array([[[1.0], [1.0], [1.0]], [[5.0], [5.0], [5.0]]])
    mask = np.array([[[True], [True], [True]], [[True], [False], [False]]])
    table = evaluate(y_hat, np.zeros_like(y_hat), mask, metrics=["mae"])
    assert lookup(table, "mae", "0") == 1.0
    assert lookup(table, "mae", "1") == 5.0
    assert lookup(table, "mae") == 2.0


def test_sums_over_an_axis_keep_the_others():
    total, count = squared_errors(np.ones((2, 3)), np.zeros((2, 3)), np.eye(2, 3) > 0, axis=1)
    np.testing.assert_array_equal(total, [1, 1])
    np.testing.assert_array_equal(count, [1, 1])


@pytest.mark.parametrize("name", METRICS)
def test_nothing_observed_is_nan_with_weight_zero(name):
    y_hat, y, mask = forecasts()
    mask[1, :, 2] = False
    total, weight = METRICS[name].update(y_hat, y, mask, 1)
    assert (total[1, 2], weight[1, 2]) == (0, 0)
    table = evaluate(y_hat, y, mask, scale=ONES)
    assert np.isnan(lookup(table, name, "1", "3"))
    assert np.isfinite(lookup(table, name, "1"))
    assert np.isnan(METRICS[name](y_hat, y, np.zeros_like(mask)))


@pytest.mark.parametrize("name", METRICS)
def test_a_forecast_that_is_nan_is_not_hidden(name):
    y_hat, y, mask = forecasts()
    y_hat[mask] = np.nan
    assert np.isnan(METRICS[name](y_hat, y, mask))


def test_mape_leaves_zeros_out():
    y = np.array([0.0, 1e-9, 2.0, -4.0])
    y_hat = np.array([5.0, 5.0, 3.0, -3.0])
    assert METRICS["mape"](y_hat, y, np.ones(4, dtype=bool)) == pytest.approx((0.5 + 0.25) / 2)


def test_single_precision_is_summed_in_double():
    y = np.zeros((1, 10**6, 1), dtype=np.float32)
    y_hat = np.full_like(y, 0.1)
    mae = METRICS["mae"](y_hat, y, np.ones_like(y, dtype=bool))
    assert mae == pytest.approx(float(np.float32(0.1)), rel=1e-12)


def test_shapes_must_agree():
    y_hat, y, mask = forecasts()
    with pytest.raises(InputError, match=r"forecasts \(3, 7, 1\), targets \(3, 7, 4\) "):
        evaluate(y_hat[..., :1], y, mask)
    with pytest.raises(InputError, match="2 clients"):
        evaluate(y_hat, y, mask, clients=["a", "b"])


def test_an_unknown_metric_lists_the_known():
    with pytest.raises(InputError, match=f"one of: {', '.join(sorted(METRICS))}"):
        evaluate(*forecasts(), metrics=["mdape"])


def test_a_metric_of_which_more_is_better_is_refused():
    def hits(y_hat, y, mask, axis):
        return np.sum((y_hat == y) & mask, axis=axis), np.sum(mask, axis=axis)

    found = r"metric hits: found 1 without an error and 0 with errors, expected the lowest"
    with pytest.raises(InputError, match=found):
        Metric("hits", "share of exact forecasts", hits)
    assert Metric("hits", "share of exact forecasts", hits, signed=True)


def test_every_metric_describes_itself():
    assert all(metric.summary for metric in METRICS.values())
    assert [name for name, metric in METRICS.items() if metric.signed] == ["bias"]


def test_smape_of_two_zeros_is_zero():
    zeros, seen = np.zeros(2), np.ones(2, dtype=bool)
    assert METRICS["smape"](zeros, zeros, seen) == 0.0
    assert METRICS["smape"](np.ones(2), zeros, seen) == 2.0


def test_a_client_without_a_scale_has_no_scaled_errors():
    y_hat, y, mask = forecasts()
    scale = Scale(np.array([1.0, np.nan, 2.0]), np.array([1.0, np.nan, 2.0]))
    table = evaluate(y_hat, y, mask, scale=scale)
    rest = evaluate(
        y_hat[[0, 2]], y[[0, 2]], mask[[0, 2]], scale=Scale(*(s[[0, 2]] for s in scale))
    )
    for name in ("mase", "rmsse"):
        assert np.isnan(lookup(table, name, "1"))
        assert lookup(table, name) == lookup(rest, name)
    assert "mase" not in set(evaluate(y_hat, y, mask).metric), "no scale was given"


def long_frame(values, times, **columns):
    """`(clients, steps)` in the form of utilsforecast."""
    n, steps = values.shape
    found = {"unique_id": np.repeat(np.arange(n), steps), "ds": np.tile(times, n)}
    found |= {"cutoff": times[0]} | {name: v.ravel() for name, v in columns.items()}
    return pd.DataFrame({**found, "y": values.ravel()})


def test_clients_errors_are_those_of_utilsforecast():
    rng = np.random.default_rng(3)
    hours = pd.date_range("2013-11-01", periods=24 * 12, freq="h")
    values = rng.gamma(3.0, 10.0, (len(hours), 3))
    table = pd.DataFrame(values, hours, pd.Index(["a", "b", "c"]))
    forecaster = Forecaster(
        "ridge", split="days:6,2,4", intervals="conformal", quantiles="0.1,0.5,0.9"
    ).fit(table)
    errors, ds = forecaster.evaluate(), forecaster.test_forecasts()
    errors = errors[(errors.split == "test") & (errors.selection == "best")]
    y, y_hat = (ds[name].to_numpy()[..., 0] for name in ("y", "y_hat"))
    test = long_frame(
        y, hours[24 * 8 :], m=y_hat, low=ds.lower.to_numpy(), high=ds.upper.to_numpy()
    )
    train = long_frame(values[: 24 * 6].T, hours[: 24 * 6]).drop(columns="cutoff")
    season = {"seasonality": 24, "train_df": train}
    expected = {
        "mase": losses.mase(test, ["m"], **season)["m"],
        "rmsse": losses.rmsse(test, ["m"], **season)["m"],
        # Theirs is half of M4's.
        "raw_smape": 2 * losses.smape(test, ["m"])["m"],
        "raw_bias": losses.bias(test, ["m"])["m"],
        "raw_wape": losses.nd(test, ["m"])["m"],
        "scaled_pinball": losses.scaled_mqloss(
            test, {"m": ["low", "m", "high"]}, np.array([0.1, 0.5, 0.9]), **season
        )["m"],
    }
    for metric, by_client in expected.items():
        found = [lookup(errors, metric, client) for client in "abc"]
        assert found == pytest.approx(by_client.tolist(), rel=1e-5), metric


def unsummed(y_hat, y, mask, axis):
    return np.abs(y_hat - y), mask


@pytest.mark.parametrize(
    ("update", "got"),
    [
        (lambda y_hat, y, mask, axis: mask.sum(axis=axis), "()"),
        (unsummed, "[(1, 1, 2), (1, 1, 2)]"),
        (lambda y_hat, y, mask, axis: (abs(y_hat - y).sum(axis), mask), "[(), (1, 1, 2)]"),
    ],
)
@pytest.mark.parametrize("signed", [False, True])
def test_a_function_that_does_not_sum_is_refused_with_its_shapes(update, got, signed):
    with pytest.raises(InputError) as refused:
        Metric("mine", "mine", update, signed=signed)
    assert "mine: for targets (1, 1, 2) and axis None " in str(refused.value)
    assert f"shapes {got}, expected a pair" in str(refused.value)


def test_a_function_that_sums_over_all_whatever_the_axis_is_refused(monkeypatch):
    mine = Metric("mine", "mine", lambda y_hat, y, mask, axis: (abs(y_hat - y).sum(), mask.sum()))
    monkeypatch.setattr(METRICS, "find", {"mine": mine}.__getitem__)
    y_hat, y, mask = forecasts()
    found = r"mine: .*axis 1 .*shapes \[\(\), \(\)\], .*each \(3, 4\)"
    with pytest.raises(InputError, match=found):
        evaluate(y_hat, y, mask, metrics=["mine"])
    with pytest.raises(InputError, match=r"mine: .*axis \(\) "):
        mine.sums(y_hat, y, mask, ())


def test_a_metric_of_intervals_that_does_not_sum_is_refused(monkeypatch):
    mine = IntervalMetric("mine", "mine", lambda bands, y, mask, coverage: mask * 1.0)
    monkeypatch.setattr(point, "INTERVAL_METRICS", {"mine": mine})
    y_hat, y, mask = forecasts()
    bands = Bands(y_hat, {0.9: (y_hat - 1, y_hat + 1)})
    with pytest.raises(InputError, match=rf"mine: .*shape {re.escape(str(y.shape))}, .*\(3, 4\)"):
        evaluate_intervals(bands, y, mask, "abc", 0.9)


@pytest.mark.parametrize("name", ["raw_width", "coverage"])
def test_a_metric_of_intervals_is_named_as_given_where_errors_are_compared(name):
    with pytest.raises(InputError, match=f"{name} .*: mse, mae, .*raw_"):
        find_metric(name)
    assert find_metric("raw_mae") is METRICS["mae"]
