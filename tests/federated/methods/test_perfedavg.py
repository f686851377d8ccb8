from functools import partial

import pytest
import torch
from torch import nn

from data_prep.base.errors import InputError
from stforecast.federated.core.layers import ClientDropout, ClientLinear
from stforecast.federated.core.method import predictions
from stforecast.federated.core.population import PerClient, SplitModel
from stforecast.federated.core.state import Cohort
from stforecast.federated.methods.fedavg import FedAvg
from stforecast.federated.methods.perfedavg import PerFedAvg, PerFedAvgOptions, groups

SIZES = (8, 13, 4)
OPTIMIZERS = {
    "adam": lambda params: torch.optim.Adam(params, lr=0.05),
    "sgd": lambda params: torch.optim.SGD(params, lr=0.05),
}


def perfedavg(**options):
    return partial(PerFedAvg, options=PerFedAvgOptions(**options))


def gradient(client, values, batch):
    client.receive(values)
    return gradients(client, client.loss(batch))


def gradients(client, loss, **options):
    found = torch.autograd.grad(loss, list(client.params.values()), **options)
    return dict(zip(client.params, found, strict=True))


def hessian_product(client, values, g, batch):
    """∇²f(w) g without differences, by differentiating the gradient."""
    client.receive(values)
    first = gradients(client, client.loss(batch), create_graph=True)
    return gradients(client, sum((first[name] * g[name]).sum() for name in g))


def meta_gradient(client, w, d, d1, d2, alpha):
    """(I - α ∇²f(w; D'')) ∇f(w̃; D'); without the Hessian where D'' is None."""
    adapted = {name: w[name] - alpha * g for name, g in gradient(client, w, d).items()}
    g = gradient(client, adapted, d1)
    if d2 is None:
        return g
    product = hessian_product(client, w, g, d2)
    return {name: g[name] - alpha * product[name] for name in g}


def triples(batches, order):
    """D, D' and D'' of each step by index, for streams of 4, 6 and 2 batches."""
    steps = {
        ("fo", 4): [(0, 1), (2, 3)],
        ("fo", 6): [(0, 1), (2, 3), (4, 5)],
        ("fo", 2): [(0, 1)],
        ("hf", 4): [(0, 1, 2), (3, 0, 1)],
        ("hf", 6): [(0, 1, 2), (3, 4, 5)],
        ("hf", 2): [(0, 1, 0)],
    }[order, len(batches)]
    return [[*(batches[i] for i in step), None][:3] for step in steps]


def train(client, optimizer, order, alpha):
    for d, d1, d2 in triples(list(client.batches(epochs=2)), order):
        w = client.values()
        found = meta_gradient(client, w, d, d1, d2, alpha)
        client.receive(w)
        for name, p in client.params.items():
            p.grad = found[name]
        optimizer.step()


@pytest.mark.parametrize("order", ["fo", "hf"])
@pytest.mark.parametrize("optimizer", ["adam", pytest.param("sgd", marks=pytest.mark.repeats)])
def test_rounds_are_those_of_clients_trained_one_by_one(federate, alone, order, optimizer):
    method = perfedavg(order=order, alpha=0.1)
    federation = federate(method, SIZES, optimizer=optimizer, lr=0.05)
    clients = alone(federation)
    optimizers = [OPTIMIZERS[optimizer](list(c.params.values())) for c in clients]
    server = clients[0].values()
    # A finite difference in single precision has about three digits.
    close = {"rtol": 1e-4, "atol": 1e-5} if order == "fo" else {"rtol": 2e-3, "atol": 1e-3}
    for _ in range(3):
        federation.run_round()
        for client, own in zip(clients, optimizers, strict=True):
            client.receive(server)
            train(client, own, order, alpha=0.1)
        server = {name: sum(c.values()[name] for c in clients) / len(clients) for name in server}
        torch.testing.assert_close(federation.state.server, server, **close)


def cohort_of(federation):
    clients, training = federation.state.clients, federation.method.training
    ids = torch.arange(len(clients))
    return Cohort(clients, ids, federation.train, training, seed=0, round=0)


def test_the_finite_difference_is_the_hessians_product(federate, alone):
    federation = federate(PerFedAvg, (4, 4))
    cohort = cohort_of(federation)
    g = {name: torch.randn_like(p) for name, p in cohort.params.items()}
    product = federation.method.hessian_product(cohort, g, next(cohort.batches()))
    for i, client in enumerate(alone(federation)):
        (batch,) = client.batches(epochs=1)
        along = {name: t[i] for name, t in g.items()}
        exact = hessian_product(client, client.values(), along, batch)
        assert max(t.abs().max() for t in exact.values()) > 0.5
        rows = {name: t[i] for name, t in product.items()}
        torch.testing.assert_close(rows, exact, rtol=1e-3, atol=2e-3)


