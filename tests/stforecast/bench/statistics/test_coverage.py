"""Intervals hold the truth as often as they say, on simulated errors with known answers."""

import numpy as np
import pytest

from stforecast.bench.statistics.bootstrap import bootstrap, skill, win_rate
from stforecast.bench.statistics.estimate import ErrorSums

N_TARGETS = 24

DESIGNS = {
    "8 days": {"days": 8},
    "16 days": {"days": 16},
    "3 days": {"days": 3},
    "skewed, 8 days": {"days": 8, "by_day": 0.5},
    "skewed, 16 days": {"days": 16, "by_day": 0.5},
    "crossed, 8 days": {
        "days": 8, "clients": 8, "seeds": 3, "by_client": 0.3, "by_seed": 0.05, "ratio": 0.9
    },
    "crossed, 16 days": {
        "days": 16, "clients": 12, "seeds": 5, "by_client": 0.3, "by_seed": 0.05, "ratio": 0.9
    },
    "gaps": {"days": 16, "clients": 8, "by_client": 0.3, "ratio": 0.9, "missing": 0.3},
}  # fmt: skip


def effects(rng, spread, *shape):
    """Skewed factors of mean 1."""
    return np.exp(spread * rng.normal(size=shape) - spread**2 / 2)


def simulate(
    rng, days, clients=3, seeds=1, by_day=0.3, by_client=0.0, by_seed=0.0, ratio=1.0, missing=0.0
):
    """Errors of methods a and b, of mean `ratio` and 1.

    Days and clients are better or worse for both methods, and somewhat for each of them.
    """
    common = effects(rng, by_day, 1, days) * effects(rng, by_client, clients, 1)
    weight = np.where(rng.random((clients, days)) < missing, 0.0, N_TARGETS)
    found = {}
    for name, mean in (("a", ratio), ("b", 1.0)):
        own = effects(rng, 0.3 * by_day, 1, days) * effects(rng, 0.3 * by_client, clients, 1)
        noise = effects(rng, 0.1, seeds, clients, days)
        errors = mean * common * own * effects(rng, by_seed, seeds, 1, 1) * noise
        found[name] = ErrorSums(errors * weight, np.broadcast_to(weight, errors.shape))
    return found


def coverage(mean, n, *, n_replicates=400, **design):
    """Share of simulated data sets of which the interval holds the truth, for each statistic."""
    ratio, crossed = design.get("ratio", 1.0), "by_client" in design
    truth = {
        "error": 1.0,
        "difference": ratio - 1,
        "relative difference": 100 * (ratio - 1),
        "skill": 1 - ratio,
    }
    held = dict.fromkeys(truth, 0)
    for seed in range(n):
        methods = simulate(np.random.default_rng([1, seed]), **design)
        groups = np.arange(design["clients"]) if crossed else None
        found = bootstrap(methods, mean, groups, n=n_replicates, seed=seed)
        estimates = {
            "error": found.error("b"),
            "difference": found.difference("a", "b"),
            "relative difference": found.relative_difference("a", "b"),
            "skill": skill([found], "a", "b"),
        }
        for name, estimate in estimates.items():
            held[name] += not estimate.excludes(truth[name])
    return {name: count / n for name, count in held.items()}


@pytest.mark.quick(5)
@pytest.mark.parametrize("design", [design for design in DESIGNS if "16" not in design])
def test_intervals_hold_the_truth(design, mean):
    shares = coverage(mean, 150, **DESIGNS[design])
    assert all(0.9 <= share <= 0.99 for share in shares.values()), shares


@pytest.mark.slow
@pytest.mark.parametrize("design", DESIGNS)
def test_intervals_hold_the_truth_in_more_data_sets(design, mean):
    shares = coverage(mean, 1000, n_replicates=1000, **DESIGNS[design])
    assert all(0.92 <= share <= 0.99 for share in shares.values()), shares


@pytest.mark.repeats
@pytest.mark.parametrize("seeds", [2, 5])
def test_few_seeds_of_much_variance_are_no_proof(seeds, mean):
    shares = coverage(mean, 200, days=16, seeds=seeds, by_day=0.1, by_seed=0.2)
    # With the 15 degrees of freedom of the days, two seeds would give 0.77.
    assert min(shares.values()) >= 0.87, shares


@pytest.mark.repeats
def test_noise_alone_makes_intervals_wide(mean):
    shares = coverage(mean, 100, days=8, clients=8, seeds=3, by_day=0.0, by_client=0.0)
    assert min(shares.values()) >= 0.95, shares


@pytest.mark.repeats
@pytest.mark.parametrize(
    "design", ["crossed, 8 days", pytest.param("crossed, 16 days", marks=pytest.mark.slow)]
)
def test_the_win_rate_of_equal_methods_is_a_half(design, mean):
    settings = DESIGNS[design] | {"ratio": 1.0}
    n, held = 200, 0
    for seed in range(n):
        methods = simulate(np.random.default_rng([2, seed]), **settings)
        found = bootstrap(methods, mean, np.arange(settings["clients"]), n=400, seed=seed)
        held += not win_rate([found], "a").excludes(0.5)
    assert 0.9 <= held / n <= 0.99


@pytest.mark.repeats
def test_days_that_depend_on_each_other_need_longer_blocks(mean):
    n, n_days, correlation, held = 300, 32, 0.3, {1: 0, 4: 0}
    for seed in range(n):
        rng = np.random.default_rng([3, seed])
        days = rng.normal(size=n_days)
        days[0] /= np.sqrt(1 - correlation**2)
        for day in range(1, n_days):
            days[day] += correlation * days[day - 1]
        sums = ErrorSums(days[None, None], np.ones((1, 1, n_days)))
        for length in held:
            found = bootstrap({"a": sums}, mean, n=400, seed=seed, block_length=length)
            held[length] += not found.error("a").excludes(0)
    assert held[1] / n < 0.89
    assert 0.9 <= held[4] / n <= 0.99
