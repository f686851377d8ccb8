"""GLDP against clients trained one by one in plain Python, over stages and rounds."""

from functools import partial
from math import log
from types import SimpleNamespace

import pytest
import torch
from torch.nn import functional as F

from data_prep.base.errors import InputError
from stforecast.federated.core.data import Stream
from stforecast.federated.core.method import predictions
from stforecast.federated.engine.rounds import Federation
from stforecast.federated.methods.fedrep import FedRep, FedRepOptions
from vision.learner import Learner
from vision.methods.gldp import GLDP, GLDPOptions

SETTINGS = {"optimizer": "sgd", "lr": 0.1, "rounds": 2, "epochs": 3, "batch_size": 4}
SIZES = [(8, 12), (12, 8)]
"""Samples of both clients in each of two stages."""


@pytest.fixture
def stages(make_data):
    """Two stages; the second has other images, and no sample of class 1."""
    first, second = (make_data(list(sizes), seed) for seed, sizes in enumerate(SIZES))
    second.tensors["y"][second.tensors["y"] == 1] = 3
    return [first, second]


@pytest.fixture
def over_stages(federate, stages):
    """Makes a federation over the stages: `over_stages(lam=0)`."""

    def make(epochs=3, **options):
        settings = {**SETTINGS, "epochs": epochs}
        method = federate(partial(GLDP, options=GLDPOptions(**options)), (8, 8), **settings).method
        return Federation(method, Stream(stages), seed=1)

    return make


class Plain:
    """Algorithm 1 for one client at a time; prototypes are dicts from class to vector."""

    def __init__(self, clients, stages, o, body_epochs):
        self.clients, self.stages, self.o, self.body_epochs = clients, stages, o, body_epochs
        self.body = {n: t for n, t in clients[0].values().items() if n.startswith("encoder.")}
        self.own, self.globals = [{} for _ in clients], {}

    def loss(self, i, features, y):
        client, o = self.clients[i], self.o
        loss = F.cross_entropy(client.decode(features), y)
        local, pull = [], []
        for h, c in zip(features, y.tolist(), strict=True):
            old = self.own[i].get(c)
            if old is not None:
                if o.form == "head":
                    old, h_ = client.decode(old).detach(), client.decode(h)
                else:
                    h_ = h
                p = old.softmax(0)
                local.append((p * (p.log() - h_.log_softmax(0))).sum())
            if c in self.globals and o.align == "instance":
                pull.append((h - self.globals[c]).square().mean())
        if o.align == "batch":
            for c in set(y.tolist()) & set(self.globals):
                mean = features[y == c].mean(0)
                pull.append((y == c).sum() * (mean - self.globals[c]).square().mean())
        zero = torch.zeros(())
        loss = loss + o.lam * sum(local, zero) / len(y)
        return loss + (1 - o.lam) * sum(pull, zero) / len(y)

    def train(self, i, stage):
        client, size = self.clients[i], int(self.stages[stage].sizes[i])
        x, y = (self.stages[stage].tensors[n][i, :size] for n in ("x", "y"))
        client.receive(self.body)
        epochs = [("encoder.", self.body_epochs), ("head.", 3 - self.body_epochs)]
        if self.o.fedrep_order:
            epochs.reverse()
        epochs = [part for part, n in epochs for _ in range(n)]
        for part in epochs:
            seen = {}
            trained = [p for n, p in client.params.items() if n.startswith(part)]
            optimizer = torch.optim.SGD(trained, lr=SETTINGS["lr"])
            for start in range(0, size, 4):
                xs, ys = x[start : start + 4], y[start : start + 4]
                features = client.encode(xs)
                for h, c in zip(features.detach(), ys.tolist(), strict=True):
                    seen.setdefault(c, []).append(h)
                optimizer.zero_grad()
                self.loss(i, features, ys).backward()
                optimizer.step()
        return {c: torch.stack(hs).mean(0) for c, hs in seen.items()}

    def round(self, stage):
        beta = self.o.beta
        new = [self.train(i, stage) for i in range(len(self.clients))]
        values = [client.values() for client in self.clients]
        self.body = {n: sum(v[n] for v in values) / len(values) for n in self.body}
        for own, mine in zip(self.own, new, strict=True):
            for c, p in mine.items():
                own[c] = beta * own[c] + (1 - beta) * p if c in own else p
        for c in {c for mine in new for c in mine}:
            held = [mine[c] for mine in new if c in mine]
            mean = sum(held) / len(held)
            old = self.globals.get(c)
            self.globals[c] = mean if old is None else beta * old + (1 - beta) * mean


