"""Choice of the device to compute on."""

from __future__ import annotations

import torch

from data_prep.errors import InputError


def pick_device(name: str) -> torch.device:
    """Return the device of this name; `auto` is a GPU if there is one, else the CPU.

    Raises:
        InputError: if the device is unknown or not available.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if name.partition(":")[0] not in ("cpu", "cuda"):
        raise InputError(f"device is {name!r}; choose auto, cpu or cuda")
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise InputError(f"device is {name!r}, but torch finds no GPU; use --device cpu")
    return torch.device(name)
