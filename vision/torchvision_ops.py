"""Import of torchvision with a torch that was built for another device.

On import, a torchvision built for CUDA registers fake kernels for operators of its C++ library;
with a CPU torch that library is not loaded and the import fails. Defining the two operators first
is enough for models and data sets, which do not use them.
"""

from __future__ import annotations

import importlib.util
from types import ModuleType

import torch

from data_prep.base.errors import InputError

_library: torch.library.Library | None = None


def torchvision_models() -> ModuleType:
    """Import and return the module `torchvision.models`."""
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
