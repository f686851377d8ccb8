"""FedMGP against one written client by client and sample by sample."""

import pytest
import torch

from data_prep.base.errors import InputError
from stforecast.federated.core.data import ClientData
from stforecast.federated.core.method import predictions
from stforecast.federated.core.population import Population
from stforecast.federated.core.training import Training
from stforecast.federated.engine.rounds import Federation
from vision.backbones.load import TINY
from vision.draws import Draw
from vision.methods.fedmgp import FedMGP, FedMGPOptions
from vision.models.vit import FrozenViT, ViTOptions
from vision.task import Classification, among_own_classes

pytestmark = pytest.mark.usefixtures("double")

N_CLASSES = 3
SMALL = {"pool_size": 3, "prompt_length": 2, "fine_length": 2, "first_block": 1, "fine_blocks": 2}


def images_of(sizes, seed=0):
    g = torch.Generator().manual_seed(seed)
    shape = (len(sizes), max(sizes))
    y = torch.randint(N_CLASSES, shape, generator=g)
    x = torch.rand(*shape, 3, 8, 8, generator=g) + 0.3 * y[..., None, None, None]
    return ClientData({"x": x, "y": y}, torch.tensor(sizes))


def federation(surrogate=True, sizes=(4, 8), **options):
    model = lambda: FrozenViT((3, 8, 8), N_CLASSES, ViTOptions(backbone=TINY, input_size=8))  # noqa: E731
    held = images_of([6], seed=7).tensors if surrogate else None
    method = FedMGP(
        Population(model, 1),
        Classification(N_CLASSES, held),
        Training(rounds=2, epochs=2, batch_size=4, lr=0.02),
        FedMGPOptions(**{**SMALL, **options}),
    )
    return Federation(method, among_own_classes(images_of(sizes), N_CLASSES), seed=1)


class Reference:
    """One client in plain tensors, with one ordinary optimiser for each stage."""

    def __init__(self, federation, client):
        self.vit = federation.method.backbone._vit
        params = federation.state.clients.params
        self.p = {n: t[client].clone().requires_grad_() for n, t in params.items()}
        size = int(federation.train.sizes[client])
        self.x, self.y = (federation.train.tensors[n][client, :size] for n in ("x", "y"))
        parts = [n for n in self.p if n.startswith("fine.")]
        self.fine_optimiser = torch.optim.Adam([self.p[n] for n in parts], lr=0.02)
        self.coarse_optimiser = torch.optim.Adam(
            [t for n, t in self.p.items() if n not in parts], lr=0.02
        )

    def image(self, x):
        mean = torch.tensor([0.485, 0.456, 0.406])[:, None, None]
        return ((x - mean) / torch.tensor([0.229, 0.224, 0.225])[:, None, None])[None]

    def cosines(self, query, keys):
        return torch.stack([torch.dot(query, k) / query.norm() / k.norm() for k in keys])

    def coarse(self, x, p=None):
        p = p or self.p
        cosine = self.cosines(self.vit(self.image(x))[0, 0], p["coarse.keys"])
        best = int(cosine.argmax())
        return self.vit(self.image(x), p["coarse.pool"][best][None])[0, 1:3].mean(0), best, cosine

    def fine(self, x, label):
        _, best, _ = self.coarse(x)
        prompts = self.p["fine.prompts"][label]
        prefixes = {1 + b: tuple(prompts[b, :, None]) for b in range(2)}
        return self.vit(self.image(x), self.p["coarse.pool"][best][None], prefixes)[0, 1:3].mean(0)

    def cross_entropy(self, logits, y):
        present = sorted(set(self.y.tolist()))
        return -logits[present].log_softmax(0)[present.index(int(y))]

    def epochs(self, optimiser, loss):
        for _ in range(2):
            for start in range(0, len(self.y), 4):
                losses = [loss(i) for i in range(start, start + 4)]
                optimiser.zero_grad()
                (sum(losses) / 4).backward()
                optimiser.step()

    def update(self, server):
        with torch.no_grad():
            for name in self.p:
                if name in server:
                    self.p[name].copy_(server[name])
        p = self.p

        def coarse_loss(i):
            read, best, cosine = self.coarse(self.x[i])
            logits = read @ p["head.weight"] + p["head.bias"]
            return self.cross_entropy(logits, self.y[i]) + 0.1 * (1 - cosine[best])

        def fine_loss(i):
            y = int(self.y[i])
            logits = self.fine(self.x[i], y) @ p["fine.head.weight"] + p["fine.head.bias"]
            cosine = self.cosines(reads[i], p["fine.keys"])[y]
            return self.cross_entropy(logits, self.y[i]) + 0.1 * (1 - cosine)

        self.epochs(self.coarse_optimiser, coarse_loss)
        with torch.no_grad():
            reads = [self.coarse(x)[0] for x in self.x]
        self.epochs(self.fine_optimiser, fine_loss)
        return {n: t.detach().clone() for n, t in p.items() if not n.startswith("fine.")}


