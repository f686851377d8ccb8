"""What is mixed with a trained method's own forecasts."""

import numpy as np
import pandas as pd
import pytest

from stforecast import Forecaster
from stforecast.data.series import as_series
from stforecast.data.window_spec import WindowSpec
from stforecast.data.windows import History
from stforecast.forecasting.mixed_forecasts import Mixture


def test_forecasts_that_know_no_holidays_are_moved_by_what_these_change(table, monkeypatch):
    of_nothing = "stforecast.forecasting.mixed_forecasts.forecasts"
    monkeypatch.setattr(of_nothing, lambda past, starts, horizon: np.zeros((3, 1, 1), np.float32))
    calendar = as_series(table).calendar
    window = WindowSpec(closeness=1, periods=0, period=24)
    mixture = Mixture(window, 1, pretrained=True)
    usual, _ = mixture.usual_weights(pd.Timedelta("1h"))
    known, outputs = np.zeros((3, 0, 1), np.float32), np.full((3, 1, 1), 2.0, np.float32)
    history = History.of(np.zeros((1, 3)), window, calendar)
    starts = np.array([1])  # No error is known yet.
    for plain, moved in ((None, 0.0), (np.full((3, 1, 1), 1.5, np.float32), 0.5)):
        found = mixture.mixed(known, outputs, history, starts, plain)
        assert found == pytest.approx(2.0 + usual.weight * (moved - 2.0))


def test_holidays_change_forecasts_of_windows_that_begin_on_one(monkeypatch):
    hours = pd.date_range("2013-12-01", "2013-12-28", freq="h", inclusive="left")
    rng = np.random.default_rng(0)
    table = pd.DataFrame(rng.normal(size=(len(hours), 3)), hours, list("abc"))
    settings = {"rounds": 1, "holidays": "IT", "split": "days:18,3,6", "horizon": 2}
    forecaster = Forecaster("fedlean", **settings).fit(table)
    given = []

    def spy(mixture, known, outputs, history, starts, plain, observed):
        given.append((mixture.known_windows(starts, history.calendar), known, outputs, plain))
        return outputs

    monkeypatch.setattr(Mixture, "mixed", spy)
    starts = np.array([24 * 24 - 1, 24 * 24, 26 * 24 - 1, 26 * 24])  # 8, 25 and 26 are holidays.
    forecaster.model_.latest.predict(table.to_numpy(), starts, forecaster.data_.calendar)
    ((before, known, outputs, plain),) = given
    changed = (np.concatenate([known, outputs], axis=1) != plain).any(axis=(0, 2))
    days = np.concatenate([before, starts]) // 24 + 1
    assert changed.tolist() == np.isin(days, [8, 25, 26]).tolist()
