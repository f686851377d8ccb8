"""FedViT, FedL2P and FedDualP against plain loops over clients and samples."""

import dataclasses

import pytest
import torch

from data_prep.base.errors import InputError
from stforecast.federated.core.data import ClientData, Stream
from stforecast.federated.core.method import predictions
from stforecast.federated.core.population import Population
from stforecast.federated.core.training import Training
from stforecast.federated.engine.rounds import Federation
from stforecast.federated.methods.fedavg import FedAvg
from vision.backbones.load import TINY
from vision.methods.feddualp import FedDualP, FedDualPOptions
from vision.methods.fedl2p import FedL2P, FedL2POptions
from vision.methods.fedvit import FedViT, FedViTOptions
from vision.methods.prompts import prompt_tokens
from vision.models.vit import FrozenViT, ViTOptions
from vision.task import Classification, among_own_classes

pytestmark = pytest.mark.usefixtures("double")

N_CLASSES, WIDTH = 4, 16
L2P = FedL2POptions(pool_size=4, prompt_length=2, top_n=2)
DUALP = FedDualPOptions(g_length=2, g_blocks=1, e_length=3, e_blocks=2, experts=2)


def images_of(sizes, seed=0, first=0, n=N_CLASSES):
    g = torch.Generator().manual_seed(seed)
    shape = (len(sizes), max(sizes))
    y = first + torch.randint(n, shape, generator=g)
    x = torch.rand(*shape, 3, 8, 8, generator=g) + 0.3 * y[..., None, None, None]
    return ClientData({"x": x, "y": y}, torch.tensor(sizes))


def federation(method, options=None, train=None, **settings):
    settings = {"rounds": 2, "epochs": 2, "batch_size": 4, "lr": 0.01} | settings
    model = lambda: FrozenViT((3, 8, 8), N_CLASSES, ViTOptions(backbone=TINY, input_size=8))  # noqa: E731
    method = method(Population(model, 1), Classification(N_CLASSES), Training(**settings), options)
    train = among_own_classes(images_of((8, 12)), N_CLASSES) if train is None else train
    return Federation(method, train, seed=1)


class Reference:
    """One client in plain tensors; a subclass says what a sample's feature is."""

    def __init__(self, federation, client, stage=0):
        self.o, self.stage = federation.method.options, stage
        self.vit = federation.method.backbone._vit
        state = federation.state.clients
        self.p = {n: t[client].clone().requires_grad_() for n, t in state.params.items()}
        data = federation.trainer.stream.stages[stage]
        size = int(data.sizes[client])
        self.x, self.y = (data.tensors[n][client, :size] for n in ("x", "y"))
        self.optimiser = torch.optim.Adam(self.p.values(), lr=0.01)

    def image(self, x):
        mean = torch.tensor([0.485, 0.456, 0.406])[:, None, None]
        return ((x - mean) / torch.tensor([0.229, 0.224, 0.225])[:, None, None])[None]

    def nearest(self, x, n):
        query = self.vit(self.image(x))[0, 0]
        cosine = torch.stack(
            [torch.dot(query, k) / query.norm() / k.norm() for k in self.p["prompt.keys"]]
        )
        return cosine, sorted(range(len(cosine)), key=lambda i: -cosine[i].item())[:n]

    def update(self, server):
        with torch.no_grad():
            for name, t in server.items():
                self.p[name].copy_(t)
        present = sorted(set(self.y.tolist()))
        for _ in range(2):
            for start in range(0, len(self.y), 4):
                rows = range(start, start + 4)
                losses = []
                for i, (feature, extra) in zip(rows, self.train_features(rows), strict=True):
                    logits = (feature @ self.p["head.weight"] + self.p["head.bias"])[present]
                    y = present.index(int(self.y[i]))
                    losses.append(extra - logits.log_softmax(0)[y])
                self.optimiser.zero_grad()
                (sum(losses) / 4).backward()
                self.optimiser.step()
        return {n: t.detach().clone() for n, t in self.p.items()}


