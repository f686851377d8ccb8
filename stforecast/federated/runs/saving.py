"""What predicting needs of a state, as plain arrays for files that nothing is unpickled from."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch

from data_prep.errors import InputError
from stforecast.federated.method import Method, Participants
from stforecast.federated.runs.model_files import AGAIN
from stforecast.federated.state import State


def to_arrays(method: Method, state: State) -> dict[str, np.ndarray]:
    """What predicting needs of a state, by name.

    The optimiser's moments are left out, and where all predictions are by a global model, so are
    clients' copies of it and what they remember.
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
    """Refuse arrays that hold NaN or infinities.

    Raises:
        InputError: naming the first.
    """
    for name, values in arrays.items():
        if values.dtype.kind == "f" and not np.isfinite(values).all():
            raise InputError(f"{name} has values that are not finite; {AGAIN}")


def check_shapes(method: Method, arrays: Mapping[str, np.ndarray], n_clients: int) -> None:
    """Refuse parameters that are not those of a method's model, or not finite.

    Args:
        method: with its model.
        arrays: what `to_arrays` gave.
        n_clients: clients that they are of.

    Raises:
        InputError: naming the first, its shape and the model's.
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
    """The state whose `to_arrays` these are.

    Raises:
        KeyError: if they are not those of a state.
    """
    tensors = {name: torch.from_numpy(np.array(a)) for name, a in arrays.items()}
    on_device = {
        name: t if name == "clients/sizes" else t.to(device) for name, t in tensors.items()
    }
    return State.from_flat(on_device, round, seed)
