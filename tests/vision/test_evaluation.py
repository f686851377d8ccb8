"""Accuracy by hand: two clients whose logits are known."""

from functools import partial

import pytest
import torch
from torch import nn

from stforecast.federated.core.data import ClientData
from stforecast.federated.core.layers import ClientLinear
from stforecast.federated.core.population import Population, SplitModel
from stforecast.federated.core.state import Clients, State
from stforecast.federated.core.training import Training
from stforecast.federated.methods.ditto import Ditto
from stforecast.federated.methods.fedavg import FedAvg
from stforecast.federated.methods.fedavg_ft import FedAvgFT
from stforecast.federated.methods.fedrep import FedRep
from stforecast.federated.methods.solo import Solo
from vision.evaluation import (
    MASKS,
    TASK,
    count_correct,
    judged_models,
    last_best_mean,
    possible_names,
)
from vision.task import Classification, cross_entropy

ALL, OWN = MASKS


class AsIs(SplitModel):
    """The image's three values are the logits."""

    def __init__(self):
        head = ClientLinear(3, 3)
        head.weight.data, head.bias.data = torch.eye(3)[None], torch.zeros(1, 3)
        super().__init__(nn.Flatten(2), head)


@pytest.fixture
def judged():
    """Client 0 holds classes 0 and 1 and three test images; client 1 holds class 2 and has one."""
    logits = torch.tensor(
        [
            [[9.0, 1, 0], [0, 1, 9], [5, 1, 0]],  # y: 0 right; 1, wrong unless 2 is out; 1, wrong.
            [[0, 9, 1], [7, 7, 7], [7, 7, 7]],  # y: 2, wrong unless it is the only class; padding.
        ]
    )
    y = torch.tensor([[0, 1, 1], [2, 0, 0]])
    domain = torch.tensor([[0, 0, 1], [1, 0, 0]])
    test = ClientData(
        {"x": logits[:, :, None, None], "y": y, "domain": domain}, torch.tensor([3, 1])
    )
    own = torch.tensor([[True, True, False], [False, False, True]])
    population = Population(AsIs)
    method = Solo(population, Classification(3), Training())
    clients = Clients(population.parameters(2), {}, {}, torch.tensor([5, 5]))
    return partial(count_correct, method, State(clients, {}, 1, 0), test, own, n_domains=2)


@pytest.fixture
def counts(judged):
    return judged()


def test_mean_over_clients(counts):
    assert counts.accuracy("personal", ALL) == pytest.approx((1 / 3 + 0) / 2)
    assert counts.accuracy("personal", OWN) == pytest.approx((2 / 3 + 1) / 2)


def test_a_task_is_a_further_mask(judged, counts):
    assert counts.masks == MASKS
    told = judged(task=torch.tensor([[False, True, False], [False, True, True]]))
    assert told.masks == (ALL, OWN, TASK)
    assert told.accuracy("personal", OWN) == counts.accuracy("personal", OWN)
    assert told.accuracies("personal", TASK, "client").tolist() == pytest.approx([2 / 3, 0])


def test_domains_and_classes_pool_all_samples(counts):
    assert counts.accuracies("personal", ALL, "domain").tolist() == pytest.approx([1 / 2, 0])
    assert counts.accuracies("personal", OWN, "domain").tolist() == pytest.approx([1, 1 / 2])
    assert counts.accuracies("personal", ALL, "class").tolist() == pytest.approx([1, 0, 0])
    assert counts.accuracies("personal", OWN, "class").tolist() == pytest.approx([1, 1 / 2, 1])


def test_selections():
    rounds = [0.1 * i for i in range(12)] + [0.3]
    found = last_best_mean(rounds)
    assert found["last"] == pytest.approx(0.3)
    assert found["best"] == pytest.approx(1.1)
    assert found["last ten"] == pytest.approx((sum(rounds[3:12]) + 0.3) / 10)


def test_cross_entropy_equals_torch_for_each_client():
    g = torch.Generator().manual_seed(0)
    logits, y = torch.randn(3, 5, 4, generator=g), torch.randint(4, (3, 5), generator=g)
    task, batch = Classification(4), {"y": y}
    expected = [nn.functional.cross_entropy(a, b) for a, b in zip(logits, y, strict=True)]
    torch.testing.assert_close(task.loss(logits, batch), torch.stack(expected))
    total, count = task.score(logits, batch)
    torch.testing.assert_close(total.mean(1), torch.stack(expected))
    assert count.shape == (3, 5)
    assert (cross_entropy(logits, y) > 0).all()
    assert torch.equal(task.keys(batch), y)


