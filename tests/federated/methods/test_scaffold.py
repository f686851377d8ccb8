from functools import partial

import pytest
import torch

from data_prep.base.errors import InputError
from stforecast.federated.core.layers import ClientLinear
from stforecast.federated.core.population import SplitModel
from stforecast.federated.core.tensors import plain_mean
from stforecast.federated.methods.fedavg import FedAvg
from stforecast.federated.methods.scaffold import Scaffold, ScaffoldOptions, controls

SIZES = (4, 13, 20)


def scaffold(**options):
    return partial(Scaffold, options=ScaffoldOptions(**options))


class Reference:
    """Algorithm 1 in a loop over clients, with plain SGD. Line 12 is as printed in the paper."""

    def __init__(self, clients, lrs, option, server_lr):
        self.clients, self.lrs, self.option, self.server_lr = clients, lrs, option, server_lr
        self.x = clients[0].values()
        self.c = {n: torch.zeros_like(t) for n, t in self.x.items()}
        self.own = [{n: torch.zeros_like(t) for n, t in self.x.items()} for _ in clients]

    def gradient(self, client, batch):
        found = torch.autograd.grad(client.loss(batch), list(client.params.values()))
        return dict(zip(client.params, found, strict=True))

    def renewed(self, client, c_i, lr):
        """y and c_i+ (lines 7 to 12)."""
        client.receive(self.x)
        at_x = [self.gradient(client, batch) for batch in client.batches(epochs=1)]
        steps = 0
        for batch in client.batches(epochs=2):
            y, g = client.values(), self.gradient(client, batch)
            client.receive({n: y[n] - lr * (g[n] - c_i[n] + self.c[n]) for n in y})
            steps += 1
        y = client.values()
        if self.option == "I":
            return y, {n: sum(g[n] for g in at_x) / len(at_x) for n in y}
        return y, {n: c_i[n] - self.c[n] + (self.x[n] - y[n]) / (steps * lr) for n in y}

    def round(self, index, present):
        found = {i: self.renewed(self.clients[i], self.own[i], self.lrs[index]) for i in present}
        for n in self.x:
            moved = sum(y[n] - self.x[n] for y, _ in found.values()) / len(present)
            change = sum(c[n] - self.own[i][n] for i, (_, c) in found.items()) / len(present)
            self.x[n] = self.x[n] + self.server_lr * moved
            self.c[n] = self.c[n] + len(present) / len(self.clients) * change
        for i, (_, c) in found.items():
            self.own[i] = c


@pytest.mark.parametrize("schedule", ["constant", "cosine"])
@pytest.mark.parametrize("option", ["I", "II"])
def test_rounds_are_those_of_algorithm_1(double, federate, alone, option, schedule):
    """Clients of unequal size, of which some take part, and none twice in a row."""
    settings = {"optimizer": "sgd", "lr": 0.05, "schedule": schedule, "rounds": 4}
    method = scaffold(control_option=option, server_lr=0.8)
    federation = federate(method, SIZES, participation=0.6, full_start=False, **settings)
    lrs = [federation.method.training.lr_in(round) for round in range(4)]
    reference = Reference(alone(federation), lrs, option, server_lr=0.8)
    for round in range(4):
        present = federation.participants().ids.tolist()
        assert len(present) == 2
        federation.run_round()
        reference.round(round, present)
        state = federation.state
        x = {n: state.server[n] for n in reference.x}
        torch.testing.assert_close(x, reference.x, **double)
        torch.testing.assert_close(controls(state.server), reference.c, **double)
        for i, c_i in enumerate(reference.own):
            found = {n: t[i] for n, t in controls(state.clients.memory).items()}
            torch.testing.assert_close(found, c_i, **double)


