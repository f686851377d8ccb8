"""FeDPM against a slow reference: loops over clients, windows, vectors and prototypes, in float64.

The reference follows the released code's losses and rules and imports nothing of the method.
"""

import itertools

import numpy as np
import pytest
import torch
from torch import nn

from data_prep.base.errors import InputError
from stforecast.data.window_spec import WindowSpec
from stforecast.federated.core.data import ClientData
from stforecast.federated.core.layers import ClientLinear
from stforecast.federated.core.method import predictions
from stforecast.federated.core.population import Population, SplitModel
from stforecast.federated.core.state import Participants, generator
from stforecast.federated.core.training import Training
from stforecast.federated.engine.rounds import Federation
from stforecast.forecasting.task import ForecastTask
from stforecast.methods import fedpm
from stforecast.methods.fedpm import (
    FedPM,
    FedPMOptions,
    joined_prototypes,
    nearest_prototypes,
    personal,
)

T, WIDTH, PATCHES, M, LR = 6, 3, 2, 7, 0.02


@pytest.fixture(autouse=True)
def exact(monkeypatch):
    """Everything in double precision, and nothing dropped."""
    monkeypatch.setattr(fedpm, "LEVEL_DROPOUT", 0.0)
    monkeypatch.setattr(fedpm, "LEVEL_UNITS", 5)
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


class Small(SplitModel):
    """Two vectors of a window, and a linear map of both."""

    token_size = WIDTH

    def __init__(self, horizon):
        encoder = nn.Sequential(ClientLinear(T, PATCHES * WIDTH), nn.Tanh())
        super().__init__(encoder, ClientLinear(PATCHES * WIDTH, horizon))


def samples(n, horizon, size=8):
    rng = np.random.default_rng(3)
    x = torch.from_numpy(rng.normal(size=(n, size, T)).cumsum(-1))
    y = x[..., -1:] + torch.from_numpy(rng.normal(size=(n, size, horizon)))
    mask = torch.ones(n, size, horizon, dtype=torch.bool)
    mask[0, 1, 0] = mask[1, 2] = False  # A target, and a window without any.
    y[~mask] = torch.nan
    slot = torch.zeros(n, size, dtype=torch.long)
    return ClientData({"x": x, "y": y, "mask": mask, "slot": slot}, torch.full((n,), size))


def federation(data, training=None, cohort_size=None, **options):
    horizon = data.tensors["y"].shape[-1]
    spec = WindowSpec(closeness=T, periods=0, period=24, horizon=horizon)
    settings = {"batch_size": 4, "epochs": 2, "lr": LR, "optimizer_state": "round"}
    population = Population(lambda: Small(horizon), seed=2)
    chosen = FedPMOptions(**{"n_prototypes": M, "shared": 0.6, **options})
    training = Training(**{**settings, **(training or {})})
    method = FedPM(population, ForecastTask(24, window=spec), training, chosen)
    return Federation(method, data, seed=5, cohort_size=cohort_size)


# The reference


def cosine(a, b):
    size = np.linalg.norm(a) * np.linalg.norm(b)
    return 0.0 if size == 0 else float(a @ b / size)


def plain_groups(memories, threshold):
    """Connected prototypes of different clients, as they come; those of one member, too."""
    nodes = list(itertools.product(range(len(memories)), range(len(memories[0]))))
    at = {node: memories[node[0]][node[1]] for node in nodes}
    groups, seen = [], set()
    for node in nodes:
        group, queue = [], [node] * (node not in seen)
        seen.add(node)
        while queue:
            here = queue.pop(0)
            group.append(here)
            for other in nodes:
                new = other not in seen and other[0] != here[0]
                if new and cosine(at[here], at[other]) > threshold:
                    seen.add(other)
                    queue.append(other)
        groups += [group] * bool(group)
    return groups


