import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom, ttest_1samp
from scipy.stats import permutation_test as scipys

from data_prep.base.errors import InputError
from stforecast.bench.statistics.estimate import holm, permutation_test

p_values = st.lists(st.floats(0, 1), min_size=1, max_size=8)


def test_five_days_can_never_show_a_difference(make_sums):
    found = permutation_test(make_sums([[[1, 2, 3, 4, 5]]]), make_sums([[[2, 3, 4, 5, 9]]]))
    # Of 32 patterns of signs, that of the data and its mirror image are as extreme.
    assert (found.p_value, found.smallest) == (2 / 32, 2 / 32)


def test_three_days_by_hand(make_sums):
    # Differences 3, 2 and -1 add up to 4; ±6, ±4 (this one), ±2 and 0 (twice) can be reached.
    found = permutation_test(make_sums([[[4, 3, 1]]]), make_sums([[[1, 1, 2]]]))
    assert found.p_value == 4 / 8


def test_scipy_agrees(make_sums):
    rng = np.random.default_rng(0)
    for _ in range(5):
        a, b = rng.random((2, 7))
        expected = scipys((a, b), lambda x, y, axis: (x - y).mean(axis=axis), vectorized=True,
                          permutation_type="samples", n_resamples=np.inf)  # fmt: skip
        found = permutation_test(make_sums([[a]]), make_sums([[b]]))
        assert found.p_value == pytest.approx(expected.pvalue)


def test_the_root_of_the_mean_has_the_same_p_value(make_sums):
    rng = np.random.default_rng(1)
    a, b = rng.random((2, 6)), rng.random((2, 6))

    def root_difference(swapped):
        first, second = np.where(swapped, b, a), np.where(swapped, a, b)
        return abs(np.sqrt(first.mean()) - np.sqrt(second.mean()))

    patterns = [root_difference(swapped) for swapped in itertools.product([False, True], repeat=6)]
    expected = np.mean(np.array(patterns) >= patterns[0] - 1e-12)
    assert permutation_test(make_sums([a]), make_sums([b])).p_value == expected


def test_random_patterns_agree_with_students_test(make_sums):
    rng = np.random.default_rng(2)
    differences = rng.normal(0.3, 1, 40)
    sums = make_sums([[differences]]), make_sums([[np.zeros(40)]])
    found = permutation_test(*sums)
    expected = ttest_1samp(differences, 0).pvalue
    assert 0.02 < expected < 0.2
    assert found.p_value == pytest.approx(expected, abs=0.02)
    assert found.smallest == 1 / 10_001
    assert permutation_test(*sums) == found
    assert permutation_test(*sums, seed=1) != found


def test_random_patterns_never_give_zero(make_sums):
    found = permutation_test(make_sums([[np.ones(40)]]), make_sums([[np.zeros(40)]]))
    assert found.p_value == found.smallest == 1 / 10_001


def test_equal_methods_are_found_different_as_often_as_the_level_says(make_sums):
    rng = np.random.default_rng(3)
    n, level = 400, 2 / 32
    pairs = rng.normal(size=(n, 2, 1, 1, 8))
    found = [permutation_test(*map(make_sums, pair)).p_value <= level for pair in pairs]
    assert binom.ppf(0.001, n, level) <= sum(found) <= binom.ppf(0.999, n, level)


def test_seeds_are_averaged_and_clients_added(make_sums):
    # Day sums are (1 + 3) / 2 = 2 and (5 + 1) / 2 = 3 against 1 + 3 = 4 and 2 + 1 = 3.
    a = make_sums([[[1, 4], [0, 1]], [[2, 0], [1, 1]]])
    b = make_sums([[[1, 2], [3, 1]]])
    assert permutation_test(a, b).p_value == permutation_test(
        make_sums([[[2, 3]]]), make_sums([[[4, 3]]])
    ).p_value  # fmt: skip


def test_days_without_targets_do_not_count(make_sums):
    nan = np.nan
    found = permutation_test(make_sums([[[1, nan, 2]]]), make_sums([[[2, nan, 4]]]))
    assert found.p_value == 0.5


def test_one_day_shows_nothing_and_divergence_has_no_p_value(make_sums):
    assert permutation_test(make_sums([[[1]]]), make_sums([[[9]]])).p_value == 1
    diverged = permutation_test(make_sums([[[1, np.inf]]]), make_sums([[[9, 9]]]))
    assert np.isnan(diverged.p_value)


def test_other_targets_are_refused(make_sums):
    with pytest.raises(InputError, match=r"reference .*targets"):
        permutation_test(make_sums([[[1, 2]]]), make_sums([[[1, np.nan]]]))


@pytest.mark.repeats
@given(
    st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=2, max_size=9),
    st.sampled_from([0.25, 2.0, 1024.0]),
    st.randoms(),
)
@settings(max_examples=50, derandomize=True)
def test_scale_order_of_days_and_direction_do_not_matter(make_sums, pairs, scale, random):
    def p_value(pairs, scale=1.0):
        a, b = np.array(pairs, dtype=float).T * scale
        return permutation_test(make_sums([[a]]), make_sums([[b]])).p_value

    expected = p_value(pairs)
    assert p_value(pairs, scale) == expected
    assert p_value([(b, a) for a, b in pairs]) == expected
    assert p_value(random.sample(pairs, len(pairs))) == expected


def test_holm_by_hand():
    # 0.01 · 4, 0.02 · 3, 0.03 · 2 (no less than the one before) and 0.9 · 1.
    np.testing.assert_allclose(holm([0.9, 0.01, 0.03, 0.02]), [0.9, 0.04, 0.06, 0.06])
    np.testing.assert_allclose(holm([0.5, 0.4]), [0.8, 0.8])
    np.testing.assert_allclose(holm([0.7, 0.6]), [1, 1])
    np.testing.assert_allclose(holm([np.nan, 0.01, 0.04]), [np.nan, 0.02, 0.04])
    assert holm([]).size == 0


@given(p_values, st.floats(0.001, 0.999))
@settings(max_examples=200, derandomize=True)
def test_holm_rejects_what_the_sequence_of_tests_rejects(p_values, level):
    corrected = holm(p_values)
    rejected = set()
    for step, place in enumerate(np.argsort(p_values, kind="stable")):
        if p_values[place] * (len(p_values) - step) > level:
            break
        rejected.add(place)
    assert set(np.flatnonzero(corrected <= level)) == rejected