class L2PReference(Reference):
    def train_features(self, rows):
        cosines, chosen = zip(*(self.nearest(self.x[i], 2) for i in rows), strict=True)
        votes = [sum(own.count(p) for own in chosen) for p in range(4)]
        common = sorted(range(4), key=lambda p: -votes[p])[:2]
        for i, cosine in zip(rows, cosines, strict=True):
            yield self.under(self.x[i], common), 0.1 * sum(1 - cosine[p] for p in common)

    def under(self, x, prompts):
        tokens = torch.cat([self.p["prompt.pool"][p] for p in prompts])
        return self.vit(self.image(x), tokens[None])[0, 1:5].mean(0)

    def predict(self, x):
        return self.under(x, self.nearest(x, 2)[1])


class DualPReference(Reference):
    def train_features(self, rows):
        for i in rows:
            cosine, (best,) = self.nearest(self.x[i], 1)
            expert = self.stage if self.stage < 2 else best
            yield self.under(self.x[i], expert), 1 - cosine[expert]

    def under(self, x, expert):
        general, own = self.p["prompt.general"], self.p["prompt.experts"][expert]
        prefixes = {
            0: tuple(general[0, :, None]),
            1: tuple(own[0, :, None]),
            2: tuple(own[1, :, None]),
        }
        return self.vit(self.image(x), None, prefixes)[0, 0]

    def predict(self, x):
        return self.under(x, self.nearest(x, 1)[1][0])


class StandardisedReference(Reference):
    """Scaled by the client's own moments until `common` are given."""

    common = None

    def queries(self):
        return torch.stack([self.vit(self.image(x))[0, 0] for x in self.x])

    def scaled(self, query):
        mean, deviation = self.common or (self.queries().mean(0), self.queries().std(0, False))
        return (query - mean) / deviation

    def train_features(self, rows):
        for i in rows:
            yield self.scaled(self.vit(self.image(self.x[i]))[0, 0]), 0.0


def test_fedvit_standardises_by_own_then_by_common_moments():
    f = federation(FedViT, FedViTOptions(standardise=True))
    clients = [StandardisedReference(f, i) for i in range(2)]
    pooled = torch.cat([c.queries() for c in clients])
    server = {n: t for n, t in f.state.server.items() if n.startswith("head.")}
    sent = []
    for _ in range(2):
        server = server_mean([c.update(server) for c in clients])
        sent.append(f.run_round().bytes_up)
        for name, t in server.items():
            torch.testing.assert_close(f.state.server[name], t)
        for c in clients:
            c.common = (pooled.mean(0), pooled.std(0, correction=0))
    assert sent[0] - sent[1] == 2 * 8 * 2 * WIDTH  # The moments, once.
    data = images_of((3, 3), seed=4)
    ((_, logits),) = predictions(f.method, f.state, data)
    features = [clients[1].vit(clients[1].image(x))[0, 0] for x in data.tensors["x"][1]]
    expected = clients[1].scaled(torch.stack(features)) @ server["head.weight"]
    torch.testing.assert_close(logits[1], expected + server["head.bias"])


def test_classes_that_no_task_has_had_score_0():
    train = among_own_classes(images_of((8, 12), n=2), N_CLASSES)
    for options in (FedViTOptions(), FedViTOptions(standardise=True)):
        f = federation(FedViT, options, train)
        f.run()
        ((_, logits),) = predictions(f.method, f.state, images_of((3, 3)))
        assert logits[..., :2].abs().min() > 0
        assert not logits[..., 2:].any()


def server_mean(models):
    return {n: (8 * models[0][n] + 12 * models[1][n]) / 20 for n in models[0]}


@pytest.mark.parametrize(
    ("method", "options", "reference"),
    [(FedL2P, L2P, L2PReference), (FedDualP, DUALP, DualPReference)],
)
def test_two_rounds_are_those_of_a_plain_loop(method, options, reference):
    f = federation(method, options)
    clients = [reference(f, i) for i in range(2)]
    server = {n: t.clone() for n, t in f.state.server.items()}
    for _ in range(2):
        server = server_mean([c.update(server) for c in clients])
        f.run_round()
        for name, t in server.items():
            torch.testing.assert_close(f.state.server[name], t, msg=lambda m, n=name: f"{n}: {m}")
    data = images_of((3, 3), seed=4)
    ((_, logits),) = predictions(f.method, f.state, data)
    clients[0].p = server
    for x, y_hat in zip(data.tensors["x"][1], logits[1], strict=True):
        expected = clients[0].predict(x) @ server["head.weight"] + server["head.bias"]
        torch.testing.assert_close(y_hat, expected)