def plain_server(memories, used, threshold, gamma, usage=1.0):
    """The next memory of each client: shared prototypes, then own ones, then zeros."""
    n, m = len(memories), len(memories[0])
    groups = plain_groups(memories, threshold)
    several = sorted((g for g in groups if len(g) > 1), key=len, reverse=True)
    shared = [np.mean([memories[c][k] for c, k in g], axis=0) for g in several][: int(m * gamma)]
    alone = [g[0] for g in groups if len(g) == 1]
    result = []
    for c in range(n):
        own = [k for client, k in alone if client == c]
        most = max([used[c][k] for k in own], default=0)
        scores = {}
        for k in own:
            others = [cosine(memories[c][k], p) for d in range(n) if d != c for p in memories[d]]
            scores[k] = usage * (used[c][k] / most if most else 0) - (
                np.mean(others) if n > 1 else 0
            )
        best = sorted(own, key=lambda k: -scores[k])
        rows = (shared + [memories[c][k] for k in best])[:m]
        result.append(rows + [np.zeros_like(memories[c][0])] * (m - len(rows)))
    return np.array(result)


class PlainClient:
    """One client, whose tensors are those of the method at the start."""

    def __init__(self, params, i, level):
        self.p = {name: t[i].detach().clone().requires_grad_() for name, t in params.items()}
        self.learns = level == "learned"

    def forecast(self, x, target=None):
        """A forecast `(horizon,)`, what is between, and the places of its prototypes."""
        p = self.p
        mean, std = x.mean(), (x.var(unbiased=False) + 1e-5).sqrt()
        normal = (x - mean) / std
        z = torch.tanh(normal @ p["encoder.0.weight"] + p["encoder.0.bias"]).view(PATCHES, WIDTH)
        places = [int(np.argmin([(v - c).square().sum().item() for c in p["memory"]])) for v in z]
        codes = p["memory"][places]
        straight = z + (codes - z).detach()
        y = straight.flatten() @ p["head.weight"] + p["head.bias"]
        change = torch.cat([x, mean[None], std[None]])
        for k in (0, 3):
            change = torch.relu(change @ p[f"level.{k}.weight"] + p[f"level.{k}.bias"])
        change = change @ p["level.6.weight"] + p["level.6.bias"]
        if not self.learns or len(y) == 1:
            change = torch.zeros(2)
        scaled = y * (std + change[1].detach()) + mean + change[0].detach()
        return scaled, (y, z, codes, change, mean, std), places

    def loss(self, xs, ys, masks, used):
        vq, normal_errors, level_errors, errors = [], [], [], []
        for x, y, mask in zip(xs, ys, masks, strict=True):
            scaled, (normal, z, codes, change, mean, std), places = self.forecast(x)
            for k in places:
                used[k] += 1
            vq.append((codes - z.detach()).square() + 0.25 * (codes.detach() - z).square())
            if not mask.any():
                continue
            seen = y[mask]
            of_y = seen.mean(), (seen.var(unbiased=False) + 1e-5).sqrt()
            if len(y) == 1:
                of_y = mean, std
            elif self.learns:
                level_errors.append(
                    smooth(change[0], of_y[0] - mean) + smooth(change[1], of_y[1] - std)
                )
            normal_errors += [
                smooth(a, (b - of_y[0]) / of_y[1]) for a, b in zip(normal[mask], seen, strict=True)
            ]
            errors += [smooth(a, b) for a, b in zip(scaled[mask], seen, strict=True)]
        parts = [
            torch.stack(part).mean() for part in (vq, normal_errors, errors, level_errors) if part
        ]
        return sum(parts)


def smooth(a, b, beta=0.1):
    error = (a - b).abs()
    return torch.where(error < beta, error.square() / (2 * beta), error - beta / 2)


def plain_rounds(run, data, rounds, level, threshold, gamma):
    clients = [PlainClient(run.state.clients.params, i, level) for i in range(len(data.sizes))]
    tensors = [{name: t[i] for name, t in data.tensors.items()} for i in range(len(clients))]
    memories = None
    for _ in range(rounds):
        used = np.zeros((len(clients), M))
        for i, (client, own) in enumerate(zip(clients, tensors, strict=True)):
            if memories is not None:
                client.p["memory"] = torch.from_numpy(memories[i].copy()).requires_grad_()
            optimizer = torch.optim.Adam(client.p.values(), lr=LR)
            for _, first in itertools.product(range(2), (0, 4)):
                rows = slice(first, first + 4)
                loss = client.loss(own["x"][rows], own["y"][rows], own["mask"][rows], used[i])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
        trained = np.stack([c.p["memory"].detach().numpy() for c in clients])
        memories = plain_server(trained, used, threshold, gamma)
    for client, memory in zip(clients, memories, strict=True):
        client.p["memory"] = torch.from_numpy(memory)
    return clients, memories


