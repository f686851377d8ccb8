"""Different forecasting models in one federation, see `stforecast.federated.core.mixed_models`.

Clients may have different inputs, too: a client whose model has `inputs=none` reads no further
services, so its operator needs none. Its encoder has the weights of a smaller window alone.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from torch import Tensor, nn

from data_prep.base.errors import choose
from stforecast.data.clients import Cells
from stforecast.data.window_spec import WindowSpec
from stforecast.federated.core.mixed_models import MixedModel, kinds_of, parse_model
from stforecast.federated.core.options import CheckedOptions, Width
from stforecast.federated.core.population import SplitModel

READS = "inputs="
"""Begin of the setting of a model that names the further services that it reads."""


@dataclass(frozen=True)
class MixedOptions(CheckedOptions):
    """Settings of the mixed model.

    Attributes:
        models: models of the clients, separated by commas, each with its own settings, as in
            "dual_gru:hidden_size=16, mlp". A client has the one that the column `model` of the file
            of clients names; without such a column, the models take turns. One with inputs=none, or
            inputs=sms+call, reads none or some of the run's further services.
        feature_size: width of the features of all clients. A linear layer follows an encoder whose
            features have another width.
    """

    models: str = "dual_gru, mlp"
    feature_size: Width = 32


class Mixed(MixedModel):
    """One of several encoders for each client, and a linear head.

    Shapes:
        encoder: `(clients, batch, window.n_inputs)` to `(clients, batch, feature_size)`.
        head: features to `(clients, batch, window.horizon)`.
    """

    name = "mixed"
    Options = MixedOptions
    of_cells = True
    reads_covariates = True

    def __init__(
        self, window: WindowSpec, options: MixedOptions | None = None, cells: Cells | None = None
    ) -> None:
        from stforecast.models import MODELS

        def build(text: str) -> SplitModel:
            rest, own, places = read_inputs(text, window)
            kind, settings = parse_model(rest, MODELS)
            model: SplitModel = kind(own, settings)
            if len(places) < window.n_inputs:
                model.encoder = nn.Sequential(SomeInputs(places), model.encoder)
            return model

        options = options or MixedOptions()
        super().__init__(kinds_of(options.models), build, options.feature_size, window.horizon)


class SomeInputs(nn.Module):
    """First layer of an encoder of smaller windows: leaves out the inputs of all others.

    Shapes:
        x: `(clients, batch, window.n_inputs)` to `(clients, batch, places)`.
    """

    def __init__(self, places: Sequence[int]) -> None:
        super().__init__()
        self.places = list(places)

    def forward(self, x: Tensor) -> Tensor:
        """Return the inputs at these places."""
        return x[..., self.places]


def read_inputs(text: str, window: WindowSpec) -> tuple[str, WindowSpec, list[int]]:
    """Return a model's text without its inputs, its own window, and their places among all inputs.

    >>> window = WindowSpec(closeness=1, periods=0, inputs="sms,call", input_steps=2)
    >>> text, own, places = read_inputs("mlp:inputs=call", window)
    >>> text, own.inputs, places
    ('mlp', 'call', [0, 2, 4])

    Raises:
        InputError: if the windows have no such service.
    """
    settings, services = text.split(":"), window.services
    asked = [setting.removeprefix(READS) for setting in settings if setting.startswith(READS)]
    read = services
    for names in asked:
        read = () if names == "none" else tuple(names.split("+"))
    if unknown := [name for name in read if name not in services]:
        raise choose("further service", unknown[0], ("none", *services))
    own = dataclasses.replace(window, inputs=",".join(name for name in services if name in read))
    first = window.n_inputs - window.n_profile - window.n_covariates
    left_out = {
        first + step * len(services) + place
        for step in range(window.input_steps)
        for place, name in enumerate(services)
        if name not in read
    }
    places = [place for place in range(window.n_inputs) if place not in left_out]
    return _without_inputs(text), own, places


def unread_services(models: Iterable[str], window: WindowSpec) -> tuple[str, ...]:
    """Return the further services of windows that none of these models reads.

    >>> unread_services(["mlp:inputs=call"], WindowSpec(inputs="sms,call"))
    ('sms',)
    """
    read = {name for text in models for name in read_inputs(text, window)[1].services}
    return tuple(name for name in window.services if name not in read)


def with_own_inputs(options: MixedOptions, model: str) -> MixedOptions:
    """Return the settings of a node whose model may read other services than the federation's.

    >>> with_own_inputs(MixedOptions("dual_gru, mlp"), "mlp:inputs=none").models
    'dual_gru, mlp, mlp:inputs=none'
    """
    kinds = kinds_of(options.models)
    if model in kinds or _without_inputs(model) not in map(_without_inputs, kinds):
        return options
    return dataclasses.replace(options, models=f"{options.models}, {model}")


def _without_inputs(text: str) -> str:
    """Return a model's text without the setting of its inputs."""
    return ":".join(part for part in text.split(":") if not part.startswith(READS))
