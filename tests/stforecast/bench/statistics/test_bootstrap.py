import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import ttest_1samp

from data_prep.base.errors import InputError
from stforecast.bench.statistics.bootstrap import ALL, DAYS, ORIGINAL, SEEDS, bootstrap
from stforecast.bench.statistics.estimate import ErrorSums

NAN = np.nan


@pytest.fixture
def resample(mean):
    """Resamples mean errors: `resample({"a": sums})`."""
    return lambda methods, *args, **options: bootstrap(methods, mean, *args, **options)


def random_sums(make_sums, shape=(3, 4, 6), seed=0):
    return make_sums(1 + np.random.default_rng(seed).random(shape), 24)


def ends(estimate):
    return estimate.value, estimate.low, estimate.high


def assert_no_interval(estimate):
    assert np.isnan([estimate.low, estimate.high]).all()


def test_estimates_are_those_of_the_data(make_sums, resample):
    a = make_sums([[[1, 3], [2, NAN]], [[5, 3], [NAN, NAN]]], 2)
    a = ErrorSums(a.total, np.broadcast_to(a.weight[0], a.weight.shape))
    b = make_sums([[[2, 2], [1, NAN]]], 2)
    found = resample({"a": a, "b": b})
    # Pooled over both clients' three days, a has 6/3 with one seed and 8/3 with the other.
    assert found.error("a").value == pytest.approx(7 / 3)
    assert found.difference("a", "b").value == pytest.approx(7 / 3 - 5 / 3)
    assert found.relative_difference("a", "b").value == pytest.approx(40)
    np.testing.assert_allclose(found.by_client["a"][:, 0], [3, 1])


def test_errors_of_seeds_are_averaged_after_the_root(make_sums):
    sums = make_sums([[[1, 1]], [[9, 9]]])
    found = bootstrap({"a": sums}, lambda total, weight: np.sqrt(total / weight))
    assert found.error("a").value == 2


def test_replicates_are_errors_of_the_drawn_days(make_sums, resample):
    a, b = make_sums([[[1, 2, 4]]]), make_sums([[[1, 1, 5]]])
    found = resample({"a": a, "b": b})
    # Two of three days are drawn, the same for both methods.
    pairs = set(zip(found.pooled["a"][1:], found.pooled["b"][1:], strict=True))
    means = {(1, 1), (2, 1), (4, 5), (1.5, 1), (2.5, 3), (3, 3)}
    assert pairs == means | {(found.pooled["a"][0], found.pooled["b"][0])}
    alone = set(found.pooled["a"][found.kinds == SEEDS])
    assert alone == {found.pooled["a"][0]}


def test_the_variance_of_a_mean_is_unbiased(make_sums, resample):
    errors = np.array([3.0, 1.0, 4.0, 1.0, 5.0])
    found = resample({"a": make_sums([[errors]])}, n=40_000)
    assert found.pooled["a"][found.kinds == ALL].var() == pytest.approx(
        errors.var(ddof=1) / 5, rel=0.03
    )


def test_the_interval_of_days_is_students(make_sums, resample):
    errors = np.random.default_rng(0).normal(size=12)
    zero = make_sums([[np.zeros(12)]])
    found = resample({"a": make_sums([[errors]]), "b": zero}, n=40_000, level=0.9)
    expected = ttest_1samp(errors, 0).confidence_interval(0.9)
    half = (expected.high - expected.low) / 2
    assert ends(found.difference("a", "b")) == pytest.approx(
        (errors.mean(), expected.low, expected.high), abs=0.03 * half
    )


def test_seeds_of_two_methods_are_drawn_by_themselves(make_sums, resample):
    seeds = np.array([1.0, 2.0, 4.0, 5.0])[:, None, None] * np.ones((4, 1, 3))
    found = resample({"a": make_sums(seeds), "b": make_sums(seeds)}, n=40_000)
    difference = found.pooled["a"] - found.pooled["b"]
    variance = 2 * seeds[:, 0, 0].var(ddof=1) / 4
    assert difference[found.kinds == ALL].var() == pytest.approx(variance, rel=0.03)
    assert np.unique(difference[found.kinds == DAYS]).tolist() == [0]


def test_a_method_of_one_seed_is_taken_as_it_is(make_sums, resample):
    seeds = np.array([1.0, 2.0, 4.0, 5.0])[:, None, None] * np.ones((4, 1, 3))
    found = resample({"a": make_sums(seeds), "b": make_sums(np.ones((1, 1, 3)))}, n=40_000)
    assert np.unique(found.pooled["b"]).tolist() == [1]
    variation = found.vary(found.pooled["a"] - found.pooled["b"], "a", "b")
    assert variation.variance == pytest.approx(seeds[:, 0, 0].var(ddof=1) / 4, rel=0.03)
    assert [freedom for _, freedom in variation.parts] == [2, 3]


