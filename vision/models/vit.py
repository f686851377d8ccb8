"""A frozen Vision Transformer and a linear head: the model of FedTA and of prompt methods."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from data_prep.base.errors import InputError, Words
from stforecast.federated.core.layers import ClientLinear
from stforecast.federated.core.population import Population, SplitModel
from vision.backbones.backbone import Backbone
from vision.backbones.load import ViTOptions, load_backbone
from vision.models.convnet import Shape


class FrozenEncoder(nn.Module):
    """Encoder that returns the backbone's features. It has no parameters for clients to train.

    Shapes:
        x: `(clients, batch, channels, height, width)` to `(clients, batch, width)`.
    """

    def __init__(self, backbone: Backbone) -> None:
        super().__init__()
        self.backbone = backbone

    def forward(self, x: Tensor) -> Tensor:
        """Return cached features, or compute them."""
        return self.backbone.query(x)


class FrozenViT(SplitModel):
    """A frozen transformer with a trainable linear head on its features.

    The head starts at zero. Where a client trains among the classes of its present task, the logits
    of all others get no gradient, so random ones would be predicted by chance for ever.

    Shapes:
        encoder: `(clients, batch, channels, height, width)` bytes to `(clients, batch, width)`.
        head: features to `(clients, batch, n_classes)` logits.
    """

    name = "vit"
    summary = "frozen pre-trained Vision Transformer with a linear head"
    Options = ViTOptions

    def __init__(self, shape: Shape, n_classes: int, options: ViTOptions) -> None:
        backbone = load_backbone(options)
        head = ClientLinear(backbone.width, n_classes)
        with torch.no_grad():
            head.weight.zero_()
            head.bias.zero_()
        super().__init__(FrozenEncoder(backbone), head)


def backbone_of(population: Population, method: str) -> Backbone:
    """Return the frozen backbone of a model, or raise an error that names the method."""
    encoder = population.model.encoder
    if not isinstance(encoder, FrozenEncoder):
        raise InputError(
            f"{method} needs a model with a frozen backbone; ", Words("give {model:vit}")
        )
    return encoder.backbone
