import torch
from torch import nn

from stforecast.federated.core.state import Participants
from stforecast.federated.core.tensors import weighted_mean
from stforecast.federated.methods.fedavg import FedAvg
from stforecast.methods import METHODS

ONE_STEP = {"optimizer": "sgd", "rounds": 1, "epochs": 1, "lr": 0.3}


def central_model(federation, batches, task):
    """One gradient step of an ordinary network from the initial weights, a loss for each batch."""
    model = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2))
    initial = federation.method.population.initial()
    names = ("encoder.0.weight", "encoder.0.bias", "head.weight", "head.bias")
    with torch.no_grad():
        for p, name in zip(model.parameters(), names, strict=True):
            p.copy_(initial[name][0].t())
    loss = sum(share * task.loss(model(b["x"]), b).squeeze() for share, b in batches)
    loss.backward()
    torch.optim.SGD(model.parameters(), lr=ONE_STEP["lr"]).step()
    return {name: p.detach().t() for name, p in zip(names, model.parameters(), strict=True)}


def test_one_full_step_is_a_step_on_the_pooled_data(federate, task):
    federation = federate(FedAvg, (8, 8, 8), batch_size=8, **ONE_STEP)
    federation.train.tensors["mask"].fill_(True)
    pooled = {name: t.flatten(0, 1)[None] for name, t in federation.train.tensors.items()}
    expected = central_model(federation, [(1, pooled)], task)
    federation.run()
    assert federation.state.server.keys() == expected.keys()
    for name, t in expected.items():
        torch.testing.assert_close(federation.state.server[name], t)


def test_unequal_clients_count_by_their_samples(federate, task):
    federation = federate(FedAvg, (4, 6), **ONE_STEP)  # Of 6 samples, one batch of 4 is used.
    used = {name: t[:, :4] for name, t in federation.train.tensors.items()}
    batches = [
        (share, {name: t[i : i + 1] for name, t in used.items()})
        for i, share in enumerate((0.4, 0.6))
    ]
    expected = central_model(federation, batches, task)
    federation.run()
    for name, t in expected.items():
        torch.testing.assert_close(federation.state.server[name], t)


def test_only_those_present_are_averaged(federate):
    federation = federate(FedAvg, (8, 12, 8, 12, 8), participation=0.4)
    federation.run_round()
    ids = federation.participants().ids
    federation.run_round()
    clients, weights = federation.state.clients, federation.state.clients.sizes[ids].float()
    for name, t in federation.state.server.items():
        expected = torch.tensordot(weights / weights.sum(), clients.params[name][ids], dims=1)
        torch.testing.assert_close(t, expected)


def test_every_client_predicts_with_the_global_model(federate, make_data):
    federation = federate(FedAvg, (8, 8, 8))
    federation.run()
    method, state = federation.method, federation.state
    x = make_data((5,)).tensors["x"].expand(3, -1, -1)
    everyone = Participants(torch.arange(3), state.clients.sizes, state.round)
    y = method.predict(state.clients.params, method.broadcast(state.server, everyone), x, "global")
    assert torch.equal(y[0], y[1])
    assert torch.equal(y[0], y[2])
    alone = method.predict(state.clients.params, {}, x, "global")
    assert not torch.allclose(alone[0], alone[1])


def test_running_statistics_are_averaged(federate, module):
    federation = federate(FedAvg, (8, 8), build=module)
    federation.run()
    own, shared = federation.state.clients.buffers, federation.state.server
    for name in ("encoder.module.2.running_mean", "encoder.module.2.running_var"):
        assert not torch.equal(own[name][0], own[name][1])
        torch.testing.assert_close(shared[name], own[name].mean(0))
    assert shared["encoder.module.2.num_batches_tracked"] == 3 * 2 * 2


def test_a_subclass_may_share_the_encoder_alone(federate):
    class Encoder(FedAvg):
        name = ""

        def shares(self, name):
            return name.startswith("encoder.")

    federation = federate(Encoder, (8, 8))
    federation.run()
    names = {"encoder.0.weight", "encoder.0.bias"}
    assert federation.state.server.keys() == names
    n_bytes = 2 * 4 * (3 * 5 + 5)
    assert {(r.bytes_down, r.bytes_up) for r in federation.reports} == {(n_bytes, n_bytes)}


def test_the_global_model_is_sent_to_everyone():
    to = Participants(torch.tensor([1, 4]), torch.tensor([8, 8]), round=0)
    method = FedAvg.__new__(FedAvg)
    sent = method.broadcast({"w": torch.arange(3.0), "counter": torch.tensor(5)}, to)
    assert sent["w"].tolist() == [[0, 1, 2], [0, 1, 2]]
    assert sent["counter"].tolist() == [5, 5]


def test_weighted_mean():
    stacked = torch.tensor([[[1.0, 2]], [[3, 4]], [[8, 0]]])
    mean = weighted_mean(stacked, torch.tensor([2, 1, 1]))
    torch.testing.assert_close(mean, torch.tensor([[(2 + 3 + 8) / 4, (4 + 4 + 0) / 4]]))
    torch.testing.assert_close(weighted_mean(stacked[:1], torch.tensor([7])), stacked[0])


def test_counters_stay_integers():
    mean = weighted_mean(torch.tensor([4, 8]), torch.tensor([1, 1]))
    assert mean.dtype == torch.int64
    assert mean == 6


def test_equal_counters_stay_the_same():
    assert weighted_mean(torch.full((11,), 7), torch.full((11,), 8)) == 7


def test_double_precision_is_kept():
    stacked = torch.full((2, 1), 1 + 1e-12, dtype=torch.float64)
    torch.testing.assert_close(
        weighted_mean(stacked, torch.ones(2)), stacked[0], rtol=1e-15, atol=0
    )


def test_it_is_registered():
    assert METHODS["fedavg"] is FedAvg
