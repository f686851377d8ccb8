"""Loading of a backbone's weights from a file, from timm and its hub, or at random."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any, Literal
from unittest import mock

import torch
from annotated_types import Le
from pydantic import NonNegativeInt, PositiveInt
from safetensors.torch import load_file
from torch import Tensor

from data_prep.base.errors import InputError, Words, needing, reading
from data_prep.base.limits import check_size
from stforecast.federated.core.options import CheckedOptions
from vision.backbones.backbone import Backbone, Pool, Precision
from vision.backbones.vit import Geometry, ViT, geometry_of


@contextmanager
def reachable_hub() -> Iterator[bool]:
    """Tell whether the hub answers; if not, its client reads only what it has kept on disk.

    Without this, the client asks for each file six times, with a warning and a longer pause each.
    """
    from huggingface_hub import constants, get_session

    answers = True
    try:  # The client's own session knows proxies and the offline mode; its timeout is 10 s, too.
        get_session().head(constants.ENDPOINT, timeout=10)
    except Exception:  # Each version of the client has types of its own.
        answers = False
    offline = constants.HF_HUB_OFFLINE or not answers
    with mock.patch.object(constants, "HF_HUB_OFFLINE", offline):
        yield answers


TINY = "tiny-random"
"""Name of a backbone with random weights, for tests and trials."""

TINY_GEOMETRY = Geometry(patch=4, width=16, depth=5, heads=2, hidden=32, grid=2)

REMEDY = "use one of the vit_*, deit_* or vit_*_dinov2 models"

NORMALISATIONS: dict[str, tuple[tuple[float, ...], tuple[float, ...]]] = {
    "imagenet": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    "half": ((0.5,), (0.5,)),
}
"""Mean and standard deviation of pixels that pre-trained networks expect, by name.

DINO, DINOv2 and DeiT expect `imagenet`; Google's ViTs (`vit_base_patch16_224`) `half`.
"""


@dataclass(frozen=True)
class ViTOptions(CheckedOptions):
    """Settings of the frozen transformer.

    Attributes:
        backbone: a .safetensors file of a plain ViT with timm's parameter names, of any size; or
            timm's name of one, whose pre-trained weights timm downloads; or `tiny-random` for
            trials with an input of 16.
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
    pool: Pool = "cls"
    blocks: NonNegativeInt = 0
    normalisation: Literal["auto", "imagenet", "half"] = "auto"
    precision: Precision = "float32"
    feature_cache: str | None = None


def load_backbone(options: ViTOptions) -> Backbone:
    """Load a frozen backbone.

    Raises:
        InputError: if the file is missing, damaged or not a plain ViT, or if timm is missing, has
            no such model or cannot download the weights.
    """
    name, known, (mean, std) = options.backbone, None, NORMALISATIONS["imagenet"]
    if (path := Path(name)).suffix == ".safetensors" or path.is_file():
        with reading(path, "as safetensors", "give a file of a ViT's weights"):
            check_size(path.stat().st_size, path)
            tensors = load_file(path)
    elif name == TINY:
        tensors, known = ViT(TINY_GEOMETRY).state_dict(), TINY_GEOMETRY.heads
    else:
        tensors, known, mean, std = _from_timm(name)
    if options.normalisation != "auto":
        mean, std = NORMALISATIONS[options.normalisation]
    return Backbone(
        vit_from(tensors, name, options.heads or known, options.blocks),
        input_size=options.input_size,
        pool=options.pool,
        mean=mean,
        std=std,
        precision=options.precision,
        cache=Path(options.feature_cache) if options.feature_cache else None,
    )


