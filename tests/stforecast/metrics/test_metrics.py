import numpy as np
import pytest
from sklearn import metrics as reference

from data_prep.errors import InputError
from stforecast.metrics import METRICS
from stforecast.metrics.point import squared_errors
from stforecast.metrics.tables import evaluate

REFERENCE = {
    "mse": reference.mean_squared_error,
    "mae": reference.mean_absolute_error,
    "rmse": reference.root_mean_squared_error,
    "mape": reference.mean_absolute_percentage_error,
    "wape": lambda y, y_hat: np.abs(y - y_hat).sum() / np.abs(y).sum(),
}


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
    table = evaluate(y_hat, y, mask, clients=[5060, 5061, 5160], metrics=[name])
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
    table = evaluate(y_hat, y, np.ones_like(y, dtype=bool))
    values = {name: lookup(table, name) for name in METRICS}
    expected = {"mse": 5 / 3, "mae": 1.0, "rmse": np.sqrt(5 / 3), "mape": 2 / 3, "wape": 3 / 7}
    assert values == pytest.approx(expected)
    assert set(table.client) == {"0", "all"}


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
    table = evaluate(y_hat, y, mask)
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
    with pytest.raises(InputError, match=r"forecasts \(3, 7, 1\), targets \(3, 7, 4\) and mask"):
        evaluate(y_hat[..., :1], y, mask)
    with pytest.raises(InputError, match="2 clients"):
        evaluate(y_hat, y, mask, clients=["a", "b"])


def test_an_unknown_metric_lists_the_known():
    with pytest.raises(InputError, match="choose one of: mae, mape, mse, rmse, wape"):
        evaluate(*forecasts(), metrics=["smape"])


def test_every_metric_describes_itself():
    assert all(metric.summary and metric.lower_is_better for metric in METRICS.values())
