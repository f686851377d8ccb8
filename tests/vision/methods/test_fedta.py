"""FedTA against one written client by client and sample by sample, and piece by piece."""

import dataclasses

import pytest
import torch

from data_prep.errors import InputError
from stforecast.federated.data import ClientData
from stforecast.federated.population import Population
from stforecast.federated.predictions import predictions
from stforecast.federated.rounds import Federation
from stforecast.federated.state import generator
from stforecast.federated.training import Training
from stforecast.federated.uploads.payload import floats_per_client
from vision.backbones import TINY
from vision.methods.anchors import (
    consistency_loss,
    mean_prototypes,
    mix,
    prototype_scores,
    selected_prototypes,
)
from vision.methods.fedta import TARGET, FedTA, FedTAOptions
from vision.methods.fusion import fused_pool
from vision.methods.prompts import key_distance
from vision.models.vit import FrozenViT, ViTOptions
from vision.task import Classification

N_CLASSES, WIDTH = 4, 16
SMALL = {"pool_size": 3, "prompt_length": 2, "anchors": 5}


@pytest.fixture(autouse=True)
def double():
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def images_of(sizes, seed=0):
    g = torch.Generator().manual_seed(seed)
    n, longest = len(sizes), max(sizes)
    y = torch.randint(N_CLASSES, (n, longest), generator=g)
    x = torch.rand(n, longest, 3, 8, 8, generator=g) + 0.3 * y[..., None, None, None]
    return ClientData({"x": x, "y": y}, torch.tensor(sizes))


def federation(options=None, sizes=(8, 12), surrogate=True, **settings):
    settings = {
        "rounds": 2,
        "epochs": 2,
        "batch_size": 4,
        "lr": 0.01,
        "weight_decay": 1e-3,
    } | settings
    population = Population(
        lambda: FrozenViT((3, 8, 8), N_CLASSES, ViTOptions(backbone=TINY, input_size=8)), 1
    )
    held = None
    if surrogate:
        held = images_of([6], seed=7).tensors
    method = FedTA(
        population,
        Classification(N_CLASSES, held),
        Training(**settings),
        options or FedTAOptions(**SMALL),
    )
    return Federation(method, images_of(sizes), seed=1)


class Reference:
    """One client, in plain tensors, with two ordinary optimisers."""

    def __init__(self, federation, client):
        state, self.o = federation.state.clients, federation.method.options
        self.vit = federation.method.backbone._vit
        self.training = federation.method.training
        self.p = {n: t[client].clone().requires_grad_() for n, t in state.params.items()}
        size = int(federation.train.sizes[client])
        self.x, self.y = (federation.train.tensors[n][client, :size] for n in ("x", "y"))
        self.optimisers = {}
        for part in (("enhance.", "head."), ("anchor.",)):
            own = [t for n, t in self.p.items() if n.startswith(part)]
            self.optimisers[part[0]] = torch.optim.Adam(own, lr=0.01, weight_decay=1e-3)

    def normalised(self, x):
        mean = torch.tensor([0.485, 0.456, 0.406])[:, None, None]
        return (x - mean) / torch.tensor([0.229, 0.224, 0.225])[:, None, None]

    def enhanced(self, x, pool, keys):
        """Feature of one image, and the key distance."""
        image = self.normalised(x)[None]
        query = self.vit(image)[0, 0]
        cosine = torch.stack([torch.dot(query, k) / query.norm() / k.norm() for k in keys])
        best = int(cosine.argmax())
        return self.vit(image, pool[best][None])[0, 0], 1 - cosine[best]

    def anchored(self, feature):
        keys = self.p["anchor.keys"]
        cosine = torch.stack([torch.dot(feature, k) / feature.norm() / k.norm() for k in keys])
        best = int(cosine.argmax())
        anchor = self.p["anchor.values"][best]
        mixed = torch.empty(2 * WIDTH)
        mixed[0::2], mixed[1::2] = feature, anchor
        return mixed, 1 - cosine[best]

    def cross_entropy(self, logits, y):
        present = sorted(set(self.y.tolist()))
        return -logits[present].log_softmax(0)[present.index(int(y))]

    def batches(self):
        for _ in range(2):
            for start in range(0, len(self.y), 4):
                yield list(range(start, start + 4))

    def step(self, which, losses):
        self.optimisers[which].zero_grad()
        (sum(losses) / len(losses)).backward()
        self.optimisers[which].step()

    def update(self, server):
        with torch.no_grad():
            for name in ("enhance.pool", "enhance.keys"):
                self.p[name].copy_(server[name])
        p = self.p
        for rows in self.batches():
            losses = []
            for i in rows:
                feature, distance = self.enhanced(self.x[i], p["enhance.pool"], p["enhance.keys"])
                logits = feature @ p["head.weight"] + p["head.bias"]
                losses.append(self.cross_entropy(logits, self.y[i]) + 0.1 * distance)
            self.step("enhance.", losses)
        with torch.no_grad():
            features = [self.enhanced(x, p["enhance.pool"], p["enhance.keys"])[0] for x in self.x]
        for rows in self.batches():
            losses = []
            for i in rows:
                mixed, distance = self.anchored(features[i])
                logits = mixed @ p["anchor.weight"] + p["anchor.bias"]
                loss = self.cross_entropy(logits, self.y[i]) + 0.1 * distance
                y, known = int(self.y[i]), server["known"].nonzero().flatten().tolist()
                if y in known:
                    unit = mixed / mixed.norm()
                    sims = [
                        torch.dot(unit, server["prototypes"][c] / server["prototypes"][c].norm())
                        for c in known
                    ]
                    loss = loss - (torch.stack(sims) / 0.1).log_softmax(0)[known.index(y)]
                losses.append(loss)
            self.step("anchor.", losses)
        with torch.no_grad():
            mixed = [self.anchored(f)[0] for f in features]
        return {
            c: torch.stack([m for m, y in zip(mixed, self.y, strict=True) if y == c]).mean(0)
            for c in set(self.y.tolist())
        }


