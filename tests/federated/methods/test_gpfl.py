from functools import partial

import pytest
import torch
from reference_client import mean_by_size
from torch.nn import functional as F

from data_prep.base.errors import InputError
from stforecast.federated.core.method import predictions
from stforecast.federated.methods.gpfl import GPFL, GPFLOptions

SIZES = (8, 13, 5)
N_KEYS = 4


def gpfl(**options):
    return partial(GPFL, options=GPFLOptions(**options))


def uneven_keys(federation):
    """Client 0 has keys 0 and 1, client 1 keys 1 and 2, client 2 key 1: nobody has key 3."""
    slot = federation.train.tensors["slot"]
    slot[0] = slot[0] % 2
    slot[1] = 1 + slot[1] % 3 // 2
    slot[2] = 1


def made(extra, part, condition):
    """Linear layer, rectifier and layer normalisation of one vector, written out."""
    hidden = torch.relu(condition @ extra[f"{part}.0.weight"] + extra[f"{part}.0.bias"])
    normal = (hidden - hidden.mean()) / (hidden.var(correction=0) + 1e-5).sqrt()
    return normal * extra[f"{part}.2.weight"] + extra[f"{part}.2.bias"]


def valve(extra, features, condition):
    gamma, beta = (made(extra, part, condition) for part in ("gamma", "beta"))
    return torch.relu((gamma + 1) * features + beta)


def loss_of(client, extra, received, batch, lam):
    """Eq. 3 to 11 for one client, sample by sample where the paper has a sample."""
    slots = client.data["slot"].tolist()
    shares = torch.tensor([slots.count(k) / len(slots) for k in range(N_KEYS)])
    f = client.encode(batch["x"])
    own = valve(extra, f, shares @ received)
    y = own @ client.params["head.weight"] + client.params["head.bias"]
    loss = (y - batch["y"])[batch["mask"]].square().mean()
    terms = []
    for z, k in zip(valve(extra, f, received.mean(0)), batch["slot"], strict=True):
        similar = torch.stack([F.cosine_similarity(z, e, dim=0) for e in extra["embeddings"]])
        angle = -torch.log(similar[k].exp() / similar.exp().sum())
        terms.append(angle + lam * (z - received[k]).norm())
    return loss + sum(terms) / len(terms)


@pytest.mark.parametrize("optimizer", ["adam", pytest.param("sgd", marks=pytest.mark.repeats)])
def test_rounds_are_those_of_clients_trained_one_by_one(
    double, federate, alone, optimizers, optimizer
):
    federation = federate(gpfl(lam=0.3, mu=0.2), SIZES, optimizer=optimizer, lr=0.02)
    uneven_keys(federation)
    clients, names = alone(federation), federation.method.guides
    state = federation.state
    extras = [
        {n: state.clients.params[n][i].clone().requires_grad_() for n in names} for i in range(3)
    ]
    own = [
        optimizers([*c.params.values(), *e.values()], optimizer, lr=0.02)
        for c, e in zip(clients, extras, strict=True)
    ]
    server = {**clients[0].values("encoder"), **{n: extras[0][n].detach().clone() for n in names}}
    for _ in range(3):
        federation.run_round()
        for client, extra, steps in zip(clients, extras, own, strict=True):
            client.receive({n: t for n, t in server.items() if n not in names})
            for name, t in extra.items():
                t.data.copy_(server[name])
            for batch in client.batches(epochs=2):
                loss = loss_of(client, extra, server["embeddings"], batch, 0.3)
                steps.zero_grad()
                loss.backward()
                steps.step()
                for t in extra.values():
                    t.data *= 1 - 0.2 * 0.02
        sent = [
            {**c.values("encoder"), **{n: t.detach().clone() for n, t in e.items()}}
            for c, e in zip(clients, extras, strict=True)
        ]
        server = mean_by_size(sent, SIZES)
        torch.testing.assert_close(federation.state.server, server, rtol=1e-6, atol=1e-6)
        heads = torch.stack([c.params["head.weight"].detach() for c in clients])
        kept = federation.state.clients.params["head.weight"].detach()
        torch.testing.assert_close(kept, heads, rtol=1e-6, atol=1e-6)


def test_the_decay_is_that_of_plain_sgd_whatever_the_optimizer(federate):
    """Where there is no gradient, embeddings and valve shrink by the same share with Adam."""
    for optimizer in ("adam", "sgd"):
        federation = federate(gpfl(mu=0.5, lam=0.0), SIZES, optimizer=optimizer, lr=0.02, rounds=1)
        method = federation.method
        method.local_loss = lambda cohort, *_: (
            0 * torch.stack([p.flatten(1).sum(1) for p in cohort.params.values()]).sum(0)
        )
        before = {n: federation.state.server[n].clone() for n in method.guides}
        federation.run_round()
        for name, t in before.items():
            # Two epochs of 2, 3 and 1 batches.
            share = sum(n * 0.99 ** (2 * b) for n, b in zip(SIZES, (2, 3, 1), strict=True))
            torch.testing.assert_close(federation.state.server[name], t * share / sum(SIZES))


def test_a_client_predicts_by_its_own_condition(double, federate, make_data):
    federation = federate(GPFL, SIZES)
    uneven_keys(federation)
    federation.run()
    ((batch, y_hat),) = predictions(federation.method, federation.state, make_data((5, 5, 5)))
    server, own = federation.state.server, federation.state.clients
    shares = torch.tensor([[1 / 2, 1 / 2, 0, 0], [0, 10 / 13, 3 / 13, 0], [0, 1, 0, 0]])
    torch.testing.assert_close(own.memory["key_shares"], shares, **double)
    for i in range(3):
        f = torch.tanh(batch["x"][i] @ server["encoder.0.weight"] + server["encoder.0.bias"])
        z = valve(server, f, shares[i] @ server["embeddings"])
        expected = z @ own.params["head.weight"][i] + own.params["head.bias"][i]
        torch.testing.assert_close(y_hat[i], expected.detach(), **double)


def test_the_head_stays_and_everything_else_is_sent(federate):
    federation = federate(GPFL, SIZES)
    federation.run()
    encoder, valve_size, embeddings = 3 * 5 + 5, 2 * (5 * 5 + 5 + 5 + 5), N_KEYS * 5
    n_bytes = 3 * 4 * (encoder + valve_size + embeddings)
    assert {(r.bytes_up, r.bytes_down) for r in federation.reports} == {(n_bytes, n_bytes)}


@pytest.mark.parametrize("options", [{"lam": -1.0}, {"mu": -0.1}])
def test_impossible_options_are_refused(options):
    with pytest.raises(InputError, match=f"{next(iter(options))} is"):
        GPFLOptions(**options)
