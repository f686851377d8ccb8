"""A client in plain tensors and ordinary Python: the reference that methods are compared with."""

import torch


class ReferenceClient:
    """One client of a federation with a model of stacked layers: a linear one, tanh and a head.

    Its `params` are leaf tensors without a client axis, under the population's names; each test
    brings its own optimiser.
    """

    def __init__(self, federation, client):
        initial = federation.method.population.initial()
        self.params = {name: t[0].clone().requires_grad_() for name, t in initial.items()}
        self.size = int(federation.train.sizes[client])
        self.data = {name: t[client, : self.size] for name, t in federation.train.tensors.items()}
        self.batch_size = federation.method.training.batch_size
        weights = (n for n in self.params if n.startswith("encoder.") and n.endswith(".weight"))
        self.encoder = next(weights, "").removesuffix(".weight")

    @classmethod
    def all_of(cls, federation):
        return [cls(federation, i) for i in range(len(federation.train))]

    def encode(self, x, params=None):
        p = params or self.params
        return torch.tanh(x.flatten(1) @ p[f"{self.encoder}.weight"] + p[f"{self.encoder}.bias"])

    def decode(self, features, params=None):
        p = params or self.params
        return features @ p["head.weight"] + p["head.bias"]

    def loss(self, batch):
        """Return the mean squared error."""
        error = self.decode(self.encode(batch["x"])) - batch["y"]
        return error[batch["mask"]].square().mean()

    def part(self, prefix):
        return [p for name, p in self.params.items() if name.startswith(prefix)]

    def batches(self, epochs):
        for _ in range(epochs):
            for start in range(0, self.size - self.batch_size + 1, self.batch_size):
                yield {n: t[start : start + self.batch_size] for n, t in self.data.items()}

    def receive(self, values):
        with torch.no_grad():
            for name, t in values.items():
                self.params[name].copy_(t)

    def values(self, prefix=""):
        return {n: p.detach().clone() for n, p in self.params.items() if n.startswith(prefix)}


def mean_by_size(models, sizes):
    """Weighted mean of models by the clients' samples."""
    total = sum(sizes)
    return {
        name: sum(n / total * m[name] for n, m in zip(sizes, models, strict=True))
        for name in models[0]
    }
