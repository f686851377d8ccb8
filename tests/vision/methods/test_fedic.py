"""FEDIC: teacher, losses and the server's three tasks against plain PyTorch."""

import math
from functools import partial

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from data_prep.base.errors import InputError
from stforecast.federated.core.state import generator
from stforecast.federated.engine.rounds import Federation
from stforecast.federated.methods.fedavg import FedAvg
from vision.draws import Draw
from vision.methods.fedic import (
    FEDIC,
    FEDICOptions,
    _Draw,
    distillation_loss,
    teacher_logits,
)
from vision.task import Classification

STEPS = 3


@pytest.fixture
def fedic(federate):
    def make(build=None, **options):
        options = {"server_steps": STEPS, "labelled_batch": 4, "distilled_batch": 5, **options}
        method = partial(FEDIC, options=FEDICOptions(**options))
        return federate(method, (8, 12, 10), rounds=2, build=build)

    return make


def random_teacher(width, n_classes):
    sizes = {
        "client_scale": n_classes,
        "client_bias": 1,
        "class_scale": n_classes,
        "class_bias": n_classes,
        "gate_scale": width,
        "gate_bias": 1,
    }
    return {f"teacher/{name}": torch.randn(size) for name, size in sizes.items()}


def test_teacher_by_hand():
    p = random_teacher(3, 4)
    features, logits, tuned = torch.randn(2, 5, 3), torch.randn(2, 5, 4), torch.randn(5, 4)
    found = teacher_logits(p, features, logits, tuned)
    p = {name.removeprefix("teacher/"): t for name, t in p.items()}
    for b in range(5):
        weights = [
            1 / (1 + torch.exp(-(z[b] * p["client_scale"]).sum() - p["client_bias"]))
            for z in logits
        ]
        ensemble = (weights[0] * logits[0, b] + weights[1] * logits[1, b]) / sum(weights)
        adjusted = p["class_scale"] * ensemble + p["class_bias"]
        mean = (features[0, b] + features[1, b]) / 2
        gate = 1 / (1 + torch.exp(-(mean * p["gate_scale"]).sum() - p["gate_bias"]))
        torch.testing.assert_close(found[b], gate * adjusted + (1 - gate) * tuned[b])


def test_distillation_is_a_divergence_of_softened_predictions():
    student, teacher = torch.randn(3, 4), torch.randn(3, 4)
    p, q = (teacher / 2).softmax(1), (student / 2).softmax(1)
    expected = (p * (p.log() - q.log())).sum() / 3
    torch.testing.assert_close(distillation_loss(student, teacher, 2.0), expected)
    assert distillation_loss(student, student + 1, 2.0).abs() < 1e-6


class Net(nn.Module):
    """The model `stacked` as an ordinary one."""

    def __init__(self, model):
        super().__init__()
        self.body = nn.Linear(*model["encoder.1.weight"].shape)
        self.head = nn.Linear(*model["head.weight"].shape)
        with torch.no_grad():
            for layer, name in ((self.body, "encoder.1"), (self.head, "head")):
                layer.weight.copy_(model[f"{name}.weight"].T)
                layer.bias.copy_(model[f"{name}.bias"])

    def forward(self, x):
        features = torch.tanh(self.body(x.flatten(1)))
        return features, self.head(features)


def server_round(models, average, teacher, images, o, random):
    """The released code's server, with our draws."""
    x, y = images["x"][0], images["y"][0]

    def draw(size):
        return torch.randperm(len(y), generator=random)[:size]

    tuned = Net(average)
    optimizer = torch.optim.Adam(tuned.parameters(), lr=o.server_lr, weight_decay=2e-4)
    for _ in range(o.server_steps):
        rows = draw(o.labelled_batch)
        optimizer.zero_grad()
        F.cross_entropy(tuned(x[rows])[1], y[rows]).backward()
        optimizer.step()
    with torch.no_grad():
        new = tuned(x)[1]
        features, logits = map(torch.stack, zip(*(Net(m)(x) for m in models), strict=True))
    teacher = {n: t.clone().requires_grad_() for n, t in teacher.items()}
    optimizer = torch.optim.Adam(teacher.values(), lr=o.server_lr)
    for _ in range(o.server_steps):
        rows = draw(o.labelled_batch)
        optimizer.zero_grad()
        scores = teacher_logits(teacher, features[:, rows], logits[:, rows], new[rows])
        F.cross_entropy(scores, y[rows]).backward()
        optimizer.step()
    target = teacher_logits(teacher, features, logits, new).detach()
    student = Net(average)
    optimizer = torch.optim.Adam(student.parameters(), lr=o.server_lr, weight_decay=2e-4)
    for _ in range(o.server_steps):
        rows = draw(o.distilled_batch)
        soft = distillation_loss(student(x[rows])[1], target[rows], o.temperature)
        rows = draw(o.labelled_batch)
        optimizer.zero_grad()
        (o.ld * soft + (1 - o.ld) * F.cross_entropy(student(x[rows])[1], y[rows])).backward()
        optimizer.step()
    return student, teacher


