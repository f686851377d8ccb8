"""METR-LA's protocol, on an array of the full set's length with few columns."""

import numpy as np
import pandas as pd
import pytest

from stforecast import Forecaster
from stforecast.forecasting.config import read_by
from stforecast.metrics.point import evaluate

PROTOCOL = {"closeness": 12, "periods": 0, "horizon": 12, "period": 288, "scale": "global"}
TEST = {"windows:0.7,0.1,0.2": (3_425, 6_850), "steps:0.7,0.1,0.2": (3_427 - 23, 6_831)}


@pytest.fixture(scope="module")
def speeds():
    """34,272 five-minute steps of 2 detectors; 8 % missing, as in METR-LA."""
    rng = np.random.default_rng(0)
    values = rng.normal(55, 9, (34_272, 2))
    values[rng.random(values.shape) < 0.0811] = np.nan
    times = pd.date_range("2012-03-01", periods=len(values), freq="5min", name="time")
    return pd.DataFrame(values, times, pd.Index(["a", "b"], name="cell"))


@pytest.mark.parametrize("split", TEST)
def test_both_splits_judge_the_windows_of_the_literature(speeds, split):
    forecaster = Forecaster("last_value", split=split, **read_by("last_value", PROTOCOL)).fit(
        speeds
    )
    assert (len(forecaster.data_.split.validation), len(forecaster.data_.split.test)) == TEST[split]
    forecasts = forecaster.test_forecasts()
    assert forecasts.sizes == {"cell": 2, "time": TEST[split][1], "horizon": 12}

    # Each error by hand: the last window is the last of the series, nothing is dropped.
    filled, starts = speeds.ffill().to_numpy(), forecaster.data_.split.test
    assert starts[-1] == 34_272 - 12
    table = forecaster.evaluate()
    table = table[(table.split == "test") & (table.selection == "best") & (table.client == "all")]
    for step in (3, 6, 12):
        y, y_hat = speeds.to_numpy()[starts + step - 1], filled[starts - 1]
        error = (y_hat - y)[~np.isnan(y)]
        expected = {
            "raw_mae": np.abs(error).mean(),
            "raw_rmse": np.sqrt((error**2).mean()),
            "raw_mape": (np.abs(error) / np.abs(y[~np.isnan(y)])).mean(),
        }
        found = table[table.horizon == str(step)].set_index("metric")["value"]
        assert found[list(expected)].to_dict() == pytest.approx(expected, rel=1e-4)


def test_the_scaler_sees_the_training_part_alone(speeds):
    forecaster = Forecaster("last_value", split="windows:0.7,0.1,0.2", **PROTOCOL).fit(speeds)
    training = speeds.to_numpy()[: 12 + 23_974]
    assert forecaster.model_.scaler.mean.item() == pytest.approx(np.nanmean(training))
    assert forecaster.model_.scaler.std.item() == pytest.approx(np.nanstd(training))


def test_a_mean_of_batch_means_is_another_number():
    # Two batches of 3 and 1 observed targets: errors 1, 1, 1 and 5.
    y, y_hat = np.zeros((1, 4, 1)), np.array([1.0, 1, 1, 5]).reshape(1, 4, 1)
    mask = np.ones(y.shape, bool)
    whole = evaluate(y_hat, y, mask, metrics=["mae"])["value"].iloc[-1]
    batches = [
        evaluate(y_hat[:, part], y[:, part], mask[:, part], metrics=["mae"])["value"].iloc[-1]
        for part in (slice(3), slice(3, None))
    ]
    assert whole == 2.0
    assert np.mean(batches) == 3.0
    # Dropping the last batch, as loaders do, would hide the large error.
    assert batches[0] == 1.0
