"""What the options of FUELS leave unchanged, and how clients are drawn at random."""

from itertools import combinations

import numpy as np
import pandas as pd
import pytest
import torch
from cut_windows import cut_windows
from mentions import mentions

from data_prep.base.errors import InputError
from stforecast.data.profiles import slot_order, slots_of
from stforecast.data.window_spec import WindowSpec
from stforecast.federated.core.population import Population
from stforecast.federated.core.state import Participants
from stforecast.federated.core.training import Training
from stforecast.federated.engine.rounds import Federation
from stforecast.forecasting.config import resolve
from stforecast.forecasting.forecaster import Forecaster
from stforecast.forecasting.task import ForecastTask, client_data
from stforecast.methods.fuels import Fuels, FuelsOptions
from stforecast.methods.fuels_options import as_many_at_random
from stforecast.models.dual import DualGRU, DualGRUOptions


def federation(n_clients=5, period=4, days=4, batch_size=4, optimizer_state="keep", **options):
    spec = WindowSpec(closeness=2, periods=1, period=period)
    steps = np.arange((days + 1) * period)
    rng = np.random.default_rng(3)
    series = np.sin(2 * np.pi * (steps[:, None] / period + rng.random(n_clients)))
    series = series + 0.2 * rng.normal(size=series.shape)
    windows = cut_windows(series, steps[period:], spec, with_next=True)
    training = Training(batch_size=batch_size, optimizer_state=optimizer_state)
    population = Population(lambda: DualGRU(spec, DualGRUOptions(3)), seed=2)
    method = Fuels(population, ForecastTask(period), training, FuelsOptions(**options))
    return Federation(method, client_data(windows), seed=5)


def after_rounds(n=3, **settings):
    run = federation(**settings)
    for _ in range(n):
        run.run_round()
    return run.state.clients.params


def assert_equal(a, b):
    assert a.keys() == b.keys()
    assert all(torch.equal(a[name], b[name]) for name in a)


# Options at values that leave the loss as it is


def test_a_floor_that_nothing_falls_below_changes_nothing():
    """W is 1 everywhere and not trained, so a floor of a half is never reached."""
    fixed = {"filter_init": "ones", "filter_train": False}
    assert_equal(after_rounds(**fixed), after_rounds(**fixed, filter_floor=0.5))


def test_without_augmentation_it_does_not_matter_when_shares_are_drawn():
    assert_equal(after_rounds(shift=1.0), after_rounds(shift=1.0, shift_draw="once"))


@pytest.mark.quick(2)
@pytest.mark.parametrize("option", [{"positives": "random"}, {"partition": "profiles"}])
def test_if_all_others_are_positives_it_does_not_matter_how_they_are_chosen(option):
    assert_equal(after_rounds(beta=1.0), after_rounds(beta=1.0, **option))


@pytest.mark.quick(2)
@pytest.mark.parametrize("options", [{}, {"partition": "profiles"}])
def test_if_all_clients_are_drawn_for_comparison_it_is_the_paper(options):
    """β lies between two divergences of the ten pairs, so no tie depends on rounding."""
    expected, found = after_rounds(**options), after_rounds(**options, compared=7)
    torch.testing.assert_close(found, expected)


@pytest.mark.quick(3)
@pytest.mark.parametrize("batch_size", [4, 5, 24])
def test_as_many_slots_as_steps_are_the_batches_of_the_paper(batch_size):
    run = federation(batch_size=batch_size)
    assert run.method.training.batch_size == 4
    assert_equal(after_rounds(batch_size=4), after_rounds(batch_size=batch_size))


@pytest.mark.repeats
def test_a_sample_estimates_the_positive_prototypes():
    """Of 200 clients of two kinds, twenty tell to which kind each belongs.

    At least 90 of the 190 pairs of twenty clients are of one kind, more than β = 0.4 of them.
    """
    n, kind = 200, (torch.arange(200) % 2).float()
    g = torch.Generator().manual_seed(0)
    prototypes = kind[:, None, None] * torch.linspace(-2, 2, 6) + 0.1 * torch.rand(
        n, 4, 6, generator=g
    )
    everyone, sent = Participants(torch.arange(n), torch.full((n,), 8), 1), []
    for compared in (0, 20):
        run = federation(n, compared=compared, beta=0.4)
        server = run.method.aggregate(
            run.state.server, everyone, {"prototypes": prototypes.clone()}
        )
        sent.append(run.method.broadcast(server, everyone))
    assert server["sample"].unique().numel() == 20
    assert not any(t.shape == (n, n) for t in server.values())
    exact, estimate = (payload["positive"] for payload in sent)
    torch.testing.assert_close(estimate, exact, rtol=0, atol=0.1)  # Of numbers in a range of 0.1.


