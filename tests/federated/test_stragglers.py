"""Semi-asynchronous rounds against a loop with a queue, and what they must not change."""

import copy

import pytest
import torch
from reference_client import mean_by_size

from data_prep.base.errors import InputError
from stforecast.federated.core.state import State, generator
from stforecast.federated.engine.stragglers import ORDER, slow
from stforecast.federated.methods.fedavg import FedAvg
from stforecast.federated.methods.fedbn import FedBN
from stforecast.federated.methods.fedproto import FedProto
from stforecast.federated.methods.scaffold import Scaffold
from stforecast.federated.methods.server_optimizers import FedAdam

SIZES = (8, 13, 5, 9)
SGD = {"optimizer": "sgd", "lr": 0.1}


def client_rows(state, i):
    groups = state.clients.groups()
    return {f"{group}/{name}": t[i].clone() for group, ts in groups for name, t in ts.items()}


def trained(client, server):
    """Train a client on what the server sends, and return its model."""
    client.receive(server)
    optimizer = torch.optim.SGD(list(client.params.values()), lr=0.1)
    for batch in client.batches(epochs=2):
        optimizer.zero_grad()
        client.loss(batch).backward()
        optimizer.step()
    return copy.deepcopy(client.values())


def test_rounds_are_those_of_a_queue(double, federate, alone):
    settings = {"slow_share": 0.5, "slow_rounds": 3, "staleness": 0.7, **SGD}
    federation = federate(FedAvg, SIZES, rounds=9, **settings)
    clients, late = alone(federation), slow(federation.method.training, 1, 4).tolist()
    assert sum(late) == 2
    server, queue = clients[0].values(), {}
    for now in range(9):
        started = copy.deepcopy(server)
        busy = {i for i, (due, _) in queue.items() if due >= now}
        arrivals = {}
        for i in [i for i in range(4) if i not in busy]:
            model = trained(clients[i], server)
            if late[i]:
                queue[i] = (now + 2, {n: t - started[n] for n, t in model.items()})
            else:
                arrivals[i] = model
        for i, (due, change) in queue.items():
            if due == now:
                arrivals[i] = {n: server[n] + 3**-0.7 * change[n] for n in server}
        models = [arrivals[i] for i in sorted(arrivals)]
        server = mean_by_size(models, [SIZES[i] for i in sorted(arrivals)])
        assert federation.run_round().participants == 4 - len(busy)
        torch.testing.assert_close(federation.state.server, server, **double)


@pytest.mark.quick(2)
@pytest.mark.parametrize("hinge", [None, 4])
def test_uploads_are_mixed_in_turn_as_in_algorithm_1_of_fedasync(double, federate, alone, hinge):
    settings = {"slow_share": 0.5, "slow_rounds": 3, "staleness": 0.7, "hinge": hinge, **SGD}
    federation = federate(FedAvg, SIZES, rounds=9, mixing=0.6, **settings)
    clients, late = alone(federation), slow(federation.method.training, 1, 4).tolist()
    server, waiting, t = clients[0].values(), {}, 0
    for now in range(9):
        due = {i for i, (when, *_) in waiting.items() if when == now}
        arrivals = {i: waiting.pop(i)[1:] for i in due}
        for i in {0, 1, 2, 3} - due - set(waiting):
            model = trained(clients[i], server)
            if late[i]:
                waiting[i] = (now + 2, t, model)
            else:
                arrivals[i] = (t, model)
        ids = sorted(arrivals)
        for k in torch.randperm(len(ids), generator=generator(1, *ORDER, now)):
            began, model = arrivals[ids[k]]
            delay = t - began
            s = (delay + 1) ** -0.7 if hinge is None else 1 / (0.7 * max(delay - hinge, 0) + 1)
            server = {n: (1 - 0.6 * s) * server[n] + 0.6 * s * model[n] for n in server}
            t += 1
        federation.run_round()
        torch.testing.assert_close(federation.state.server, server, **double)


