import numpy as np
import pytest

from data_prep.base.errors import InputError
from stforecast.bench.statistics.estimate import ErrorSums, common_weight


def test_the_weights_of_one_method_and_seed_are_those_of_all(make_sums):
    nan = np.nan
    methods = {"a": make_sums([[[1, nan, 3]]]), "b": make_sums([[[2, nan, 0]], [[3, nan, 1]]])}
    np.testing.assert_array_equal(common_weight(methods), [[1, 0, 1]])


def test_methods_of_other_targets_are_refused(make_sums):
    nan = np.nan
    a, b = make_sums([[[1, 2, 3]]]), make_sums([[[1, nan, nan]]])
    with pytest.raises(InputError, match=r"b .*targets .* a: .* 2 of 3 "):
        common_weight({"a": a, "b": b})
    with pytest.raises(InputError, match=r"a .* 1 .* 3 blocks, c .* 1 .* 2 bl"):
        common_weight({"a": a, "c": make_sums([[[1, 2]]])})
    # A seed counts as well.
    with pytest.raises(InputError, match=r"d .*targets .* a: .* 1 of 3"):
        common_weight({"a": a, "d": make_sums([[[1, 2, 3]], [[1, 2, nan]]])})


def test_nothing_to_compare_is_refused(make_sums):
    with pytest.raises(InputError, match="no methods"):
        common_weight({})
    with pytest.raises(InputError, match="was observed"):
        common_weight({"a": make_sums([[[np.nan]]])})


@pytest.mark.parametrize(
    ("total", "weight", "message"),
    [
        (np.ones((2, 3)), np.ones((2, 3)), r"totals .*\(2, 3\)"),
        (np.ones((1, 2, 3)), np.ones((1, 2, 4)), r"weights .*\(1, 2, 4\)"),
        (np.ones((0, 2, 3)), np.ones((0, 2, 3)), "least 1"),
        (np.ones((1, 1, 1)), -np.ones((1, 1, 1)), "negative"),
        (np.ones((1, 1, 1)), np.full((1, 1, 1), np.nan), "not finite"),
    ],
)
def test_sums_of_no_use_are_refused(total, weight, message):
    with pytest.raises(InputError, match=message):
        ErrorSums(total, weight)
