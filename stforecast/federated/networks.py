"""Small additional networks of a method, beside the model.

They are stacked like the model, but belong to a method: their tensors are kept with a separate
prefix in the state of the clients or of the server.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn
from torch.func import functional_call

from data_prep.errors import InputError
from stforecast.federated.layers import ClientLinear
from stforecast.federated.population import Params, Population


def feature_width(population: Population) -> int:
    """Return the size d of the features that the model's head takes.

    It is the `in_features` of the head, or of its first module that has them or is linear.

    Raises:
        InputError: if there is none.
    """
    for module in population.model.head.modules():
        if isinstance(module, ClientLinear):
            return module.weight.shape[1]
        if isinstance(width := getattr(module, "in_features", None), int):
            return width
    raise InputError(
        "this method takes the size of features from a linear layer of the model's head, which has "
        "none; use a model with a linear head"
    )


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
