from functools import partial

import pytest
import torch

from data_prep.base.errors import InputError
from stforecast.federated.core.method import predictions
from stforecast.federated.methods.ditto import personal_model
from stforecast.federated.methods.pfedme import PFedMe, PFedMeOptions

SIZES = (8, 13, 4)


def pfedme(**options):
    return partial(PFedMe, options=PFedMeOptions(**options))


def local_round(client, received, o):
    """Algorithm 1 for one client: its w at the end of a round; its θ are its parameters."""
    w, theta = received, client.params
    client.receive(received)
    descent = torch.optim.SGD(list(theta.values()), lr=o.personal_lr)
    for batch in client.batches(epochs=2):
        for _ in range(o.inner_steps):
            descent.zero_grad()
            distance = sum(torch.sum((theta[name] - t) ** 2) for name, t in w.items())
            (client.loss(batch) + o.lam / 2 * distance).backward()
            descent.step()
        w = {name: t - o.eta * o.lam * (t - theta[name].detach()) for name, t in w.items()}
    return w


@pytest.mark.quick(3)
@pytest.mark.parametrize("beta", [1.0, 0.4, 2.0])
def test_rounds_are_those_of_clients_trained_one_by_one(federate, alone, beta):
    options = PFedMeOptions(lam=4.0, eta=0.03, personal_lr=0.1, inner_steps=3, beta=beta)
    federation = federate(partial(PFedMe, options=options), SIZES)
    clients = alone(federation)
    server = clients[0].values()
    for _ in range(3):
        federation.run_round()
        local = [local_round(client, server, options) for client in clients]
        for name, t in server.items():
            mean = sum(w[name] for w in local) / len(SIZES)
            server = {**server, name: (1 - beta) * t + beta * mean}
        torch.testing.assert_close(federation.state.server, server)
        for i, client in enumerate(clients):
            theta = personal_model(federation.state.clients.memory)
            rows = {name: t[i] for name, t in theta.items()}
            torch.testing.assert_close(rows, client.values())


@pytest.mark.repeats
def test_many_inner_steps_find_the_proximal_point(federate, task):
    lam = 2.0
    method = pfedme(lam=lam, personal_lr=0.2, inner_steps=400)
    federation = federate(method, (4, 4), rounds=1, epochs=1)
    w = federation.method.population.initial()
    federation.run()
    theta = personal_model(federation.state.clients.memory)
    batch = {name: t[:, :4] for name, t in federation.train.tensors.items()}
    tensors = [t.requires_grad_() for t in theta.values()]
    gradients = torch.autograd.grad(federation.method.loss_of(theta, batch).sum(), tensors)
    for name, gradient in zip(theta, gradients, strict=True):
        torch.testing.assert_close(lam * (w[name] - theta[name]), gradient, atol=1e-4, rtol=1e-4)


@pytest.mark.repeats
def test_the_runs_optimiser_is_not_used(federate):
    runs = [federate(PFedMe, SIZES, lr=lr, optimizer=o) for lr, o in ((0.1, "adam"), (9, "sgd"))]
    for federation in runs:
        federation.run()
    for name, t in runs[0].state.server.items():
        assert torch.equal(t, runs[1].state.server[name])


@pytest.mark.slow
def test_the_defaults_are_stable_and_make_progress(federate):
    federation = federate(PFedMe, SIZES, rounds=30)
    federation.run()
    losses = [report.train_loss for report in federation.reports]
    assert max(losses) == losses[0]
    assert losses[-1] < 0.8 * losses[0]


@pytest.mark.repeats
def test_running_statistics_are_those_of_theta(federate, module):
    federation = federate(pfedme(beta=2.0), SIZES, build=module, rounds=2)
    federation.run()
    clients, server = federation.state.clients, federation.state.server
    assert any("running" in name for name in clients.buffers)
    for name, local in clients.buffers.items():
        own = clients.memory["personal." + name]
        assert own.untyped_storage().data_ptr() != local.untyped_storage().data_ptr()
        assert torch.equal(own, local)
        mean = local.double().mean(0)
        expected = mean if local.is_floating_point() else mean.round()
        torch.testing.assert_close(server[name], expected.to(local.dtype))
    variance = clients.buffers["encoder.module.2.running_var"]
    assert not torch.allclose(variance, torch.ones_like(variance))
    assert not torch.equal(variance[0], variance[1])


@pytest.mark.repeats
def test_a_round_starts_from_the_received_model_and_statistics(federate, module):
    federation = federate(PFedMe, SIZES, build=module)
    federation.run_round()
    for group in (federation.state.clients.memory, federation.state.clients.buffers):
        for t in group.values():
            t.fill_(7)
    torch.manual_seed(0)
    other = federate(PFedMe, SIZES, build=module)
    other.run_round()
    federation.run_round()
    other.run_round()
    torch.testing.assert_close(federation.state.flat(), other.state.flat())


def test_only_the_global_model_is_sent(federate):
    federation = federate(PFedMe, SIZES)
    federation.run()
    n_bytes = len(SIZES) * 4 * (3 * 5 + 5 + 5 * 2 + 2)
    assert {(r.bytes_down, r.bytes_up) for r in federation.reports} == {(n_bytes, n_bytes)}


def test_each_view_predicts_with_its_model(federate, make_data):
    federation = federate(PFedMe, SIZES)
    federation.run()
    population, state, data = federation.method.population, federation.state, make_data((5, 5, 5))
    ((batch, own),) = predictions(federation.method, state, data)
    ((_, shared),) = predictions(federation.method, state, data, view="global")
    w = {name: t.expand(3, *t.shape) for name, t in state.server.items()}
    for y_hat, model in ((own, personal_model(state.clients.memory)), (shared, w)):
        expected = population.decode(model, population.encode(model, batch["x"]))
        torch.testing.assert_close(y_hat, expected)
    assert not torch.allclose(own, shared)


@pytest.mark.parametrize("name", ["lam", "eta", "personal_lr", "inner_steps", "beta"])
def test_options_out_of_range_are_refused(name):
    with pytest.raises(InputError, match=rf"{name} is 0.*positive"):
        PFedMeOptions(**{name: 0})