def test_clients_that_have_sent_nothing_are_drawn_last_and_ignored():
    run = federation(6, compared=4)
    few = Participants(torch.tensor([1, 2, 5]), torch.full((3,), 8), 0)
    prototypes = torch.randn(3, 4, 6, generator=torch.Generator().manual_seed(1))
    server = run.method.aggregate(run.state.server, few, {"prototypes": prototypes})
    assert {1, 2, 5} < set(server["sample"].tolist())
    payload = run.method.broadcast(server, Participants(torch.tensor([0]), few.sizes[:1], 1))
    torch.testing.assert_close(payload["positive"][0], prototypes.mean(0))
    assert not payload["negative"].any()
    other = run.method.server_for(server, torch.tensor([5, -1, 1]))
    assert other["known"].tolist() == [True, False, True]
    payload = run.method.broadcast(other, Participants(torch.tensor([1]), few.sizes[:1], 1))
    torch.testing.assert_close(payload["positive"][0], prototypes[[0, 2]].mean(0))


# Options that change it


@pytest.mark.quick(7)
@pytest.mark.parametrize(
    "option",
    [
        {"positives": "random", "beta": 0.3},
        {"positives": "random-once", "beta": 0.3},
        {"filter_floor": 0.5},
        {"shift_draw": "once"},
        {"starts": "own"},
        {"optimizer_state": "round"},
        {"batch_size": 2},
    ],
)
def test_each_option_changes_the_models(option):
    name = "head.linear.weight"
    assert not torch.equal(after_rounds()[name], after_rounds(**option)[name])


def test_clients_of_equal_weights_start_alike_and_others_do_not():
    equal, own = (federation(starts=s).state.clients.params for s in ("equal", "own"))
    assert equal.keys() == own.keys()
    for name in ("head.linear.weight", "encoder.closeness.weight_hh"):
        assert torch.equal(equal[name][0], equal[name][1])
        assert not torch.equal(own[name][0], own[name][1])
    assert_equal(own, federation(starts="own").state.clients.params)


def test_shares_drawn_once_are_the_same_in_every_round():
    run = federation(shift_draw="once", shift=0.0)
    before = run.state.clients.memory["shares"].clone()
    assert before.shape == (5, 16, 1)
    run.run_round()
    assert torch.equal(run.state.clients.memory["shares"], before)


def test_profiles_are_sent_beside_the_prototypes():
    run = federation(partition="profiles")
    run.run_round()
    floats = 4 * 6 + 4  # Four slots of a prototype of twice three values, and their mean targets.
    assert run.reports[0].bytes_up == 5 * 4 * floats
    server = run.state.server
    assert server["profiles"].shape == (5, 4, 1)


# Random positives


def test_as_many_clients_are_drawn_as_were_chosen():
    rng = np.random.default_rng(1)
    among = torch.tensor(rng.random((40, 30)) < 0.7)
    chosen = among & torch.tensor(rng.random((40, 30)) < 0.4)
    drawn = as_many_at_random(chosen, among, [(7, 2, i) for i in range(40)])
    assert torch.equal(drawn.sum(1), chosen.sum(1))
    assert not (drawn & ~among).any()
    assert not torch.equal(drawn, chosen)
    again = as_many_at_random(chosen, among, [(7, 2, i) for i in range(40)])
    assert torch.equal(drawn, again)


def test_every_client_is_drawn_equally_often():
    """One of three candidates, 3,000 times: 1,000 each, with a standard deviation of 26."""
    chosen = torch.tensor([[True, False, False, False]]).expand(3000, -1)
    among = torch.tensor([[True, True, True, False]]).expand(3000, -1)
    drawn = as_many_at_random(chosen, among, [(1, i) for i in range(3000)])
    assert (drawn.sum(0) - torch.tensor([1000, 1000, 1000, 0])).abs().max() < 130