def test_the_server_equals_plain_pytorch(fedic):
    f = fedic(ld=0.3)
    sent = {}
    aggregate = f.method.aggregate
    f.method.aggregate = lambda s, of, u: sent.update(u) or aggregate(s, of, u)
    teacher = {n: t.clone() for n, t in f.state.server.items() if n.startswith("teacher/")}
    f.run_round()
    models = [{n: t[i] for n, t in sent.items()} for i in range(3)]
    average = {n: (8 * t[0] + 12 * t[1] + 10 * t[2]) / 30 for n, t in sent.items()}
    random = Draw.FEDIC.generator(1, 0)
    o, images = f.method.options, f.method.task.surrogate
    student, teacher = server_round(models, average, teacher, images, o, random)
    server = f.state.server
    torch.testing.assert_close(server["head.weight"], student.head.weight.detach().T)
    torch.testing.assert_close(server["encoder.1.weight"], student.body.weight.detach().T)
    for name, t in teacher.items():
        torch.testing.assert_close(server[name], t.detach())


@pytest.mark.quick(2)
@pytest.mark.parametrize("build", ["stacked", "module"])
def test_without_steps_it_is_fedavg(fedic, federate, build):
    f, fedavg = fedic(build, server_steps=0), federate(FedAvg, (8, 12, 10), rounds=2, build=build)
    f.run()
    fedavg.run()
    for name, t in fedavg.state.server.items():
        assert torch.equal(f.state.server[name], t)


@pytest.mark.repeats
def test_steps_teach_the_server(fedic):
    def loss(steps):
        f = fedic(server_steps=steps)
        f.run()
        model = {n: f.state.server[n][None] for n in f.method.shared}
        return float(f.method.loss_of(model, f.method.task.surrogate))

    assert loss(100) < 0.9 * loss(0)


def test_only_the_model_travels(fedic, n_classes):
    f = fedic()
    f.run()
    model = 4 * 3 * (6 * 5 + 5 + n_classes * 6)
    assert [(r.bytes_down, r.bytes_up) for r in f.reports] == [(model, model)] * 2


def test_a_server_without_images_is_refused(fedic, n_classes):
    f = fedic()
    f.method.task = Classification(n_classes)
    with pytest.raises(InputError, match="set surrogate"):
        Federation(f.method, f.train)


@pytest.mark.parametrize("options", [{"ld": 1.5}, {"temperature": 0}, {"server_steps": -1}])
def test_options_out_of_range_are_refused(options):
    with pytest.raises(InputError, match=next(iter(options))):
        FEDICOptions(**options)


def test_the_tuned_copy_is_asked_in_evaluation_mode(fedic):
    f = fedic(build="module", server_steps=0)
    average = {n: f.state.server[n] for n in f.method.shared}
    images = f.method.task.surrogate
    f.method.population.train(False)
    _, expected = f.method.outputs({n: t[None] for n, t in average.items()}, images["x"])
    found = f.method.tuned(average, _Draw(images, generator(0)))
    assert torch.equal(found, expected[0])


def test_weights_stay_finite_where_every_sigmoid_is_zero():
    p = {**random_teacher(3, 4), "teacher/client_scale": torch.ones(4)}
    logits = torch.full((2, 1, 4), -100.0)
    logits[1] -= 1  # The second client's sigmoid is e⁻⁴ of the first's.
    found = teacher_logits(p, torch.zeros(2, 1, 3), logits, torch.zeros(1, 4))
    share = 1 / (1 + math.exp(-4))
    ensemble = share * logits[0] + (1 - share) * logits[1]
    adjusted = p["teacher/class_scale"] * ensemble + p["teacher/class_bias"]
    torch.testing.assert_close(found, torch.sigmoid(p["teacher/gate_bias"]) * adjusted)
