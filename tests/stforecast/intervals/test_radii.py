"""Radii of conformal intervals."""

import numpy as np
import pytest

from stforecast.intervals.calibration import tracked_side
from stforecast.intervals.radii import (
    RATES,
    SMALLEST,
    conformal_radius,
    largest_known,
    side_scores,
    tracked_radii,
)


def shaped(values):
    """One cell and one step ahead."""
    return np.array(values, dtype=float).reshape(1, -1, 1)


def test_scores_are_negative_inside_and_nan_where_nothing_was_observed():
    bounds = (shaped([0, 0, 0, 0]), shaped([4, 4, 4, 4]))
    mask = np.array([True, True, True, False]).reshape(1, 4, 1)
    found = np.maximum(*side_scores(bounds, shaped([-2, 1, 7, 9]), mask))
    np.testing.assert_array_equal(found, shaped([2, -1, 3, np.nan]))


@pytest.mark.parametrize(
    # ⌈(n + 1) c⌉ of n = 9 scores 1 … 9; the tenth of nine is not there.
    ("coverage", "radius"),
    [(0.5, 5.0), (0.8, 8.0), (0.85, 9.0), (0.9, 9.0), (0.91, np.inf)],
)
def test_the_radius_is_the_corrected_quantile(coverage, radius):
    known = np.random.default_rng(0).permutation(np.arange(1.0, 10.0))
    assert conformal_radius(shaped(known), coverage).item() == radius


def test_what_was_not_observed_does_not_count():
    known = shaped([3, np.nan, 1, 2, np.nan, 4])
    assert conformal_radius(known, 0.8).item() == 4.0
    assert np.isinf(conformal_radius(shaped([np.nan, np.nan]), 0.5).item())


def test_clients_and_steps_are_calibrated_apart():
    known = np.stack([np.arange(1.0, 10), 10 * np.arange(1.0, 10)])[..., None]
    known = np.concatenate([known, 100 * known], axis=-1)
    np.testing.assert_array_equal(conformal_radius(known, 0.5), [[5, 500], [50, 5000]])


def test_exchangeable_errors_are_covered_as_promised():
    rng = np.random.default_rng(1)
    trials, n, coverage = 4000, 19, 0.9
    radius = conformal_radius(np.abs(rng.normal(size=(trials, n, 1))), coverage)
    inside = np.abs(rng.normal(size=(trials, 1))) <= radius
    # Exactly 18 / 20 on average; without the correction it would be 17.1 / 20.
    assert inside.mean() == pytest.approx(0.9, abs=0.015)


def test_a_radius_grows_by_a_miss_and_shrinks_by_a_hit():
    radii = tracked_radii(shaped(range(1, 10)), shaped([99, 0, 12]), 0.8, rates=[0.5])
    # 8, missed: × exp(0.5 · 0.8); held: × exp(-0.5 · 0.2); missed again.
    steps = np.cumsum([0, 0.4, -0.1, 0.4])
    np.testing.assert_allclose(radii.ravel(), 8 * np.exp(steps))


def test_a_miss_is_known_only_when_its_target_is_past():
    known = np.repeat(shaped(range(1, 10)), 3, axis=2)
    coming = np.full((1, 6, 3), np.nan)
    coming[0, 0] = 99.0
    radii = tracked_radii(known, coming, 0.5, rates=[0.2])
    # The miss of window 0, h + 1 steps ahead, moves the radius of window h + 1 and not before, by a
    # rate that falls with the root of the delay.
    for h in range(3):
        expected = np.where(np.arange(7) <= h, 5.0, 5.0 * np.exp(0.1 / np.sqrt(h + 1)))
        np.testing.assert_allclose(radii[0, :, h], expected)


def test_radii_depend_on_earlier_scores_only():
    rng = np.random.default_rng(5)
    known, coming = rng.random((2, 30, 2)), rng.random((2, 12, 2))
    changed = coming.copy()
    changed[:, 6:] = 50.0
    radii, again = (tracked_radii(known, new, 0.8) for new in (coming, changed))
    # Window 6 becomes known to window 7, one step ahead, and to window 8, two steps ahead.
    np.testing.assert_array_equal(radii[:, :7, 0], again[:, :7, 0])
    np.testing.assert_array_equal(radii[:, :8, 1], again[:, :8, 1])
    assert (radii[:, 7, 0] != again[:, 7, 0]).all()


def test_radii_are_averaged_by_their_losses():
    radii = tracked_radii(shaped(range(1, 10)), shaped([99, 99]), 0.8, rates=[0.0, 0.5])
    # η = 0 stays at 8; η = 0.5 goes to 8 exp(0.4) < 99, missed again, and 8 exp(0.8).
    # Losses of window 1 differ by 0.8 · 8 (exp(0.4) - 1) = 2 d, each is ± d from their mean.
    weight = 1 / (1 + np.exp(2 * np.sqrt(np.log(2))))
    expected = [8, 4 + 4 * np.exp(0.4), 8 * weight + 8 * np.exp(0.8) * (1 - weight)]
    np.testing.assert_allclose(radii.ravel(), expected)