def vit_from(
    tensors: Mapping[str, Tensor], origin: str, heads: int | None = None, blocks: int = 0
) -> ViT:
    """Build a ViT in single precision from weights under timm's names, without their head.

    By default there is one attention head per 64 features; 0 `blocks` keep all. `origin` names the
    source of the weights in messages.
    """
    own = {
        name: t.float()
        for name, t in tensors.items()
        if not name.startswith(("head.", "fc_norm.")) and name != "mask_token"
    }
    with reading(origin, "as the weights of a plain ViT under timm's names", REMEDY):
        sizing = ("patch_embed.proj.weight", "pos_embed", "cls_token", "blocks.0.mlp.fc1.weight")
        if missing := next((name for name in sizing if name not in own), None):
            other = next((f"{name} {tuple(t.shape)}" for name, t in own.items()), "nothing")
            raise InputError(
                f"{origin}: found no {missing}, but e.g. {other}; expected the weights of a plain "
                f"ViT under timm's names; {REMEDY}"
            )
        geometry = geometry_of(own, heads)
        _check_shapes(own, geometry, origin)
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


def _check_shapes(weights: Mapping[str, Tensor], geometry: Geometry, origin: str) -> None:
    """Refuse weights that do not belong to a ViT of these sizes; uses no memory."""
    with torch.device("meta"):
        expected = {name: tuple(t.shape) for name, t in ViT(geometry).state_dict().items()}
    found = {name: tuple(t.shape) for name, t in weights.items()}
    for name in (*expected, *found):
        if found.get(name) != expected.get(name):
            g = geometry
            raise InputError(
                f"{origin}: {name}: found {found.get(name, 'nothing')}, expected "
                f"{expected.get(name, 'nothing')} in a plain ViT of width {g.width}, {g.depth} "
                f"blocks and {g.patch} px patches for images of {g.grid * g.patch} px; {REMEDY}"
            )


def _from_timm(name: str) -> tuple[dict[str, Tensor], int, tuple[float, ...], tuple[float, ...]]:
    """Return pre-trained weights, number of heads, and mean and deviation of pixels."""
    torchvision_models()
    instead = Words(", or give a weight file by {backbone}")
    with needing("vision", f"{name} comes from timm, which is missing", instead):
        import timm
    if not timm.is_model(name):
        close = ", ".join(timm.list_models(f"*{name.split('.')[0]}*")[:5]) or "vit_base_patch16_224"
        raise InputError(f"timm has no model {name!r}; choose e.g. {close}, or {TINY}")
    with reachable_hub() as reachable:
        try:
            model = timm.create_model(name, pretrained=True, num_classes=0)
        except Exception as e:  # The hub's client raises many types: no network, no such file.
            known: Any = timm.get_pretrained_cfg(name)
            reason = f"{type(e).__name__}: {e}" if reachable else "no network"
            half = (
                Words(" and {normalisation:half}") if tuple(known.mean) == (0.5, 0.5, 0.5) else ""
            )
            raise InputError(
                f"{name}: cannot download its weights ({reason}); where there is a network, get "
                f"model.safetensors from https://huggingface.co/{known.hf_hub_id}; ",
                Words("give it with {backbone}{}", half),
                Words(", or for a trial, {backbone} {input_size}", backbone=TINY, input_size=16),
            ) from e
    if not isinstance(model, timm.models.VisionTransformer):
        raise InputError(f"{name} is a {type(model).__name__}; use a plain Vision Transformer")
    timm_model: Any = model
    config, heads = timm_model.pretrained_cfg, timm_model.blocks[0].attn.num_heads
    return dict(model.state_dict()), heads, tuple(config["mean"]), tuple(config["std"])


_library: torch.library.Library | None = None


def torchvision_models() -> ModuleType:
    """Import and return the module `torchvision.models`.

    On import, a torchvision built for CUDA registers fake kernels for operators of its C++ library;
    with a CPU torch that library is not loaded and the import fails. Defining the two operators
    first is enough for models, which do not use them.
    """
    global _library
    if importlib.util.find_spec("torchvision") is None:
        raise InputError("this model needs torchvision; pip install 'stforecast[vision]'")
    try:
        import torchvision.models
    except RuntimeError as e:
        if "torchvision::" not in str(e) or _library is not None:
            raise
        _library = torch.library.Library("torchvision", "DEF")
        for operator in ("nms", "qnms"):
            _library.define(f"{operator}(Tensor dets, Tensor scores, float iou) -> Tensor")
        import torchvision.models
    return torchvision.models
