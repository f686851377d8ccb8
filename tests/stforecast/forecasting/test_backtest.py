import numpy as np
import pandas as pd
import pytest

from data_prep.base.errors import InputError
from stforecast import Forecaster
from stforecast.bench.run_groups import group_runs
from stforecast.comparison.leaderboard import leaderboard
from stforecast.comparison.rows import Row
from stforecast.forecasting.config import read_by
from stforecast.forecasting.runs import run

SPANS = {"folds": 2, "test": "1d", "validation": "1d", "gap": "12h"}
SPLITS = [
    "dates:2013-11-01/2013-11-07T12:00:00,2013-11-07T12:00:00/2013-11-08T12:00:00,"
    "2013-11-09/2013-11-10",
    "dates:2013-11-01/2013-11-08T12:00:00,2013-11-08T12:00:00/2013-11-09T12:00:00,"
    "2013-11-10/2013-11-11",
]


@pytest.fixture(scope="module")
def backtest(table):
    return Forecaster("ridge", horizon=2).backtest(table, **SPANS)


def test_a_fold_is_a_forecaster_fitted_on_its_split(backtest, table):
    for number, split in enumerate(SPLITS, start=1):
        alone = Forecaster("ridge", horizon=2, split=split).fit(table)
        metrics = backtest.metrics[backtest.metrics.fold == number].drop(columns="fold")
        pd.testing.assert_frame_equal(metrics.reset_index(drop=True), alone.evaluate())
        forecasts = backtest.forecasts.isel(time=backtest.forecasts["fold"] == number)
        expected = alone.test_forecasts()
        for name in ("y", "y_hat", "seasonal_naive"):
            np.testing.assert_array_equal(forecasts[name], expected[name])
        assert forecasts.indexes["time"].equals(expected.indexes["time"])


def test_dates_of_the_folds(backtest):
    assert backtest.folds.index.tolist() == [1, 2]
    first = backtest.folds.loc[1]
    assert (first.test_first, first.test_last) == (
        pd.Timestamp("2013-11-09 00:00"), pd.Timestamp("2013-11-09 23:00"),
    )  # fmt: skip
    assert first.validation_last == pd.Timestamp("2013-11-08 11:00")


def test_without_validation_its_dates_are_not_known(table):
    found = Forecaster("last_value").backtest(table, folds=1, test="1d", validation="0d")
    assert found.folds[["validation_first", "validation_last"]].isna().all(axis=None)
    assert set(found.metrics["split"]) == {"test"}


def test_the_forecaster_itself_stays_as_it_is(table):
    forecaster = Forecaster("ridge", split="days:7,1,2")
    forecaster.backtest(table, **SPANS)
    with pytest.raises(InputError, match="not fitted"):
        forecaster.predict(table)
    assert forecaster.asked.data.split == "days:7,1,2"


def test_errors_of_an_hour(backtest):
    forecasts = backtest.forecasts.isel(time=backtest.forecasts["fold"] == 2)
    error = np.abs(forecasts["y"] - forecasts["y_hat"]).sel(cell=22)
    hours = (forecasts.indexes["time"].hour.to_numpy()[:, None] + [0, 1]) % 24
    table = backtest.hours.query("fold == 2 and client == '22' and metric == 'raw_mae'")
    expected = [error.to_numpy()[hours == hour].mean() for hour in range(24)]
    np.testing.assert_allclose(table.set_index("hour")["value"], expected)


def test_the_summary_is_of_all_test_days(backtest):
    forecasts = backtest.forecasts
    errors = np.abs(forecasts["y"] - forecasts["y_hat"])
    naive = np.abs(forecasts["y"] - forecasts["seasonal_naive"])
    assert backtest.estimates["raw_mae"].value == pytest.approx(float(errors.mean()))
    ratios = errors.mean(["time", "horizon"]) / naive.mean(["time", "horizon"])
    skill = 1 - np.exp(np.log(ratios).mean())
    assert backtest.estimates["skill"].value == pytest.approx(float(skill))
    text = str(backtest)
    assert text.startswith("ridge: 2 folds of 1 day (gap 12 hours), 3 cells, 2 steps ahead\n\n")
    lines = [line.split("  ")[0] for line in text.splitlines()[4:]]
    assert lines == ["MAE, data units", "MASE", "skill in MAE against seasonal naive, %"]


def test_estimates_are_those_of_a_benchmark_of_the_same_folds(cube, cube_path, tmp_path):
    settings = {"service": "internet", "horizon": 2}
    found = Forecaster("ridge", **read_by("ridge", settings)).backtest(
        cube, folds=2, test="2d", validation="1d"
    )
    runs = []
    for number, parts in found.folds.iterrows():
        step = pd.Timedelta("1h")
        spans = [
            f"{parts[f'{part}_first'].isoformat()}/{(parts[f'{part}_last'] + step).isoformat()}"
            for part in ("training", "validation", "test")
        ]
        spans[0] = spans[0].replace(parts["training_first"].isoformat(), "2013-11-01T01:00:00")
        notes = {"fold": number, "backtest": found.description}
        split = {"split": f"dates:{','.join(spans)}"}
        runs.append(run("ridge", cube_path, tmp_path / str(number), settings | split, notes=notes))
    (group,) = group_runs(runs)
    (line,) = leaderboard([Row(group)], "raw_mae").lines
    estimate, skill = found.estimates["raw_mae"], found.estimates["skill"]
    np.testing.assert_allclose(*map(_numbers, (estimate, line.error)), rtol=1e-4)
    # Forecasts in files are rounded by less than 0.0005 deviations; a naive error is near one.
    np.testing.assert_allclose(*map(_numbers, (skill, line.skill)), rtol=1e-4, atol=5e-4)


def _numbers(estimate):
    return estimate.value, estimate.low, estimate.high


def test_folds_that_do_not_fit_are_refused(table):
    with pytest.raises(InputError, match=r"12 folds \(test 1 "):
        Forecaster("ridge").backtest(table, folds=12, test="1d")
    with pytest.raises(InputError, match=r"fold 1 of 1, ridge: .*'dates:2013-11-01/"):
        Forecaster("ridge", extra_lags="9d").backtest(table, folds=1, test="1d", validation="0d")


def test_refits_use_what_is_known_in_the_gap(table):
    gap = "dates:2013-11-01/2013-11-06,2013-11-09/2013-11-11"
    fitted = Forecaster("ridge", refit="daily", split=gap).fit(table)
    # Targets from the fourth day, after the longest lag, to the end of the first test day.
    assert fitted.refits_["windows"].tolist() == [6 * 24]