@pytest.mark.quick(2)
@pytest.mark.parametrize(("horizon", "level"), [(3, "learned"), (3, "window"), (1, "learned")])
def test_rounds_and_forecasts_are_those_of_the_reference(horizon, level):
    data = samples(3, horizon)
    run = federation(data, level=level, threshold=0.9)
    start = torch.randn(3, M, WIDTH, generator=torch.manual_seed(4)) / 2
    run.state.clients.params["memory"].copy_(start)
    run.state.server["memory"].copy_(start)
    clients, memories = plain_rounds(run, data, 3, level, 0.9, 0.6)
    for _ in range(3):
        run.run_round()
    np.testing.assert_allclose(run.state.server["memory"], memories, atol=1e-9)
    for name, t in run.state.clients.params.items():
        if name != "memory":
            for i, client in enumerate(clients):
                np.testing.assert_allclose(t[i], client.p[name].detach(), atol=1e-9, err_msg=name)
    found = torch.cat([y_hat for _, y_hat in predictions(run.method, run.state, data)], dim=1)
    for i, client in enumerate(clients):
        wanted = torch.stack([client.forecast(x)[0] for x in data.tensors["x"][i]])
        np.testing.assert_allclose(found[i], wanted.detach(), atol=1e-9)


# The server


def memories_of(n, m=M, seed=0, alike=0.6):
    """Memories that have prototypes in common, more or less."""
    g = torch.Generator().manual_seed(seed)
    common, own = torch.randn(m, 4, generator=g), torch.randn(n, m, 4, generator=g)
    return alike * common + (1 - alike) * own


@pytest.mark.parametrize("threshold", [0.3, 0.8, 0.95, 0.999])
@pytest.mark.parametrize("n", [1, 2, 4])
def test_prototypes_are_joined_and_chosen_as_in_the_reference(n, threshold):
    memory = memories_of(n)
    used = torch.randint(0, 9, (n, M), generator=torch.manual_seed(1), dtype=torch.int32)
    common, alone = joined_prototypes(memory, threshold)
    groups = plain_groups(memory.numpy(), threshold)
    several = sorted((g for g in groups if len(g) > 1), key=len, reverse=True)
    means = [np.mean([memory[c, k].numpy() for c, k in g], axis=0) for g in several]
    np.testing.assert_allclose(common, np.reshape(means, (-1, 4)), atol=1e-12)
    assert {tuple(node) for node in alone.nonzero().tolist()} == {
        g[0] for g in groups if len(g) == 1
    }
    common = common[: int(M * 0.6)]
    own = personal(memory, used, alone, M - len(common), 1.0)
    found = torch.cat([common.expand(n, -1, -1), own], dim=1)
    wanted = plain_server(memory.numpy(), used.numpy(), threshold, 0.6)
    np.testing.assert_allclose(found, wanted, atol=1e-12)


def test_use_decides_between_prototypes_that_nobody_else_has():
    memory = torch.eye(6).view(2, 3, 6)
    used = torch.tensor([[1, 5, 3], [0, 0, 2]], dtype=torch.int32)
    alone = torch.ones(2, 3, dtype=torch.bool)
    chosen = personal(memory, used, alone, 2, usage=1.0)
    assert torch.equal(chosen, torch.stack([memory[0, [1, 2]], memory[1, [2, 0]]]))
    assert torch.equal(personal(memory, used, alone, 2, usage=0.0), memory[:, :2])


