from functools import partial

import pytest
import torch
from torch import nn

from stforecast.federated.core.layers import ClientDropout, ClientLinear
from stforecast.federated.core.method import Method
from stforecast.federated.core.population import PerClient, SplitModel
from stforecast.federated.engine.rounds import Federation
from stforecast.federated.engine.sizing import Workers
from stforecast.federated.methods.fedavg import FedAvg


def federation(federate, workers, build, **settings):
    made = federate(FedAvg, (8, 12, 8, 13, 20, 8), build=build, cohort_size=1, **settings)
    return Federation(
        made.method, made.train, made.validation, seed=1, cohort_size=1, workers=workers
    )


def build_dropout(p=0.5):
    encoder = nn.Sequential(ClientLinear(3, 5), ClientDropout(p))
    return SplitModel(encoder, ClientLinear(5, 2))


@pytest.fixture
def dropout():
    return build_dropout


@pytest.mark.quick(3)
@pytest.mark.parametrize("model", ["stacked", "module", "dropout"])
def test_numbers_do_not_depend_on_the_workers(federate, request, model):
    states = []
    for workers in (1, 3):
        run = federation(federate, workers, request.getfixturevalue(model))
        assert len(run.trainer.workers.methods) == workers
        run.run()
        states.append(run)
    first, second = states
    torch.testing.assert_close(first.state.flat(), second.state.flat(), rtol=1e-6, atol=1e-6)
    assert [r.bytes_up for r in first.reports] == [r.bytes_up for r in second.reports]


def test_each_worker_has_a_model_of_its_own(federate):
    workers = federation(federate, 3, build_plain).trainer.workers
    models = {id(m.population.model) for m in workers.methods}
    assert len(models) == 3


def build_plain():
    return SplitModel(ClientLinear(3, 4), ClientLinear(4, 2))


def test_clients_drop_the_same_units_in_any_cohort(federate):
    runs = [
        federate(FedAvg, (8, 8, 8), build=partial(build_dropout, p), cohort_size=size, rounds=2)
        for size, p in ((1, 0.5), (3, 0.5), (3, 0.0))
    ]
    for run in runs:
        run.run()
    found, same, different = (run.state.server for run in runs)
    torch.testing.assert_close(found, same, rtol=1e-5, atol=1e-6)
    assert not torch.allclose(found["head.weight"], different["head.weight"], rtol=1e-3)


def test_a_model_that_draws_from_torchs_generator_has_one_worker(federate):
    def build():
        return SplitModel(PerClient(nn.Dropout()), ClientLinear(3, 2))

    assert len(federation(federate, 3, build).trainer.workers.methods) == 1


def test_an_error_in_a_worker_is_raised(federate):
    workers = Workers(federate(Method).method, 2)

    def work(method, item):
        raise RuntimeError(f"cohort {item}")

    with pytest.raises(RuntimeError, match="cohort 0"):
        workers.map(work, [0, 1, 2])
    assert len(workers.methods) == 2


def test_threads_are_as_before(federate):
    before = torch.get_num_threads()
    seen = Workers(federate(Method).method, 2).map(lambda m, i: torch.get_num_threads(), [1, 2, 3])
    assert seen == [1, 1, 1]
    assert torch.get_num_threads() == before
