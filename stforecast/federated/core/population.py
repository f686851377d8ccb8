"""A population: N clients as one network whose parameters have a leading client axis.

Inputs are `(clients, batch, …)` and losses `(clients,)`; the sum of the losses back-propagates into
independent gradients. A model has an `encoder` (input to features) and a `head` (features to
prediction); each consists of stacked layers (`stforecast.federated.core.layers`) or is any
`nn.Module` inside `PerClient`.

Small networks of a method, beside the model, are stacked like it. Their tensors are kept with a
separate prefix in the state of the clients or of the server.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.func import functional_call

from data_prep.base.errors import InputError
from stforecast.federated.core.layers import Chain, ClientDropout, ClientLinear, Stacked
from stforecast.federated.core.options import NoOptions
from stforecast.federated.core.state import seeded
from stforecast.federated.core.tensors import Params
from stforecast.federated.kernels.compiler import library


class PerClient(nn.Module):
    """A population of any `nn.Module`, including its buffers.

    Chains of convolutions (`stforecast.federated.core.layers`) run for all clients at once
    where the compiled kernels can; other modules run client by client. Large ones (ResNet-18, a
    ViT) use the whole processor for one client, so a loop is not slower.

    Args:
        module: module of one client.

    Shapes:
        x: `(clients, batch, …)`; returns the module's output with a leading client axis.
    """

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module
        self._chain = Chain(module)

    @property
    def loops(self) -> bool:
        """Return whether the module runs client by client on a CPU."""
        return not self._chain.steps or library() is None

    def forward(self, x: Tensor) -> Tensor:
        """Apply the module with each client's own parameters and buffers."""
        if self._chain.usable(x):
            return self._chain(x)
        state = {**dict(self.module.named_parameters()), **dict(self.module.named_buffers())}
        if len(x) == 1:  # Gradients of views are views, those of `unbind` are copies.
            own = {name: t.squeeze(0) for name, t in state.items()}
            result: Tensor = functional_call(self.module, own, x[0]).unsqueeze(0)
            return result
        rows = {name: t.unbind() for name, t in state.items()}
        outputs = [
            functional_call(self.module, {name: row[i] for name, row in rows.items()}, x[i])
            for i in range(len(x))
        ]
        return torch.stack(outputs)


