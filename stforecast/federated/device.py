"""Where to compute."""

from __future__ import annotations

import torch

from data_prep.errors import InputError


def pick_device(name: str) -> torch.device:
    """`auto` is a GPU where there is one.

    Raises:
        InputError: if the device is not known or not there.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if name.partition(":")[0] not in ("cpu", "cuda"):
        raise InputError(f"device is {name!r}; choose auto, cpu or cuda")
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise InputError(f"device is {name!r}, but torch finds no GPU here; use --device cpu")
    return torch.device(name)
