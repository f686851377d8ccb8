"""A small convolutional network in the style of LeNet, for digits and CPUs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import nn

from stforecast.federated.layers import ClientLinear
from stforecast.federated.options import CheckedOptions, Width
from stforecast.federated.population import PerClient, SplitModel
from vision.models.pixels import Pixels, Shape


@dataclass(frozen=True)
class ConvNetOptions(CheckedOptions):
    """Settings of the convolutional network.

    Attributes:
        channels: channels of the first block; the next two have twice as many.
        feature_size: size of features and prototypes.
        norm: batch normalisation, group normalisation (without running statistics) or none.
    """

    channels: Width = 16
    feature_size: Width = 128
    norm: Literal["batch", "group", "none"] = "batch"


class ConvNet(SplitModel):
    """Three blocks of convolution, normalisation, ReLU and pooling, then a linear map.

    Args:
        shape: shape of an image.
        n_classes: number of classes.
        options: settings of the network.

    Shapes:
        encoder: `(clients, batch, channels, height, width)` bytes to `(clients, batch,
            feature_size)`.
        head: features to `(clients, batch, n_classes)` logits.
    """

    name = "convnet"
    summary = "three convolutions and a linear map, for digits and CPUs"
    Options = ConvNetOptions

    def __init__(self, shape: Shape, n_classes: int, options: ConvNetOptions | None = None) -> None:
        options = options or ConvNetOptions()
        c, height, width = options.channels, shape[1] // 8, shape[2] // 8
        encoder = nn.Sequential(
            Pixels(),
            *_block(shape[0], c, options.norm),
            *_block(c, 2 * c, options.norm),
            *_block(2 * c, 2 * c, options.norm),
            nn.Flatten(),
            nn.Linear(2 * c * height * width, options.feature_size),
            nn.ReLU(),
        )
        super().__init__(PerClient(encoder), ClientLinear(options.feature_size, n_classes))


def _block(inputs: int, outputs: int, norm: str) -> list[nn.Module]:
    norms: dict[str, list[nn.Module]] = {
        "batch": [nn.BatchNorm2d(outputs)],
        "group": [nn.GroupNorm(8 if outputs % 8 == 0 else 1, outputs)],
        "none": [],
    }
    conv = nn.Conv2d(inputs, outputs, 3, padding=1, bias=norm == "none")
    return [conv, *norms[norm], nn.ReLU(), nn.MaxPool2d(2)]
