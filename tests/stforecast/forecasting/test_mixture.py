"""Mixture of forecasts: its weights follow the errors that are known, and nothing later."""

import numpy as np
import pytest
import torch

from stforecast.data.window_spec import WindowSpec
from stforecast.forecasting.mixture import (
    TRUSTED,
    Usual,
    Windows,
    known_windows,
    mixed,
)

SPEC = WindowSpec(closeness=1, periods=0, period=7, horizon=2)


def windows_before(starts, spec=SPEC, day=1):
    """Return the windows of a mixture, those to forecast last."""
    origins, every = known_windows(np.asarray(starts), spec, 7 * day)
    first = np.concatenate([origins, starts])
    targets = torch.from_numpy(first[:, None] + np.arange(spec.horizon))
    before = torch.sub
    return Windows(first, targets, spec.horizon, len(origins), every, before, day)


def targets_of(series, windows):
    """Return the targets of known windows; those beyond the series are NaN."""
    longer = np.concatenate([series, np.full((windows.horizon, series.shape[1]), np.nan)])
    known = windows.targets[: windows.n_known].numpy()
    return torch.from_numpy(longer[known]).permute(2, 0, 1)


def mix(series, starts, first=0.0, second=1.0, usual=0.0, spread=1e9):
    """Mix constant forecasts; a spread so large trusts all errors."""
    windows = windows_before(starts)
    shape = series.shape[1], len(windows.first), SPEC.horizon
    forecasts = [torch.full(shape, value) for value in (first, second, usual)]
    y = targets_of(series, windows)
    spreads = torch.full(y.shape[:2], spread)
    return mixed(forecasts, (Usual(0.5), Usual(0.0)), y, spreads, windows)


def weigh(series, starts, **settings):
    """Return the weights of the second forecast; of the usual values if these are given."""
    return mix(series, starts, **settings)[1][1 if settings.get("usual") else 0].numpy()


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
    assert weigh(series, [1]).tolist() == [[0.5]]
    assert weigh(series, [30], second=0.0).tolist() == [[0.5]]
    assert weigh(np.full((40, 1), np.nan), [30]).tolist() == [[0.5]]


@pytest.mark.parametrize("spread", [1e9, 0.5])
def test_a_forecast_depends_on_its_own_past_alone(spread):
    series = np.random.default_rng(1).normal(size=(60, 2))
    starts = np.arange(20, 59)
    whole = mix(series, starts, usual=0.3, spread=spread)
    for i, start in enumerate(starts):
        alone = mix(series[:start], [start], usual=0.3, spread=spread)
        for found, expected in zip(alone, whole, strict=True):
            part = expected[:, i] if found is alone[0] else expected[..., i]
            np.testing.assert_allclose(found.squeeze(), part, atol=1e-9)


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
    assert weigh(series, [1], usual=0.5).tolist() == [[0.0]]


def test_a_burst_weighs_no_more_than_its_root():
    """An error of 100 times the largest trusted one counts as 100 of that size, not as 10,000."""
    series = np.zeros((40, 1))
    series[22] = 100 * TRUSTED + 0.25  # The forecasts' usual mean is 0.25.
    windows = windows_before([30])
    assert windows.first[windows.n_known - 1] == 29
    targets = [t for k in range(22, 29) for t in (k, k + 1)]
    counts = np.where(series[targets, 0] > 0, 0.01, 1.0)
    counts /= np.ones(len(targets)).sum()
    found = mix(series, [30], first=0.0, second=0.5, usual=0.0, spread=1.0)[1][0]
    least = (counts * series[targets, 0]).sum() / (0.5 * counts.sum())
    assert found[0, 0] == pytest.approx(np.clip((least + 0.2 * 0.5) / 1.2, 0, 1))
