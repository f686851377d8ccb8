"""GLFC's memory, losses and proxy server by hand, and its rounds against a plain loop."""

import copy

import pytest
import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy as bce
from torch.nn.functional import cross_entropy

from data_prep.base.errors import InputError
from stforecast.federated.core.state import Participants, generator
from vision.methods.glfc import GLFC, GLFCOptions, compensated_loss, relation_loss
from vision.methods.memory import (
    EMPTY,
    draw_samples,
    empty_memory,
    encoding_network,
    gradients_of,
    rebuilt,
    remember,
)

pytestmark = pytest.mark.usefixtures("double")


def classes_in(memory, client=0):
    return memory["exemplar.class"][client].tolist()


def test_memory_keeps_the_nearest_to_the_mean_and_makes_room_for_new_classes():
    memory = empty_memory(1, 4, 1, torch.device("cpu"))
    features = torch.tensor([[[0.0], [4.0], [2.5], [1.0], [9.0]]])
    remember(memory, features, torch.tensor([[2, 2, 2, 2, 0]]), 3, torch.tensor([4]))
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
    remember(memory, torch.tensor([[[7.0], [8.0]]]), torch.tensor([[1, 1]]), 3, torch.tensor([9]))
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
        remember(
            memory, torch.tensor([[[1.0], [3.0]]]), torch.tensor([[0, 1]]), 2, torch.tensor([2])
        )
    assert sorted(classes_in(memory)) == [-1, -1, 0, 1]


def test_a_limit_below_the_classes_keeps_one_of_each():
    memory = empty_memory(1, 4, 1, torch.device("cpu"))
    features, classes = torch.arange(6.0).view(1, 6, 1), torch.tensor([[0, 0, 0, 1, 1, 1]])
    remember(memory, features, classes, 2, torch.tensor([1]))
    assert sorted(classes_in(memory)) == [-1, -1, 0, 1]


def test_the_memory_is_a_share_of_what_the_client_has_had(two_tasks):
    f = two_tasks(GLFC, options(memory=100, memory_share=0.5))
    kept = []
    for _ in range(4):
        f.run_round()
        kept.append((f.state.clients.memory["exemplar.class"] != EMPTY).sum(1).tolist())
    # 12 and 8 samples of two classes, then 8 more of two others, in two rounds each.
    assert kept == [[6, 4], [6, 4], [8, 8], [8, 8]]


def test_only_allowed_classes_are_drawn():
    memory = empty_memory(2, 5, 1, torch.device("cpu"))
    features = torch.tensor([[[1.0], [2.0], [3.0]], [[4.0], [5.0], [6.0]]])
    remember(memory, features, torch.tensor([[0, 1, 2], [0, 0, 0]]), 3, torch.tensor([3, 3]))
    allowed = torch.tensor([[False, True, True], [False, True, True]])
    drawn, classes, found = draw_samples(
        memory, allowed, torch.tensor([[0.0, 0.49, 0.5, 0.99]] * 2)
    )
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


def head(params, features):
    return features @ params["head.weight"] + params["head.bias"]


def prototypes(x, y, scale, rng):
    """Perturbed samples nearest to the means of their classes, in a plain loop."""
    noise, found = torch.randn(4, x.shape[1], generator=rng), []
    for place, c in enumerate(y.unique()):
        own = x[y == c]
        nearest = own[(own - own.mean(0)).norm(dim=1).argmin()]
        found.append((nearest + scale * own.std(0, unbiased=False) * noise[place], int(c)))
    return found


def accuracy(params, samples):
    return sum(int(head(params, x).argmax()) == c for x, c in samples) / len(samples)


def options(**changed):
    return GLFCOptions(
        **{"memory": 6, "memory_share": 1.0, "relation": 0.3, "perturbation": 0.2, **changed}
    )