def test_a_stage_trains_its_own_expert_alone():
    stages = [images_of((8, 12), seed=s, first=2 * s, n=2) for s in range(2)]
    f = federation(FedDualP, DUALP, Stream(stages, "sequential"), rounds=1)
    first = f.state.server["prompt.experts"].clone()
    f.run_round()
    second = f.state.server["prompt.experts"].clone()
    f.run_round()
    third = f.state.server["prompt.experts"]
    assert [torch.equal(a, b) for a, b in zip(first, second, strict=True)] == [False, True]
    assert not torch.equal(second[1], third[1])


def test_what_is_sent():
    head = (WIDTH + 1) * N_CLASSES
    for method, prompts in (
        (FedViT, 0),
        (FedL2P, 10 * 5 * WIDTH + 10 * WIDTH),
        (FedDualP, 2 * 2 * 5 * WIDTH + 10 * 3 * 2 * 5 * WIDTH + 10 * WIDTH),
    ):
        f = federation(method)
        down = f.method.broadcast(f.state.server, f.participants())
        assert sum(t[0].numel() for t in down.values()) == head + prompts, method.name
        report = f.run_round()
        assert report.bytes_up == report.bytes_down == 2 * 8 * (head + prompts)


def test_fedvit_is_fedavg_on_a_frozen_model():
    ours, plain = federation(FedViT), federation(FedAvg)
    for f in (ours, plain):
        f.run()
    for name, t in plain.state.server.items():
        assert torch.equal(t, ours.state.server[name])


@pytest.mark.quick(3)
@pytest.mark.parametrize(("options", "head_epochs"), [(L2P, 5), (DUALP, 5), (L2P, 1)])
def test_further_epochs_train_the_head_alone(options, head_epochs):
    method = FedL2P if options is L2P else FedDualP
    few, many = (
        federation(method, dataclasses.replace(options, head_epochs=n), images_of((8, 8)), rounds=1)
        for n in (None, head_epochs)
    )
    steps = []
    for f in (few, many):
        loss = f.method.task.loss
        object.__setattr__(f.method.task, "loss", lambda *a, loss=loss: steps.append(1) or loss(*a))
        f.run()
    assert len(steps) == 2 * 2 + max(2, head_epochs) * 2
    a, b = few.state.server, many.state.server
    assert all(torch.equal(a[n], b[n]) for n in a if n.startswith("prompt."))
    assert torch.equal(a["head.weight"], b["head.weight"]) == (head_epochs < 2)


def test_within_a_task_absent_classes_are_left_alone():
    f = federation(FedViT, train=among_own_classes(images_of((8, 12), first=1, n=2), N_CLASSES))
    before = {n: t.clone() for n, t in f.state.server.items()}
    f.run()
    changed = (f.state.server["head.weight"] != before["head.weight"]).any(0)
    assert changed.tolist() == [False, True, True, False]


def test_a_prediction_does_not_depend_on_its_batch():
    f = federation(FedL2P, L2P)
    f.run()
    data = images_of((5, 5), seed=2)
    ((_, together),) = predictions(f.method, f.state, data)
    alone = ClientData({n: t[:, 2:3] for n, t in data.tensors.items()}, torch.tensor([1, 1]))
    ((_, single),) = predictions(f.method, f.state, alone)
    torch.testing.assert_close(single, together[:, 2:3])


def test_chosen_prompts_stand_in_order():
    pool = torch.arange(12.0).view(1, 3, 2, 2)
    tokens = prompt_tokens(pool, torch.tensor([[[2, 0]]]))
    assert tokens.flatten().tolist() == [8, 9, 10, 11, 0, 1, 2, 3]


@pytest.mark.parametrize("method", [FedViT, FedL2P, FedDualP])
def test_a_model_without_backbone_is_refused(method, federate):
    with pytest.raises(InputError, match="model='vit'"):
        federate(method, build="stacked")


def test_options_out_of_range_are_refused():
    with pytest.raises(InputError, match="top_n"):
        FedL2POptions(top_n=11)
    with pytest.raises(InputError, match="pull"):
        FedL2POptions(pull=-1)
    with pytest.raises(InputError, match="experts"):
        FedDualPOptions(experts=0)
    with pytest.raises(InputError, match="has 5 blocks"):
        federation(FedDualP, FedDualPOptions(g_blocks=3))