def test_crossed_effects_add_up(make_sums, resample):
    seed, client, day = np.meshgrid([0, 3], [0, 1, 5], [2, 4, 9, 1], indexing="ij")
    sums = make_sums(10.0 + seed + client + day)
    found = resample({"a": sums}, np.arange(3), n=40_000)
    parts = [np.var([0, 3], ddof=1) / 2, np.var([0, 1, 5], ddof=1) / 3]
    parts += [np.var([2, 4, 9, 1], ddof=1) / 4]
    variation = found.vary(found.pooled["a"], "a")
    assert variation.variance == pytest.approx(sum(parts), rel=0.03)
    assert [freedom for _, freedom in variation.parts] == [3, 2, 1]
    np.testing.assert_allclose(
        [part for part, _ in variation.parts], [parts[2], parts[1], parts[0]], rtol=0.05
    )


def test_clients_of_a_group_are_drawn_together(make_sums, resample):
    found = resample({"a": random_sums(make_sums)}, np.array([7, 3, 7, 5]))
    counts = found.client_counts
    np.testing.assert_array_equal(counts[0], counts[2])
    # Two of the three groups are drawn, with replacement.
    drawn = counts[[0, 1, 3]][:, found.kinds == ALL]
    assert set(drawn.sum(axis=0)) == {2}
    assert set(drawn.ravel()) == {0, 1, 2}
    assert set(counts[:, found.kinds == DAYS].ravel()) == {1}


def test_without_groups_clients_are_fixed(make_sums, resample):
    found = resample({"a": random_sums(make_sums)})
    assert set(found.client_counts.ravel()) == {1}
    # One group cannot be resampled either.
    one = resample({"a": random_sums(make_sums)}, np.zeros(4, dtype=int))
    assert ends(one.error("a")) == ends(found.error("a"))


def test_successive_days_are_drawn_together(make_sums, resample):
    # Whichever two successive days are drawn, the last being followed by the first, they cancel.
    errors = make_sums([[[1, -1] * 4]])
    found = resample({"a": errors}, block_length=2)
    assert ends(found.error("a")) == (0, 0, 0)
    assert resample({"a": errors}).error("a").high > 0.5
    assert found.n_days == 4


@pytest.mark.repeats
def test_independent_days_have_the_same_variance_in_longer_blocks(make_sums, resample):
    rng = np.random.default_rng(0)
    found = []
    for _ in range(200):
        replicates = resample({"a": make_sums(rng.normal(size=(1, 1, 18)))}, block_length=3)
        found.append(replicates.vary(replicates.pooled["a"], "a").variance)
    assert np.mean(found) == pytest.approx(1 / 18, rel=0.15)


def test_one_day_has_no_interval(make_sums, resample):
    found = resample({"a": random_sums(make_sums, (3, 4, 1))}, np.arange(4))
    assert_no_interval(found.error("a"))
    # Neither have three days in blocks of two, or one observed day among others.
    assert_no_interval(resample({"a": make_sums([[[1, 2, 3]]])}, block_length=2).error("a"))
    assert_no_interval(resample({"a": make_sums([[[1, NAN, NAN]]])}).error("a"))


def test_days_and_clients_without_targets_change_nothing(make_sums, resample):
    errors = np.random.default_rng(0).random((2, 3, 5))
    padded = np.full((2, 4, 7), NAN)
    padded[:, [[0], [1], [3]], [0, 2, 3, 4, 6]] = errors
    found = resample({"a": make_sums(padded)}, np.array([0, 1, 9, 2]))
    expected = resample({"a": make_sums(errors)}, np.arange(3))
    assert ends(found.error("a")) == pytest.approx(ends(expected.error("a")))
    assert np.isnan(found.by_client["a"][2]).all()


def test_a_multiple_of_another_method_is_that_on_every_day(make_sums, resample):
    b = random_sums(make_sums, (1, 4, 6))
    a = ErrorSums(1.25 * b.total, b.weight)
    found = resample({"a": a, "b": b}, np.arange(4))
    assert ends(found.relative_difference("a", "b")) == pytest.approx((25, 25, 25))
    assert ends(found.difference("a", "a")) == (0, 0, 0)