def test_two_stages_are_those_of_a_plain_loop(two_tasks):
    f = two_tasks(GLFC, options())
    server = {n: f.state.server[n].clone() for n in ("head.weight", "head.bias")}
    best = teacher = copy.deepcopy(server)
    clients = [{n: t.clone().requires_grad_() for n, t in server.items()} for _ in range(2)]
    optimisers = [torch.optim.Adam(c.values(), lr=0.02) for c in clients]
    for round in range(4):
        stage, models, shared = round // 2, [], []
        if round == 2:
            teacher = copy.deepcopy(best)
            # By then six places hold three samples of each of the two classes.
            memories = f.state.clients.memory
        for i, (client, optimiser) in enumerate(zip(clients, optimisers, strict=True)):
            data = f.trainer.stream.stages[stage]
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
                p = head(client, features).sigmoid()
                wrong = (1 - p[range(len(own)), own]).detach()
                per_class = bce(p, torch.eye(4)[own], reduction="none").mean(1)
                means = torch.stack([wrong[(own < 2) == bool(c < 2)].mean() for c in own])
                loss = per_class.mean()
                if stage:
                    loss = (wrong / means * per_class).mean()
                    target = torch.eye(4)[own]
                    target[:, :2] = head(teacher, features)[:, :2].sigmoid()
                    loss = 0.7 * loss + 0.3 * bce(p, target)
                optimiser.zero_grad()
                loss.backward()
                optimiser.step()
            models.append((size, {n: t.detach().clone() for n, t in client.items()}))
            shared += prototypes(x, y, 0.2, rng)
        total = sum(size for size, _ in models)
        server = {n: sum(s / total * m[n] for s, m in models) for n in server}
        if round % 2 == 0:
            monitor, least = shared, 0.0
        if accuracy(server, monitor) >= least:
            best, least = server, accuracy(server, monitor)
        f.run_round()
        found = f.state.server
        for name, t in server.items():
            torch.testing.assert_close(found[name], t, msg=lambda m, r=round: f"{r}: {m}")
            torch.testing.assert_close(found[f"best.{name}"], best[name])
        assert found["proxy.score"] == least
        kept = found["proxy.feature"][found["proxy.class"] >= 0]
        torch.testing.assert_close(kept, torch.stack([x for x, _ in monitor]))
        assert found["proxy.class"][found["proxy.class"] >= 0].tolist() == [c for _, c in monitor]


def test_the_proxy_keeps_the_best_model_until_prototypes_come_anew(two_tasks):
    f = two_tasks(GLFC, options())
    f.run_round()
    server, method = f.state.server, f.method
    samples, classes = server["proxy.feature"], server["proxy.class"]
    assert sorted(classes[classes >= 0].tolist()) == [0, 0, 1, 1]

    def after(before, weight, bias, gradients):
        uploads = {"head.weight": weight.expand(2, 16, 4), "head.bias": bias.expand(2, 4)}
        uploads["seen"] = torch.zeros(2, 4, dtype=torch.bool)
        of = Participants(torch.arange(2), torch.tensor([8, 4]), 1)
        return method.aggregate(before, of, {**uploads, **gradients})

    net = method.encoding.initial(2, 3)[0]
    nothing = gradients_of(method.encoding, net, samples, torch.full_like(classes, EMPTY))
    zero = torch.zeros(16, 4)
    half = after(server, zero, torch.tensor([1.0, 0, 0, 0]), nothing)
    none = after(half, zero, torch.tensor([0, 0, 0, 1.0]), nothing)
    for state in (half, none):
        torch.testing.assert_close(state["proxy.feature"], samples)
    least = max(0.5, float(server["proxy.score"]))
    assert none["proxy.score"] == half["proxy.score"] == least
    assert none["head.bias"].tolist() == [0, 0, 0, 1]
    torch.testing.assert_close(none["best.head.bias"], half["best.head.bias"])
    fresh = gradients_of(method.encoding, net, samples + 1, (classes == 0) * 4 - 1)
    new = after(none, zero, torch.tensor([0, 0, 0, 1.0]), fresh)
    assert new["best.head.bias"].tolist() == [0, 0, 0, 1]
    assert new["proxy.score"] == 1
    assert new["proxy.class"][classes == 0].tolist() == [3, 3]
    torch.testing.assert_close(new["proxy.feature"][classes == 0], samples[classes == 0] + 1)


def test_prototypes_of_clients_that_send_none_are_forgotten(two_tasks):
    f = two_tasks(GLFC, options())
    f.run_round()
    server, method = f.state.server, f.method
    samples, classes = (server[f"proxy.{name}"][1:] for name in ("feature", "class"))
    gradients = gradients_of(method.encoding, method.encoding.initial(1, 3)[0], samples, classes)
    uploads = {name: server[name][None] for name in (*method.shared, "seen")}
    of = Participants(torch.tensor([1]), torch.tensor([4]), 1)
    after = method.aggregate(server, of, {**uploads, **gradients})
    assert after["proxy.class"].tolist() == [[EMPTY] * 4, classes[0].tolist()]


def test_relations_are_those_of_all_clients_former_classes(two_tasks):
    f = two_tasks(GLFC, options())
    f.trainer.stream.stages[0].tensors["y"][1] = 1  # The second client meets the first class never.
    for _ in range(3):
        f.run_round()
    memory = f.state.clients.memory
    assert memory["former"].tolist() == [[True, True, False, False], [False, True, False, False]]
    assert memory["taught"].tolist() == [[True, True, False, False]] * 2
    assert f.state.server["seen"].all()