def test_the_gradient_of_a_prototype_goes_to_its_vector():
    vectors = torch.tensor([[[1.0, 0.0], [0.0, 3.0]]], requires_grad=True)
    memory = torch.tensor([[[0.5, 0.0], [0.0, 2.0], [9.0, 9.0]]], requires_grad=True)
    straight, places, loss = nearest_prototypes(vectors, memory, 0.25)
    assert places.tolist() == [[0, 1]]
    torch.testing.assert_close(straight, memory[:, :2])
    assert loss.item() == pytest.approx(1.25 * (0.5**2 + 1) / 4)
    weights = torch.arange(4.0).view(1, 2, 2)
    to_vectors, to_memory = torch.autograd.grad(
        (straight * weights).sum(), (vectors, memory), allow_unused=True
    )
    assert torch.equal(to_vectors, weights)
    assert to_memory is None


def aggregated(n=3, **options):
    """The server's next memory, before and after, and the memories it received."""
    run = federation(samples(n, 2), **{"threshold": 0.9, **options})
    trained = memories_of(n)[..., :WIDTH]
    used = torch.ones(n, M, dtype=torch.int32)
    of = Participants(torch.arange(n), torch.tensor([1, 2, 5]), round=3)
    uploads = {"memory": trained} | ({"used": used} if run.method.personal else {})
    return run.method.aggregate(run.state.server, of, uploads), trained


def test_memories_may_be_averaged_instead():
    server, trained = aggregated(align="mean")
    wanted = (trained[0] + 2 * trained[1] + 5 * trained[2]) / 8
    torch.testing.assert_close(server["memory"], wanted)


def test_free_places_may_be_zeros_or_random_prototypes_of_anybody():
    zeros, trained = aggregated(fill="zeros")
    drawn, _ = aggregated(fill="random")
    common, alone = joined_prototypes(trained, 0.9)
    n = min(len(common), int(0.6 * M))
    assert 0 < n < M
    isolated = trained[alone]
    order = torch.randperm(len(isolated), generator=generator(5, 3, 0, 2))[: M - n]
    for server in (zeros, drawn):
        torch.testing.assert_close(server["memory"][:n], common[:n])
    assert not zeros["memory"][n:].any()
    torch.testing.assert_close(drawn["memory"][n:], isolated[order])


def test_the_absent_keep_their_memories_and_new_clients_get_the_shared_prototypes():
    run = federation(samples(4, 2), {"participation": 0.5, "full_start": False})
    before = run.state.server["memory"].clone()
    ids = run.participants().ids
    run.run_round()
    after = run.state.server["memory"]
    absent = [i for i in range(4) if i not in ids.tolist()]
    assert torch.equal(after[absent], before[absent])
    other = run.method.server_for(run.state.server, torch.tensor([2, -1]))
    assert torch.equal(other["memory"][0], after[2])
    new, one = other["memory"][1], after[ids[0]]
    n = int((new == one).all(-1).sum())
    assert n
    assert torch.equal(new[n:], before[0, n:])


@pytest.mark.parametrize(
    ("options", "up", "down"),
    [
        ({}, M * WIDTH * 8 + 4 * M, M * WIDTH * 8),
        ({"align": "mean"}, M * WIDTH * 8, M * WIDTH * 8),
        ({"align": "none"}, 0, 0),
    ],
)
def test_memories_and_uses_are_all_that_is_sent(options, up, down):
    report = federation(samples(3, 2), **options).run_round()
    assert (report.bytes_up, report.bytes_down) == (3 * up, 3 * down)


def test_dropout_of_the_level_draws_from_each_clients_generator(monkeypatch):
    monkeypatch.setattr(fedpm, "LEVEL_DROPOUT", 0.5)
    states = []
    for size in (1, 3):
        run = federation(samples(3, 2), cohort_size=size)
        torch.manual_seed(size)
        run.run_round()
        states.append(run.state.clients.params)
    torch.testing.assert_close(*states)


def test_differences_cannot_be_normalised():
    spec = WindowSpec(closeness=T, periods=0, period=24, target="change")
    with pytest.raises(InputError, match=r"fedpm .*targets"):
        FedPM(Population(lambda: Small(1)), ForecastTask(24, window=spec), Training())
