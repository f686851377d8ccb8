from functools import partial

import pytest
import torch

from data_prep.base.errors import InputError
from stforecast.federated.core.prototypes import instance_distance
from stforecast.federated.core.state import Participants
from stforecast.federated.methods.fedproto import FedProto, FedProtoOptions
from stforecast.federated.methods.solo import Solo
from stforecast.methods import METHODS

SIZES = (8, 13, 5)
N_KEYS, D = 4, 5


def proto(**options):
    return partial(FedProto, options=FedProtoOptions(**options))


def of(*ids):
    return Participants(torch.tensor(ids), torch.full((len(ids),), 8), round=0)


@pytest.fixture
def method(federate):
    return lambda **options: federate(proto(**options)).method


def uneven_keys(federation):
    """Client 0 has keys 0 and 1, client 1 keys 1 and 2, client 2 key 1: nobody has key 3."""
    slot = federation.train.tensors["slot"]
    slot[0] = slot[0] % 2
    slot[1] = 1 + slot[1] % 3 // 2
    slot[2] = 1


def reference_loss(client, batch, prototypes, lam):
    """Sample by sample, as Eq. 7 with the squared error in its place."""
    pulls = [
        (f - prototypes[int(k)]).square().mean() if int(k) in prototypes else torch.zeros(())
        for f, k in zip(client.encode(batch["x"]), batch["slot"], strict=True)
    ]
    return client.loss(batch) + lam * sum(pulls) / len(pulls)


def reference_epochs(client, optimizer, prototypes, lam, epochs):
    """Train; the features of each key met in the last epoch."""
    last = len(list(client.batches(1))) * (epochs - 1)
    seen = {}
    for step, batch in enumerate(client.batches(epochs)):
        if step >= last:
            for f, k in zip(client.encode(batch["x"]).detach(), batch["slot"], strict=True):
                seen.setdefault(int(k), []).append(f)
        optimizer.zero_grad()
        reference_loss(client, batch, prototypes, lam).backward()
        optimizer.step()
    return seen


@pytest.mark.parametrize("average", ["samples", "clients"])
def test_rounds_are_those_of_clients_trained_one_by_one(federate, alone, average):
    federation = federate(proto(lam=3.0, average=average), SIZES, lr=0.05)
    uneven_keys(federation)
    clients = alone(federation)
    optimizers = [torch.optim.Adam(c.params.values(), lr=0.05) for c in clients]
    prototypes = {}
    for _ in range(3):
        federation.run_round()
        seen = [
            reference_epochs(client, optimizer, prototypes, 3.0, epochs=2)
            for client, optimizer in zip(clients, optimizers, strict=True)
        ]
        for k in range(3):
            lists = [s[k] for s in seen if k in s]
            if average == "clients":
                lists = [[torch.stack(own).mean(0)] for own in lists]
            prototypes[k] = torch.stack([f for own in lists for f in own]).mean(0)
        server = federation.state.server
        assert server["known"].tolist() == [True, True, True, False]
        for k in range(3):
            torch.testing.assert_close(server["prototypes"][k], prototypes[k], rtol=1e-4, atol=1e-5)
        own = {n: torch.stack([c.params[n].detach() for c in clients]) for n in clients[0].params}
        torch.testing.assert_close(federation.state.clients.params, own, rtol=1e-4, atol=1e-5)


def uploads(prototypes, counts):
    return {
        "prototypes": torch.tensor(prototypes)[..., None],
        "counts": torch.tensor(counts, dtype=torch.int32),
    }


@pytest.mark.parametrize(
    ("average", "expected"),
    [("samples", [(3 * 2 + 1 * 6) / 4, 5.0, 0.0]), ("clients", [(2 + 6) / 2, 5.0, 0.0])],
)
def test_prototypes_are_averaged_over_those_who_hold_the_key(method, average, expected):
    """Eq. 6, without the division by the number of clients that is printed there besides."""
    sent = uploads([[2.0, 0.0, 0.0], [6.0, 5.0, 0.0]], [[3, 0, 0], [1, 2, 0]])
    server = method(average=average).aggregate({}, of(0, 1), sent)
    assert server["prototypes"].squeeze(-1).tolist() == expected
    assert server["known"].tolist() == [True, True, False]


def test_a_key_whose_holders_are_absent_keeps_its_prototype(method):
    server = {
        "prototypes": torch.tensor([[7.0], [8.0], [0.0]]),
        "known": torch.tensor([True, True, False]),
    }
    server = method().aggregate(server, of(3), uploads([[0.0, 4.0, 0.0]], [[0, 2, 0]]))
    assert server["prototypes"].squeeze(-1).tolist() == [7, 4, 0]
    assert server["known"].tolist() == [True, True, False]


def test_samples_without_a_prototype_pull_nothing():
    features = torch.tensor([[[1.0, 3.0], [5.0, 5.0], [2.0, 2.0]]], requires_grad=True)
    payload = {
        "prototypes": torch.tensor([[[0.0, 1.0], [0.0, 0.0], [0.0, 0.0]]]),
        "known": torch.tensor([[True, False, True]]),
    }
    keys = torch.tensor([[0, 1, 2]])
    pull = instance_distance(features, keys, **payload)
    # Key 2 is known, and its prototype is the origin: a layer of dead units gives that.
    torch.testing.assert_close(pull, torch.tensor([((1 + 4) / 2 + 0 + (4 + 4) / 2) / 3]))
    pull.sum().backward()
    assert features.grad[0, 1].tolist() == [0, 0]
    assert (features.grad[0, [0, 2]] != 0).all()


@pytest.mark.repeats
@pytest.mark.parametrize("settings", [{"rounds": 1}, {"rounds": 3, "lam": 0.0}])
def test_without_prototypes_or_their_weight_clients_train_alone(federate, module, settings):
    lam = settings.pop("lam", 1.0)
    runs = [federate(m, SIZES, build=module, **settings) for m in (proto(lam=lam), Solo)]
    for federation in runs:
        federation.run()
    flat = [f.state.clients.flat() for f in runs]
    torch.testing.assert_close(flat[0], flat[1], rtol=0, atol=0)


def test_prototypes_and_counts_are_sent_and_no_parameters(federate):
    federation = federate(FedProto, SIZES)
    federation.run()
    up, down = N_KEYS * D * 4 + N_KEYS * 4, N_KEYS * D * 4 + N_KEYS
    assert [r.bytes_up for r in federation.reports] == [3 * up] * 3
    assert [r.bytes_down for r in federation.reports] == [0, 3 * down, 3 * down]
    assert federation.state.server.keys() == {"prototypes", "known"}


def test_counts_are_those_of_the_last_epoch(federate, monkeypatch):
    federation = federate(FedProto, (8, 13, 5), epochs=3)
    uneven_keys(federation)
    seen = []
    aggregate = federation.method.aggregate

    def watched(server, of, upload):
        seen.append(upload["counts"])
        return aggregate(server, of, upload)

    monkeypatch.setattr(federation.method, "aggregate", watched)
    federation.run_round()
    # Of 13 samples the batches reach 12, of 5 they reach 4.
    assert seen[0].tolist() == [[4, 4, 0, 0], [0, 9, 3, 0], [0, 4, 0, 0]]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lam": -1.0}, "lam is -1.0.* 0"),
        ({"average": "median"}, "average is 'median'"),
    ],
)
def test_impossible_options_are_refused(options, message):
    with pytest.raises(InputError, match=message):
        FedProtoOptions(**options)


def test_it_is_registered():
    assert METHODS["fedproto"] is FedProto