@pytest.mark.quick(3)
@pytest.mark.parametrize(
    "settings",
    [
        {"optimizer": "adam", "weight_decay": 0.1},
        {"optimizer": "sgd", "momentum": 0.9, "weight_decay": 0.1},
    ],
    ids=["adam", "momentum"],
)
@pytest.mark.parametrize("option", ["I", "II"])
def test_the_servers_control_is_the_mean_of_the_clients(double, federate, option, settings):
    """Whatever the optimiser, whoever takes part, and whoever diverges."""
    federation = federate(scaffold(control_option=option), (8,) * 5, participation=0.4, **settings)
    local_update = federation.method.local_update

    def diverging(cohort, payload):
        upload = local_update(cohort, payload)
        if cohort.round == 1:
            upload["head.bias"][0] = torch.nan
        return upload

    federation.method.local_update = diverging
    federation.run()
    assert federation.reports[1].failed
    of_clients = controls(federation.state.clients.memory)
    for name, c in controls(federation.state.server).items():
        torch.testing.assert_close(c, of_clients[name].mean(0), **double)
        assert c.abs().max() > 1e-3


@pytest.mark.parametrize("optimizer", ["sgd", pytest.param("adam", marks=pytest.mark.repeats)])
def test_the_first_round_is_fedavgs(double, federate, module, optimizer):
    settings = {"optimizer": optimizer, "weight_decay": 0.1, "rounds": 1}
    runs = [federate(m, (8, 8, 8), build=module, **settings) for m in (Scaffold, FedAvg)]
    for federation in runs:
        federation.run()
    mine, avg = (f.state.server for f in runs)
    torch.testing.assert_close({n: mine[n] for n in avg}, avg, **double)
    assert runs[0].reports[0].train_loss == pytest.approx(runs[1].reports[0].train_loss)


@pytest.mark.repeats
def test_it_finds_the_optimum_that_fedavg_misses(double, quadratics):
    """However many steps each client takes: that of the plain mean of the losses."""
    settings = {"lr": 0.3, "rounds": 60}
    federation, centres = quadratics(Scaffold, **settings)
    optimum = centres.mean(0)
    torch.testing.assert_close(federation.state.server["head.bias"], optimum, **double)
    missed, _ = quadratics(FedAvg, **settings)
    assert (missed.state.server["head.bias"] - optimum).norm() > 0.5


class Idle(ClientLinear):
    """A layer without effect."""

    def forward(self, x):
        return x


@pytest.mark.parametrize("option", ["I", "II"])
def test_what_no_loss_reaches_does_not_move(double, federate, option):
    def build():
        return SplitModel(Idle(3, 2), ClientLinear(3, 2))

    federation = federate(scaffold(control_option=option), SIZES, build=build, optimizer="sgd")
    before = federation.state.server["encoder.weight"].clone()
    federation.run()
    torch.testing.assert_close(federation.state.server["encoder.weight"], before, **double)
    assert not controls(federation.state.server)["encoder.weight"].any()


def test_running_statistics_are_averaged_and_a_look_at_the_gradient_leaves_them(federate, module):
    for option in ("I", "II"):
        federation = federate(scaffold(control_option=option), (8, 12), build=module, rounds=1)
        federation.run()
        server, own = federation.state.server, federation.state.clients.buffers
        name = "encoder.module.2.running_mean"
        torch.testing.assert_close(server[name], plain_mean(own[name]))
        assert own["encoder.module.2.num_batches_tracked"].tolist() == [4, 6]
        assert not [n for n in controls(server) if n in own]


def test_twice_as_much_is_sent_as_in_fedavg(federate):
    runs = [federate(m, SIZES) for m in (Scaffold, FedAvg)]
    for federation in runs:
        federation.run()
    for mine, avg in zip(runs[0].reports, runs[1].reports, strict=True):
        assert (mine.bytes_down, mine.bytes_up) == (2 * avg.bytes_down, 2 * avg.bytes_up)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"control_option": "III"}, "control_option is 'III'; .*I or II"),
        ({"server_lr": 0.0}, "server_lr is 0.0.*positive"),
    ],
)
def test_impossible_options_are_refused(options, message):
    with pytest.raises(InputError, match=message):
        ScaffoldOptions(**options)
