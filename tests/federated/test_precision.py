"""Choice of the precision by a measurement."""

import logging

import pytest
import torch

from stforecast.federated.core.layers import ClientLinear
from stforecast.federated.core.population import Population, SplitModel
from stforecast.federated.engine import sizing as precision
from stforecast.federated.engine.rounds import Federation
from stforecast.federated.engine.sizing import bfloat16_pays, seconds
from stforecast.federated.methods.fedavg import FedAvg


def mixed_population():
    build = lambda: SplitModel(ClientLinear(3, 4), ClientLinear(4, 2))  # noqa: E731
    return Population(build, mixed_precision="bf16")


@pytest.fixture
def cache(monkeypatch, tmp_path):
    monkeypatch.setattr(precision, "cache_folder", lambda: tmp_path)
    return tmp_path


def measured(monkeypatch, single, narrow):
    """Fakes the measurement; returns the threads of each call."""
    calls = []

    def fake(population, x, threads):
        calls.append(threads)
        return single, narrow

    monkeypatch.setattr(precision, "seconds", fake)
    return calls


@pytest.mark.parametrize(("narrow", "pays"), [(0.5, True), (0.99, False), (2.0, False)])
def test_bfloat16_is_taken_if_it_is_faster(monkeypatch, cache, caplog, narrow, pays):
    caplog.set_level(logging.DEBUG, "stforecast")
    calls = measured(monkeypatch, 1.0, narrow)
    x = torch.zeros(2, 5, 3)
    assert bfloat16_pays(mixed_population(), x, 1) is pays
    assert ("precision: bfloat16" in caplog.text) is pays
    assert f"{1000 * narrow:.2f} ms" in caplog.text
    measured(monkeypatch, 1.0, 1.5 - narrow)  # Another outcome, which a kept answer does not need.
    assert bfloat16_pays(mixed_population(), x, 1) is pays
    assert calls == [1]


def test_the_answer_is_for_a_model_a_batch_and_threads(monkeypatch, cache):
    calls, population = measured(monkeypatch, 1.0, 2.0), mixed_population()
    for x, threads in ((torch.zeros(2, 5, 3), 1), (torch.zeros(2, 6, 3), 1)) * 2:
        bfloat16_pays(population, x, threads)
    bfloat16_pays(population, torch.zeros(2, 5, 3), 2)
    assert calls == [1, 1, 2]


def test_without_a_folder_it_is_measured_each_time(monkeypatch):
    monkeypatch.setattr(precision, "cache_folder", lambda: None)
    calls = measured(monkeypatch, 1.0, 2.0)
    for _ in range(2):
        bfloat16_pays(mixed_population(), torch.zeros(2, 5, 3), 1)
    assert calls == [1, 1]


def test_a_measurement_changes_nothing():
    population, before = mixed_population(), torch.get_rng_state()
    initial = {name: t.clone() for name, t in population.initial().items()}
    assert min(seconds(population, torch.zeros(2, 5, 3), 1)) > 0
    assert population.mixed
    assert torch.equal(torch.get_rng_state(), before)
    torch.testing.assert_close(population.initial(), initial, rtol=0, atol=0)


@pytest.mark.parametrize("pays", [True, False])
def test_all_workers_of_a_run_have_the_chosen_precision(federate, monkeypatch, pays):
    asked = []
    monkeypatch.setattr(
        "stforecast.federated.engine.trainer.bfloat16_pays",
        lambda population, x, threads: asked.append((tuple(x.shape), threads)) or pays,
    )
    made = federate(FedAvg)
    made.method.population.mixed = True
    run = Federation(made.method, made.train, seed=1, cohort_size=2, workers=2)
    assert {m.population.mixed for m in run.trainer.workers.methods} == {pays}
    batch = made.method.training.batch_size
    assert asked == [((2, batch, *made.train.tensors["x"].shape[2:]), 1)]


def test_a_run_in_single_precision_is_not_measured(federate, monkeypatch):
    monkeypatch.setattr("stforecast.federated.engine.trainer.bfloat16_pays", None)
    assert not federate(FedAvg).method.population.mixed
