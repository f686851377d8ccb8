"""FedLwF against a plain loop over clients, with a teacher kept by hand."""

import copy

import pytest
import torch

from data_prep.base.errors import InputError
from stforecast.federated.core.data import Stream
from stforecast.federated.core.population import Population
from stforecast.federated.core.training import Training
from stforecast.federated.engine.rounds import Federation
from stforecast.federated.methods.fedavg import FedAvg
from vision.methods.fedlwf import FedLwF, FedLwFOptions, distillation
from vision.task import Classification

pytestmark = pytest.mark.usefixtures("double")


@pytest.fixture
def stream(make_data):
    """Two clients; classes 0 and 1, then 2 and 3; the second client sits out the first stage."""
    stages = []
    for stage, sizes in enumerate([(8, 0), (8, 12)]):
        data = make_data([8, 12], seed=stage)
        data.tensors["y"] = data.tensors["y"] % 2 + 2 * stage
        stages.append(type(data)(data.tensors, torch.tensor(sizes)))
    return Stream(stages, "sequential")


def run(stream, population, options, method=FedLwF, **settings):
    settings = {"rounds": 2, "epochs": 2, "batch_size": 4, "lr": 0.02} | settings
    arguments = (population, Classification(4), Training(**settings), options)
    return Federation(method(*[a for a in arguments if a is not None]), stream, seed=1)


@pytest.fixture
def population(builds):
    return Population(lambda: builds["stacked"](4), 1)


def logits(p, x):
    features = torch.tanh(x.flatten(1) @ p["encoder.1.weight"] + p["encoder.1.bias"])
    return features @ p["head.weight"] + p["head.bias"]


def reference(f):
    """Model of the server after two rounds in each of the two stages."""
    server = {n: t[0].clone() for n, t in f.method.population.initial().items()}
    clients = [{n: t.clone().requires_grad_() for n, t in server.items()} for _ in range(2)]
    optimisers = [torch.optim.Adam(c.values(), lr=0.02) for c in clients]
    for round in range(4):
        stage = round // 2
        if round == 2:
            teacher = copy.deepcopy(server)
        data, models = f.trainer.stream.stages[stage], []
        for i, (client, optimiser) in enumerate(zip(clients, optimisers, strict=True)):
            size = int(data.sizes[i])
            if not size:
                continue
            with torch.no_grad():
                for n, t in server.items():
                    client[n].copy_(t)
            x, y = (data.tensors[n][i, :size] for n in ("x", "y"))
            for start in [*range(0, size, 4)] * 2:
                z = logits(client, x[start : start + 4])
                loss = torch.nn.functional.cross_entropy(z, y[start : start + 4])
                if stage == 1 and i == 0:
                    with torch.no_grad():
                        old = logits(teacher, x[start : start + 4])
                    former = sorted(set(f.trainer.stream.stages[0].tensors["y"][0, :8].tolist()))
                    target = (old[:, former] / 3).softmax(1)
                    kept = -(target * (z[:, former] / 3).log_softmax(1)).sum(1).mean()
                    loss = loss + 0.7 * kept
                optimiser.zero_grad()
                loss.backward()
                optimiser.step()
            models.append((size, {n: t.detach().clone() for n, t in client.items()}))
        total = sum(size for size, _ in models)
        server = {n: sum(s / total * m[n] for s, m in models) for n in server}
    return server


def test_two_stages_are_those_of_a_plain_loop(stream, population):
    f = run(stream, population, FedLwFOptions(distillation=0.7, temperature=3.0))
    expected = reference(f)
    f.run()
    for name, t in expected.items():
        torch.testing.assert_close(f.state.server[name], t)


def test_without_distillation_or_within_one_stage_it_is_fedavg(stream, population):
    plain, off = (
        run(stream, population, o, m) for o, m in ((None, FedAvg), (FedLwFOptions(0.0), FedLwF))
    )
    one = [run(stream.stages[1], population, o, m) for o, m in ((None, FedAvg), (None, FedLwF))]
    for a, b in ((plain, off), one):
        a.run()
        b.run()
        for name, t in a.state.server.items():
            assert torch.equal(t, b.state.server[name])


def test_the_teacher_is_the_model_before_the_stage_and_stays(stream, population):
    f = run(stream, population, FedLwFOptions())
    f.run_round()
    f.run_round()
    before = {n: t.clone() for n, t in f.state.server.items()}
    for _ in range(2):
        f.run_round()
        for name, t in before.items():
            assert torch.equal(f.state.clients.memory["teacher." + name][0], t)
    assert f.state.clients.memory["former"].tolist() == [[True, True, False, False], [False] * 4]
    assert f.state.clients.memory["present"].tolist() == [[False, False, True, True]] * 2


def test_a_teachers_running_statistics_stay(stream, builds):
    f = run(stream, Population(lambda: builds["module"](4), 1), FedLwFOptions())
    for _ in range(3):
        f.run_round()
    kept = {n: t.clone() for n, t in f.state.clients.memory.items() if n.startswith("teacher")}
    f.run_round()
    for name, t in kept.items():
        assert torch.equal(f.state.clients.memory[name], t), name


def test_distillation_by_hand():
    student, teacher = torch.tensor([[[2.0, 0.0, 50.0]]]), torch.tensor([[[0.0, 0.0, -50.0]]])
    classes = torch.tensor([[True, True, False]])
    loss = distillation(student, teacher, classes, temperature=2.0)
    expected = -0.5 * (torch.tensor([1.0, 0.0]).log_softmax(0)).sum()
    torch.testing.assert_close(loss, expected.view(1))
    assert distillation(student, teacher, classes & False, 2.0).tolist() == [0]


def test_options_out_of_range_are_refused():
    with pytest.raises(InputError, match="temperature"):
        FedLwFOptions(temperature=0)
    with pytest.raises(InputError, match="distillation"):
        FedLwFOptions(distillation=-1)
