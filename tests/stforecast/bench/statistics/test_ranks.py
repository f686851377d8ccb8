import numpy as np
import pytest
from scipy.stats import chi2, wilcoxon

from stforecast.bench.statistics.estimate import Ranking, rank

# Demšar, JMLR 7, 2006, Table 6: ranks of C4.5, C4.5+m, C4.5+cf and C4.5+m+cf on 14 data sets.
DEMSAR = np.array(
    [
        [4, 3, 2, 1], [1, 2, 3, 4], [4, 1, 2, 3], [4, 1, 3, 2], [4, 2, 3, 1], [1, 2.5, 4, 2.5],
        [3, 2, 4, 1], [2.5, 2.5, 4, 1], [4, 3, 2, 1], [2.5, 2.5, 2.5, 2.5], [4, 2.5, 1, 2.5],
        [3, 2, 4, 1], [4, 1, 2, 3], [3, 1, 4, 2],
    ]
)  # fmt: skip


def test_the_worked_example_of_demsar():
    found = rank(DEMSAR)
    assert found.n_clients == 14
    np.testing.assert_allclose(found.ranks, [3.143, 2.000, 2.893, 1.964], atol=5e-4)
    # Section 3.2.2: q is 2.569 for four classifiers, thus CD = 2.569 sqrt(4 · 5 / (6 · 14)).
    assert found.critical_difference == pytest.approx(2.569 * (20 / 84) ** 0.5, abs=5e-4)
    # The paper's statistic is 9.28. The correction for ties divides by 1 - Σ(t³ - t) / (N(k³ - k)):
    # three pairs and one four are tied, 3 · 6 + 60 of 14 · 60.
    statistic = 12 / (14 * 4 * 5) * (44**2 + 28**2 + 40.5**2 + 27.5**2) - 3 * 14 * 5
    assert statistic == pytest.approx(9.28, abs=5e-3)
    corrected = statistic / (1 - 78 / (14 * 60))
    assert found.p_value == pytest.approx(chi2.sf(corrected, 3))


def test_equal_methods_do_not_differ():
    found = rank(np.ones((5, 3)))
    assert found.p_value == 1
    np.testing.assert_array_equal(found.ranks, [2, 2, 2])


def test_one_that_is_always_best_ranks_first():
    errors = np.random.default_rng(0).random((30, 3)) + np.array([0, 1, 1])
    found = rank(errors)
    assert found.ranks[0] == 1
    assert found.p_value < 1e-6
    assert found.ranks[1] - found.ranks[0] > found.critical_difference
    # Another test of the same pair agrees.
    assert wilcoxon(errors[:, 0], errors[:, 1]).pvalue < 1e-6


def groups(ranks, critical_difference):
    ranking = Ranking(np.array(ranks), 10, 0.01, critical_difference, "error")
    return ranking.indistinct_groups()


def test_groups_of_the_worked_example():
    # 3.143 - 1.964 is below the critical difference of 1.25: nobody differs (Demšar, p. 14).
    assert rank(DEMSAR).indistinct_groups() == [(3, 1, 2, 0)]


def test_groups_overlap_and_hold_no_smaller_group():
    assert groups([4.0, 1.0, 2.0, 3.0], 1.5) == [(1, 2), (2, 3), (3, 0)]
    assert groups([4.0, 1.0, 2.0, 3.0], 2.5) == [(1, 2, 3), (2, 3, 0)]
    assert groups([1.0, 2.0, 5.0, 6.0], 1.5) == [(0, 1), (2, 3)]


def test_methods_that_all_differ_form_no_group():
    assert groups([1.0, 2.0, 3.0], 0.5) == []


def test_a_difference_equal_to_the_critical_one_is_none():
    assert groups([1.1, 1.1 + 0.7, 3.0], 0.7) == [(0, 1)]
