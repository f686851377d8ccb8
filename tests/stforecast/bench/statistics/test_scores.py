import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data_prep.base.errors import InputError
from stforecast.bench.statistics.bootstrap import bootstrap, skill, win_rate

NAN = np.nan


@pytest.fixture(scope="module")
def compare(make_sums, mean):
    """Resamples methods with one seed: `compare(a=(clients, days), b=…)`."""

    def run(groups=None, seed=0, **methods):
        sums = {name: make_sums([errors]) for name, errors in methods.items()}
        return bootstrap(sums, mean, groups, n=400, seed=seed)

    return run


def test_skill_by_hand(compare):
    # Ratios of 1/2 and 1/8 have the geometric mean 1/4.
    found = compare(a=[[1], [1]], b=[[2], [8]])
    assert skill([found], "a", "b").value == pytest.approx(0.75)
    assert skill([found], "b", "a").value == pytest.approx(-3)
    assert skill([found], "a", "a").value == 0


def test_ratios_are_limited_and_equal_errors_are_no_skill(compare):
    found = compare(a=[[1e-9], [1]], b=[[1], [1]])
    assert skill([found], "a", "b").value == pytest.approx(1 - 0.1)
    assert skill([found], "b", "a").value == pytest.approx(1 - 10)
    perfect = compare(a=[[0], [1]], b=[[0], [4]])
    assert skill([perfect], "a", "b").value == pytest.approx(0.5)
    diverged = compare(a=[[np.inf], [1]], b=[[1], [1]], c=[[np.inf], [1]])
    assert skill([diverged], "a", "b").value == pytest.approx(1 - 10)
    assert skill([diverged], "a", "c").value == 0


def test_no_end_of_a_skill_is_beyond_the_limits_of_ratios(compare):
    found = skill([compare(a=[[1, 1, 1, 100]], b=[[1, 1, 1, 1]])], "a", "b")
    assert found.value == pytest.approx(1 - 103 / 4)
    assert found.low == 1 - 100
    assert found.value < found.high <= 1 - 1 / 100


def test_clients_without_targets_have_no_part(compare):
    found = compare(a=[[1, 2], [NAN, NAN], [1, 1]], b=[[2, 4], [NAN, NAN], [4, 4]])
    assert skill([found], "a", "b").value == pytest.approx(1 - 8**-0.5)
    assert win_rate([found], "a").value == 1


def test_the_skill_of_a_constant_ratio_is_certain(compare):
    errors = 1 + np.random.default_rng(0).random((4, 6))
    found = skill([compare(np.arange(4), a=0.8 * errors, b=errors)], "a", "b")
    assert (found.value, found.low, found.high) == pytest.approx((0.2, 0.2, 0.2))


def test_win_rate_by_hand(compare):
    # Against b: a win, a tie and a loss; against c: three wins.
    found = compare(a=[[1], [2], [3]], b=[[2], [2], [2]], c=[[9], [9], [np.inf]])
    assert win_rate([found], "a").value == pytest.approx(4.5 / 6)
    assert win_rate([found], "b").value == pytest.approx(4.5 / 6)
    assert win_rate([found], "c").value == 0


def test_a_client_that_is_drawn_twice_counts_twice(compare):
    found = compare(np.arange(3), a=[[1, 1], [1, 1], [4, 4]], b=[[2, 2], [2, 2], [2, 2]])
    # Two of three clients are drawn: a wins with 0, 1 or 2 of them.
    interval = win_rate([found], "a")
    assert interval.value == pytest.approx(2 / 3)
    assert (interval.low, interval.high) == (0, 1)
    ratios = np.log([0.5, 0.5, 2])
    logs = -np.log(1 - np.array([skill([found], "a", "b").low, skill([found], "a", "b").high]))
    assert logs[0] < -ratios.mean() < logs[1]


def test_a_method_alone_has_no_win_rate(compare):
    assert np.isnan(win_rate([compare(a=[[1, 2]])], "a").value)


def test_data_sets_have_equal_weight(compare):
    small, large = compare(a=[[1]], b=[[2]]), compare(a=[[8]] * 50, b=[[1]] * 50)
    # Ratios 1/2 and 8 have the geometric mean 2.
    assert skill([small, large], "a", "b").value == pytest.approx(-1)
    assert win_rate([small, large], "a").value == 0.5


def test_two_data_sets_tell_more_than_one_even_with_the_same_draws(compare):
    rng = np.random.default_rng(0)
    errors = {name: 1 + rng.random((3, 20)) for name in "ab"}
    one = compare(**errors)
    alone, twice = (skill(sets, "a", "b") for sets in ([one], [one, one]))
    widths = [np.log((1 - e.low) / (1 - e.high)) for e in (alone, twice)]
    # Half the variance, and 38 instead of 19 degrees of freedom (t is 2.093 and 2.024).
    assert widths[1] / widths[0] == pytest.approx(2.024 / 2.093 / np.sqrt(2), abs=1e-3)


def test_a_data_set_of_one_day_leaves_no_interval(compare):
    many, one = compare(a=[[1, 2]], b=[[2, 1]]), compare(a=[[1]], b=[[2]])
    assert np.isnan(skill([many, one], "a", "b").low)
    assert np.isnan(win_rate([many, one], "a").high)


def test_unknown_methods_are_refused(compare):
    found = compare(a=[[1]], b=[[2]])
    with pytest.raises(InputError, match="unknown method 'c'"):
        skill([found], "a", "c")
    with pytest.raises(InputError, match="unknown method 'c'"):
        win_rate([found], "c")


errors = st.lists(st.lists(st.integers(0, 4), min_size=3, max_size=3), min_size=3, max_size=3)


@given(errors, errors, errors)
@settings(max_examples=40, derandomize=True)
def test_win_rates_add_up_and_skill_turns_around(compare, a, b, c):
    found = compare(a=a, b=b, c=c)
    assert sum(win_rate([found], name).value for name in "abc") == pytest.approx(1.5)
    forth, back = skill([found], "a", "b").value, skill([found], "b", "a").value
    assert (1 - forth) * (1 - back) == pytest.approx(1)