def test_a_method_that_diverged_is_infinitely_bad(make_sums, resample):
    errors = 1 + np.random.default_rng(0).random((2, 3, 4))
    errors[1, 2, 0] = np.inf
    a = make_sums(errors, 24)
    a.total[0, 1, 1] = NAN
    found = resample({"a": a, "b": random_sums(make_sums, (1, 3, 4))})
    assert found.error("a").value == np.inf
    assert_no_interval(found.error("a"))
    assert_no_interval(found.relative_difference("a", "b"))
    np.testing.assert_array_equal(np.isinf(found.by_client["a"][:, 0]), [False, True, True])


def test_errors_below_zero_have_an_interval(make_sums, resample):
    found = resample({"bias": make_sums([[[-1, 2, -3, 1]]])}).error("bias")
    assert found.low < -0.25 < found.high
    assert found.high - found.value == pytest.approx(found.value - found.low)


def test_intervals_of_positive_errors_are_positive(make_sums, resample):
    found = resample({"a": make_sums([[[0.1, 0.1, 0.2, 9]]])}).error("a")
    assert 0 < found.low < found.value < found.high


def test_kinds_of_replicates(make_sums, resample):
    found = resample({"a": random_sums(make_sums)}, n=400)
    assert found.kinds.tolist() == [ORIGINAL] + [ALL] * 400 + sorted([1, 2, 3] * 100)


@pytest.mark.parametrize(("days", "n"), [(4, 2000), (9, 2000), (18, 400)])
def test_the_seed_moves_ends_by_less_than_a_tenth_of_the_width(days, n):
    rng = np.random.default_rng(0)
    common = rng.gamma(3, size=(1, 1, days)) * rng.gamma(2, size=(1, 40, 1))
    weight, groups = np.full((1, 40, days), 24.0), np.arange(40) % 9
    methods = {
        name: ErrorSums(common * rng.gamma(8, size=common.shape), weight) for name in ("a", "b")
    }
    found = [
        bootstrap(methods, np.divide, groups, n=n, seed=seed, block_length=2 if days > 8 else 1)
        for seed in range(8)
    ]
    for estimates in (
        [of.error("a") for of in found],
        [of.relative_difference("a", "b") for of in found],
    ):
        ends = np.array([[of.low, of.high] for of in estimates])
        middle = np.median(ends, axis=0)
        assert np.abs(ends - middle).max() < 0.1 * (middle[1] - middle[0])


def test_a_seed_determines_the_draws_and_other_methods_do_not_matter(make_sums, resample):
    a, b, c = (random_sums(make_sums, seed=seed) for seed in range(3))
    found = resample({"a": a, "b": b}, np.arange(4)).difference("a", "b")
    assert resample({"c": c, "b": b, "a": a}, np.arange(4)).difference("a", "b") == found
    assert resample({"a": a, "b": b}, np.arange(4), seed=1).difference("a", "b") != found


@given(st.integers(-20, 20), st.permutations(range(4)), st.integers(0, 9))
@settings(max_examples=20, derandomize=True)
def test_scale_and_order_of_clients_do_not_matter(make_sums, mean, power, order, seed):
    a, b = (random_sums(make_sums, seed=s) for s in (seed, seed + 1))
    groups = np.array([0, 0, 1, 2])
    expected = bootstrap({"a": a, "b": b}, mean, groups, n=100)

    scale = 2.0**power
    scaled = {"a": ErrorSums(a.total * scale, a.weight), "b": ErrorSums(b.total * scale, b.weight)}
    found = bootstrap(scaled, mean, groups, n=100)
    assert found.relative_difference("a", "b") == expected.relative_difference("a", "b")
    assert ends(found.difference("a", "b")) == tuple(
        scale * end for end in ends(expected.difference("a", "b"))
    )

    ordered = {
        name: ErrorSums(sums.total[:, order], sums.weight[:, order])
        for name, sums in (("a", a), ("b", b))
    }
    found = bootstrap(ordered, mean, groups[order], n=100)
    np.testing.assert_allclose(found.pooled["a"], expected.pooled["a"])
    np.testing.assert_allclose(found.by_client["b"], expected.by_client["b"][order])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n": 10}, "10 replicates; .*100"),
        ({"block_length": 0}, "blocks .*0 days"),
        ({"level": 95}, "cover 95"),
        ({"groups": np.arange(3)}, r"groups .*\(3,\) .*4 "),
    ],
)
def test_arguments_of_no_use_are_refused(make_sums, mean, options, message):
    with pytest.raises(InputError, match=message):
        bootstrap({"a": random_sums(make_sums)}, mean, **options)


def test_unknown_methods_are_refused(make_sums, resample):
    found = resample({"fedavg": random_sums(make_sums)})
    with pytest.raises(InputError, match=r"method 'fedavgg'; .*: fedavg"):
        found.error("fedavgg")
