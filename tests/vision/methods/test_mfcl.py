"""MFCL against a plain loop, its special cases, what it sends, and runs that go on."""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from data_prep.base.errors import InputError
from stforecast.federated.core.state import generator
from stforecast.federated.methods.fedavg import FedAvg
from vision.methods.mfcl import MFCL, MFCLOptions, unevenness

pytestmark = pytest.mark.usefixtures("double")

NOISE, HIDDEN, WIDTH = 3, 7, 16
SMALL = {
    "replay": 6, "noise_width": NOISE, "hidden": HIDDEN, "server_steps": 5, "server_batch_size": 8,
}  # fmt: skip


def options(**changed):
    return MFCLOptions(**{**SMALL, **changed})


def head(params, features):
    return features @ params["head.weight"] + params["head.bias"]


def ordinary_generator(server):
    """The generator as ordinary modules."""
    net = nn.Sequential(
        nn.Linear(NOISE, HIDDEN, bias=False),
        nn.BatchNorm1d(HIDDEN),
        nn.LeakyReLU(0.2),
        nn.Linear(HIDDEN, WIDTH),
        nn.LayerNorm(WIDTH, elementwise_affine=False),
    )
    with torch.no_grad():
        net[0].weight.copy_(server["generator.0.weight"].T)
        net[3].weight.copy_(server["generator.2.weight"].T)
        net[3].bias.copy_(server["generator.2.bias"])
    return net


def train_generator(net, teacher, former, random, o):
    adam = torch.optim.Adam(net.parameters(), lr=o.server_lr)
    net.train()
    for _ in range(o.server_steps):
        logits = head(teacher, net(torch.randn(8, NOISE, generator=random)))[:, former]
        sure = F.cross_entropy(logits / 1000.0, logits.argmax(1))
        mean = logits.softmax(1).mean(0)
        even = 1 + (mean * mean.log()).sum() / math.log(len(former))
        adam.zero_grad()
        (sure + o.diversity * even).backward()
        adam.step()
    net.eval()


@pytest.mark.quick(2)
@pytest.mark.parametrize("split", [True, False])
def test_two_tasks_are_those_of_a_plain_loop(two_tasks, split):
    o = options(fine_tuning=0.7, diversity=2.0, server_lr=0.01)
    o = options(**{**vars(o), "split": split})
    f = two_tasks(MFCL, o)
    server = {n: f.state.server[n].clone() for n in ("head.weight", "head.bias")}
    net, teacher = ordinary_generator(f.state.server), server
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
                features, own = x[start : start + 4], y[start : start + 4]
                logits = head(client, features)
                loss = F.cross_entropy(logits, own)
                if r >= 2:
                    if split:
                        loss = F.cross_entropy(logits[:, 2:], own - 2)
                    made = net(torch.randn(6, NOISE, generator=rng)).detach()
                    labels = head(teacher, made)[:, :2].argmax(1)
                    both = head(client, torch.cat([features, made]))
                    loss = loss + 0.7 * F.cross_entropy(both, torch.cat([own, labels]))
                optimiser.zero_grad()
                loss.backward()
                optimiser.step()
            models.append((size, {n: t.detach().clone() for n, t in client.items()}))
        total = sum(size for size, _ in models)
        server = {n: sum(s / total * m[n] for s, m in models) for n in server}
        if r % 2:
            teacher = server
            train_generator(net, teacher, list(range(r + 1)), generator(1, r, 0, 8), o)
        f.run_round()
        found = f.state.server
        torch.testing.assert_close({n: found[n] for n in server}, server)
        expected = {
            "0.weight": net[0].weight.T,
            "0.scale": net[1].weight,
            "0.shift": net[1].bias,
            "0.running_mean": net[1].running_mean,
            "0.running_var": net[1].running_var,
            "2.weight": net[3].weight.T,
            "2.bias": net[3].bias,
        }
        for name, t in expected.items():
            torch.testing.assert_close(found[f"generator.{name}"], t.detach(), msg=f"{r}: {name}")


@pytest.mark.parametrize(
    ("changed", "rounds"),
    [({"fine_tuning": 0.0, "split": False}, 4), ({}, 2)],
    ids=["without replay and split", "in the first task"],
)
def test_it_is_fedavg(two_tasks, changed, rounds):
    runs = [two_tasks(MFCL, options(**changed)), two_tasks(FedAvg)]
    for f in runs:
        for _ in range(rounds):
            f.run_round()
    model = {n: runs[0].state.server[n] for n in runs[1].state.server}
    torch.testing.assert_close(model, runs[1].state.server, rtol=0, atol=0)


def test_the_generator_is_sent_once_a_task_has_ended(two_tasks):
    f = two_tasks(MFCL, options())
    f.run()
    model, flags = WIDTH * 4 + 4, 4
    net = NOISE * HIDDEN + 4 * HIDDEN + HIDDEN * WIDTH + WIDTH
    rehearsed = 2 * (8 * (2 * model + net) + flags)
    assert [r.bytes_down for r in f.reports] == [2 * 8 * model] * 2 + [rehearsed] * 2
    assert [r.bytes_up for r in f.reports] == [2 * (8 * model + flags)] * 4


@pytest.mark.repeats
def test_all_former_classes_come_to_be_made(two_tasks):
    o = options(server_steps=200, server_batch_size=64, noise_width=8, server_lr=0.01)
    f = two_tasks(MFCL, o)
    f.run()
    server = {n: t[None] for n, t in f.state.server.items()}
    noise = torch.randn(1, 400, 8, generator=torch.Generator().manual_seed(0))
    x = f.method.generator(server, noise, training=False)
    share = head(f.state.server, x[0]).argmax(1).bincount(minlength=4) / 400
    assert share.min() > 0.1


@pytest.mark.repeats
def test_made_samples_stay_in_former_classes_by_rehearsal(two_tasks):
    def stay(weight):
        f = two_tasks(MFCL, options(fine_tuning=weight, split=False), epochs=8)
        for _ in range(2):
            f.run_round()
        server = {n: t[None] for n, t in f.state.server.items()}
        noise = torch.randn(1, 100, NOISE, generator=torch.Generator().manual_seed(0))
        x = f.method.generator(server, noise, training=False)[0]
        f.run_round()
        return float((head(f.state.server, x).argmax(1) < 2).double().mean())

    assert stay(1.0) > stay(0.0) + 0.25


@pytest.mark.repeats
def test_a_killed_run_goes_on_as_if_it_never_was(two_tasks, resumes):
    assert resumes(lambda: two_tasks(MFCL, options()))


def test_unevenness_by_hand():
    logits = torch.tensor([[[0.75, 0.25], [0.5, 0.5]]]).log()
    p = torch.tensor([0.625, 0.375])
    expected = 1 + (p * p.log2()).sum()
    torch.testing.assert_close(unevenness(logits), expected[None])
    assert unevenness(torch.zeros(1, 3, 1)).tolist() == [1.0]


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"fine_tuning": -1.0}, "fine_tuning is -1.0.* 0"),
        ({"replay": 0}, "replay is 0"),
    ],
)
def test_impossible_options_are_refused(changed, message):
    with pytest.raises(InputError, match=message):
        MFCLOptions(**changed)


def test_other_models_are_refused(federate):
    with pytest.raises(InputError, match="model='vit'"):
        federate(MFCL, build="stacked")