def test_without_former_classes_nothing_is_compensated():
    former = torch.tensor([[False, False]])
    losses = [bce(LOGITS[0, i].sigmoid(), torch.eye(2)[Y[0, i]]) for i in range(2)]
    loss = compensated_loss(LOGITS, Y, former, torch.tensor([[1, 1, 0]]))
    torch.testing.assert_close(loss, torch.stack(losses).mean().view(1))


def test_the_teacher_is_the_best_model_and_stays(two_tasks):
    f = two_tasks(GLFC, options())
    for _ in range(2):
        f.run_round()
    best = torch.randn(16, 4)
    f.state.server["best.head.weight"] = best.clone()
    for _ in range(2):
        f.run_round()
        for kept in f.state.clients.memory["teacher.head.weight"]:
            torch.testing.assert_close(kept, best)


def test_rebuilt_samples_are_those_that_a_search_for_the_gradient_finds():
    torch.manual_seed(0)
    network = encoding_network(5, 3)
    tensors = network.initial(1, 4)[0]
    x, y = torch.randn(1, 2, 5), torch.tensor([[2, 0]])
    gradients = gradients_of(network, tensors, x, y)
    features, labels = rebuilt(gradients)
    assert labels.tolist() == y.tolist()
    torch.testing.assert_close(features, x)
    net = nn.Sequential(nn.Linear(5, 1), nn.Sigmoid(), nn.Linear(1, 3))
    with torch.no_grad():
        for layer in (0, 2):
            net[layer].weight.copy_(tensors[f"encoding.{layer}.weight"][0].T)
            net[layer].bias.copy_(tensors[f"encoding.{layer}.bias"][0])
    wanted = [gradients[n][0, 1] for n in network.parameters]
    guess = torch.zeros(1, 5, requires_grad=True)
    search = torch.optim.LBFGS([guess], max_iter=500, tolerance_grad=0, tolerance_change=0)

    def distance():
        search.zero_grad()
        loss = cross_entropy(net(guess), y[0, 1:])
        found = torch.autograd.grad(loss, list(net.parameters()), create_graph=True)
        squares = sum((g.t() - w).square().sum() for g, w in zip(found, wanted, strict=True))
        squares.backward()
        return squares

    search.step(distance)
    torch.testing.assert_close(guess.detach()[0], features[0, 1], rtol=1e-4, atol=1e-4)


def test_a_client_shares_so_many_classes_only(two_tasks):
    f = two_tasks(GLFC, options(prototypes=1))
    f.run_round()
    assert f.state.server["proxy.class"].tolist() == [[0], [0]]


def entropies(f):
    """Mean entropy of the global model's predictions on each client's present data."""
    data = f.trainer.stream.stages[f.trainer.place()[0]]
    p = [
        head(f.state.server, f.method.backbone.query(data.tensors["x"][i, :n])).softmax(1)
        for i, n in enumerate(data.sizes.tolist())
    ]
    return torch.stack([-(q * q.log()).sum(1).mean() for q in p])


@pytest.mark.parametrize("rise", [0.03, 100.0])
def test_a_task_is_noticed_by_the_entropy_of_predictions(two_tasks, rise):
    f = two_tasks(GLFC, options(entropy_rise=rise))
    noticed, present = [], torch.zeros(2, 4, dtype=torch.bool)
    former, last = present.clone(), torch.full((2,), -torch.inf)
    for round in range(4):
        now = entropies(f)
        noticed.append(now - last >= rise)
        former |= present & noticed[-1][:, None]
        present[:, [0, 1] if round < 2 else [2, 3]] = True
        f.run_round()
        torch.testing.assert_close(f.state.clients.memory["entropy"], now)
        assert torch.equal(f.state.clients.memory["former"], former)
        last = now
    assert noticed[0].all()
    assert torch.stack(noticed[1:]).any() == (rise < 1)
    assert not torch.stack(noticed).all()


def test_the_best_model_and_gradients_of_prototypes_are_sent(two_tasks):
    f = two_tasks(GLFC, options(prototypes=3))
    f.run()
    model, gradient = 16 * 4 + 4, 16 + 1 + 4 + 4
    flags = 4  # Bytes, one for each class that there has been.
    assert [r.bytes_down for r in f.reports] == [2 * (8 * 2 * model + flags)] * 4
    assert [r.bytes_up for r in f.reports] == [2 * (8 * (model + 3 * gradient) + flags)] * 4


def test_the_memory_has_all_former_classes_after_a_stage(two_tasks):
    f = two_tasks(GLFC, options())
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
    with pytest.raises(InputError, match="entropy_rise"):
        GLFCOptions(entropy_rise=0.0)
    with pytest.raises(InputError, match="prototypes"):
        GLFCOptions(prototypes=0)
    with pytest.raises(InputError, match="perturbation"):
        GLFCOptions(perturbation=-0.1)
    with pytest.raises(InputError, match="model='vit'"):
        federate(GLFC, build="stacked")
