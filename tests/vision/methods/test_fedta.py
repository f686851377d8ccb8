"""FedTA against one written client by client and sample by sample, and piece by piece."""

import dataclasses

import pytest
import torch
from torch.nn import functional as F

from data_prep.base.errors import InputError
from stforecast.federated.core.data import ClientData, Stream
from stforecast.federated.core.method import predictions
from stforecast.federated.core.population import Population
from stforecast.federated.core.state import generator
from stforecast.federated.core.training import Training
from stforecast.federated.engine.rounds import Federation
from vision.backbones.load import TINY
from vision.draws import Draw
from vision.methods.anchors import (
    consistency_loss,
    mean_prototypes,
    mix,
    prototype_scores,
    selected_prototypes,
)
from vision.methods.fedta import FedTA, FedTAOptions
from vision.methods.prompts import fused_pool, key_distance
from vision.models.vit import FrozenViT, ViTOptions
from vision.task import Classification, among_own_classes

pytestmark = pytest.mark.usefixtures("double")

N_CLASSES, WIDTH = 4, 16
NAMES = ("queries", "raw")
SMALL = {"pool_size": 3, "prompt_length": 2, "anchors": 5}


def images_of(sizes, seed=0):
    g = torch.Generator().manual_seed(seed)
    n, longest = len(sizes), max(sizes)
    y = torch.randint(N_CLASSES, (n, longest), generator=g)
    x = torch.rand(n, longest, 3, 8, 8, generator=g) + 0.3 * y[..., None, None, None]
    return ClientData({"x": x, "y": y}, torch.tensor(sizes))


def federation(options=None, sizes=(8, 12), surrogate=True, stages=None, **settings):
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
    return Federation(method, stages or among_own_classes(images_of(sizes), N_CLASSES), seed=1)


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

    def query(self, x):
        return self.vit(self.normalised(x)[None])[0, 0]

    def enhanced(self, x, pool, keys, statistics):
        """Feature of one image, and the key distance."""
        image = self.normalised(x)[None]
        mean, deviation = statistics
        query = (self.query(x) - mean) / deviation
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
        with torch.no_grad():
            self.queries = torch.stack([self.query(x) for x in self.x])
        of_queries = server["of queries"] or statistics_of(self.queries)
        for rows in self.batches():
            losses = []
            for i in rows:
                pool, keys = p["enhance.pool"], p["enhance.keys"]
                feature, distance = self.enhanced(self.x[i], pool, keys, of_queries)
                logits = feature @ p["head.weight"] + p["head.bias"]
                losses.append(self.cross_entropy(logits, self.y[i]) + 0.1 * distance)
            self.step("enhance.", losses)
        with torch.no_grad():
            pool, keys = p["enhance.pool"], p["enhance.keys"]
            self.raw = torch.stack([self.enhanced(x, pool, keys, of_queries)[0] for x in self.x])
            mean, deviation = server["of features"] or statistics_of(self.raw)
            features = (self.raw - mean) / deviation
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


def statistics_of(features):
    return features.mean(0), features.std(0, correction=0)


def reference_selection(server, local, round):
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
            server["fixed"][c] = round > 0 and average < 0.9


def reference_fusion(clients, surrogate, round, statistics):
    rng = Draw.FEDTA.generator(1, round)
    target = int(torch.randint(len(clients), (), generator=rng))
    x = surrogate["x"][0]
    own, other = clients[target], clients[1 - target]
    keys = own.p["enhance.keys"].detach()
    pool = own.p["enhance.pool"].detach().clone().requires_grad_()
    optimiser = torch.optim.Adam([pool], lr=0.01, weight_decay=1e-3)
    for _ in range(2):
        for rows in torch.randperm(len(x), generator=rng).split(4):
            features = torch.stack([own.enhanced(x[i], pool, keys, statistics)[0] for i in rows])
            with torch.no_grad():
                theirs = other.p["enhance.pool"], other.p["enhance.keys"]
                taught = torch.stack([other.enhanced(x[i], *theirs, statistics)[0] for i in rows])
            optimiser.zero_grad()
            ((features - taught) ** 2).mean().backward()
            optimiser.step()
    return {"enhance.pool": pool.detach(), "enhance.keys": keys}


def test_two_rounds_are_those_of_a_plain_loop_over_clients_and_samples():
    f = federation(FedTAOptions(**SMALL, threshold=0.9))
    clients = [Reference(f, i) for i in range(2)]
    server = {n: t.clone() for n, t in f.state.server.items()}
    server |= {"of queries": None, "of features": None}
    for round in range(2):
        local = [c.update(server) for c in clients]
        if not round:
            queries, features = (torch.cat([getattr(c, n) for c in clients]) for n in NAMES)
            server |= {"of queries": statistics_of(queries), "of features": statistics_of(features)}
            for name, of in (("query.moments", queries), ("feature.moments", features)):
                server[name] = torch.stack([of.mean(0), of.std(0, correction=0).log()])
            server["described"] = torch.tensor(True)
        surrogate = f.method.task.surrogate
        server |= reference_fusion(clients, surrogate, round, server["of queries"])
        reference_selection(server, local, round)
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
    moments = 2 * 2 * WIDTH
    assert (
        sum(t[0].numel() for t in down.values())
        == pool + keys + N_CLASSES * (2 * WIDTH + 1) + moments + 1
    )
    floats = 2 * (pool + keys + N_CLASSES * 2 * WIDTH)
    # Only in the first round, clients send the moments of their features.
    assert f.run_round().bytes_up == 8 * (floats + 2 * moments) + 2 * N_CLASSES
    assert f.run_round().bytes_up == 8 * floats + 2 * N_CLASSES