class SplitModel(nn.Module):
    """A model in two parts, as personalised federated learning requires.

    Args:
        encoder: input `(clients, batch, …)` to features `(clients, batch, d)`.
        head: features to predictions `(clients, batch, …)`.
    """

    name: ClassVar[str] = ""
    summary: ClassVar[str] = ""
    Options: ClassVar[type] = NoOptions
    own: ClassVar[tuple[str, ...]] = ()
    """Prefixes of the names of client-specific parameters, such as an embedding of the location;
    methods that average models leave them on the client."""
    token_size: int = 0
    """Width of the vectors of which features consist, such as those of patches; 0 if of one."""

    def __init__(self, encoder: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.encoder = encoder
        self.head = head


class PicklableLock:
    """A lock for a module whose tensors are replaced during a call; a copy has its own lock."""

    def __init__(self) -> None:
        self._lock = threading.Lock()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def __reduce__(self) -> tuple[type[PicklableLock], tuple[()]]:
        return PicklableLock, ()


class Population:
    """Runs one model with the parameters of many clients.

    Args:
        build: builds the model, with torch's generator seeded by `seed`.
        seed: seed of the initial weights, which are the same for all clients.
        mixed_precision: `no`, or `bf16` for matrix products and convolutions in bfloat16.
        own: initial tensors in which clients differ, `(clients, …)` by name, such as the graph of
            a client's cells; all others are the same for all clients.

    Attributes:
        trainable: names of the model's parameters, `encoder.…` and `head.…`.
        names: names of its parameters and buffers.
        common: those of them that are not client-specific (`SplitModel.own`).
        mixed: whether matrices are multiplied in bfloat16.

    Raises:
        InputError: if a module's parameters have no client axis.
    """

    def __init__(
        self,
        build: Callable[[], SplitModel],
        seed: int = 0,
        mixed_precision: str = "no",
        own: Mapping[str, Tensor] | None = None,
    ) -> None:
        self.own = dict(own or {})
        self.mixed, self._build = mixed_precision == "bf16", build
        self._in_use = PicklableLock()
        with seeded(seed):
            self.model = build().requires_grad_(False)
        self._looped = tuple(
            f"{name}." for name, m in self.model.named_modules() if isinstance(m, PerClient)
        )
        for name, module in self.model.named_modules():
            held = [*module.parameters(recurse=False), *module.buffers(recurse=False)]
            if held and not isinstance(module, Stacked) and not name.startswith(self._looped):
                raise InputError(
                    f"{name} ({type(module).__name__}) has no client axis; put it in PerClient(…) "
                    "or derive it from stforecast.federated.core.layers.Stacked"
                )
        self._slots = {part: _slots(self.model, f"{part}.") for part in ("encoder", "head")}
        self._parameters = self._stackable(dict(self.model.named_parameters()))
        self._buffers = self._stackable(dict(self.model.named_buffers()))
        self.trainable = tuple(self._parameters)
        self.names = (*self._parameters, *self._buffers)
        self.common = tuple(n for n in self.names if not n.startswith(self.model.own))
        self._dropouts = [m for m in self.model.modules() if isinstance(m, ClientDropout)]

    def _stackable(self, tensors: Mapping[str, Tensor]) -> Params:
        return {
            name: (t[None] if name.startswith(self._looped) else t).detach()
            for name, t in tensors.items()
        }

    def loops(self, device: torch.device) -> bool:
        """Return whether a part of the model runs client by client; cohorts are then not faster."""
        parts = [m for m in self.model.modules() if isinstance(m, PerClient)]
        return any(m.loops or device.type != "cpu" for m in parts)

    def initial(self) -> Params:
        """Return the initial parameters and buffers of one client, each `(1, …)`."""
        return {**self._parameters, **self._buffers}

    def parameters(self, n_clients: int, device: torch.device | str = "cpu") -> Params:
        """Return the trainable parameters of `n_clients` clients, each `(n_clients, …)`."""
        return _repeat(self._parameters, n_clients, device)

    def parameters_drawn(self, seeds: Sequence[int], device: torch.device | str = "cpu") -> Params:
        """Return trainable parameters `(clients, …)`, each client's drawn with its own seed."""
        drawn = [Population(self._build, seed).initial() for seed in seeds]
        return {
            name: torch.cat([of_client[name] for of_client in drawn]).to(device)
            for name in self._parameters
        }

    def buffers(self, n_clients: int, device: torch.device | str = "cpu") -> Params:
        """Return the buffers (running statistics) of `n_clients` clients, each `(n_clients, …)`."""
        return _repeat(self._buffers, n_clients, device)

    def encode(self, params: Mapping[str, Tensor], x: Tensor) -> Tensor:
        """Return the features `(clients, batch, d)` of inputs `(clients, batch, …)`."""
        return self._run(self.model.encoder, "encoder", params, x)

    def decode(self, params: Mapping[str, Tensor], features: Tensor) -> Tensor:
        """Return the predictions from features `(clients, batch, d)`."""
        return self._run(self.model.head, "head", params, features)

    def _run(self, module: nn.Module, part: str, params: Mapping[str, Tensor], x: Tensor) -> Tensor:
        """Apply a part of the model with given tensors in place of its own.

        This does the same as `functional_call`, whose overhead exceeds the time of a small model.
        """
        slots = self._slots[part]
        with self._in_use:
            own = [table[key] for table, key, _ in slots]
            try:
                for table, key, name in slots:
                    table[key] = params[name]
                if self.mixed:
                    with torch.autocast(x.device.type, torch.bfloat16):
                        result: Tensor = module(x).float()
                else:
                    result = module(x)
                return result
            finally:
                for (table, key, _), t in zip(slots, own, strict=True):
                    table[key] = t

    @property
    def dropout(self) -> ClientDropout | None:
        """The first layer that drops units, which has all clients' generators; None without one."""
        return self._dropouts[0] if self._dropouts else None

    def drawing(self, generators: Sequence[torch.Generator]) -> AbstractContextManager[None]:
        """Draw each training client's dropout from its own generator within the context."""
        return _drawing(self._dropouts, generators)

    @contextmanager
    def repeating(self) -> Iterator[None]:
        """Let draws after the context repeat those within it."""
        generators = self._dropouts[0].generators if self._dropouts else ()
        states = [g.get_state() for g in generators]
        yield
        for own, state in zip(generators, states, strict=True):
            own.set_state(state)

    def train(self, training: bool = True) -> None:
        """Switch dropout and batch normalisation between training and evaluation."""
        self.model.train(training)


@contextmanager
def _drawing(
    layers: Sequence[ClientDropout], generators: Sequence[torch.Generator]
) -> Iterator[None]:
    try:
        for layer in layers:
            layer.generators = generators
        yield
    finally:
        for layer in layers:
            layer.generators = ()


def _repeat(tensors: Mapping[str, Tensor], n: int, device: torch.device | str) -> Params:
    """Return copies `(n, …)` of tensors `(1, …)`."""
    return {name: t.to(device).expand(n, *t.shape[1:]).clone() for name, t in tensors.items()}


def _slots(model: nn.Module, prefix: str) -> list[tuple[dict[str, Any], str, str]]:
    """Return the dict, key and name of each tensor of a part of a model.

    Tied tensors share one name, the first.
    """
    names: dict[int, str] = {}
    slots = []
    for path, module in model.named_modules():
        for table in (module._parameters, module._buffers):
            for key, t in table.items():
                name = names.setdefault(id(t), f"{path}.{key}")
                if t is not None and f"{path}.".startswith(prefix):
                    slots.append((table, key, name))
    return slots


def feature_width(population: Population) -> int:
    """Return the size d of the features that the model's head takes, see `width_of_head`."""
    return width_of_head(population.model.head)


def width_of_head(head: nn.Module) -> int:
    """Return the `in_features` of a head, or of its first module that has them or is linear.

    Raises:
        InputError: if there is none.
    """
    for module in head.modules():
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
        layers: functions that build its layers with client axes of length 1; they can be pickled,
            such as `partial(ClientLinear, 8, 2)`.

    Attributes:
        parameters: names of the trainable tensors.
        buffers: names of the running statistics.
    """

    def __init__(self, prefix: str, *layers: Callable[[], nn.Module]) -> None:
        self.prefix, self._layers = prefix, layers
        self._net, self._in_use = self._seeded(0), PicklableLock()
        self._dropouts = [m for m in self._net.modules() if isinstance(m, ClientDropout)]
        self.parameters = [prefix + name for name, _ in self._net.named_parameters()]
        self.buffers = [prefix + name for name, _ in self._net.named_buffers()]

    def _seeded(self, seed: int) -> nn.Module:
        with seeded(seed):
            layers = [build() for build in self._layers]
        net = layers[0] if len(layers) == 1 else nn.Sequential(*layers)
        return net.requires_grad_(False)

    def initial(
        self, n: int, seed: int, device: torch.device | str = "cpu"
    ) -> tuple[Params, Params]:
        """Return initial parameters and buffers of `n` clients, `(n, …)`, the same for all."""
        fresh = self._seeded(seed)
        groups = fresh.named_parameters(), fresh.named_buffers()
        parameters, buffers = ({self.prefix + name: t for name, t in group} for group in groups)
        return _repeat(parameters, n, device), _repeat(buffers, n, device)

    def __call__(
        self,
        tensors: Mapping[str, Tensor],
        x: Tensor,
        *,
        training: bool,
        generators: Sequence[torch.Generator] = (),
    ) -> Tensor:
        """Apply the network with given tensors.

        Args:
            tensors: its parameters and buffers by name, `(clients, …)`, and possibly others.
            x: `(clients, batch, width)`.
            training: whether batch normalisation uses the batch and updates running statistics,
                and dropout drops units.
            generators: those of the clients, from which dropout draws.
        """
        own = {
            name.removeprefix(self.prefix): tensors[name]
            for name in (*self.parameters, *self.buffers)
        }
        with self._in_use, _drawing(self._dropouts, generators):
            self._net.train(training)
            result: Tensor = functional_call(self._net, own, (x,), strict=True)
        return result
