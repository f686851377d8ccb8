from functools import partial

import pytest
import torch
from reference_client import mean_by_size

from data_prep.base.errors import InputError
from stforecast.federated.core.method import predictions
from stforecast.federated.methods.fedala import FedAla, FedAlaOptions
from stforecast.federated.methods.fedavg import FedAvg

SIZES = (8, 13, 5)


def ala(**options):
    return partial(FedAla, options=FedAlaOptions(**options))


def mixed(own, common, weights):
    """Eq. 4 by its two terms."""
    return {
        name: (1 - weights[name]) * own[name] + weights[name] * t if name in weights else t
        for name, t in common.items()
    }


def learned(client, own, common, weights, lr):
    """Eq. 5 by the chain rule: ∇_W L = (Θ - Θ_i) ⊙ ∇L at the mixture; one step on all samples."""
    client.receive(mixed(own, common, weights))
    names = list(weights)
    loss = client.loss(client.data)
    found = torch.autograd.grad(loss, [client.params[name] for name in names])
    return {
        name: (weights[name] - lr * (common[name] - own[name]) * g).clamp(0, 1)
        for name, g in zip(names, found, strict=True)
    }


@pytest.mark.parametrize("layers", [1, 2])
def test_rounds_are_those_of_clients_trained_one_by_one(double, federate, alone, layers):
    options = {"mixed_layers": layers, "mixing_share": 1.0, "mixing_lr": 8.0, "start_passes": 3}
    settings = {"optimizer": "sgd", "lr": 0.1, "drop_last": False, "batch_size": 16}
    federation = federate(ala(**options), SIZES, validated=False, **settings)
    clients, server = alone(federation), None
    names = [n for n in clients[0].params if layers == 2 or n.startswith("head")]
    weights = [{n: torch.ones_like(c.params[n]) for n in names} for c in clients]
    server = clients[0].values()
    for passes in (0, 3, 1, 1):
        federation.run_round()
        for i, client in enumerate(clients):
            own = client.values()
            for _ in range(passes):
                weights[i] = learned(client, own, server, weights[i], 8.0)
            client.receive(mixed(own, server, weights[i]))
            for _ in range(2):
                found = torch.autograd.grad(client.loss(client.data), client.params.values())
                steps = zip(client.params.items(), found, strict=True)
                client.receive({n: p.detach() - 0.1 * g for (n, p), g in steps})
        server = mean_by_size([c.values() for c in clients], SIZES)
        torch.testing.assert_close(federation.state.server, server, **double)
        for i, own in enumerate(weights):
            for name, w in own.items():
                kept = federation.state.clients.memory["mixing." + name][i]
                torch.testing.assert_close(kept, w, **double)
    values = torch.cat([w.flatten() for own in weights for w in own.values()])
    assert ((values > 0) & (values < 1)).any()


def test_a_client_predicts_with_the_mixture(double, federate, make_data):
    federation = federate(ala(mixing_share=1.0, mixing_lr=50.0, mixed_layers=2), SIZES)
    federation.run()
    ready, data = federation.ready(), make_data((5, 5, 5))
    ((batch, y_hat),) = predictions(federation.method, ready, data)
    population, state = federation.method.population, federation.state
    weights = {n.removeprefix("mixing."): w for n, w in ready.clients.memory.items() if "." in n}
    common = {name: t.expand(3, *t.shape) for name, t in state.server.items()}
    model = mixed(state.clients.params, common, weights)
    expected = population.decode(model, population.encode(model, batch["x"]))
    torch.testing.assert_close(y_hat, expected, **double)
    ((_, shared),) = predictions(federation.method, ready, data, view="global")
    assert not torch.allclose(y_hat, shared)


def test_a_client_that_has_not_trained_takes_the_global_model(federate):
    federation = federate(ala(), SIZES, participation=0.4, full_start=False)
    absent = sorted({0, 1, 2} - set(federation.participants().ids.tolist()))
    federation.run_round()
    ready = federation.ready().clients
    assert absent
    for name, t in federation.state.server.items():
        for i in absent:
            torch.testing.assert_close(ready.params[name][i], t)
            assert ready.memory["mixing_rounds"][i] == 0


def test_a_clients_start_stage_is_its_own_second_round(federate, monkeypatch):
    federation = federate(ala(start_passes=4), (8, 8, 8), participation=0.4, rounds=8)
    taken, learn = [], federation.method.learn

    def watched(cohort, own, payload, batch, active):
        taken.extend(cohort.ids[active].tolist())
        learn(cohort, own, payload, batch, active)

    monkeypatch.setattr(federation.method, "learn", watched)
    rounds = [0, 0, 0]
    for _ in range(8):
        present = federation.participants().ids.tolist()
        before = list(rounds)
        taken.clear()
        federation.trainer.train(federation.participants().ids)
        federation.state.round += 1
        for i in present:
            rounds[i] += 1
            # 6 of 8 samples are two batches.
            assert taken.count(i) == 2 * {0: 0, 1: 4}.get(before[i], 1)


@pytest.mark.repeats
def test_weights_of_1_are_fedavg(federate):
    """With no step there is nothing to mix: the tiniest learning rate leaves the global model."""
    runs = [federate(m, SIZES) for m in (ala(mixing_lr=1e-30), FedAvg)]
    for federation in runs:
        federation.run()
    torch.testing.assert_close(runs[0].state.server, runs[1].state.server)


def test_messages_are_those_of_fedavg(federate, module):
    runs = [federate(m, SIZES, build=module) for m in (FedAla, FedAvg)]
    for federation in runs:
        federation.run()
    sent = [[(r.bytes_down, r.bytes_up) for r in f.reports] for f in runs]
    assert sent[0] == sent[1]


@pytest.mark.parametrize(
    "options", [{"mixed_layers": 0}, {"mixing_share": 0.0}, {"mixing_lr": 0.0}, {"start_passes": 0}]
)
def test_impossible_options_are_refused(options):
    with pytest.raises(InputError, match=f"{next(iter(options))} is"):
        FedAlaOptions(**options)
