from dataclasses import dataclass

import pytest
import torch

from stforecast.federated.core.method import Method
from stforecast.federated.core.options import NoOptions
from stforecast.federated.core.state import Cohort, Participants


@pytest.fixture
def federation(federate, module):
    return federate(Method, (8, 8), build=module, epochs=1)


@pytest.fixture
def method(federation):
    return federation.method


@pytest.fixture
def cohort(federation):
    """Both clients in their first round."""
    clients, training = federation.state.clients, federation.method.training
    return Cohort(clients, torch.tensor([0, 1]), federation.train, training, seed=0, round=0)


def test_options_are_the_given_or_the_default_ones(method):
    @dataclass(frozen=True)
    class Options:
        mu: float = 0.5

    class Proximal(Method):
        pass

    Proximal.Options = Options
    parts = (method.population, method.task, method.training)
    assert method.options == NoOptions()
    assert Proximal(*parts).options.mu == 0.5
    assert Proximal(*parts, Options(mu=2)).options.mu == 2


def test_receiving_overwrites_what_was_sent(method, cohort):
    before = {name: t.detach().clone() for name, t in cohort.state.items()}
    sent = {
        "head.module.bias": torch.full((2, 2), 7.0),
        "encoder.module.2.running_mean": torch.full((2, 2), 8.0),
        "prototypes": torch.ones(2, 4),
    }
    method.receive(cohort, sent)
    assert "prototypes" not in cohort.state
    for name, t in cohort.state.items():
        assert torch.equal(t, sent.get(name, before[name])), name
    assert all(p.is_leaf and p.requires_grad for p in cohort.params.values())


def test_the_base_trains_on_the_task_alone(method, cohort):
    batch = next(cohort.batches())
    features = method.population.encode(cohort.state, batch["x"])
    prediction = method.population.decode(cohort.state, features)
    loss = method.local_loss(cohort, batch, {})
    torch.testing.assert_close(loss, method.task.loss(prediction, batch))
    assert loss.requires_grad
    (noted,) = cohort.records["task_loss"]
    assert torch.equal(noted, loss.detach())


def test_the_base_receives_trains_and_sends_nothing(method, cohort):
    assert method.local_update(cohort, {"head.module.bias": torch.full((2, 2), 7.0)}) == {}
    assert len(cohort.records["loss"]) == 2
    bias = cohort.params["head.module.bias"]
    torch.testing.assert_close(bias, torch.full((2, 2), 7.0), rtol=0, atol=0.1)
    assert not (bias == 7).any()


def test_the_base_has_no_server(method, cohort):
    nobody = Participants(torch.arange(2), torch.tensor([8, 8]), round=0)
    assert method.broadcast({}, nobody) == {}
    server = {"w": torch.ones(2)}
    assert method.aggregate(server, nobody, {}) is server


def test_predicting_prefers_the_servers_parameters(method, cohort, make_data):
    method.population.train(False)
    x = make_data((8, 8)).tensors["x"]
    own = {name: t.detach() for name, t in cohort.state.items()}
    shift = {"head.module.bias": own["head.module.bias"] + 1, "prototypes": torch.ones(2, 4)}
    alone = method.predict(own, {}, x, "personal")
    torch.testing.assert_close(method.predict(own, shift, x, "global"), alone + 1)
    features = method.population.encode(own, x)
    torch.testing.assert_close(alone, method.population.decode(own, features))
