"""GLFC's memory and losses by hand, and its rounds against a plain loop."""

import copy

import pytest
import torch
from torch.nn.functional import binary_cross_entropy as bce

from data_prep.errors import InputError
from stforecast.federated.data import ClientData
from stforecast.federated.population import Population
from stforecast.federated.rounds import Federation
from stforecast.federated.state import generator
from stforecast.federated.stream import Stream
from stforecast.federated.training import Training
from vision.backbones import TINY
from vision.methods.exemplars import draw, empty_memory, remember
from vision.methods.glfc import GLFC, GLFCOptions, compensated_loss, relation_loss
from vision.models.vit import FrozenViT, ViTOptions
from vision.task import Classification


@pytest.fixture(autouse=True)
def double():
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def classes_in(memory, client=0):
    return memory["exemplar.class"][client].tolist()


def test_memory_keeps_the_nearest_to_the_mean_and_makes_room_for_new_classes():
    memory = empty_memory(1, 4, 1, torch.device("cpu"))
    features = torch.tensor([[[0.0], [4.0], [2.5], [1.0], [9.0]]])
    remember(memory, features, torch.tensor([[2, 2, 2, 2, 0]]), 3)
    assert sorted(classes_in(memory)) == [0, 2, 2] or sorted(classes_in(memory)) == [-1, 0, 2, 2]
    kept = {
        (c, f)
        for c, f in zip(
            classes_in(memory), memory["exemplar.feature"][0, :, 0].tolist(), strict=True
        )
        if c >= 0
    }
    # Class 2 has mean 1.875: 2.5 and 1 are nearest.
    assert kept == {(2, 2.5), (2, 1.0), (0, 9.0)}
    remember(memory, torch.tensor([[[7.0], [8.0]]]), torch.tensor([[1, 1]]), 3)
    kept = {
        (c, f)
        for c, f in zip(
            classes_in(memory), memory["exemplar.feature"][0, :, 0].tolist(), strict=True
        )
        if c >= 0
    }
    assert kept == {(2, 2.5), (0, 9.0), (1, 7.0)}


def test_a_class_seen_again_takes_its_own_place():
    memory = empty_memory(1, 4, 1, torch.device("cpu"))
    for _ in range(3):
        remember(memory, torch.tensor([[[1.0], [3.0]]]), torch.tensor([[0, 1]]), 2)
    assert sorted(classes_in(memory)) == [-1, -1, 0, 1]


def test_only_allowed_classes_are_drawn():
    memory = empty_memory(2, 5, 1, torch.device("cpu"))
    features = torch.tensor([[[1.0], [2.0], [3.0]], [[4.0], [5.0], [6.0]]])
    remember(memory, features, torch.tensor([[0, 1, 2], [0, 0, 0]]), 3)
    allowed = torch.tensor([[False, True, True], [False, True, True]])
    drawn, classes, found = draw(memory, allowed, torch.tensor([[0.0, 0.49, 0.5, 0.99]] * 2))
    assert found.tolist() == [True, False]
    assert drawn[0, :, 0].tolist() == [2, 2, 3, 3]
    assert classes[0].tolist() == [1, 1, 2, 2]


LOGITS = torch.tensor([[[0.0, 0.0], [1.0, -1.0], [2.0, 3.0]]], dtype=torch.float64)
Y = torch.tensor([[0, 1, 1]])


def test_compensation_by_hand():
    former = torch.tensor([[False, True]])
    p = LOGITS[0].sigmoid()
    wrong = [1 - p[0, 0], 1 - p[1, 1], 1 - p[2, 1]]
    mean = (wrong[1] + wrong[2]) / 2
    losses = [bce(p[i], torch.eye(2)[Y[0, i]]) for i in range(3)]
    expected = (losses[0] + wrong[1] / mean * losses[1] + wrong[2] / mean * losses[2]) / 3
    loss = compensated_loss(LOGITS, Y, former, torch.ones(1, 3))
    torch.testing.assert_close(loss, expected.view(1))
    only = compensated_loss(LOGITS, Y, former, torch.tensor([[1, 1, 0]]))
    torch.testing.assert_close(only, ((losses[0] + losses[1]) / 2).view(1))


def test_relations_by_hand():
    former, teacher = torch.tensor([[True, False]]), torch.tensor([[[4.0, 9.0]] * 3])
    p = LOGITS[0].sigmoid()
    said = teacher[0, 0, 0].sigmoid()
    targets = torch.stack([torch.stack([said, y.double()]) for y in Y[0]])
    expected = torch.stack([bce(p[i], targets[i]) for i in range(2)]).mean()
    loss = relation_loss(LOGITS, Y, teacher, former, torch.tensor([[1, 1, 0]]))
    torch.testing.assert_close(loss, expected.view(1))


