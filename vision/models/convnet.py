"""Small convolutional networks, and the layer of pixels with which every image model begins."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from data_prep.base.errors import InputError
from stforecast.federated.core.layers import ClientLinear
from stforecast.federated.core.options import CheckedOptions, Width
from stforecast.federated.core.population import PerClient, SplitModel

Shape = tuple[int, int, int]
"""Channels, height and width of an image."""


class Pixels(nn.Module):
    """First layer: scales bytes to floats from -1 to 1, so that images are kept as bytes.

    Shapes:
        x: `(…, channels, height, width)` uint8, or floats from 0 to 1; returns float32.

    Example:
        >>> Pixels()(torch.tensor([[[[0, 255]]]], dtype=torch.uint8))
        tensor([[[[-1.,  1.]]]])
    """

    any_shape = True
    """Whether it works with further leading axes, such as one of clients."""

    def forward(self, x: Tensor) -> Tensor:
        """Scale a batch."""
        x = x.float() / 255 if x.dtype == torch.uint8 else x
        return (x - 0.5) / 0.5


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
    """Three blocks of convolution, normalisation, ReLU and pooling, then a linear map, as in LeNet.

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


SIDE, WIDTH = 5, 512
"""Height and width of a convolution's window, and number of features."""


@dataclass(frozen=True)
class CNNOptions(CheckedOptions):
    """Settings of the network.

    Attributes:
        padding: `same` keeps an image's size in a convolution, as in the paper; `none` makes it 4
            pixels smaller, as much code does.
    """

    padding: Literal["same", "none"] = "same"


class CNN(SplitModel):
    """Two convolutions with pooling, then a linear map to 512 features, as in the paper on FedAvg.

    McMahan et al.: Communication-Efficient Learning of Deep Networks from Decentralized Data,
    AISTATS 2017, arXiv 1602.05629, section 3: two 5 × 5 convolutions with 32 and 64 channels, each
    with 2 × 2 pooling, and 512 hidden units. With images of 28 × 28 pixels in 10 classes that is
    1,663,370 parameters. It is usual in benchmarks of federated learning.

    Shapes:
        encoder: `(clients, batch, channels, height, width)` bytes to `(clients, batch, 512)`.
        head: features to `(clients, batch, n_classes)` logits.

    Raises:
        InputError: if the images are too small.
    """

    name = "cnn"
    summary = "FedAvg's two convolutions with 32 and 64 channels, and 512 features"
    Options = CNNOptions

    def __init__(self, shape: Shape, n_classes: int, options: CNNOptions | None = None) -> None:
        options = options or CNNOptions()
        padding = SIDE // 2 if options.padding == "same" else 0
        growth = 2 * padding - SIDE + 1
        height, width = (((n + growth) // 2 + growth) // 2 for n in shape[1:])
        if min(height, width) < 1:
            raise InputError(f"images of {shape[1]} × {shape[2]} pixels are too small for the cnn")
        encoder = nn.Sequential(
            Pixels(),
            *(nn.Conv2d(shape[0], 32, SIDE, padding=padding), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Conv2d(32, 64, SIDE, padding=padding), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Flatten(), nn.Linear(64 * height * width, WIDTH), nn.ReLU()),
        )
        super().__init__(PerClient(encoder), ClientLinear(WIDTH, n_classes))
