"""Summaries of what nodes report, computed by hand."""

import math

import pytest

from stforecast.federated.nodes.reported import (
    Reported,
    bounded_mean,
    most_improved,
    sound_errors,
)


def test_a_mean_of_usual_nodes_is_the_pooled_mean():
    sums = [Reported(3.0, 10, 1), Reported(8.0, 20, 2), Reported(5.0, 10, 1)]
    assert bounded_mean(sums) == pytest.approx(16 / 40)
    assert math.isnan(bounded_mean([]))
    assert math.isnan(bounded_mean([Reported(0.0, 0.0, 1)]))


def test_two_nodes_are_not_bounded():
    assert bounded_mean([Reported(1.0, 1, 1), Reported(1e6, 1, 1)]) == pytest.approx(500000.5)


def test_a_node_that_claims_many_summands_weighs_ten_clients():
    sums = [Reported(10.0, 10, 1)] * 2 + [Reported(0.0, 1e12, 1)]
    assert bounded_mean(sums) == pytest.approx(20 / 120)


def test_a_mean_that_is_far_off_is_drawn_near_on_both_sides():
    honest = [Reported(1.0, 1, 1)] * 2
    assert bounded_mean([*honest, Reported(1e300, 1, 1)]) == pytest.approx((2 + 11) / 3)
    assert bounded_mean([*honest, Reported(-1e300, 1, 1)]) == pytest.approx((2 - 9) / 3)


def test_errors_that_cannot_be_or_are_far_off_do_not_count():
    errors = {i: {"mse": e} for i, e in enumerate([1.0, 2.0, 3.0, -0.1, math.nan, 21.0, 0.19])}
    counted, why = sound_errors({**errors, 9: {}}, ["mse"])
    assert counted == [0, 1, 2]
    assert why[3] == "its test mse is -0.1"
    assert why[5] == "its test mse is 21, the median node's is 2"
    assert why.keys() == {3, 4, 5, 6, 9}
    assert sound_errors({0: {"mse": 1.0}, 1: {"mse": 99.0}}, ["mse"]) == ([0, 1], {})


def test_a_node_without_a_number_spoils_no_mean():
    sums = [Reported(1.0, 1, 1), Reported(math.nan, 1, 1), Reported(3.0, 1, 1)]
    assert bounded_mean(sums) == pytest.approx(2.0)
    assert math.isnan(bounded_mean([Reported(math.nan, 1, 1)]))


def scores(*means):
    return {i: Reported(10 * m, 10, 1) for i, m in enumerate(means)}


def test_most_nodes_decide_whether_a_round_is_better():
    before = scores(1.0, 1.0, 1.0, 1.0, 1.0)
    assert most_improved(scores(0.9, 0.9, 0.9, 9.0, 9.0), before)
    assert not most_improved(scores(1.1, 1.1, 1.1, 0.0, 0.0), before)
    assert not most_improved(scores(*[1.0] * 5), before)


def test_a_node_is_compared_with_itself():
    """Its level does not matter, as the pooled mean of .1 and 5 would be decided by the second."""
    before = scores(0.1, 0.1, 5.0)
    assert most_improved(scores(0.09, 0.09, 6.0), before)
    assert not most_improved(scores(0.11, 0.11, 1.0), before)


def test_a_vote_weighs_as_much_as_the_node_has_clients():
    before, now = scores(1.0, 1.0, 1.0), scores(0.9, 1.1, 1.1)
    now[0] = Reported(0.9 * 10, 10, 3)
    assert most_improved(now, before)


def test_a_node_that_claims_many_summands_has_no_more_votes():
    before = scores(*[1.0] * 5)
    now = scores(0.9, 0.9, 0.9, 9.0, 9.0)
    for liar in (3, 4):
        now[liar] = Reported(9e12, 1e12, 1)
    assert most_improved(now, before)


def test_nodes_that_are_in_one_of_two_rounds_do_not_vote():
    before = scores(1.0, 1.0, 1.0)
    now = scores(0.9, 0.9, 1.1, 2.0, 2.0)
    assert most_improved(now, before)
    assert not most_improved({7: Reported(0.0, 1, 1)}, before)


def test_two_nodes_compare_the_pooled_mean():
    assert most_improved(scores(0.5, 1.1), scores(1.0, 1.0))
    assert not most_improved(scores(0.9, 1.2), scores(1.0, 1.0))