def images_of(sizes, seed, classes):
    g = torch.Generator().manual_seed(seed)
    shape = (len(sizes), max(sizes))
    y = torch.tensor(classes)[torch.randint(2, shape, generator=g)]
    x = torch.rand(*shape, 3, 8, 8, generator=g) + 0.3 * y[..., None, None, None]
    return ClientData({"x": x, "y": y}, torch.tensor(sizes))


def federation(options=None):
    stages = [images_of((8, 4), 0, [0, 1]), images_of((8, 8), 1, [2, 3])]
    model = lambda: FrozenViT((3, 8, 8), 4, ViTOptions(backbone=TINY, input_size=8))  # noqa: E731
    training = Training(rounds=2, epochs=2, batch_size=4, lr=0.02)
    options = options or GLFCOptions(memory=6, relation=0.3)
    method = GLFC(Population(model, 1), Classification(4), training, options)
    return Federation(method, Stream(stages, "sequential"), seed=1)


def test_two_stages_are_those_of_a_plain_loop():
    f = federation()
    server = {n: t.clone() for n, t in f.state.server.items()}
    clients = [{n: t.clone().requires_grad_() for n, t in server.items()} for _ in range(2)]
    optimisers = [torch.optim.Adam(c.values(), lr=0.02) for c in clients]

    def logits(p, features):
        return features @ p["head.weight"] + p["head.bias"]

    for round in range(4):
        stage, models = round // 2, []
        if round == 2:
            teacher = copy.deepcopy(server)
            # By then six places hold three samples of each of the two classes.
            memories = f.state.clients.memory
        for i, (client, optimiser) in enumerate(zip(clients, optimisers, strict=True)):
            data = f.stream.stages[stage]
            size = int(data.sizes[i])
            x = f.method.backbone.query(data.tensors["x"][i, :size])
            y = data.tensors["y"][i, :size]
            with torch.no_grad():
                for n, t in server.items():
                    client[n].copy_(t)
            rng = generator(1, round, i)
            for start in [*range(0, size, 4)] * 2:
                features, own = x[start : start + 4], y[start : start + 4]
                uniform = torch.rand(4, generator=rng)
                if stage:
                    classes = memories["exemplar.class"][i]
                    fits = ((classes == 0) | (classes == 1)).nonzero()[:, 0]
                    drawn = fits[(uniform * len(fits)).long()]
                    remembered = memories["exemplar.feature"][i, drawn]
                    features, own = (
                        torch.cat([features, remembered]),
                        torch.cat([own, classes[drawn]]),
                    )
                p = logits(client, features).sigmoid()
                wrong = (1 - p[range(len(own)), own]).detach()
                per_class = bce(p, torch.eye(4)[own], reduction="none").mean(1)
                means = torch.stack(
                    [wrong[(own < 2) == bool(c < 2)].mean() if stage else wrong.mean() for c in own]
                )
                loss = (wrong / means * per_class).mean()
                if stage:
                    target = torch.eye(4)[own]
                    target[:, :2] = logits(teacher, features)[:, :2].sigmoid()
                    loss = 0.7 * loss + 0.3 * bce(p, target)
                optimiser.zero_grad()
                loss.backward()
                optimiser.step()
            models.append((size, {n: t.detach().clone() for n, t in client.items()}))
        total = sum(size for size, _ in models)
        server = {n: sum(s / total * m[n] for s, m in models) for n in server}
        f.run_round()
        for name, t in server.items():
            torch.testing.assert_close(f.state.server[name], t, msg=lambda m, r=round: f"{r}: {m}")


def test_the_memory_has_all_former_classes_after_a_stage():
    f = federation()
    f.run()
    for client in range(2):
        kept = f.state.clients.memory["exemplar.class"][client]
        assert kept[kept >= 0].bincount(minlength=4).max() == 1
        assert (kept >= 0).sum() == 4


def test_options_out_of_range_and_other_models_are_refused(federate):
    with pytest.raises(InputError, match="memory"):
        GLFCOptions(memory=0)
    with pytest.raises(InputError, match="relation"):
        GLFCOptions(relation=1.5)
    with pytest.raises(InputError, match="--model vit"):
        federate(GLFC, build="stacked")