def reference_selection(server, local):
    entries = [(c, p) for prototypes in local for c, p in prototypes.items()]
    best = {}
    for c, p in entries:
        similarity = [
            1.0 if c == other else float(torch.dot(p, q) / p.norm() / q.norm())
            for other, q in entries
        ]
        average = sum(similarity) / len(similarity)
        if c not in best or average < best[c][0]:
            best[c] = (average, p)
    for c, (average, p) in best.items():
        if not server["fixed"][c]:
            server["prototypes"][c] = p
            server["known"][c] = True
            server["fixed"][c] = average < 0.9


def reference_fusion(clients, surrogate, round):
    rng = generator(1, round, *TARGET)
    target = int(torch.randint(len(clients), (), generator=rng))
    x = surrogate["x"][0]
    own, other = clients[target], clients[1 - target]
    keys = own.p["enhance.keys"].detach()
    pool = own.p["enhance.pool"].detach().clone().requires_grad_()
    optimiser = torch.optim.Adam([pool], lr=0.01, weight_decay=1e-3)
    for _ in range(2):
        for rows in torch.randperm(len(x), generator=rng).split(4):
            features = torch.stack([own.enhanced(x[i], pool, keys)[0] for i in rows])
            with torch.no_grad():
                p = other.p
                taught = torch.stack(
                    [other.enhanced(x[i], p["enhance.pool"], p["enhance.keys"])[0] for i in rows]
                )
            optimiser.zero_grad()
            ((features - taught) ** 2).mean().backward()
            optimiser.step()
    return {"enhance.pool": pool.detach(), "enhance.keys": keys}


def test_two_rounds_are_those_of_a_plain_loop_over_clients_and_samples():
    f = federation(FedTAOptions(**SMALL, threshold=0.9))
    clients = [Reference(f, i) for i in range(2)]
    server = {n: t.clone() for n, t in f.state.server.items()}
    for round in range(2):
        local = [c.update(server) for c in clients]
        server |= reference_fusion(clients, f.method.task.surrogate, round)
        reference_selection(server, local)
        f.run_round()
        for name, t in f.state.server.items():
            torch.testing.assert_close(t, server[name], msg=lambda m, n=name: f"{n}: {m}")
    assert server["fixed"].any()
    for i, client in enumerate(clients):
        for name, t in client.p.items():
            torch.testing.assert_close(f.state.clients.params[name][i], t.detach())


def test_pool_and_prototypes_are_what_is_sent():
    f = federation(FedTAOptions())
    ids = f.participants()
    pool, keys = 10 * 10 * WIDTH, 10 * WIDTH
    down = f.method.broadcast(f.state.server, ids)
    assert floats_per_client(down) == pool + keys + N_CLASSES * (2 * WIDTH + 1)
    report = f.run_round()
    floats = 2 * (pool + keys + N_CLASSES * 2 * WIDTH)
    assert report.bytes_up == 8 * floats + 2 * N_CLASSES


def test_trainable_parameters_are_those_that_the_paper_lists_and_two_heads():
    """The paper's numbers, with width 16 for 768, and 10 prompts of 10 tokens and 100 anchors."""
    params = federation(FedTAOptions()).state.clients.params
    count = {n: t[0].numel() for n, t in params.items()}
    assert count["enhance.pool"] * 768 / WIDTH == 76_800
    assert count["anchor.values"] * 768 / WIDTH == 76_800
    assert (count["enhance.keys"] + count["anchor.keys"]) * 768 / WIDTH == 84_480
    heads = (WIDTH + 1) * N_CLASSES + (2 * WIDTH + 1) * N_CLASSES
    assert sum(count.values()) == (2 * 76_800 + 84_480) * WIDTH / 768 + heads


