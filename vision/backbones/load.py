"""Where a backbone's weights come from: a file, timm, or a generator."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors.torch import load_file
from torch import Tensor

from data_prep.errors import InputError, reading
from data_prep.limits import check_size
from vision.backbones.backbone import Backbone, Pool, Precision
from vision.backbones.vit import Geometry, ViT, geometry_of
from vision.torchvision_ops import torchvision_models

TINY = "tiny-random"
"""Name of a backbone with random weights, for tests and trials."""

TINY_GEOMETRY = Geometry(patch=4, width=16, depth=5, heads=2, hidden=32, grid=2)

Normalisation = Literal["imagenet", "half"]

NORMALISATIONS: dict[str, tuple[tuple[float, ...], tuple[float, ...]]] = {
    "imagenet": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    "half": ((0.5,), (0.5,)),
}
"""Mean and standard deviation of pixels that pre-trained networks expect, by name.

DINO, DINOv2 and DeiT expect `imagenet`; Google's ViTs (`vit_base_patch16_224`) `half`.
"""


def load_backbone(
    name: str,
    weights: str | Path | None = None,
    *,
    input_size: int,
    pool: Pool = "cls",
    blocks: int = 0,
    normalisation: Normalisation | None = None,
    precision: Precision = "float32",
    cache: str | Path | None = None,
) -> Backbone:
    """A frozen backbone.

    Args:
        name: timm's name of a plain ViT, of which timm loads the pre-trained weights; or
            `tiny-random`. With a weight file it is only a name.
        weights: a `.safetensors` file of a plain ViT under timm's parameter names; half precision
            becomes single.
        input_size: height and width to which images are brought.
        pool: class token or mean of the patch tokens.
        blocks: use only so many blocks; 0 uses all.
        normalisation: of pixels; by default timm's own, or `imagenet` for a weight file.
        precision: of the arithmetic inside.
        cache: folder in which features are kept from run to run.

    Raises:
        InputError: if the file is missing, damaged or no plain ViT, if timm is missing, does not
            know the name or cannot fetch the weights.
    """
    heads, mean, std = None, *NORMALISATIONS["imagenet"]
    if weights is not None:
        tensors, origin = _from_file(Path(weights)), str(weights)
    elif name == TINY:
        tensors, origin, heads = ViT(TINY_GEOMETRY).state_dict(), name, TINY_GEOMETRY.heads
    else:
        (tensors, heads, mean, std), origin = _from_timm(name), name
    if normalisation is not None:
        mean, std = NORMALISATIONS[normalisation]
    return Backbone(
        vit_from(tensors, origin, heads, blocks),
        input_size=input_size,
        pool=pool,
        mean=mean,
        std=std,
        precision=precision,
        cache=Path(cache) if cache else None,
    )


def vit_from(
    tensors: Mapping[str, Tensor], origin: str, heads: int | None = None, blocks: int = 0
) -> ViT:
    """A ViT with given weights, in single precision.

    Args:
        tensors: weights under timm's names; a classification head is left out.
        origin: where they come from, for messages.
        heads: attention heads; by default one for 64 features.
        blocks: keep only so many blocks; 0 keeps all.

    Raises:
        InputError: if they are not those of a plain ViT, or it has fewer blocks.
    """
    own = {
        name: t.float()
        for name, t in tensors.items()
        if not name.startswith(("head.", "fc_norm.")) and name != "mask_token"
    }
    remedy = "take one of the vit_*, deit_* or vit_*_dinov2 models"
    with reading(origin, "as the weights of a plain ViT under timm's names", remedy):
        geometry = geometry_of(own, heads)
        with torch.device("meta"):  # Takes no memory: do the shapes fit?
            ViT(geometry).load_state_dict(own, assign=True)
        if odd := next((name for name, t in own.items() if not t.isfinite().all()), None):
            raise InputError(f"{origin}: {odd} holds NaN or infinity; get the file again")
        whole = ViT(geometry)
        whole.load_state_dict(own)
    depth = whole.geometry.depth
    if not 0 <= blocks <= depth:
        raise InputError(f"blocks is {blocks}; {origin} has {depth}: choose 0 (all) to {depth}")
    if blocks:
        del whole.blocks[blocks:]
    return whole


def _from_file(path: Path) -> dict[str, Tensor]:
    with reading(path, "as safetensors", "give a file of a ViT's weights"):
        check_size(path.stat().st_size, path)
        return load_file(path)


def _from_timm(name: str) -> tuple[dict[str, Tensor], int, tuple[float, ...], tuple[float, ...]]:
    """Pre-trained weights, heads, and mean and standard deviation of pixels."""
    torchvision_models()
    try:
        import timm
    except ImportError as e:
        raise InputError(
            f"{name} comes from timm, which is missing; pip install 'stforecast[vision]', or give "
            "a weight file (--backbone-weights)"
        ) from e
    if not timm.is_model(name):
        close = ", ".join(timm.list_models(f"*{name.split('.')[0]}*")[:5]) or "vit_base_patch16_224"
        raise InputError(f"timm knows no model {name!r}; there are {close}; or {TINY}")
    try:
        model = timm.create_model(name, pretrained=True, num_classes=0)
    except Exception as e:  # Whatever the hub's client raises: no network, no such file.
        raise InputError(
            f"{name}: timm could not fetch the weights ({type(e).__name__}: {e}); download them "
            "where there is a network and give the file (--backbone-weights)"
        ) from e
    if not isinstance(model, timm.models.VisionTransformer):
        raise InputError(f"{name} is a {type(model).__name__}; take a plain Vision Transformer")
    timm_model: Any = model
    config, heads = timm_model.pretrained_cfg, timm_model.blocks[0].attn.num_heads
    return dict(model.state_dict()), heads, tuple(config["mean"]), tuple(config["std"])