def test_predictions_that_are_not_finite_are_wrong_and_told(judged, caplog):
    """And they do not make a method look like one that averages."""
    method, state, test = judged.args[:3]
    assert judged().accuracies("personal", ALL, "client").tolist() == [pytest.approx(1 / 3), 0]
    assert not caplog.messages
    state.clients.params["head.weight"][0] = torch.nan
    assert judged().accuracies("personal", ALL, "client").tolist() == [0, 0]
    (told,) = caplog.messages
    assert told.startswith("some predictions are not finite, and count as wrong")
    assert [m.way for m in judged_models(method, state, test)] == [None]


def test_equal_logits_share_a_correct_prediction():
    logits = torch.tensor([[[1.0, 1, 0], [1, 1, 1], [2, 0, 2]]])
    y = torch.tensor([[0, 2, 1]])  # One of two; one of three, or of two without 0; none of two.
    test = ClientData(
        {"x": logits[:, :, None, None], "y": y, "domain": torch.zeros_like(y)}, torch.tensor([3])
    )
    population = Population(AsIs)
    method = Solo(population, Classification(3), Training())
    state = State(Clients(population.parameters(1), {}, {}, torch.tensor([5])), {}, 1, 0)
    counts = count_correct(method, state, test, torch.tensor([[False, True, True]]), n_domains=1)
    assert counts.accuracy("personal", ALL) == pytest.approx((1 / 2 + 1 / 3 + 0) / 3)
    assert counts.accuracy("personal", OWN) == pytest.approx((0 + 1 / 2 + 0) / 3)


@pytest.fixture
def both_ways(judged):
    """Client 0's own model adds 9 to the logit of class 1, the averaged one subtracts 9 from it."""
    *_, test, own = judged.args

    def judge(method, **of_clients):
        population = Population(AsIs)
        params = population.parameters(2)
        params["head.bias"][0, 1] = 9
        clients = Clients({**params, **of_clients}, {}, {}, torch.tensor([5, 5]))
        server = {"head.bias": torch.tensor([0.0, -9, 0])}
        method = method(population, Classification(3), Training())
        return method, State(clients, server, 1, 0), test, own

    return judge


def test_own_and_averaged_models_are_judged(both_ways):
    method, state, test, own = both_ways(FedAvg)
    counts = count_correct(method, state, test, own, n_domains=2)
    assert counts.views == ("global", "trained")
    # Client 0 (classes 0, 1, 1): the average never says 1, the own model does so in the last two;
    # the first logits (9, 1, 0) become (9, 10, 0).
    assert counts.accuracies("global", OWN, "client").tolist() == pytest.approx([1 / 3, 1])
    assert counts.accuracies("trained", OWN, "client").tolist() == pytest.approx([2 / 3, 1])
    ways = {model.name: model.way for model in judged_models(method, state, test)}
    assert ways == {"global": "averaged", "trained": "own"}


def test_what_clients_fit_or_keep_to_themselves_has_one_way(both_ways):
    method, state, test, _ = both_ways(Solo)
    assert [m.way for m in judged_models(method, state, test)] == [None]
    copies = {f"personal.{name}": t for name, t in state.clients.params.items()}
    for kind in (Ditto, FedAvgFT):
        method, state, *_ = both_ways(kind, **copies)
        names = [m.name for m in judged_models(method, state, test)]
        assert names == ["personal", "global", "global trained"]
    assert possible_names(FedRep) == ["personal", "trained"]


def test_a_model_that_is_fitted_to_predict_is_not_called_trained(both_ways):
    method, state, test, own = both_ways(FedAvgFT)
    fitted = State(
        Clients({**state.clients.params, "head.bias": torch.zeros(2, 3)}, {}, {}, torch.ones(2)),
        state.server, 1, 0,
    )  # fmt: skip
    counts = count_correct(method, fitted, test, own, n_domains=2, trained=state)
    assert counts.accuracies("personal", OWN, "client").tolist() == pytest.approx([2 / 3, 1])
    alone = count_correct(*both_ways(FedAvg), n_domains=2)
    assert torch.equal(
        counts.accuracies("global trained", ALL, "client"),
        alone.accuracies("trained", ALL, "client"),
    )
