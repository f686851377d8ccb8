from functools import partial

import pytest
import torch
from reference_client import mean_by_size

from data_prep.base.errors import InputError
from stforecast.federated.core.method import predictions
from stforecast.federated.methods.fedcp import FedCP, FedCPOptions

SIZES = (8, 13, 5)
D = 5


def cp(**options):
    return partial(FedCP, options=FedCPOptions(**options))


def shares_of(policy, features, head):
    """The two shares of each feature, written out, for the client's own head `(d, outputs)`."""
    v = head.sum(1)
    hidden = (features * v / v.norm()) @ policy["policy.0.weight"] + policy["policy.0.bias"]
    mean, spread = hidden.mean(-1, keepdim=True), hidden.var(-1, correction=0, keepdim=True)
    normal = (hidden - mean) / (spread + 1e-5).sqrt()
    a, b = torch.relu(normal * policy["policy.1.weight"] + policy["policy.1.bias"]).split(D, -1)
    return a.exp() / (a.exp() + b.exp()), b.exp() / (a.exp() + b.exp())


def output(values, features):
    return features @ values["head.weight"] + values["head.bias"]


def reference_mmd(x, y):
    """Mean kernels within and between, pair by pair, of variances 10, 15, 20 and 50."""

    def kernel(a, b):
        apart = (a[:, None] - b[None]).square().sum(-1)
        return sum((-apart / (2 * variance)).exp() for variance in (10, 15, 20, 50)).mean()

    return kernel(x, x) + kernel(y, y) - 2 * kernel(x, y)


@pytest.mark.parametrize("optimizer", ["adam", pytest.param("sgd", marks=pytest.mark.repeats)])
def test_rounds_are_those_of_clients_trained_one_by_one(
    double, federate, alone, optimizers, optimizer
):
    federation = federate(cp(lam=7.0), SIZES, optimizer=optimizer, lr=0.02)
    clients, names = alone(federation), federation.method.policy.parameters
    state = federation.state.clients.params
    policies = [{n: state[n][i].clone().requires_grad_() for n in names} for i in range(3)]
    own = [
        optimizers([*c.params.values(), *p.values()], optimizer, lr=0.02)
        for c, p in zip(clients, policies, strict=True)
    ]
    server = {**clients[0].values(), **{n: t.detach().clone() for n, t in policies[0].items()}}
    for _ in range(3):
        federation.run_round()
        sent = []
        for client, policy, steps in zip(clients, policies, own, strict=True):
            client.receive({n: t for n, t in server.items() if n.startswith("encoder")})
            for name, t in policy.items():
                t.data.copy_(server[name])
            head = client.values("head")["head.weight"]
            for batch in client.batches(epochs=2):
                h = client.encode(batch["x"])
                common, personal = shares_of(policy, h, head)
                y = output(server, common * h) + output(client.params, personal * h)
                loss = (y - batch["y"])[batch["mask"]].square().mean()
                frozen = batch["x"] @ server["encoder.0.weight"] + server["encoder.0.bias"]
                steps.zero_grad()
                (loss + 7 * reference_mmd(h, torch.tanh(frozen))).backward()
                steps.step()
            model = client.values()
            heads = {n: (t + server[n]) / 2 for n, t in model.items() if n.startswith("head")}
            sent.append({**model, **heads, **{n: t.detach().clone() for n, t in policy.items()}})
        server = mean_by_size(sent, SIZES)
        torch.testing.assert_close(federation.state.server, server, rtol=1e-6, atol=1e-6)
        kept = torch.stack([c.params["head.weight"].detach() for c in clients])
        own_heads = federation.state.clients.params["head.weight"].detach()
        torch.testing.assert_close(own_heads, kept, rtol=1e-6, atol=1e-6)


def test_a_client_predicts_with_both_heads(double, federate, make_data):
    federation = federate(FedCP, SIZES)
    federation.run()
    ((batch, y_hat),) = predictions(federation.method, federation.state, make_data((5, 5, 5)))
    server, own = federation.state.server, federation.state.clients.params
    for i in range(3):
        h = torch.tanh(batch["x"][i] @ server["encoder.0.weight"] + server["encoder.0.bias"])
        head = {name: own[name][i].detach() for name in ("head.weight", "head.bias")}
        common, personal = shares_of(server, h, head["head.weight"])
        torch.testing.assert_close(common + personal, torch.ones_like(h), **double)
        expected = output(server, common * h) + output(head, personal * h)
        torch.testing.assert_close(y_hat[i], expected, **double)


def test_model_and_policy_are_sent(federate):
    federation = federate(FedCP, SIZES)
    federation.run()
    model, policy = 3 * 5 + 5 + 5 * 2 + 2, 5 * 10 + 3 * 10
    n_bytes = 3 * 4 * (model + policy)
    assert {(r.bytes_up, r.bytes_down) for r in federation.reports} == {(n_bytes, n_bytes)}


def test_the_received_encoder_changes_no_running_statistics(federate, module):
    federation = federate(FedCP, SIZES, build=module, epochs=1, rounds=1)
    federation.run_round()
    counts = [t for n, t in federation.state.clients.buffers.items() if n.endswith("_tracked")]
    assert [t.tolist() for t in counts] == [[2, 3, 1]]


def test_impossible_options_are_refused():
    with pytest.raises(InputError, match=r"lam is -1\.0.* 0"):
        FedCPOptions(lam=-1.0)
