"""Conversion of a state to plain arrays for predicting, which are saved without pickle."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch

from data_prep.errors import InputError
from stforecast.federated.method import Method, Participants
from stforecast.federated.runs.model_files import AGAIN
from stforecast.federated.state import State


def to_arrays(method: Method, state: State) -> dict[str, np.ndarray]:
    """Return the arrays of a state that predicting needs, by name.

    The optimiser's moments are left out. If only a global model predicts, the clients' copies of it
    and their memory are left out too.
    """
    clients = state.clients
    everyone = Participants(torch.arange(len(clients)), clients.sizes, state.round)
    received = method.broadcast(state.server, everyone)
    everyones = method.views == ("global",)
    replaced = received if everyones else {}
    left_out = ("clients/moments.", *(["clients/memory/"] if everyones else []))
    return {
        name: t.detach().cpu().contiguous().numpy()
        for name, t in state.flat().items()
        if not name.startswith(left_out) and name.removeprefix("clients/params/") not in replaced
    }


def check_finite(arrays: Mapping[str, np.ndarray]) -> None:
    """Check that arrays hold neither NaN nor infinity.

    Raises:
        InputError: with the name of the first invalid array.
    """
    for name, values in arrays.items():
        if values.dtype.kind == "f" and not np.isfinite(values).all():
            raise InputError(f"{name} has values that are not finite; {AGAIN}")


def check_shapes(method: Method, arrays: Mapping[str, np.ndarray], n_clients: int) -> None:
    """Check that parameters are finite and have the shapes of a method's model.

    Args:
        method: the method with its model.
        arrays: result of `to_arrays`.
        n_clients: expected number of clients.

    Raises:
        InputError: with the first invalid array, its shape and the model's.
    """
    for name, like in method.population.initial().items():
        held = (f"clients/params/{name}", f"clients/buffers/{name}", f"server/{name}")
        check_finite({key: arrays[key] for key in held if key in arrays})
        for group in ("params", "buffers"):
            key, expected = f"clients/{group}/{name}", (n_clients, *like.shape[1:])
            if key in arrays and arrays[key].shape != expected:
                raise InputError(
                    f"{key} has shape {arrays[key].shape}, the settings say {expected}; {AGAIN}"
                )


def from_arrays(
    arrays: Mapping[str, np.ndarray], round: int, seed: int, device: torch.device
) -> State:
    """Return the state that `to_arrays` converted to these arrays.

    Raises:
        KeyError: if they are not of a state.
    """
    tensors = {name: torch.tensor(a) for name, a in arrays.items()}
    on_device = {
        name: t if name == "clients/sizes" else t.to(device) for name, t in tensors.items()
    }
    return State.from_flat(on_device, round, seed)
