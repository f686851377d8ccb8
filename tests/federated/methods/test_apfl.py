from functools import partial

import pytest
import torch

from data_prep.base.errors import InputError
from stforecast.federated.core.method import predictions
from stforecast.federated.methods.apfl import Apfl, ApflOptions
from stforecast.federated.methods.ditto import personal_model
from stforecast.federated.methods.fedavg import FedAvg
from stforecast.federated.methods.solo import Solo

SIZES = (8, 13, 4)


def apfl(**options):
    return partial(Apfl, options=ApflOptions(**options))


def gradient(client, values, batch):
    client.receive(values)
    loss = client.loss(batch)
    gradients = torch.autograd.grad(loss, list(client.params.values()))
    return dict(zip(client.params, gradients, strict=True))


def mix(v, w, alpha):
    return {name: alpha * v[name] + (1 - alpha) * w[name] for name in w}


def local_steps(client, v, w, alpha, lr, adaptive):
    """One client's round of Algorithm 1 by plain gradient steps; α's own on the first batch."""
    share = alpha
    for step, batch in enumerate(client.batches(epochs=2)):
        of_w, of_mixture = gradient(client, w, batch), gradient(client, mix(v, w, share), batch)
        if adaptive and step == 0:
            slope = sum(float(((v[n] - w[n]) * g).sum()) for n, g in of_mixture.items())
            alpha = min(max(share - lr * slope, 0.0), 1.0)
        v = {name: t - lr * share * of_mixture[name] for name, t in v.items()}
        w = {name: t - lr * of_w[name] for name, t in w.items()}
        share = alpha
    return v, w, alpha


@pytest.mark.parametrize("adaptive", [False, True])
def test_rounds_are_those_of_clients_trained_one_by_one(federate, alone, adaptive):
    federation = federate(apfl(alpha=0.6, adaptive=adaptive), SIZES, optimizer="sgd", lr=0.1)
    clients = alone(federation)
    server = clients[0].values()
    own, shares = [server] * len(SIZES), [0.6] * len(SIZES)
    for _ in range(3):
        federation.run_round()
        done = [
            local_steps(client, v, server, share, 0.1, adaptive)
            for client, v, share in zip(clients, own, shares, strict=True)
        ]
        own, local, shares = zip(*done, strict=True)
        server = {name: sum(w[name] for w in local) / len(SIZES) for name in server}
        state = federation.state.clients
        torch.testing.assert_close(federation.state.server, server)
        for i, v in enumerate(own):
            rows = {name: t[i] for name, t in personal_model(state.params).items()}
            torch.testing.assert_close(rows, v)
        learned = {**state.params, **state.memory}["alpha"]
        torch.testing.assert_close(learned.detach(), torch.tensor(shares))
    assert (len(set(shares)) > 1) == adaptive


@pytest.mark.parametrize("start", [0.0, 1.0])
def test_a_learned_share_stays_between_0_and_1(federate, start):
    federation = federate(apfl(alpha=start, adaptive=True), (8,) * 6, optimizer="sgd", lr=0.3)
    seen = []
    federation.run(lambda _: seen.append(federation.state.clients.params["alpha"].clone()))
    alphas = torch.stack(seen)
    assert ((alphas >= 0) & (alphas <= 1)).all()
    assert (alphas == start).any()
    assert (alphas != start).any()


def test_the_share_steps_once_a_round(federate):
    federation = federate(apfl(adaptive=True), SIZES)
    federation.run()
    steps = federation.state.clients.moments["steps"]
    assert steps["alpha"].tolist() == [3, 3, 3]
    assert steps["personal.head.bias"].tolist() == [3 * 2 * (size // 4) for size in SIZES]


@pytest.mark.repeats
@pytest.mark.parametrize("optimizer", ["adam", pytest.param("sgd", marks=pytest.mark.repeats)])
def test_the_ends_are_fedavg_and_solo(federate, make_data, optimizer):
    settings = {"sizes": (8, 8, 8), "optimizer": optimizer}
    data = make_data((5, 5, 5), seed=2)
    for alpha, method in ((0.0, FedAvg), (1.0, Solo)):
        federation, other = federate(apfl(alpha=alpha), **settings), federate(method, **settings)
        federation.run()
        other.run()
        ((_, mixed),) = predictions(federation.method, federation.state, data, view="personal")
        ((_, expected),) = predictions(other.method, other.state, data)
        torch.testing.assert_close(mixed, expected)


def test_a_client_predicts_by_its_model_mixed_with_the_latest_global_one(federate, make_data):
    federation = federate(apfl(alpha=0.6), SIZES)
    federation.run()
    population, state, data = federation.method.population, federation.state, make_data((5, 5, 5))
    ((batch, own),) = predictions(federation.method, state, data)
    ((_, shared),) = predictions(federation.method, state, data, view="global")
    w = {name: t.expand(3, *t.shape) for name, t in state.server.items()}
    for y_hat, model in ((own, mix(personal_model(state.clients.params), w, 0.6)), (shared, w)):
        expected = population.decode(model, population.encode(model, batch["x"]))
        torch.testing.assert_close(y_hat, expected)


@pytest.mark.repeats
def test_the_mixture_has_running_statistics_of_its_own(federate, module, make_data):
    federation = federate(apfl(alpha=0.6), SIZES, build=module)
    federation.run()
    clients, server = federation.state.clients, federation.state.server
    names = [name for name in clients.buffers if "running" in name]
    assert names
    for name in names:
        own, local = clients.memory["personal." + name], clients.buffers[name]
        assert own.untyped_storage().data_ptr() != local.untyped_storage().data_ptr()
        assert not torch.allclose(own, local)
        torch.testing.assert_close(server[name], local.mean(0))
    data = make_data((5, 5, 5), seed=2)
    ((_, before),) = predictions(federation.method, federation.state, data)
    for name in names:
        server[name] += 1
    ((_, after),) = predictions(federation.method, federation.state, data)
    assert torch.equal(before, after)


def test_only_the_global_model_is_sent(federate):
    federation = federate(apfl(adaptive=True), SIZES)
    federation.run()
    n_bytes = len(SIZES) * 4 * (3 * 5 + 5 + 5 * 2 + 2)
    assert {(r.bytes_down, r.bytes_up) for r in federation.reports} == {(n_bytes, n_bytes)}


@pytest.mark.parametrize("alpha", [-0.1, 1.1])
def test_options_out_of_range_are_refused(alpha):
    with pytest.raises(InputError, match="alpha"):
        ApflOptions(alpha=alpha)