def test_random_sets_have_the_sizes_of_those_by_divergence():
    """Prototypes of powers of two: a sum of them tells who is in it."""
    jsd = torch.tensor(np.random.default_rng(2).random((6, 6)))
    jsd = ((jsd + jsd.T) / 2).fill_diagonal_(0)
    server = {
        "jsd": jsd,
        "threshold": torch.tensor(0.4),
        "prototypes": 2.0 ** torch.arange(6.0).view(6, 1, 1),
        "seed": torch.tensor(9),
    }

    def sets(positives, round):
        run = federation(6, positives=positives)
        to = Participants(torch.arange(6), torch.full((6,), 8), round)
        payload = run.method.broadcast(server, to)
        found = []
        for side in ("positive", "negative"):
            means = payload[side].flatten().double()
            found.append([members_of_mean(float(m), 6) for m in means])
        return found

    chosen, drawn = sets("divergence", 1), sets("random", 1)
    for by_divergence, at_random in zip(chosen, drawn, strict=True):
        assert list(map(len, by_divergence)) == list(map(len, at_random))
    for i, (positive, negative) in enumerate(zip(*drawn, strict=True)):
        assert not positive & negative
        assert (positive | negative) - {i} == set(range(6)) - {i}
        assert i not in positive
        assert i not in negative
    assert drawn == sets("random", 1)
    assert drawn != sets("random", 2)
    assert sets("random-once", 1) == sets("random-once", 2) != chosen


def members_of_mean(mean, n):
    """The exponents below n of powers of two whose mean this is; none for 0."""
    if not mean:
        return set()
    return next(
        set(some)
        for size in range(1, n + 1)
        for some in combinations(range(n), size)
        if abs(sum(2.0**i for i in some) / size - mean) < 1e-4
    )


# Slots


def test_a_day_of_ten_minutes_in_hours():
    order = slot_order(144 + 140, 144, 24)
    assert order[:24] == list(range(0, 144, 6))
    assert order[24:48] == list(range(1, 144, 6))
    assert sorted(order[:144]) == list(range(144))
    # Of the second day the last four steps are missing, so hours of two places are whole.
    assert order[144:] == [144 + p + 6 * s for p in (0, 1) for s in range(24)]


@pytest.mark.parametrize(("samples", "batches"), [(18, 0), (19, 1), (23, 5), (24, 6), (43, 7)])
def test_only_whole_batches_are_kept(samples, batches):
    """Four slots of six steps: a batch reaches 18 steps beyond its first sample."""
    order = slot_order(samples, 24, 4)
    assert len(order) == 4 * batches
    assert len(set(order)) == len(order)
    assert max(order, default=0) < samples


def test_slots_divide_the_period():
    for period in range(1, 300):
        n = slots_of(period, 24)
        assert period % n == 0
        assert n <= 24
        assert not [m for m in range(n + 1, 25) if m <= period and period % m == 0]


def test_every_batch_has_one_sample_of_each_slot():
    run = federation(period=12, batch_size=4)
    seen = []
    local_loss = run.method.local_loss

    def watch(cohort, batch, payload):
        seen.append((batch["slot"].clone(), batch["sample"].clone()))
        return local_loss(cohort, batch, payload)

    run.method.local_loss = watch
    run.run_round()
    assert len(seen) == 4 * 3  # Four days of three places within the slots.
    for slot, _ in seen:
        assert torch.equal(slot // 3, torch.arange(4).expand(5, -1))
    samples = torch.cat([sample[0] for _, sample in seen])
    assert sorted(samples.tolist()) == list(range(48))
    assert run.state.server["prototypes"].shape == (5, 4, 6)
    assert run.state.clients.params["filter"].shape == (5, 4, 4)


def test_too_few_samples_for_a_batch_are_refused():
    with pytest.raises(InputError, match=r"period .*24 .* 4 training"):
        federation(period=24, batch_size=4, days=4 / 24)


def test_what_is_not_the_papers_is_noted(caplog):
    caplog.set_level("INFO")
    federation(period=12, batch_size=4)
    assert mentions(caplog.text, "12 steps", "4 slots", "3;")
    assert "batches an" not in caplog.text
    caplog.clear()
    federation(period=4, batch_size=4)
    assert "slots" not in caplog.messages[0].split(";")[0]
    assert "4 batches" in caplog.text


def test_a_forecaster_of_ten_minutes_has_hourly_slots():
    times = pd.date_range("2013-11-01", periods=144 * 8, freq="10min")
    rng = np.random.default_rng(1)
    day = np.sin(2 * np.pi * np.arange(len(times)) / 144)
    table = pd.DataFrame({c: day + 0.1 * rng.normal(size=len(times)) for c in "ab"}, index=times)
    forecaster = Forecaster(
        "fuels", split="days:5,1,2", rounds=1, periods=1, hidden_size=4, device="cpu"
    ).fit(table)
    assert resolve("fuels").window.period == 0
    assert forecaster.config.window.period == 144
    prototypes = forecaster._evaluations["last"].model.predictor.snapshot.server["prototypes"]
    assert prototypes.shape == (2, 24, 8)


def test_clients_keep_their_optimisers():
    assert resolve("fuels").training.optimizer_state == "keep"