@pytest.mark.parametrize("own", [False, True])
def test_both_gradients_of_the_difference_see_the_same_dropout(federate, own):
    def build():
        alone = PerClient(nn.Sequential(nn.Linear(3, 5), nn.Dropout(0.5)))
        encoder = nn.Sequential(ClientLinear(3, 5), ClientDropout(0.5)) if own else alone
        return SplitModel(encoder, PerClient(nn.Linear(5, 2)))

    federation = federate(PerFedAvg, (4, 4), build=build)
    cohort = cohort_of(federation)
    zero = {name: torch.zeros_like(p) for name, p in cohort.params.items()}
    with federation.method.population.drawing(cohort.generators):
        product = federation.method.hessian_product(cohort, zero, next(cohort.batches()))
    assert all((t == 0).all() for t in product.values())


def test_without_an_inner_step_it_is_fedavg(federate):
    federation = federate(perfedavg(alpha=0.0), (4, 4, 4), epochs=2)
    fedavg = federate(FedAvg, (4, 4, 4), epochs=1)
    federation.run()
    fedavg.run()
    for name, t in fedavg.state.server.items():
        torch.testing.assert_close(federation.state.server[name], t)


@pytest.mark.quick(2)
@pytest.mark.parametrize("order", ["fo", "hf"])
def test_running_statistics_are_of_all_passes(federate, module, order):
    federation = federate(perfedavg(order=order, alpha=0.05), SIZES, build=module)
    # Passes of a step at w, w̃ and, for HF, w ± δ g.
    passes = {"fo": [4, 6, 2], "hf": [8, 8, 4]}[order]
    name = "encoder.module.2.num_batches_tracked"
    for first in (0, round(sum(passes) / 3), 2 * round(sum(passes) / 3)):
        federation.run_round()
        counted = federation.state.clients.buffers[name].tolist()
        assert counted == [first + n for n in passes]
    assert all(t.isfinite().all() for t in federation.state.flat().values())


@pytest.mark.parametrize("steps", [0, 1, 3])
def test_personalising_takes_gradient_steps_on_ones_own_batches(federate, alone, steps):
    federation = federate(perfedavg(alpha=0.1, steps=steps), SIZES)
    federation.run()
    ready = federation.ready().clients.params
    for i, client in enumerate(alone(federation)):
        w = federation.state.server
        for batch in list(client.batches(epochs=3))[:steps]:
            w = {name: w[name] - 0.1 * g for name, g in gradient(client, w, batch).items()}
        torch.testing.assert_close({name: t[i] for name, t in ready.items()}, w)


def test_each_view_predicts_with_its_model(federate, make_data):
    federation = federate(perfedavg(alpha=0.1), SIZES)
    federation.run()
    population, ready, data = federation.method.population, federation.ready(), make_data((5, 5, 5))
    ((batch, own),) = predictions(federation.method, ready, data)
    ((_, shared),) = predictions(federation.method, ready, data, view="global")
    w = {name: t.expand(3, *t.shape) for name, t in ready.server.items()}
    for y_hat, model in ((own, ready.clients.params), (shared, w)):
        expected = population.decode(model, population.encode(model, batch["x"]))
        torch.testing.assert_close(y_hat, expected)
    assert not torch.allclose(own, shared)


@pytest.mark.repeats
def test_personalising_helps_on_the_training_data(federate):
    federation = federate(perfedavg(alpha=0.1), (8, 8, 8), rounds=20, optimizer="sgd", lr=0.1)
    federation.run()
    ready = federation.ready()
    losses = {}
    for view in ("personal", "global"):
        ((batch, y_hat),) = predictions(federation.method, ready, federation.train, view=view)
        total, count = federation.method.task.score(y_hat, batch)
        losses[view] = total.sum() / count.sum()
    assert losses["personal"] < 0.9 * losses["global"]


@pytest.mark.repeats
def test_personal_running_statistics_are_a_copy(federate, module):
    federation = federate(perfedavg(alpha=0.1), SIZES, build=module)
    federation.run()
    name = "encoder.module.2.running_mean"
    shared = federation.state.server[name].clone()
    personal = federation.ready().clients.buffers[name]
    assert torch.equal(federation.state.server[name], shared)
    assert not any(torch.allclose(row, shared) for row in personal)


def test_the_whole_model_is_sent(federate):
    federation = federate(PerFedAvg, SIZES)
    federation.run()
    n_bytes = len(SIZES) * 4 * (3 * 5 + 5 + 5 * 2 + 2)
    assert {(r.bytes_down, r.bytes_up) for r in federation.reports} == {(n_bytes, n_bytes)}


def test_batches_are_grouped_in_order_and_filled_up():
    def grouped(batches, size):
        return ["".join(group) for group in groups(batches, size)]

    assert grouped("abcdef", 3) == ["abc", "def"]
    assert grouped("abcd", 3) == ["abc", "dab"]
    assert grouped("abcde", 2) == ["ab", "cd", "ea"]
    assert grouped("ab", 3) == ["aba"]
    assert grouped("a", 3) == ["aaa"]
    assert grouped("", 3) == []


@pytest.mark.parametrize(
    "options", [{"order": "so"}, {"alpha": -0.1}, {"delta": 0.0}, {"steps": -1}]
)
def test_options_out_of_range_are_refused(options):
    with pytest.raises(InputError, match=next(iter(options))):
        PerFedAvgOptions(**options)