@pytest.mark.parametrize(
    ("align", "pull"),
    [
        # Squared errors of the samples are 1, (ln 3 - 1)² and 4, those of their classes' means
        # (ln 3 / 2 - 1)², with two samples, and 4; each is the mean over two features.
        ("instance", (1 + (log(3) - 1) ** 2 + 4) / 2 / 3),
        ("batch", (2 * (log(3) / 2 - 1) ** 2 + 4) / 2 / 3),
    ],
)
def test_the_loss_by_hand(align, pull):
    """Eq. 12 of three samples; the second class has no prototype of its own."""
    method = object.__new__(GLDP)
    method.options = GLDPOptions(lam=0.25, align=align)
    method.task = SimpleNamespace(keys=lambda batch: batch["y"])
    method.task_loss = lambda *_: torch.tensor([7.0])
    known = torch.tensor([[True, False]])
    memory = {"prototypes": torch.tensor([[[log(3), 0.0], [0.0, 0.0]]]), "known": known}
    features = torch.tensor([[[0.0, 0.0], [log(3), 0.0], [2.0, 0.0]]])
    payload = {"prototypes": torch.tensor([[[1.0, 0.0], [0.0, 0.0]]]), "known": known | True}
    batch = {"y": torch.tensor([[0, 0, 1]])}
    loss = method.loss(SimpleNamespace(memory=memory), features, batch, payload)
    # The prototype is (3/4, 1/4) as a distribution, the first sample (1/2, 1/2), the second equal.
    kl = (0.75 * log(1.5) + 0.25 * log(0.5)) / 3
    torch.testing.assert_close(loss, torch.tensor([7 + 0.25 * kl + 0.75 * pull]))


def assert_prototypes(prototypes, known, expected):
    assert known.nonzero().flatten().tolist() == sorted(expected)
    for c, p in expected.items():
        torch.testing.assert_close(prototypes[c], p)


@pytest.mark.quick(2)
@pytest.mark.parametrize(
    "options",
    [
        {"lam": 0.3, "beta": 0.7},
        {"form": "head", "lam": 0.8},
        {"align": "batch", "lam": 0.2},
        {"fedrep_order": True, "body_epochs": 2},
    ],
    ids=lambda o: "-".join(o),
)
def test_equals_a_plain_loop_over_clients(over_stages, alone, stages, options):
    f = over_stages(**options)
    plain = Plain(alone(f), stages, GLDPOptions(**options), options.get("body_epochs", 1))
    for _ in range(2):
        for stage in range(2):
            plain.round(stage)
            f.run_round()
    server, clients = f.state.server, f.state.clients
    for name, t in plain.body.items():
        torch.testing.assert_close(server[name], t)
    assert_prototypes(server["prototypes"], server["known"], plain.globals)
    for i, client in enumerate(plain.clients):
        for name, t in client.values().items():
            torch.testing.assert_close(clients.params[name][i], t)
        memory = clients.memory
        assert_prototypes(memory["prototypes"][i], memory["known"][i], plain.own[i])


@pytest.mark.parametrize("way", [None, "own", "averaged"])
def test_predictions_are_of_the_nearest_prototype(over_stages, alone, stages, way):
    f = over_stages()
    f.run()
    server, memory = f.state.server, f.state.clients.memory
    averaged = {n: t for n, t in server.items() if n.startswith("encoder.")}
    for i, client in enumerate(alone(f)):
        client.receive({name: t[i] for name, t in f.state.clients.params.items()})
        if way == "averaged":
            client.receive(averaged)
        x = stages[0].tensors["x"][i, :4]
        features = client.encode(x)
        for view, prototypes, known in (
            ("global", server["prototypes"], server["known"]),
            ("local", memory["prototypes"][i], memory["known"][i]),
        ):
            (_, scores), *_ = predictions(f.method, f.state, stages[0], view=view, way=way)
            squared = (features[:, None] - prototypes).square().sum(-1)
            expected = (-squared).masked_fill(~known, -torch.inf)
            torch.testing.assert_close(scores[i, :4], expected.detach())
        (_, logits), *_ = predictions(f.method, f.state, stages[0], view="personal", way=way)
        torch.testing.assert_close(logits[i, :4], client.decode(features).detach())