def test_a_single_client_that_is_mixed_wholly_is_fedavg(federate, module):
    runs = [federate(FedAvg, (8,), build=module, mixing=mixing) for mixing in (0.0, 1.0)]
    for federation in runs:
        federation.run()
    torch.testing.assert_close(runs[0].state.server, runs[1].state.server, rtol=0, atol=0)


def test_the_last_to_arrive_is_the_model_if_each_is_mixed_wholly(double, federate, alone):
    federation = federate(FedAvg, SIZES, mixing=1.0, staleness=0.0, **SGD)
    clients = alone(federation)
    last = int(torch.randperm(4, generator=generator(1, *ORDER, 0))[-1])
    expected = trained(clients[last], clients[last].values())
    federation.run_round()
    torch.testing.assert_close(federation.state.server, expected, **double)


@pytest.mark.quick(2)
@pytest.mark.sampled(3)
@pytest.mark.parametrize("method", [FedAvg, FedBN, FedAdam])
@pytest.mark.parametrize("nobody", [{"slow_rounds": 1, "slow_share": 0.5}, {"slow_share": 0.2}])
def test_if_nobody_is_late_rounds_are_synchronous(federate, module, method, nobody):
    runs = [
        federate(method, SIZES, build=module, participation=0.5, **settings)
        for settings in ({}, nobody)
    ]
    for federation in runs:
        federation.run()
    torch.testing.assert_close(runs[0].state.flat(), runs[1].state.flat(), rtol=0, atol=0)


def test_slow_clients_rest_until_their_upload_has_arrived(federate):
    federation = federate(FedAvg, SIZES, rounds=7, slow_share=0.5, slow_rounds=3)
    late = slow(federation.method.training, 1, 4).nonzero().flatten().tolist()
    for round in range(7):
        before = [client_rows(federation.state, i) for i in range(4)]
        federation.run_round()
        for i in range(4):
            after = client_rows(federation.state, i)
            trained = any(not torch.equal(t, before[i][n]) for n, t in after.items())
            assert trained == (i not in late or round % 3 == 0)


@pytest.mark.repeats
@pytest.mark.parametrize("mixing", [0.0, 0.6])
def test_a_run_goes_on_from_its_tensors(federate, module, mixing):
    settings = {"build": module, "slow_share": 0.5, "slow_rounds": 4, "participation": 0.6}
    settings["mixing"] = mixing
    whole, last = (federate(FedAvg, SIZES, rounds=8, **settings) for _ in range(2))
    for _ in range(8):
        whole.run_round()
    for _ in range(3):
        last.run_round()
    flat = {name: t.clone() for name, t in last.state.flat().items()}
    again = federate(FedAvg, SIZES, rounds=8, **settings)
    again.restore(State.from_flat(flat, last.state.round, last.state.seed), None, last.reports)
    for _ in range(5):
        again.run_round()
    torch.testing.assert_close(again.state.flat(), whole.state.flat(), rtol=0, atol=0)


def test_a_round_of_slow_clients_alone_leaves_the_server_as_it_is(federate):
    settings = {"participation": 0.25, "full_start": False, "slow_share": 0.75, "slow_rounds": 6}
    federation = federate(FedAvg, SIZES, rounds=20, **settings)
    late, unchanged = slow(federation.method.training, 1, 4), 0
    for _ in range(20):
        before = federation.state.server["head.weight"].clone()
        federation.run_round()
        if bool(late[federation.latest.ids].all()) and torch.equal(
            federation.state.server["head.weight"], before
        ):
            unchanged += 1
        assert all(t.isfinite().all() for t in federation.state.server.values())
    assert unchanged


@pytest.mark.parametrize(
    ("method", "said"),
    [
        (FedProto, "fedproto averages"),
        (Scaffold, "scaffold .*control"),
    ],
)
@pytest.mark.parametrize("settings", [{"slow_share": 0.5}, {"mixing": 0.6}])
def test_methods_whose_uploads_are_no_models_are_refused(federate, method, said, settings):
    with pytest.raises(InputError, match=said):
        federate(method, SIZES, **settings).run_round()
