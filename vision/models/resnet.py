"""Residual networks: ResNet-18, and He et al.'s small ones for 32 × 32 images.

He, Zhang, Ren, Sun: Deep Residual Learning for Image Recognition, CVPR 2016, arXiv 1512.03385,
section 3.3 (ResNet-18) and 4.2 (the CIFAR family of 6n + 2 layers). Blocks are torchvision's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from annotated_types import Ge, Le
from torch import nn

from data_prep.base.errors import InputError
from stforecast.federated.core.layers import ClientLinear
from stforecast.federated.core.options import CheckedOptions, Width
from stforecast.federated.core.population import PerClient, SplitModel
from vision.backbones.load import torchvision_models
from vision.models.convnet import Pixels, Shape


@dataclass(frozen=True)
class ResNet18Options(CheckedOptions):
    """Settings of ResNet-18.

    Attributes:
        stem: first layers: `cifar`, a 3 × 3 convolution without pooling, for small images, or
            `imagenet`, 7 × 7 with stride 2 and pooling.
    """

    stem: Literal["cifar", "imagenet"] = "cifar"


class ResNet18(SplitModel):
    """ResNet-18 with 512 features, initialised at random.

    Shapes:
        encoder: `(clients, batch, channels, height, width)` bytes to `(clients, batch, 512)`.
        head: features to `(clients, batch, n_classes)` logits.
    """

    name = "resnet18"
    summary = "ResNet-18 with batch normalisation and 512 features"
    Options = ResNet18Options

    def __init__(
        self, shape: Shape, n_classes: int, options: ResNet18Options | None = None
    ) -> None:
        options = options or ResNet18Options()
        body = torchvision_models().resnet18()
        kernel, stride, padding = (3, 1, 1) if options.stem == "cifar" else (7, 2, 3)
        body.conv1 = nn.Conv2d(shape[0], 64, kernel, stride, padding, bias=False)
        if options.stem == "cifar":
            body.maxpool = nn.Identity()
        body.fc = nn.Identity()
        super().__init__(PerClient(nn.Sequential(Pixels(), body)), ClientLinear(512, n_classes))


@dataclass(frozen=True)
class ResNetOptions(CheckedOptions):
    """Settings of a small residual network.

    Attributes:
        depth: number of layers, 6n + 2: 8, 14, 20, …
        width: channels of the first stage; there are four times as many features.
    """

    depth: Annotated[int, Ge(8), Le(1202)] = 8  # He et al. trained no deeper network.
    width: Width = 16

    def __post_init__(self) -> None:
        """Refuse depths between two networks."""
        super().__post_init__()
        if self.depth % 6 != 2:
            raise InputError(f"depth is {self.depth}; a small ResNet has 6n + 2 layers: 8, 14, 20")


class ResNet(SplitModel):
    """Three stages of n blocks at full, half and quarter resolution, then the mean over pixels.

    Shapes:
        encoder: `(clients, batch, channels, height, width)` bytes to `(clients, batch, 4 width)`.
        head: features to `(clients, batch, n_classes)` logits.
    """

    name = "resnet"
    summary = "small ResNet for 32 × 32 images (ResNet-8, 14, 20, …)"
    Options = ResNetOptions

    def __init__(self, shape: Shape, n_classes: int, options: ResNetOptions | None = None) -> None:
        options = options or ResNetOptions()
        w, n = options.width, (options.depth - 2) // 6
        stem = [nn.Conv2d(shape[0], w, 3, padding=1, bias=False), nn.BatchNorm2d(w), nn.ReLU()]
        stages = [_stage(w, w, n, 1), _stage(w, 2 * w, n, 2), _stage(2 * w, 4 * w, n, 2)]
        pool = [nn.AdaptiveAvgPool2d(1), nn.Flatten()]
        encoder = nn.Sequential(Pixels(), *stem, *stages, *pool)
        for module in encoder.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
        super().__init__(PerClient(encoder), ClientLinear(4 * w, n_classes))


def _stage(inputs: int, outputs: int, blocks: int, stride: int) -> nn.Sequential:
    block: Any = torchvision_models().resnet.BasicBlock
    shortcut = None
    if stride > 1 or inputs != outputs:
        shortcut = nn.Sequential(
            nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)
        )
    first = block(inputs, outputs, stride, shortcut)
    return nn.Sequential(first, *(block(outputs, outputs) for _ in range(blocks - 1)))
