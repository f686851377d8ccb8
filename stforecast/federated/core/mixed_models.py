"""Different models in one federation: a client trains one of several encoders, and a head.

Prototypes and heads do not depend on the encoder, so methods that exchange only these let each
client choose its own model (FedProto, FedTGP, FedGH, LG-FedAvg, FUELS, PFPL). A method that sends
encoders is refused.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from data_prep.base.errors import InputError, Words, counted, some
from data_prep.base.registry import Registry
from stforecast.federated.core.layers import ClientDropout, ClientLinear, Stacked
from stforecast.federated.core.method import Method
from stforecast.federated.core.options import read_settings
from stforecast.federated.core.population import SplitModel, width_of_head
from stforecast.federated.core.state import KIND, seed_torch

log = logging.getLogger(__name__)


class MixedModel(SplitModel):
    """One of several encoders for each client, and a linear head.

    All clients have the tensors of all encoders; a client trains and uses its own encoder's. A
    linear layer follows an encoder whose features have another width.

    Args:
        kinds: texts of the models, such as `mlp:hidden_size=16`.
        build: builds the model of a text.
        width: width of the features of all clients.
        n_outputs: width of the predictions.

    Shapes:
        encoder: `(clients, batch, …)` to `(clients, batch, width)`.
        head: features to `(clients, batch, n_outputs)`.
    """

    summary = "another model for each client, for methods that average no encoders"
    own = ("encoder.",)

    def __init__(
        self, kinds: Sequence[str], build: Callable[[str], SplitModel], width: int, n_outputs: int
    ) -> None:
        self.kinds, self.width, self.widths = kinds, width, []
        seed, models = torch.initial_seed(), []
        for text in kinds:
            seed_torch(seed)  # As if it were the only model of the federation.
            model = build(text)
            self.widths.append(width_of_head(model.head))
            models.append(_with_features(model, self.widths[-1], width, n_outputs))
        super().__init__(ChosenEncoder([m.encoder for m in models], width), models[0].head)

    def kinds_of_clients(self, models: Sequence[str]) -> Tensor:
        """Return the number of each client's encoder, `(clients,)`, and log who has which.

        Each client has one of the `models`; clients with "" take turns.

        Raises:
            InputError: if a client's model is none of `kinds`.
        """
        for model in models:
            if model and model not in self.kinds:
                raise InputError(
                    f"a client has the model {model!r}, which is not among {some(self.kinds)}; ",
                    Words("name it in {models}"),
                )
        turns = [self.kinds.index(m) if m else i % len(self.kinds) for i, m in enumerate(models)]
        if len(turns) > 1:
            for kind, (text, own) in enumerate(zip(self.kinds, self.widths, strict=True)):
                mapped = "" if own == self.width else f", mapped from {own} by a linear layer"
                clients = counted(turns.count(kind), "client")
                log.info("%s: %s with %d features%s", text, clients, self.width, mapped)
        return torch.tensor(turns)


def check_shares_no_encoder(method: Method) -> None:
    """Refuse a method that sends encoders, which differ, or pools data.

    Raises:
        InputError: naming methods that exchange something else.
    """
    if method.shares(KIND) or method.pooled:
        optional = hasattr(method.options, "share_body")
        raise InputError(
            f"{method.name} exchanges whole models or pools data, but the clients' models differ; ",
            Words("give {share_body}, or " if optional else "give ", share_body=False),
            Words(
                "another {model}, or a {method} that exchanges prototypes or heads, such as "
                "fedproto, fedtgp, fedgh or lg_fedavg"
            ),
        )


class ChosenEncoder(Stacked):
    """Applies each client's own encoder, by its number in the buffer `kind`."""

    kind: Tensor

    def __init__(self, encoders: Sequence[nn.Module], width: int) -> None:
        super().__init__()
        self.encoders, self.width = nn.ModuleList(encoders), width
        self.register_buffer("kind", torch.zeros(1, dtype=torch.long))

    def forward(self, x: Tensor) -> Tensor:
        """Map inputs `(clients, batch, …)` to features `(clients, batch, width)`."""
        present = self.kind.unique().tolist()
        if len(present) == 1:
            only: Tensor = self.encoders[present[0]](x)
            return only
        rows = [(self.kind == kind).nonzero()[:, 0] for kind in present]
        features = [
            _applied(self.encoders[kind], x[own], own)
            for kind, own in zip(present, rows, strict=True)
        ]
        return torch.cat(features)[torch.cat(rows).argsort()]


def _applied(encoder: nn.Module, x: Tensor, rows: Tensor) -> Tensor:
    """Apply an encoder with the tensors of some clients, and keep their running statistics."""
    buffers = dict(encoder.named_buffers())
    layers = [m for m in encoder.modules() if isinstance(m, ClientDropout) and m.generators]
    drawn = [layer.generators for layer in layers]
    for layer, all_of_them in zip(layers, drawn, strict=True):
        layer.generators = [all_of_them[i] for i in rows]
    try:
        own = {n: t[rows] for n, t in {**dict(encoder.named_parameters()), **buffers}.items()}
        result: Tensor = functional_call(encoder, own, (x,))
        if encoder.training:
            for name, t in buffers.items():
                t[rows] = own[name]
        return result
    finally:
        for layer, all_of_them in zip(layers, drawn, strict=True):
            layer.generators = all_of_them


def kinds_of(models: str) -> list[str]:
    """Return the texts of several models.

    >>> kinds_of("dual_gru:hidden_size=16, mlp")
    ['dual_gru:hidden_size=16', 'mlp']
    """
    kinds = [text.strip() for text in models.split(",")]
    if not all(kinds) or len(set(kinds)) < len(kinds):
        raise InputError(f"models is {models!r}; name different models, separated by commas")
    return kinds


def models_of_node(config: Any, own: str, first: int, n: int) -> list[str]:
    """Return the model of each of a node's n clients; "" if the federation has one for all.

    Given are the federation's settings, the model that the node's owner has chosen ("" for turns),
    and the number of the node's first client.

    Raises:
        InputError: if the owner has chosen one, and the federation has one for all.
    """
    models = getattr(config.model_options, "models", "")
    if own and not models:
        raise InputError(
            f"this node has the model {own!r}, but all clients of the federation have "
            f"{config.run.model}; ",
            Words("leave {model} out of the node's settings"),
        )
    kinds = kinds_of(models) if models else [""]
    return [own or kinds[(first + i) % len(kinds)] for i in range(n)]


def parse_model(text: str, models: Registry[Any]) -> tuple[Any, Any]:
    """Return the class and the options that a text such as `mlp:hidden_size=16` names.

    Raises:
        InputError: if there is no such model or setting, or if the model needs to know its cells.
    """
    name, *settings = text.split(":")
    kind = models.find(name)
    if hasattr(kind, "of_cells"):
        raise InputError(f"{name} distinguishes cells; ", Words("leave it out of {models}"))
    return kind, read_settings(name, kind.Options, settings)


def _with_features(model: SplitModel, own: int, width: int, n_outputs: int) -> SplitModel:
    """Return the model, whose features have the width `own`, with features of another width."""
    if own == width and type(model.head) is ClientLinear:
        return model
    encoder = model.encoder
    if own != width:
        encoder = nn.Sequential(encoder, ClientLinear(own, width))
    return SplitModel(encoder, ClientLinear(width, n_outputs))
