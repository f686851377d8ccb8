"""Mixture of forecasts: its weights follow the errors that are known, and nothing later."""

import numpy as np
import pytest
import torch

from stforecast.data.window_spec import WindowSpec
from stforecast.forecasting.mixture import (
    CORRECTIONS,
    HABIT,
    PRIOR,
    RECENT,
    TRUSTED,
    MixtureWindows,
    UsualWeight,
    error_windows,
    mixed,
)

SPEC = WindowSpec(closeness=1, periods=0, period=7, horizon=2)


def windows_before(starts, spec=SPEC, day=1):
    """Return the windows of a mixture, those to forecast last."""
    origins, every = error_windows(np.asarray(starts), spec, 7 * day)
    first = np.concatenate([origins, starts])
    targets = torch.from_numpy(first[:, None] + np.arange(spec.horizon))
    before = torch.sub
    return MixtureWindows(first, targets, spec.horizon, len(origins), every, before, day)


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
    return mixed(forecasts, (UsualWeight(0.5), UsualWeight(0.0)), y, spreads, windows)


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


@pytest.mark.parametrize(
    ("horizon", "day", "asked"),
    [(1, 4, [62, 63, 65]), (2, 1, [23, 24, 26]), (6, 4, [73, 74, 76, 81]), (6, 4, [5, 30, 60])],
    ids=["one step", "days", "six steps", "short"],
)
def test_a_mixture_is_that_of_plain_loops(horizon, day, asked):
    """Their author knew what is computed, and had not read how."""
    spec = WindowSpec(closeness=1, periods=0, period=7, horizon=horizon)
    rng = np.random.default_rng(horizon)
    steps = np.arange(100)
    series = np.sin(2 * np.pi * steps / 4)[:, None] + 0.3 * rng.normal(size=(100, 2))
    series[50:] += 0.5  # a shift of the level
    series[rng.random(series.shape) < 0.02] *= 50  # bursts
    series[rng.random(series.shape) < 0.2] = np.nan
    drawn = torch.from_numpy(rng.normal(size=(3, 2, 100, horizon)))

    def arguments(starts):
        windows = windows_before(starts, spec, day)
        first = torch.from_numpy(windows.first)
        y = targets_of(series[: max(starts)], windows)
        before = torch.from_numpy(series.T).nan_to_num(0.0)
        before = before[:, (windows.targets - day).clamp(min=0)]
        forecasts = [0.3 * of[:, first] + (0.5 + 0.3 * k) * before for k, of in enumerate(drawn)]
        usual, spread = (
            [UsualWeight(0.5), UsualWeight(0.3, 0.5)],
            torch.rand(2, 100, generator=seeded()),
        )
        return forecasts, usual, y, 0.3 + spread[:, first[: windows.n_known]], windows

    found = mixed(*arguments(asked))
    for ours, theirs in zip(found, reference(*arguments(asked)), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-9, atol=1e-9)
    for i, start in enumerate(asked):
        alone, _ = mixed(*arguments([start]))
        np.testing.assert_allclose(alone[:, 0], found[0][:, i], rtol=1e-9, atol=1e-9)


def seeded():
    """Return random numbers that are always the same."""
    return torch.Generator().manual_seed(0)


def reference(forecasts, usual, y, spread, windows):
    """Return the mixture of the asked windows and its weights, as `mixed`, but in numpy."""
    y, spread = np.asarray(y, float), np.asarray(spread, float)
    steps, n = np.asarray(windows.targets), windows.n_known
    n_asked = len(windows.first) - n
    found = np.empty((len(y), n_asked, windows.horizon))
    weights = np.empty((len(forecasts) + 1, len(y), n_asked))
    for c in range(len(y)):
        of_cell = [np.asarray(of, float)[c] for of in forecasts]
        found[c], weights[:, c] = _of_cell(of_cell, usual, y[c], spread[c], steps, windows)
    return found, weights


def _of_cell(forecasts, usual, y, spread, steps, windows):
    n, first = windows.n_known, windows.first
    together = forecasts[0]
    for of, (weight, _) in zip(forecasts[1:], usual, strict=True):
        together = together + weight * (of - together)
    # The known errors: (window, step, forecast, error, trust, window and entry).
    known = []
    for i, j in np.ndindex(y.shape):
        if not np.isnan(y[i, j]):
            error = y[i, j] - together[i, j]
            trust = 1.0 if error == 0 else min(1.0, TRUSTED * spread[i] / abs(error))
            known.append((i, steps[i, j], together[i, j], error, trust, (i, j)))
    lines = [together[i] + _line(together[i], s, known, windows) for i, s in enumerate(first)]
    habits = [
        [m + _habit(t, s, known, windows) for m, t in zip(together[i], steps[i], strict=True)]
        for i, s in enumerate(first)
    ]
    forecasts = [*forecasts, np.array(lines), np.array(habits)]
    pairs, results = [], []
    week = 7 * windows.day
    for i, a in enumerate(first[n:], n):
        last = a - windows.horizon
        counts = [o for o in first[:n] if last - week < o <= last]
        those = [k for k in known if last - week < first[k[0]] <= last]
        weeks = week / windows.every / max(1, len(counts))
        mixture, of_window = forecasts[0], []
        for of, (weight, share) in zip(forecasts[1:], (*usual, *CORRECTIONS), strict=True):
            d, prior = of - mixture, share * weeks
            squares = sum(k[4] * d[k[5]] ** 2 for k in those)
            products = sum(k[4] * d[k[5]] * (y[k[5]] - mixture[k[5]]) for k in those)
            if squares > 0:
                raw = (products + prior * squares * weight) / (squares * (1 + prior))
                weight = min(1.0, max(0.0, raw))
            mixture = mixture + weight * d
            of_window.append(weight)
        results.append(mixture[i])
        pairs.append(of_window)
    return np.reshape(results, (-1, windows.horizon)), np.array(pairs).T


def _line(m, s, known, windows):
    those = [k for k in known if s - RECENT * windows.day <= k[1] < s]
    n = sum(k[4] for k in those)
    if n == 0:
        return 0.0 * m
    level = sum(k[4] * k[2] for k in those) / n
    prior = windows.horizon / windows.every * PRIOR * sum(k[4] * k[3] ** 2 for k in those) / n
    squares = sum(k[4] * (k[2] - level) ** 2 for k in those)
    a = sum(k[4] * k[3] for k in those) / (n + prior)
    b = sum(k[4] * (k[2] - level) * k[3] for k in those)
    return a + (b / (squares + prior) if squares + prior > 0 else 0.0) * (m - level)


def _habit(t, s, known, windows):
    days = range(1, (t - windows.first[0]) // windows.day + 1)
    at = [t - k * windows.day for k in days if t - k * windows.day < s][:7]
    at = {u for u in at if u >= max(s - 7 * windows.day, windows.first[0])}
    those = [k for k in known if k[1] in at]
    n = HABIT * windows.horizon / windows.every + sum(k[4] for k in those)
    return sum(k[4] * k[3] for k in those) / n
