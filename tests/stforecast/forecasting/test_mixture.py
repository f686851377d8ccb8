"""Mixture of two forecasts: its weights follow the errors that are known, and nothing later."""

import numpy as np
import pandas as pd
import pytest

from stforecast.data.clock import Calendar
from stforecast.data.window_spec import WindowSpec
from stforecast.forecasting.mixture import Usual, weights

DAYS = Calendar(pd.Timestamp("2013-11-04"), pd.Timedelta("1D"))
SPEC = WindowSpec(closeness=1, periods=0, period=7, horizon=2)


def weigh(series, starts, first=0.0, second=1.0, usual=0.0):
    """Return the weights of the second forecast; of the usual values if these are given."""

    def forecasts(origins):
        return [np.full((series.shape[1], len(origins), 2), v) for v in (first, second, usual)]

    found = weights(forecasts, (Usual(0.5), Usual(0.0)), series, np.asarray(starts), SPEC, DAYS)
    return found[1 if usual else 0]


def test_the_weight_is_the_least_squares_one_drawn_to_one_half():
    """With forecasts 0 and 1 it is the mean of the known targets, and a fifth of one half."""
    series = np.random.default_rng(0).uniform(size=(40, 1))
    targets = [t for k in range(22, 29) for t in (k, k + 1)]  # Windows of which all is known at 30.
    expected = (series[targets, 0].mean() + 0.2 * 0.5) / 1.2
    assert weigh(series, [30])[0, 0] == pytest.approx(expected)


def test_the_better_forecast_is_taken_for_each_cell():
    series = np.stack([np.zeros(40), np.ones(40), np.full(40, 9.0)], axis=1)
    assert weigh(series, [30])[:, 0] == pytest.approx([0.1 / 1.2, 1.1 / 1.2, 1.0])


def test_one_half_without_known_errors_or_where_both_are_equal():
    series = np.ones((40, 1))
    assert weigh(series, [2]).tolist() == [[0.5]]
    assert weigh(series, [30], second=0.0).tolist() == [[0.5]]
    assert weigh(np.full((40, 1), np.nan), [30]).tolist() == [[0.5]]


def test_a_weight_depends_on_its_own_past_alone():
    series = np.random.default_rng(1).normal(size=(60, 2))
    starts = np.arange(20, 59)
    whole = weigh(series, starts)
    for i, start in enumerate(starts):
        np.testing.assert_allclose(weigh(series[: start + 1], [start])[:, 0], whole[:, i])


def test_usual_values_replace_the_mixture_by_their_own_errors():
    """With forecasts 1 and usual values 0.5, the least-squares weight is drawn to 0 by a fifth."""
    series = np.random.default_rng(2).uniform(0.5, 1.0, size=(40, 1))
    targets = [t for k in range(22, 29) for t in (k, k + 1)]
    expected = np.mean((0.5 - 1) * (series[targets, 0] - 1)) / (0.5 - 1) ** 2 / 1.2
    assert weigh(series, [30], first=1.0, usual=0.5)[0, 0] == pytest.approx(expected)
    # Relative to what the two forecasts give together, not to one of them.
    half = weigh(np.full((40, 1), 0.5), [30])
    assert half[0, 0] == pytest.approx(0.5)
    assert weigh(np.full((40, 1), 0.9), [30], usual=0.9)[0, 0] == pytest.approx(1 / 1.2)
    assert weigh(series, [2], usual=0.5).tolist() == [[0.0]]


def test_the_weight_of_usual_values_depends_on_its_own_past_alone():
    series = np.random.default_rng(3).normal(size=(60, 2))
    starts = np.arange(20, 59)
    whole = weigh(series, starts, usual=0.3)
    for i, start in enumerate(starts):
        alone = weigh(series[: start + 1], [start], usual=0.3)
        np.testing.assert_allclose(alone[:, 0], whole[:, i], atol=1e-12)