def reference_server(clients, models, surrogate, round):
    """Pool and keys of a drawn client after distillation, and the mean head after training."""
    rng = Draw.FEDMGP.generator(1, round)
    target = int(torch.randint(2, (), generator=rng))
    x, y = surrogate["x"][0], surrogate["y"][0]
    own = {n: t.clone() for n, t in models[target].items()}
    own["coarse.pool"].requires_grad_()
    optimiser = torch.optim.Adam([own["coarse.pool"]], lr=0.02)
    reader = clients[0]
    for _ in range(2):
        for rows in torch.randperm(len(x), generator=rng).split(4):
            student = torch.stack([reader.coarse(x[i], own)[0] for i in rows])
            with torch.no_grad():
                other = models[1 - target]
                teacher = torch.stack([reader.coarse(x[i], other)[0] for i in rows])
            optimiser.zero_grad()
            ((student - teacher) ** 2).mean().backward()
            optimiser.step()
    fused = {n: own[n].detach() for n in ("coarse.pool", "coarse.keys")}
    with torch.no_grad():
        reads = torch.stack([reader.coarse(image, fused)[0] for image in x])
    head = {
        n: ((4 * models[0][n] + 8 * models[1][n]) / 12).requires_grad_()
        for n in ("head.weight", "head.bias")
    }
    optimiser = torch.optim.Adam(head.values(), lr=0.02)
    for _ in range(2):
        for rows in torch.randperm(len(x), generator=rng).split(4):
            logits = reads[rows] @ head["head.weight"] + head["head.bias"]
            optimiser.zero_grad()
            torch.nn.functional.cross_entropy(logits, y[rows]).backward()
            optimiser.step()
    return {**fused, **{n: t.detach() for n, t in head.items()}}


def test_two_rounds_are_those_of_a_plain_loop():
    f = federation()
    clients = [Reference(f, i) for i in range(2)]
    server = {n: t.clone() for n, t in f.state.server.items()}
    for round in range(2):
        models = [c.update(server) for c in clients]
        server = reference_server(clients, models, f.method.task.surrogate, round)
        f.run_round()
        for name, t in server.items():
            torch.testing.assert_close(f.state.server[name], t, msg=lambda m, n=name: f"{n}: {m}")
    for i, client in enumerate(clients):
        for name, t in client.p.items():
            torch.testing.assert_close(f.state.clients.params[name][i], t.detach())
    x = images_of((2, 2), seed=4).tensors["x"]
    data = ClientData({"x": x}, torch.tensor([2, 2]))
    client = clients[1]
    client.p |= server
    # Keys that tell what is read under prompts from the query; else both have the same nearest.
    with torch.no_grad():
        apart = client.coarse(x[1, 0])[0] - client.vit(client.image(x[1, 0]))[0, 0]
        client.p["fine.keys"] = torch.stack([apart, -apart, 0 * apart + 1])
    f.state.clients.params["fine.keys"][1] = client.p["fine.keys"]
    for view in f.method.views:
        ((_, logits),) = predictions(f.method, f.state, data, view=view)
        for image, y_hat in zip(x[1], logits[1], strict=True):
            read = client.coarse(image)[0]
            expected = read @ client.p["head.weight"] + client.p["head.bias"]
            if view == "personal":
                label = int(client.cosines(read, client.p["fine.keys"]).argmax())
                fine = client.fine(image, label)
                expected = fine @ client.p["fine.head.weight"] + client.p["fine.head.bias"]
            torch.testing.assert_close(y_hat, expected)


def test_the_server_learns_from_images_of_present_classes_alone(monkeypatch):
    f = federation()
    f.train.tensors["y"][:] = f.train.tensors["y"] % 2
    seen = []
    head = f.method.trained_head
    monkeypatch.setattr(
        f.method, "trained_head", lambda p, images, rng: seen.append(images) or head(p, images, rng)
    )
    f.run_round()
    surrogate = f.method.task.surrogate
    held = surrogate["y"] < 2
    assert not held.all()
    assert torch.equal(seen[0]["x"][0], surrogate["x"][held])
    assert torch.equal(seen[0]["y"][0], surrogate["y"][held])


def test_without_a_surrogate_set_all_that_is_sent_is_averaged():
    f = federation(surrogate=False)
    f.run_round()
    params = f.state.clients.params
    sent = {n for n in params if not n.startswith("fine.")}
    assert set(f.state.server) == {*sent, "seed"}
    for name in sent:
        expected = (4 * params[name][0] + 8 * params[name][1]) / 12
        torch.testing.assert_close(f.state.server[name], expected)


@pytest.mark.repeats
def test_further_epochs_train_the_heads_alone():
    few, many = federation(surrogate=False), federation(surrogate=False, head_epochs=3)
    for f in (few, many):
        f.run_round()
    a, b = (f.state.clients.params for f in (few, many))
    assert all(torch.equal(a[n], b[n]) != ("head" in n) for n in a)


def test_options_out_of_range_and_other_models_are_refused(federate):
    with pytest.raises(InputError, match="top_n"):
        FedMGPOptions(top_n=11)
    with pytest.raises(InputError, match="pull"):
        FedMGPOptions(pull=-1)
    with pytest.raises(InputError, match="block 7"):
        federation(first_block=5)
    with pytest.raises(InputError, match="model='vit'"):
        federate(FedMGP, build="stacked")