def test_trainable_parameters_are_those_that_the_paper_lists_and_two_heads():
    """The paper's numbers, with width 16 for 768, and 10 prompts of 10 tokens and 100 anchors."""
    params = federation(FedTAOptions()).state.clients.params
    count = {n: t[0].numel() for n, t in params.items()}
    assert count["enhance.pool"] * 768 / WIDTH == 76_800
    assert count["anchor.values"] * 768 / WIDTH == 76_800
    assert (count["enhance.keys"] + count["anchor.keys"]) * 768 / WIDTH == 84_480
    heads = (WIDTH + 1) * N_CLASSES + (2 * WIDTH + 1) * N_CLASSES
    assert sum(count.values()) == (2 * 76_800 + 84_480) * WIDTH / 768 + heads


@pytest.mark.repeats
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


@pytest.mark.repeats
def test_fusion_looks_only_at_images_of_classes_that_somebody_had(monkeypatch):
    f = federation(FedTAOptions(**SMALL))
    f.train.tensors["y"][:] = f.train.tensors["y"] % 2
    seen = []
    fused = f.method.pool_of.__globals__["fused_pool"]
    monkeypatch.setitem(
        f.method.pool_of.__globals__,
        "fused_pool",
        lambda backbone, pools, images, *a, **k: (
            seen.append(images) or fused(backbone, pools, images, *a, **k)
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
        torch.zeros(0, WIDTH),
        top_n=1,
        training=f.method.training,
        epochs=1,
        rng=generator(1),
    )
    assert torch.equal(prompts, pools[0][target])
    assert torch.equal(keys, pools[1][target])


def test_fusion_of_three_pools_follows_the_mean_of_their_distances():
    """One step of gradient descent on Eq. 8 as printed, with the target drawn at random."""
    backbone = federation(FedTAOptions(**SMALL)).method.backbone
    g = torch.Generator().manual_seed(3)
    prompts, keys = torch.randn(3, 3, 2, WIDTH, generator=g), torch.randn(3, 3, WIDTH, generator=g)
    images = torch.rand(4, 3, 8, 8, generator=g)
    query = backbone.query(images)
    training = Training(batch_size=4, optimizer="sgd", lr=0.5, epochs=1)
    pool, _ = fused_pool(
        backbone, (prompts, keys), images, query,
        top_n=1, training=training, epochs=1, rng=generator(1),
    )  # fmt: skip

    def features(own, client):
        cosine = F.cosine_similarity(query[:, None], keys[client][None], dim=-1)
        return backbone.prompted(images, own[cosine.argmax(-1)])

    target = int(torch.randint(3, (), generator=generator(1)))
    own = prompts[target].clone().requires_grad_()
    distances = [
        F.mse_loss(features(own, target), features(prompts[j], j)) for j in {0, 1, 2} - {target}
    ]
    (gradient,) = torch.autograd.grad(sum(distances) / 2, own)
    torch.testing.assert_close(pool, (own - 0.5 * gradient).detach())


@pytest.mark.repeats
def test_without_selection_global_prototypes_are_means():
    f = federation(FedTAOptions(**SMALL, selection=False, threshold=1.0))
    f2 = federation(FedTAOptions(**SMALL, threshold=1.0))
    for each in (f, f2):
        each.run()
    assert not f.state.server["fixed"].any()
    assert f2.state.server["fixed"].all()
    assert not torch.equal(f.state.server["prototypes"], f2.state.server["prototypes"])


@pytest.mark.repeats
@pytest.mark.parametrize("standardise", [True, False])
def test_a_fixed_prototype_stays(standardise):
    """With each client's own scale in the first round, none is fixed before the second."""
    f = federation(FedTAOptions(**SMALL, threshold=1.0, standardise=standardise), rounds=3)
    fixed, prototypes = [], []
    for _ in range(3):
        f.run_round()
        fixed.append(bool(f.state.server["fixed"].any()))
        prototypes.append(f.state.server["prototypes"].clone())
    assert fixed == [not standardise, True, True]
    assert torch.equal(prototypes[1], prototypes[2])
    assert torch.equal(prototypes[0], prototypes[1]) == (not standardise)


@pytest.mark.repeats
def test_without_tail_anchors_a_head_that_trains_as_long_sees_the_features_alone():
    f = federation(FedTAOptions(**SMALL, tail_anchor=False, head_epochs=3))
    steps = []
    loss = f.method.anchor_loss
    f.method.anchor_loss = lambda *a: steps.append(1) or loss(*a)
    f.run()
    assert len(steps) == 2 * 3 * (2 + 3)
    assert {n for n in f.state.clients.params if "anchor" in n} == {"anchor.weight", "anchor.bias"}
    assert f.state.server["prototypes"].shape == (N_CLASSES, WIDTH)
    ((batch, logits),) = predictions(f.method, f.state, images_of((3, 3)), view="personal")
    payload = f.method.broadcast(f.state.server, f.participants())
    p = {**payload, **f.state.clients.params}
    features = f.method.features(p, batch["x"])
    torch.testing.assert_close(logits, features @ p["anchor.weight"] + p["anchor.bias"][:, None])


def test_without_input_enhancement_features_are_the_frozen_ones():
    f = federation(FedTAOptions(**SMALL, input_enhancement=False, standardise=False))
    f.run()
    assert not [n for n in f.state.flat() if "enhance" in n]
    x = images_of((3, 3)).tensors["x"]
    params = f.method.broadcast(f.state.server, f.participants())
    assert torch.equal(f.method.features(params, x), f.method.backbone.query(x))


def two_tasks(optimizer_state="round", **options):
    """Two tasks of two classes."""
    stages = [images_of((8, 8), seed=s) for s in range(2)]
    for s, stage in enumerate(stages):
        stage.tensors["y"].remainder_(2).add_(2 * s)
    stages = [among_own_classes(stage, N_CLASSES) for stage in stages]
    o = FedTAOptions(**{**SMALL, "anchors": 12, "input_enhancement": False, **options})
    settings = {"weight_decay": 0.0, "optimizer_state": optimizer_state}
    return federation(o, stages=Stream(stages, "sequential"), **settings)


def test_what_the_samples_of_a_task_choose_stays_as_it_is_after_it():
    f = two_tasks()
    p, memory = f.state.clients.params, f.state.clients.memory
    for _ in range(2):
        f.run_round()
    chosen = memory["anchor.chosen"].clone()
    before = {n: t.clone() for n, t in p.items() if n in ("anchor.values", "anchor.keys")}
    for _ in range(2):
        f.run_round()
    assert torch.equal(memory["anchor.fixed"], chosen)
    moved = {n: (p[n] != t).any(-1) for n, t in before.items()}
    for name in moved:
        assert not moved[name][chosen].any()
        assert moved[name][~chosen].any()


@pytest.mark.parametrize("state", ["keep", "stage", "round"])
def test_former_classes_are_predicted_as_before_unless_stale_moments_move_them(state):
    f = two_tasks(optimizer_state=state, tail_anchor=False)
    data = images_of((3, 3), seed=5)
    logits = []
    for _ in range(4):
        f.run_round()
        logits.append(next(predictions(f.method, f.state, data))[1][..., :2])
    assert torch.equal(logits[1], logits[3]) == (state != "keep")
    assert not torch.equal(logits[0], logits[1])


@pytest.mark.repeats
def test_different_classes_find_different_anchors_where_features_share_a_mean(caplog):
    """A warning where they do not: a mean that dwarfs the features' differences."""
    chosen = {}
    for standardise in (True, False):
        f = two_tasks(standardise=standardise, lambda3=1.0, head_epochs=8)
        query = f.method.backbone.query
        f.method.backbone.query = lambda x, query=query: query(x) + 50
        f.run_round()
        f.run_round()
        chosen[standardise] = f.state.clients.memory["anchor.chosen"].sum(1).tolist()
    assert max(chosen[False]) == 1 < min(chosen[True])
    assert caplog.text.count("clients choose fewer tail anchors") == 1
    assert "1 for 2" in caplog.text


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
    f = federation(FedTAOptions(**SMALL, head_epochs=7), epochs=1)
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


@pytest.mark.quick(3)
@pytest.mark.parametrize(("how", "width"), [("interleave", 32), ("random", 32), ("add", 16)])
def test_mixes_have_their_width_and_learn(how, width):
    f = federation(FedTAOptions(**SMALL, mix=how), sizes=(8, 12))
    f.run()
    assert f.state.server["prototypes"].shape == (N_CLASSES, width)
    assert f.reports[-1].train_task_loss < f.reports[0].train_task_loss


@pytest.mark.quick(3)
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
    chosen, average = selected_prototypes(local, holders)
    # Similarities to the class 1 prototype are 1 and 0; ones within class 0.
    torch.testing.assert_close(average[:2], torch.tensor([2 / 3, 2 / 3]))
    assert average[2].isinf()
    assert chosen[:2].tolist() == [[0, 2], [3, 0]]
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
        ({"head_epochs": 0}, "head_epochs"),
        ({"mix": "shake"}, "mix"),
    ],
)
def test_options_out_of_range_are_refused(options, words):
    with pytest.raises(InputError, match=words):
        FedTAOptions(**options)


def test_a_model_without_backbone_is_refused(federate):
    with pytest.raises(InputError, match="model='vit'"):
        federate(FedTA, build="stacked")