def test_a_mean_radius_lies_between_those_of_single_rates():
    rng = np.random.default_rng(6)
    known, coming = rng.exponential(size=(3, 40, 2)), 2 * rng.exponential(size=(3, 90, 2))
    single = [tracked_radii(known, coming, 0.9, [rate]) for rate in RATES]
    mean = tracked_radii(known, coming, 0.9)
    assert (np.min(single, axis=0) - 1e-9 <= mean).all()
    assert (mean <= np.max(single, axis=0) + 1e-9).all()


def test_with_too_few_known_scores_a_radius_begins_with_the_largest():
    few = tracked_radii(shaped([2, np.nan, 3]), shaped([np.nan]), 0.9)
    np.testing.assert_allclose(few.ravel(), [3, 3])
    none = tracked_radii(shaped([np.nan] * 3), shaped([np.nan, 4, np.nan]), 0.9)
    np.testing.assert_allclose(none.ravel(), [np.inf, np.inf, 4, 4])


def test_a_radius_of_zero_grows_when_targets_are_missed():
    radii = tracked_radii(shaped([0.0] * 20), shaped([5.0] * 60), 0.9)
    assert 0 < radii[0, 0, 0] < 1e-5
    assert radii[0, -1, 0] > 1


def test_exchangeable_errors_stay_covered():
    rng = np.random.default_rng(7)
    errors = rng.exponential(size=(60, 500, 1))
    inside = errors[:, 200:] <= tracked_radii(errors[:, :200], errors[:, 200:], 0.9)[:, :-1]
    # 18,000 independent errors: a standard error of 0.0022, beside that of the first radii.
    assert inside.mean() == pytest.approx(0.9, abs=0.015)
    assert inside.mean(axis=1).min() > 0.9 - 5 * np.sqrt(0.09 / 300)


def test_coverage_returns_after_a_drift():
    rng = np.random.default_rng(2)
    known, drifted = rng.normal(size=(20, 100, 1)), 3 * rng.normal(size=(20, 400, 1))
    known, drifted = np.abs(known), np.abs(drifted)
    fixed = conformal_radius(known, 0.9)[:, None]
    tracked = tracked_radii(known, drifted, 0.9)[:, :-1]
    assert (drifted <= fixed).mean() < 0.5
    assert (drifted[:, 100:] <= tracked[:, 100:]).mean() == pytest.approx(0.9, abs=0.03)


def test_the_largest_score_is_known_when_its_target_is_past():
    known = np.full((1, 3, 2), np.nan)
    known[0, 1] = [2.0, 3.0]
    coming = np.array([[[1.0, 9.0], [5.0, np.nan], [4.0, 9.5]]])
    expected = [[2, 2, 5, 5], [3, 3, 9, 9]]
    np.testing.assert_array_equal(largest_known(known, coming)[0].T, expected)
    none = largest_known(np.full((1, 2, 1), np.nan), shaped([np.nan, 4]))
    assert none.ravel().tolist() == [-np.inf, -np.inf, 4]


def alone(known, coming, step):
    """Return radii and largest known scores of one step ahead; nothing is known of others."""
    at_step = [np.full((*part.shape, step), np.nan) for part in (known, coming)]
    for whole, part in zip(at_step, (known, coming), strict=True):
        whole[..., -1] = part
    most = np.maximum(largest_known(*at_step)[..., -1], SMALLEST)
    return tracked_radii(*at_step, 0.9)[..., -1], most


@pytest.mark.parametrize("step", [1, 12, 96, pytest.param(336, marks=pytest.mark.repeats)])
def test_no_radius_exceeds_the_largest_known_score(step):
    rng, n = np.random.default_rng(step), 40
    t = np.arange(n + 2 * step + 50)
    noise = rng.exponential(size=len(t))
    series = np.stack([
        noise, noise * np.exp(t / step), noise * np.exp(-t / step), noise**4, np.ones(len(t)),
        np.zeros(len(t)), np.where(t < n, 1.0, 50.0) * noise,
    ])  # fmt: skip
    series[rng.random(series.shape) < 0.1] = np.nan
    radii, most = alone(series[:, :n], series[:, n:], step)
    assert (radii <= most * (1 + 1e-12)).all()
    assert (radii > 0).all()


@pytest.mark.parametrize("step", [12, pytest.param(48, marks=pytest.mark.repeats)])
def test_coverage_returns_after_a_drift_though_feedback_is_late(step):
    rng = np.random.default_rng(3)
    known, drifted = (np.abs(rng.normal(size=(40, n))) for n in (100, 20 * step))
    radii, _ = alone(known, 3 * drifted, step)
    late = slice(10 * step, None)
    inside = (3 * drifted <= radii[:, :-1])[:, late]
    assert inside.mean() == pytest.approx(0.9, abs=0.03)


@pytest.mark.quick(3)
@pytest.mark.parametrize("n", [1, 3, 40])
def test_bounds_hold_what_they_promise_also_after_one_window(n):
    """The largest of 24 scores is above the next in 24 of 25 cases, one alone in half of them."""
    known, coming = np.random.default_rng(1).normal(size=(2, 2000, 40, 24))
    known, coming = known[:, :n], coming[:, :1]
    scales = np.ones(known.shape), np.ones(coming.shape)
    radius, most = tracked_side(known, coming, scales, np.zeros((2000, 1, 24)), 0.95)
    assert (coming <= np.minimum(radius, most)[:, :1]).mean() == pytest.approx(0.96, abs=0.02)