def test_without_a_surrogate_set_or_fusion_pools_are_averaged(monkeypatch):
    averaged = [
        federation(FedTAOptions(**SMALL), surrogate=False),
        federation(FedTAOptions(**SMALL, fusion=False)),
    ]
    for f in averaged:
        f.run_round()
        pools = f.state.clients.params["enhance.pool"]
        expected = (8 * pools[0] + 12 * pools[1]) / 20
        torch.testing.assert_close(f.state.server["enhance.pool"], expected)


def test_fusion_looks_only_at_images_of_classes_that_somebody_had(monkeypatch):
    f = federation(FedTAOptions(**SMALL))
    f.train.tensors["y"][:] = f.train.tensors["y"] % 2
    seen = []
    fused = f.method.pool_of.__globals__["fused_pool"]
    monkeypatch.setitem(
        f.method.pool_of.__globals__,
        "fused_pool",
        lambda backbone, pools, images, **k: (
            seen.append(images) or fused(backbone, pools, images, **k)
        ),
    )
    f.run_round()
    surrogate = f.method.task.surrogate
    assert torch.equal(seen[0], surrogate["x"][0, surrogate["y"][0] < 2])


def test_fusion_without_images_takes_the_targets_pool():
    f = federation(FedTAOptions(**SMALL))
    pools = torch.rand(2, 3, 2, WIDTH), torch.rand(2, 3, WIDTH)
    target = int(torch.randint(2, (), generator=generator(1)))
    prompts, keys = fused_pool(
        f.method.backbone,
        pools,
        f.method.task.surrogate["x"][0, :0],
        top_n=1,
        training=f.method.training,
        epochs=1,
        rng=generator(1),
    )
    assert torch.equal(prompts, pools[0][target])
    assert torch.equal(keys, pools[1][target])


def test_without_selection_global_prototypes_are_means():
    f = federation(FedTAOptions(**SMALL, selection=False, threshold=1.0))
    f.run_round()
    assert not f.state.server["fixed"].any()
    f2 = federation(FedTAOptions(**SMALL, threshold=1.0))
    f2.run_round()
    assert f2.state.server["fixed"].all()
    assert not torch.equal(f.state.server["prototypes"], f2.state.server["prototypes"])


def test_a_fixed_prototype_stays():
    f = federation(FedTAOptions(**SMALL, threshold=1.0))
    f.run_round()
    first = f.state.server["prototypes"].clone()
    f.run_round()
    assert torch.equal(f.state.server["prototypes"], first)


def test_without_tail_anchors_the_first_head_predicts():
    f = federation(FedTAOptions(**SMALL, tail_anchor=False))
    f.run()
    assert not [n for n in f.state.clients.params if n.startswith("anchor")]
    assert f.state.server["prototypes"].shape == (N_CLASSES, WIDTH)
    ((batch, logits),) = predictions(f.method, f.state, images_of((3, 3)), view="personal")
    p = f.state.clients.params
    features = f.method.enhanced(p, batch["x"], f.method.backbone.query(batch["x"]))
    torch.testing.assert_close(logits, features @ p["head.weight"] + p["head.bias"][:, None])


def test_views_differ_in_the_pool_and_in_the_head():
    f = federation()
    f.run()
    data = images_of((3, 3), seed=2)
    found = {v: next(predictions(f.method, f.state, data, view=v))[1] for v in f.method.views}
    fused, personal = found["fused"], found["personal"]
    assert not torch.equal(fused, personal)
    state = dataclasses.replace(f.state, server={**f.state.server})
    for name in ("enhance.pool", "enhance.keys"):
        state.clients.params[name] = f.state.server[name].expand(2, *f.state.server[name].shape)
    again = next(predictions(f.method, state, data, view="personal"))[1]
    torch.testing.assert_close(again, fused)
    assert found["nearest"].abs().max() <= 1 + 1e-9


def test_the_second_stage_never_runs_the_backbone(monkeypatch):
    f = federation(FedTAOptions(**SMALL, anchor_epochs=7), epochs=1)
    calls = []
    prompted = f.method.backbone.prompted
    monkeypatch.setattr(
        f.method.backbone,
        "prompted",
        lambda x, *a, **k: calls.append(x.shape[1]) or prompted(x, *a, **k),
    )
    method = f.method
    cohort = f.trainer._cohort(f.state, torch.tensor([0]))
    method.local_update(
        cohort, method.broadcast(f.state.server, f.trainer.participants(torch.tensor([0])))
    )
    assert calls == [4, 4, 8]


