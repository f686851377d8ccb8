"""Different image models in one federation, see `stforecast.federated.core.mixed_models`."""

from __future__ import annotations

from dataclasses import dataclass

from stforecast.federated.core.mixed_models import MixedModel, kinds_of, parse_model
from stforecast.federated.core.options import CheckedOptions, Width
from stforecast.federated.core.population import SplitModel
from vision.models.convnet import Shape


@dataclass(frozen=True)
class MixedImageOptions(CheckedOptions):
    """Settings of the mixed model.

    Attributes:
        models: models of the clients, separated by commas, each with its own settings, as in
            "convnet:channels=8, resnet:depth=8". The clients take turns at them.
        feature_size: width of the features of all clients. A linear layer follows an encoder whose
            features have another width.
    """

    models: str = "convnet, resnet"
    feature_size: Width = 128


class MixedImages(MixedModel):
    """One of several encoders for each client, and a linear head.

    Shapes:
        encoder: `(clients, batch, channels, height, width)` bytes to `(clients, batch,
            feature_size)`.
        head: features to `(clients, batch, n_classes)` logits.
    """

    name = "mixed"
    Options = MixedImageOptions
    of_cells = True
    """Whether it distinguishes clients, so that it is no part of another mixed model."""

    def __init__(self, shape: Shape, n_classes: int, options: MixedImageOptions) -> None:
        from vision.models import MODELS

        def build(text: str) -> SplitModel:
            kind, own = parse_model(text, MODELS)
            model: SplitModel = kind(shape, n_classes, own)
            return model

        super().__init__(kinds_of(options.models), build, options.feature_size, n_classes)
