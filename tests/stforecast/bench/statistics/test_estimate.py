import math

import numpy as np
import pytest
from scipy.stats import t as student
from scipy.stats import ttest_1samp, ttest_ind

from stforecast.bench.statistics.estimate import Estimate, Variation, mean_variation


@pytest.mark.parametrize(
    ("numbers", "text"),
    [
        ((4.1234, 2.0432, 6.2868), "4.1 [2.0, 6.3]"),
        ((0.23541, 0.23104, 0.24013), "0.2354 [0.2310, 0.2401]"),
        ((12345.6, 12001.2, 13004.5), "12,346 [12,001, 13,004]"),
        ((-0.5, -1.25, 0.25), "-0.50 [-1.25, 0.25]"),
        ((2.0, 2.0, 2.0), "2 [2, 2]"),
        ((math.inf, math.nan, math.nan), "inf"),
    ],
)
def test_texts_have_two_digits_of_half_the_width(numbers, text):
    assert str(Estimate(*numbers)) == text


def test_what_an_interval_excludes():
    estimate = Estimate(2.0, 1.0, 3.0)
    assert estimate.excludes(0.99)
    assert estimate.excludes(3.01)
    assert not estimate.excludes(1.0)
    assert not Estimate(2.0, math.nan, math.nan).excludes(5.0)


def test_one_source_has_the_interval_of_students_test():
    values = np.array([1.0, 4.0, 2.0, 7.0])
    variance = values.var(ddof=1) / 4
    found = Variation(3.5, variance, ((variance, 3),)).estimate(0.9)
    expected = ttest_1samp(values, 0).confidence_interval(0.9)
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high))


def test_two_sources_have_the_interval_of_welchs_test():
    a, b = np.array([1.0, 4.0, 2.0, 7.0, 5.5]), np.array([30.0, 2.0, 11.0])
    parts = tuple((x.var(ddof=1) / len(x), len(x) - 1) for x in (a, b))
    found = Variation(a.mean() - b.mean(), sum(v for v, _ in parts), parts).estimate(0.95)
    expected = ttest_ind(a, b, equal_var=False).confidence_interval(0.95)
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high))


def test_a_mean_of_independent_estimates():
    found = mean_variation([Variation(1.0, 4.0, ((4.0, 3),)), Variation(5.0, 12.0, ((12.0, 8),))])
    assert (found.value, found.variance) == (3.0, 4.0)
    assert found.parts == ((1.0, 3), (3.0, 8))
    assert found.degrees_of_freedom == pytest.approx(16 / (1 / 3 + 9 / 8))
    assert math.isnan(mean_variation([found, Variation(1.0, math.nan, ())]).variance)


def test_falling_functions_swap_the_ends():
    found = Variation(0.0, 1.0, ((1.0, 10),)).estimate(0.95, lambda value: 1 - math.exp(value))
    reach = student.ppf(0.975, 10)
    assert found == Estimate(
        0.0, pytest.approx(1 - math.exp(reach)), pytest.approx(1 - math.exp(-reach))
    )


def test_no_variance_is_no_width_and_unknown_variance_no_interval():
    assert Variation(2.0, 0.0, ((0.0, 4),)).estimate(0.95) == Estimate(2.0, 2.0, 2.0)
    found = Variation(2.0, math.nan, ()).estimate(0.95)
    assert found.value == 2
    assert math.isnan(found.low)
    assert math.isnan(found.high)
