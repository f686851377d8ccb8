"""TARGET against a plain loop, its special cases, what it sends, and runs that go on."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from data_prep.base.errors import InputError
from stforecast.federated.core.state import Participants, generator
from stforecast.federated.methods.fedavg import FedAvg
from vision.methods.target import (
    LABEL_WEIGHT,
    STUDENT_TEMPERATURE,
    TARGET,
    TARGETOptions,
    agreed_divergence,
)

pytestmark = pytest.mark.usefixtures("double")

SMALL = {
    "replay": 6, "synthetic": 30, "noise_width": 3, "hidden": 7, "server_batch_size": 8,
    "server_steps": 4, "warm_up": 2, "student_steps": 3,
}  # fmt: skip
WIDTH = 16


def options(**changed):
    return TARGETOptions(**{**SMALL, **changed})


def head(params, features):
    return features @ params["head.weight"] + params["head.bias"]


def ordinary_generator(tensors):
    """The generator as ordinary modules."""
    net = nn.Sequential(
        nn.Linear(3, 7, bias=False),
        nn.BatchNorm1d(7),
        nn.LeakyReLU(0.2),
        nn.Linear(7, WIDTH),
        nn.LayerNorm(WIDTH, elementwise_affine=False),
    )
    values = {name.removeprefix("generator."): t[0] for name, t in tensors.items()}
    with torch.no_grad():
        net[0].weight.copy_(values["0.weight"].T)
        net[3].weight.copy_(values["2.weight"].T)
        net[3].bias.copy_(values["2.bias"])
    return net


def synthesis(method, teacher, former, random, o):
    """What the server makes, by ordinary modules and optimisers."""
    seed = int(torch.randint(2**31, (), generator=random))
    net = ordinary_generator(method.generator.initial(1, seed)[0])
    student = {n: t[0].clone().requires_grad_() for n, t in method.population.initial().items()}
    lessons = torch.optim.Adam(student.values(), lr=o.server_lr)
    made = []
    for batch in range(4):
        y = torch.randint(len(former), (1, 8), generator=random)[0]
        z = torch.randn(8, 3, generator=random).requires_grad_()
        adam = torch.optim.Adam(
            [{"params": net.parameters()}, {"params": [z], "lr": 0.01}],
            lr=o.server_lr,
            betas=(0.5, 0.999),
        )
        lowest, best = float("inf"), None
        for _ in range(4):
            x = net(z)
            p = head(teacher, x)[:, former]
            loss = LABEL_WEIGHT * F.cross_entropy(p, y)
            if batch >= 2:
                q = head(student, x)[:, former]
                kl = (p.softmax(1) * (p.log_softmax(1) - q.log_softmax(1))).sum(1)
                loss = loss - kl[p.argmax(1) == q.argmax(1)].sum() / 8
            if loss.item() < lowest:
                lowest, best = loss.item(), x.detach()
            adam.zero_grad()
            loss.backward()
            adam.step()
        made.append(best)
        so_far = torch.cat(made)
        for _ in range(3 if batch >= 2 else 0):
            x = so_far[torch.randint(len(so_far), (8,), generator=random)]
            p, q = (head(w, x)[:, former] / STUDENT_TEMPERATURE for w in (teacher, student))
            kl = (p.softmax(1) * (p.log_softmax(1) - q.log_softmax(1))).sum(1).mean()
            lessons.zero_grad()
            (STUDENT_TEMPERATURE**2 * kl).backward()
            lessons.step()
    return torch.cat(made)[:30]


@pytest.mark.quick(2)
@pytest.mark.parametrize("split", [True, False])
def test_two_tasks_are_those_of_a_plain_loop(two_tasks, split):
    o = options(distillation=3.0, split=split)
    f = two_tasks(TARGET, o)
    server = {n: f.state.server[n].clone() for n in ("head.weight", "head.bias")}
    teacher, made = server, torch.empty(0)
    clients = [{n: t.clone().requires_grad_() for n, t in server.items()} for _ in range(2)]
    optimisers = [torch.optim.Adam(c.values(), lr=0.02) for c in clients]
    for r in range(4):
        models = []
        for i, (client, optimiser) in enumerate(zip(clients, optimisers, strict=True)):
            data, rng = f.trainer.stream.stages[r // 2], generator(1, r, i)
            size = int(data.sizes[i])
            x = f.method.backbone.query(data.tensors["x"][i, :size])
            y = data.tensors["y"][i, :size]
            with torch.no_grad():
                for n, t in server.items():
                    client[n].copy_(t)
            for start in [*range(0, size, 4)] * 2:
                logits, own = head(client, x[start : start + 4]), y[start : start + 4]
                if r >= 2:
                    rows = (torch.rand(6, generator=rng) * 30).long()
                    said = (head(teacher, made[rows])[:, :2] / 2).softmax(1)
                    kept = (head(client, made[rows])[:, :2] / 2).log_softmax(1)
                    new = F.cross_entropy(logits[:, 2:], own - 2)
                    loss = new if split else F.cross_entropy(logits, own)
                    loss = loss - 3.0 * (said * kept).sum(1).mean()
                else:
                    loss = F.cross_entropy(logits, own)
                optimiser.zero_grad()
                loss.backward()
                optimiser.step()
            models.append((size, {n: t.detach().clone() for n, t in client.items()}))
        total = sum(size for size, _ in models)
        server = {n: sum(s / total * m[n] for s, m in models) for n in server}
        if r % 2:
            teacher, former = server, list(range(2 if r == 1 else 4))
            made = synthesis(f.method, teacher, former, generator(1, r, 0, 8), o)
        f.run_round()
        found = f.state.server
        torch.testing.assert_close({n: found[n] for n in server}, server)
        if r % 2:
            torch.testing.assert_close(found["synthetic"], made)
            assert found["former"].tolist() == [True, True, r == 3, r == 3]


@pytest.mark.repeats
def test_without_distillation_and_split_it_is_fedavg(two_tasks):
    runs = [
        two_tasks(TARGET, options(distillation=0.0, split=False)),
        two_tasks(FedAvg, weight_decay=0.0),
    ]
    for f in runs:
        f.run()
    model = {n: runs[0].state.server[n] for n in runs[1].state.server}
    torch.testing.assert_close(model, runs[1].state.server, rtol=0, atol=0)


@pytest.mark.repeats
def test_in_the_first_task_it_is_fedavg(two_tasks):
    runs = [two_tasks(TARGET, options()), two_tasks(FedAvg)]
    for f in runs:
        for _ in range(2):
            f.run_round()
    model = {n: runs[0].state.server[n] for n in runs[1].state.server}
    torch.testing.assert_close(model, runs[1].state.server, rtol=0, atol=0)


def test_a_public_class_that_was_another_client_s_is_new_to_this_one(two_tasks, monkeypatch):
    f = two_tasks(TARGET, options(distillation=0.0))
    f.trainer.stream.stages[1].tensors["y"][1] -= 1  # Classes 1 and 2, of which 1 is former.
    for _ in range(2):
        f.run_round()
    chosen = {}

    def noted(cohort, logits, batch):
        chosen.update(zip(cohort.ids.tolist(), logits.isfinite().all(1).tolist(), strict=True))
        return logits[..., 2].mean(1)

    monkeypatch.setattr(f.method, "recorded", noted)
    f.run_round()
    assert chosen == {0: [False, False, True, True], 1: [False, True, True, True]}


def test_what_is_made_is_sent_once_a_task_has_ended(two_tasks):
    f = two_tasks(TARGET, options())
    f.run()
    model, flags = WIDTH * 4 + 4, 4
    down = [r.bytes_down for r in f.reports]
    rehearsed = 2 * (8 * (2 * model + 30 * WIDTH) + flags)
    assert down == [2 * 8 * model] * 2 + [rehearsed] * 2
    assert [r.bytes_up for r in f.reports] == [2 * (8 * model + flags)] * 4
    to = Participants(torch.arange(2), torch.tensor([8, 8]), 2)
    assert set(f.method.broadcast(f.state.server, to)) == {
        "head.weight", "head.bias", "teacher.head.weight", "teacher.head.bias", "former",
        "synthetic",
    }  # fmt: skip


@pytest.mark.repeats
def test_the_teacher_recognises_the_former_classes_in_what_is_made(two_tasks):
    o = options(synthetic=64, server_batch_size=32, server_steps=60, noise_width=8, warm_up=9)
    f = two_tasks(TARGET, o)
    for _ in range(2):
        f.run_round()
    teacher = {n.removeprefix("teacher."): t for n, t in f.state.server.items() if "teacher" in n}
    p = head(teacher, f.state.server["synthetic"])[:, :2].softmax(1)
    assert p.max(1).values.mean() > 0.9
    assert 16 < p.argmax(1).sum() < 48


@pytest.mark.repeats
def test_distillation_keeps_what_the_teacher_says_of_made_samples(two_tasks):
    def drift(weight):
        f = two_tasks(TARGET, options(distillation=weight, split=False), epochs=8)
        for _ in range(3):
            if f.state.round == 2:
                teacher, made = f.state.server, f.state.server["synthetic"]
            f.run_round()
        p, q = (head(w, made)[:, :2].softmax(1) for w in (teacher, f.state.server))
        return float((p - q).abs().mean())

    assert drift(25.0) < 0.5 * drift(0.0)


@pytest.mark.repeats
def test_a_killed_run_goes_on_as_if_it_never_was(two_tasks, resumes):
    assert resumes(lambda: two_tasks(TARGET, options()))


def test_only_agreement_counts():
    logits = torch.tensor([[2.0, 0.0]])
    assert agreed_divergence(logits, -logits) == 0
    expected = F.kl_div((0.5 * logits).log_softmax(1), logits.softmax(1), reduction="sum")
    torch.testing.assert_close(agreed_divergence(logits, 0.5 * logits), expected)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"distillation": -1.0}, "distillation is -1.0.* 0"),
        ({"synthetic": 0}, "synthetic is 0"),
        ({"warm_up": -1}, "warm_up is -1.* 0"),
    ],
)
def test_impossible_options_are_refused(changed, message):
    with pytest.raises(InputError, match=message):
        TARGETOptions(**changed)


def test_other_models_are_refused(federate):
    with pytest.raises(InputError, match="model='vit'"):
        federate(TARGET, build="stacked")
