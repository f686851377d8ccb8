"""Common parts of label-conditional methods: counts, draws and small additional networks.

The networks are stacked like the model, but belong to a method: their tensors are kept with a
separate prefix in the state of the clients or of the server.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F

from data_prep.errors import InputError
from stforecast.federated.layers import ClientLinear, Stacked
from stforecast.federated.method import Task
from stforecast.federated.population import Params, Population
from stforecast.federated.state import Cohort


def label_counts(task: Task, cohort: Cohort) -> Tensor:
    """Count the training samples of each class on each client, `(clients, classes)` int32."""
    size = int(cohort.data.sizes[0])
    keys = task.keys({name: t[:, :size] for name, t in cohort.data.tensors.items()})
    return F.one_hot(keys, task.n_keys).sum(1).int()


def draw_labels(counts: Tensor, uniform: Tensor) -> Tensor:
    """Draw labels with probabilities proportional to counts.

    Args:
        counts: `(clients, classes)` integers, at least one positive in each row.
        uniform: `(clients, batch)` numbers in [0, 1).

    Returns:
        `(clients, batch)`; never a class whose count is 0.

    Example:
        >>> draw_labels(torch.tensor([[0, 1, 3, 0]]), torch.tensor([[0.0, 0.24, 0.25, 0.99]]))
        tensor([[1, 1, 2, 2]])
    """
    edges = counts.long().cumsum(1)
    places = (uniform.double().to(counts.device) * edges[:, -1:]).long()
    return torch.searchsorted(edges, places, right=True)


def normal(generators: Sequence[torch.Generator], *shape: int) -> Tensor:
    """Draw standard normal numbers `(n, *shape)`, with one generator for each client."""
    return torch.stack([torch.randn(shape, generator=g) for g in generators])


def condition(values: Tensor, labels: Tensor, n_classes: int) -> Tensor:
    """Append one-hot labels to values `(clients, batch, d)`; gives `(clients, batch, d + n)`."""
    return torch.cat([values, F.one_hot(labels, n_classes).to(values)], dim=-1)


def feature_width(population: Population) -> int:
    """Return the size d of the features that the model's head takes.

    Raises:
        InputError: if the head has no linear layer.
    """
    for module in population.model.head.modules():
        if isinstance(module, ClientLinear):
            return module.weight.shape[1]
        if isinstance(module, nn.Linear):
            return module.in_features
    raise InputError(
        "this method takes the size of features from a linear layer of the model's head, which has "
        "none; use a model with a linear head"
    )


class NormedLinear(Stacked):
    """Stacked `nn.Linear` without bias and `nn.BatchNorm1d`.

    The shift of the normalisation is the bias; a bias before it would have no gradient.

    Args:
        in_features: size of the input.
        out_features: size of the output.

    Shapes:
        x: `(clients, batch, in_features)`; returns `(clients, batch, out_features)`.
    """

    running_mean: Tensor
    running_var: Tensor

    def __init__(self, in_features: int, out_features: int) -> None:
        super().__init__()
        bound = 1 / math.sqrt(in_features)
        weight = torch.empty(1, in_features, out_features).uniform_(-bound, bound)
        self.weight = nn.Parameter(weight)
        self.scale = nn.Parameter(torch.ones(1, out_features))
        self.shift = nn.Parameter(torch.zeros(1, out_features))
        self.register_buffer("running_mean", torch.zeros(1, out_features))
        self.register_buffer("running_var", torch.ones(1, out_features))

    def forward(self, x: Tensor) -> Tensor:
        """Apply each client's layer; in training the running statistics are updated in place."""
        clients, batch, _ = x.shape
        mapped = torch.bmm(x, self.weight)
        y = F.batch_norm(
            mapped.transpose(0, 1).reshape(batch, -1),  # Each client has its own channels.
            self.running_mean.reshape(-1),
            self.running_var.reshape(-1),
            self.scale.reshape(-1),
            self.shift.reshape(-1),
            training=self.training,
        )
        return y.view(batch, clients, -1).transpose(0, 1)


class Network:
    """A stacked network whose tensors are passed in each call.

    Args:
        prefix: prefix of the names of its tensors, e.g. `generator.`.
        build: function that builds it with client axes of length 1.

    Attributes:
        parameters: names of the trainable tensors.
        buffers: names of the running statistics.
    """

    def __init__(self, prefix: str, build: Callable[[], nn.Module]) -> None:
        self.prefix, self._build = prefix, build
        self._net = self._seeded(0)
        self.parameters = [prefix + name for name, _ in self._net.named_parameters()]
        self.buffers = [prefix + name for name, _ in self._net.named_buffers()]

    def _seeded(self, seed: int) -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return self._build().requires_grad_(False)

    def initial(
        self, n: int, seed: int, device: torch.device | str = "cpu"
    ) -> tuple[Params, Params]:
        """Return initial parameters and buffers of `n` clients, `(n, …)`, the same for all."""
        fresh = self._seeded(seed)
        groups = (dict(fresh.named_parameters()), dict(fresh.named_buffers()))
        parameters, buffers = (
            {
                self.prefix + name: t.to(device).expand(n, *t.shape[1:]).clone()
                for name, t in group.items()
            }
            for group in groups
        )
        return parameters, buffers

    def __call__(self, tensors: Mapping[str, Tensor], x: Tensor, *, training: bool) -> Tensor:
        """Apply the network with given tensors.

        Args:
            tensors: its parameters and buffers by name, `(clients, …)`, and possibly others.
            x: `(clients, batch, width)`.
            training: whether batch normalisation uses the batch and updates running statistics.
        """
        self._net.train(training)
        own = {
            name.removeprefix(self.prefix): tensors[name]
            for name in (*self.parameters, *self.buffers)
        }
        return functional_call(self._net, own, (x,), strict=True)