def test_a_client_that_has_not_trained_predicts_with_what_it_receives(federate):
    # The first client, which lacks a class, is one of the two that take part.
    f = federate(GLDP, rounds=1, participation=0.67, full_start=False, seed=2)
    f.run()
    trained = f.state.clients.memory["known"].any(1).tolist()
    assert trained[0]
    assert sum(trained) == 2
    for view, way, with_global in (("local", None, True), ("personal", "averaged", False)):
        (_, own), *_ = predictions(f.method, f.state, f.train, view=view)
        other = "global" if with_global else view
        (_, received), *_ = predictions(f.method, f.state, f.train, view=other, way=way)
        assert [not torch.equal(a, b) for a, b in zip(own, received, strict=True)] == trained


def test_without_relations_it_is_fedrep_with_equal_clients(federate):
    settings = {"optimizer": "sgd", "lr": 0.1}
    options = GLDPOptions(relations=False, fedrep_order=True, body_epochs=1)
    f = federate(partial(GLDP, options=options), epochs=3, **settings)
    fedrep = federate(partial(FedRep, options=FedRepOptions(head_epochs=2)), epochs=1, **settings)
    f.run()
    fedrep.run()
    for name, t in fedrep.state.clients.params.items():
        torch.testing.assert_close(f.state.clients.params[name], t)


def test_lambda_chooses_the_relation(over_stages):
    # In the very first round there are no prototypes; then each relation changes the body.
    bodies = []
    for options in ({"relations": False}, {"lam": 0}, {"lam": 1}, {"lam": 0.5}):
        f = over_stages(**options)
        f.run_round()
        bodies.append([f.state.server["encoder.1.weight"].clone()])
        f.run_round()
        bodies[-1].append(f.state.server["encoder.1.weight"])
    for i in range(4):
        assert torch.equal(bodies[i][0], bodies[0][0])
        assert not any(torch.equal(bodies[i][1], bodies[j][1]) for j in range(i))


def test_the_body_and_prototypes_travel(federate, n_classes):
    f = federate(GLDP, (8, 8), rounds=2)
    f.run()
    body, table = 4 * (6 * 5 + 5), n_classes * (4 * 5 + 1)
    assert [(r.bytes_down, r.bytes_up) for r in f.reports] == [
        (2 * body, 2 * (body + table)),
        (2 * (body + table), 2 * (body + table)),
    ]


@pytest.mark.parametrize(
    "options", [{"lam": 1.1}, {"beta": -0.1}, {"body_epochs": 0}, {"form": "x"}]
)
def test_options_out_of_range_are_refused(options):
    with pytest.raises(InputError, match=next(iter(options))):
        GLDPOptions(**options)


@pytest.mark.parametrize(("epochs", "body_epochs"), [(1, None), (2, 2), (2, 5)])
def test_a_head_without_epochs_is_refused(federate, epochs, body_epochs):
    options = GLDPOptions(body_epochs=body_epochs)
    message = f"{epochs} local epochs?, {body_epochs or 1} for the body"
    with pytest.raises(InputError, match=message):
        federate(partial(GLDP, options=options), epochs=epochs)


@pytest.mark.parametrize(("epochs", "body"), [(2, 1), (6, 1), (30, 5)])
def test_by_default_the_body_has_a_sixth_of_the_epochs(federate, epochs, body):
    phases = federate(GLDP, epochs=epochs).method.phases
    assert phases == [("encoder.", body), ("head.", epochs - body)]


@pytest.mark.repeats
def test_by_default_the_head_is_trained_too():
    learner = Learner("gldp", clients=2, rounds=1, size=8, channels=2, feature_size=4).fit()
    method, state = learner.fitted()
    first = method.population.initial()["head.weight"]
    assert not torch.equal(state.clients.params["head.weight"], first.expand(2, -1, -1))
