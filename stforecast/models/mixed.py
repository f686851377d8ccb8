"""Different models in one federation: a client trains one of several encoders, and a head.

Prototypes and heads do not depend on the encoder, so methods that exchange only these let each
client choose its own model (FedProto, FedTGP, LG-FedAvg, FUELS). A method that averages encoders is
refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import functional_call

from data_prep.base.errors import InputError, Words, some
from stforecast.data.clients import Cells
from stforecast.data.window_spec import WindowSpec
from stforecast.federated.core.layers import ClientDropout, ClientLinear, Stacked
from stforecast.federated.core.method import Method
from stforecast.federated.core.options import CheckedOptions, Width, read_settings
from stforecast.federated.core.population import SplitModel, width_of_head
from stforecast.federated.methods.fedavg import FedAvg
from stforecast.federated.methods.two_models import OwnModels

KIND = "encoder.kind"
"""Name of the number of a client's encoder, from 0, in the state of the clients."""


@dataclass(frozen=True)
class MixedOptions(CheckedOptions):
    """Settings of the mixed model.

    Attributes:
        models: models of the clients, separated by commas, each with its own settings, as in
            "dual_gru:hidden_size=16, mlp". A client has the one that the column `model` of the file
            of clients names; without such a column, the models take turns.
        feature_size: width of the features of all clients. A linear layer follows an encoder whose
            features have another width.
    """

    models: str = "dual_gru, mlp"
    feature_size: Width = 32


class Mixed(SplitModel):
    """One of several encoders for each client, and a linear head.

    All clients have the tensors of all encoders; a client trains and uses its own encoder's.

    Shapes:
        encoder: `(clients, batch, window.n_inputs)` to `(clients, batch, feature_size)`.
        head: features to `(clients, batch, window.horizon)`.
    """

    name = "mixed"
    summary = "another model for each client, for methods that average no encoders"
    Options = MixedOptions
    own = ("encoder.",)
    of_cells = True
    reads_covariates = True

    def __init__(
        self, window: WindowSpec, options: MixedOptions | None = None, cells: Cells | None = None
    ) -> None:
        options = options or MixedOptions()
        self.kinds = kinds_of(options.models)
        width, seed, models = options.feature_size, torch.initial_seed(), []
        for text in self.kinds:
            torch.manual_seed(seed)  # As if it were the only model of the federation.
            models.append(_with_features(text, window, width))
        super().__init__(ChosenEncoder([m.encoder for m in models], width), models[0].head)

    def kinds_of_clients(self, clients: Sequence[Cells]) -> Tensor:
        """Return the number of each client's encoder, `(clients,)`.

        Raises:
            InputError: if a client's model is none of `models`.
        """
        for cells in clients:
            if cells.model and cells.model not in self.kinds:
                raise InputError(
                    f"the file of clients has the model {cells.model!r}, which is not among "
                    f"{some(self.kinds)}; ",
                    Words("name it in {models}"),
                )
        turns = [self.kinds.index(c.model) if c.model else i for i, c in enumerate(clients)]
        return torch.tensor(turns) % len(self.kinds)


def check_shares_no_encoder(method: Method) -> None:
    """Refuse a method that sends or pools encoders, which differ.

    Raises:
        InputError: naming methods that exchange something else.
    """
    averages = isinstance(method, FedAvg) and method.shares(KIND)
    if averages or isinstance(method, OwnModels) or method.pooled:
        raise InputError(
            f"{method.name} exchanges whole models or pools data, but the clients' models differ; ",
            Words(
                "give another {model}, or a {method} that exchanges prototypes or heads: fuels, "
                "fedproto, fedtgp or lg_fedavg"
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
        """Map `(clients, batch, n_inputs)` to `(clients, batch, width)`."""
        present = self.kind.unique().tolist()
        if len(present) == 1:
            only: Tensor = self.encoders[present[0]](x)
            return only
        found = x.new_zeros(*x.shape[:2], self.width)
        for kind in present:
            rows = (self.kind == kind).nonzero()[:, 0]
            found = found.index_copy(0, rows, _applied(self.encoders[kind], x[rows], rows))
        return found


def _applied(encoder: nn.Module, x: Tensor, rows: Tensor) -> Tensor:
    """Apply an encoder with the tensors of some clients."""
    state = {**dict(encoder.named_parameters()), **dict(encoder.named_buffers())}
    layers = [m for m in encoder.modules() if isinstance(m, ClientDropout) and m.generators]
    drawn = [layer.generators for layer in layers]
    for layer, all_of_them in zip(layers, drawn, strict=True):
        layer.generators = [all_of_them[i] for i in rows]
    try:
        own = {name: t[rows] for name, t in state.items()}
        result: Tensor = functional_call(encoder, own, (x,))
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


def _with_features(text: str, window: WindowSpec, width: int) -> SplitModel:
    """Build the model of a text such as `mlp:hidden_size=16`, with features of that width."""
    from stforecast.models import MODELS

    name, *settings = text.split(":")
    kind = MODELS.find(name)
    if hasattr(kind, "of_cells"):
        raise InputError(f"{name} distinguishes cells; ", Words("leave it out of {models}"))
    model: SplitModel = kind(window, read_settings(kind.name, kind.Options, settings))
    found = width_of_head(model.head)
    if found == width and type(model.head) is ClientLinear:
        return model
    widened = model.encoder
    if found != width:
        widened = nn.Sequential(model.encoder, ClientLinear(found, width))
    return SplitModel(widened, ClientLinear(width, window.horizon))
