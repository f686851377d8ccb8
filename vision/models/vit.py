"""A frozen Vision Transformer and a linear head: the model of FedTA and of prompt methods."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from annotated_types import Le
from pydantic import NonNegativeInt, PositiveInt
from torch import Tensor, nn

from data_prep.base.errors import InputError, Words
from stforecast.federated.core.layers import ClientLinear
from stforecast.federated.core.options import CheckedOptions
from stforecast.federated.core.population import Population, SplitModel
from vision.backbones.backbone import Backbone
from vision.backbones.load import load_backbone
from vision.models.convnet import Shape


@dataclass(frozen=True)
class ViTOptions(CheckedOptions):
    """Settings of the frozen transformer.

    Attributes:
        backbone: a .safetensors file of a plain ViT with timm's parameter names, of any size; or
            timm's name of one, whose pre-trained weights timm downloads; or `tiny-random` for
            trials.
        heads: attention heads, whose number is not in a weight file; 0 takes timm's number, or for
            a file one per 64 features, as in every standard ViT.
        input_size: height and width of the input, a multiple of the patch size, 2,048 at most.
        pool: the feature: the class token (cls) or the mean of the patch tokens (mean).
        blocks: number of blocks to use, from the first; 0 uses all.
        normalisation: normalisation of pixels: imagenet, half (Google's ViTs), or auto: timm's own,
            or imagenet for a weight file.
        precision: numeric precision: float32, or bfloat16, which is twice as fast on processors
            that support it.
        feature_cache: folder that keeps features of images between runs.
    """

    backbone: str = "vit_base_patch16_224"
    heads: NonNegativeInt = 0
    input_size: Annotated[PositiveInt, Le(2048)] = 224
    pool: Literal["cls", "mean"] = "cls"
    blocks: NonNegativeInt = 0
    normalisation: Literal["auto", "imagenet", "half"] = "auto"
    precision: Literal["float32", "bfloat16"] = "float32"
    feature_cache: str | None = None


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

    def __init__(self, shape: Shape, n_classes: int, options: ViTOptions | None = None) -> None:
        o = options or ViTOptions()
        backbone = load_backbone(
            o.backbone,
            input_size=o.input_size,
            heads=o.heads,
            pool=o.pool,
            blocks=o.blocks,
            normalisation=None if o.normalisation == "auto" else o.normalisation,
            precision=o.precision,
            cache=o.feature_cache,
        )
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