@pytest.mark.parametrize(("how", "width"), [("interleave", 32), ("random", 32), ("add", 16)])
def test_mixes_have_their_width_and_learn(how, width):
    f = federation(FedTAOptions(**SMALL, mix=how), sizes=(8, 12))
    f.run()
    assert f.state.server["prototypes"].shape == (N_CLASSES, width)
    assert f.reports[-1].train_task_loss < f.reports[0].train_task_loss


@pytest.mark.parametrize("how", ["interleave", "random", "add"])
def test_the_anchors_that_samples_choose_are_trained(how):
    f = federation(FedTAOptions(**SMALL, mix=how))
    before = f.state.clients.params["anchor.values"].clone()
    f.run()
    moved = (f.state.clients.params["anchor.values"] - before).abs().amax(-1)
    assert (moved.amax(1) > 0.01).all()


def test_a_random_mix_is_one_order_for_all_clients():
    f = federation(FedTAOptions(**SMALL, mix="random"))
    order = f.state.clients.memory["anchor.order"]
    assert torch.equal(order[0], order[1])
    assert order[0].sort().values.tolist() == list(range(2 * WIDTH))
    features, anchors = torch.randn(2, 1, 2, WIDTH)
    mixed = mix(features, anchors, {"anchor.order": order[:1]}, "random")
    joined = torch.cat([features, anchors], -1)
    torch.testing.assert_close(mixed, joined[..., order[0]])
    assert not torch.equal(order[0], torch.arange(2 * WIDTH))


def test_contrast_by_hand():
    prototypes = torch.tensor([[[2.0, 0.0], [0.0, 3.0], [9.0, 9.0]]])
    known = torch.tensor([[True, True, False]])
    features = torch.tensor([[[5.0, 0.0], [1.0, 1.0], [1.0, 0.0]]])
    classes = torch.tensor([[0, 1, 2]])
    loss = consistency_loss(features, classes, prototypes, known, temperature=0.5)
    first = torch.tensor(1 + torch.e**-2).log()
    torch.testing.assert_close(loss, (first + torch.tensor(2.0).log()).view(1) / 3)
    nothing = consistency_loss(features, classes, prototypes, known & False, temperature=0.5)
    assert nothing.tolist() == [0]


def test_gradients_stay_finite_before_there_are_prototypes():
    features = torch.randn(1, 2, 3, requires_grad=True)
    known = torch.zeros(1, 2, dtype=torch.bool)
    loss = consistency_loss(features, torch.zeros(1, 2).long(), torch.zeros(1, 2, 3), known, 0.1)
    loss.sum().backward()
    assert features.grad.isfinite().all()


def test_selection_by_hand():
    # Class 0 is held by both clients, class 1 by the second; class 2 by nobody.
    local = torch.tensor(
        [[[1.0, 0.0], [0.0, 0.0], [0.0, 0.0]], [[0.0, 2.0], [3.0, 0.0], [0.0, 0.0]]]
    )
    holders = torch.tensor([[True, False, False], [True, True, False]])
    chosen, average = selected_prototypes(local, holders, "one")
    # Similarities to the class 1 prototype are 1 and 0; ones within class 0.
    torch.testing.assert_close(average[:2], torch.tensor([2 / 3, 2 / 3]))
    assert average[2].isinf()
    assert chosen[:2].tolist() == [[0, 2], [3, 0]]
    chosen, average = selected_prototypes(local, holders, "exclude")
    torch.testing.assert_close(average[:2], torch.tensor([0.0, 0.5]))
    assert mean_prototypes(local, holders).tolist() == [[0.5, 1.0], [3.0, 0.0], [0.0, 0.0]]


def test_scores_are_cosines_and_unknown_classes_never_win():
    prototypes = torch.tensor([[[2.0, 0.0], [5.0, 5.0]]])
    scores = prototype_scores(
        torch.tensor([[[3.0, 3.0]]]), prototypes, torch.tensor([[True, False]])
    )
    torch.testing.assert_close(scores, torch.tensor([[[2**-0.5, -torch.inf]]]))


def test_pulled_keys_draw_near():
    query, keys = torch.tensor([[[1.0, 0.0]]]), torch.tensor([[[0.0, 1.0], [-1.0, 0.0]]])
    distance = key_distance(query, keys, torch.tensor([[[0, 1]]]))
    assert distance.tolist() == [3.0]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"top_n": 11}, "top_n"),
        ({"temperature": 0}, "temperature"),
        ({"lambda2": -1}, "lambda2"),
        ({"anchor_epochs": 0}, "anchor_epochs"),
        ({"mix": "shake"}, "mix"),
    ],
)
def test_options_out_of_range_are_refused(options, words):
    with pytest.raises(InputError, match=words):
        FedTAOptions(**options)


def test_a_model_without_backbone_is_refused(federate):
    with pytest.raises(InputError, match="--model vit"):
        federate(FedTA, build="stacked")
