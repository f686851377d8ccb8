"""Different forecasting models in one federation, see `stforecast.federated.core.mixed_models`."""

from __future__ import annotations

from dataclasses import dataclass

from stforecast.data.clients import Cells
from stforecast.data.window_spec import WindowSpec
from stforecast.federated.core.mixed_models import MixedModel, kinds_of, parse_model
from stforecast.federated.core.options import CheckedOptions, Width
from stforecast.federated.core.population import SplitModel


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
            kind, own = parse_model(text, MODELS)
            model: SplitModel = kind(window, own)
            return model

        options = options or MixedOptions()
        super().__init__(kinds_of(options.models), build, options.feature_size, window.horizon)
