"""The two files of a saved model, without pickle: a description in JSON and `state.safetensors`."""

from __future__ import annotations

import json
import mmap
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.numpy import load_file, save_file

from data_prep.base.errors import InputError, no_file, reading
from data_prep.base.files import atomic_path, checksum
from stforecast.federated.core.method import Method
from stforecast.federated.core.state import State
from stforecast.federated.engine.sizing import MAPPED
from stforecast.federated.runs.run_folder import (
    FORMAT,
    checksum_of_json,
    read_json,
    versions,
    write_json,
)

IN_SERVICE = Path("service") / "current" / "model"
"""Where, in a run's folder, `stforecast update` puts the model that replaces the run's own."""

STATE = "state.safetensors"
"""File of the arrays."""

AGAIN = "fit and save it again"
"""Remedy for an unusable saved model."""


def write_model(
    folder: Path, name: str, about: dict[str, Any], arrays: dict[str, np.ndarray]
) -> None:
    """Write both files atomically, with versions and checksums."""
    with atomic_path(folder / STATE) as part:
        # Unlike ascontiguousarray, require keeps arrays without axes.
        save_file({name: np.require(a, requirements="C") for name, a in arrays.items()}, part)
        about = {"format": FORMAT, **about, "state": checksum(part), "versions": versions()}
    write_json(folder / name, {**about, "checksum": checksum_of_json(about)})


def as_written(about: Mapping[str, Any]) -> bool:
    """Return whether a description is as these versions of the packages wrote it."""
    return bool(
        about.get("versions") == versions() and about.get("checksum") == checksum_of_json(about)
    )


def link_model(source: Path, target: Path, name: str) -> bool:
    """Give a folder the files of a model in another; False if other versions wrote these."""
    if not as_written(read_json(source / name, AGAIN)):
        return False
    target.mkdir(parents=True)
    for file in (name, STATE):
        try:
            os.link(source / file, target / file)
        except OSError:  # Not all file systems have links.
            shutil.copyfile(source / file, target / file)
    return True


def read_model(
    folder: Path, name: str, saver: str, *, mapped: bool = False
) -> tuple[Path, dict[str, Any], dict[str, np.ndarray]]:
    """Read a model's description and arrays from its folder or that of its run, without unpickling.

    Arrays that are `mapped` are read from the file when they are used, so it must not be written
    over until then. Changes of them stay in this process, until `sizing.release`.

    Raises:
        InputError: if a file is missing, damaged, of another model or of another version.
    """
    folder = model_folder(folder)
    about = read_description(folder / name, saver)
    path, expected = folder / STATE, about.get("state")
    with reading(path, "as arrays", AGAIN):
        if checksum(path) != expected:
            raise InputError(
                f"{path}: cannot be trusted: it has {checksum(path)}, {name} says {expected}; "
                f"{AGAIN}"
            )
        if mapped:
            return folder, about, _mapped(path)
        return folder, about, load_file(path)


def _mapped(path: Path) -> dict[str, np.ndarray]:
    """Return the arrays of a safetensors file, which are read when they are used."""
    with path.open("rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    begin = 8 + int.from_bytes(mapped[:8], "little")
    arrays = json.loads(mapped[8:begin])
    found = {}
    for name in arrays.keys() - {"__metadata__"}:
        of = arrays[name]
        kind, bits = of["dtype"][0].lower(), of["dtype"][1:]
        dtype = np.dtype(f"{kind}{int(bits) // 8}" if bits.isdigit() else of["dtype"].lower())
        found[name] = np.ndarray(of["shape"], dtype, mapped, begin + of["data_offsets"][0])
        MAPPED[found[name].ctypes.data] = mapped
    return found


def model_folder(folder: Path) -> Path:
    """Return the folder of a model from that of its run: the one in service, else the run's own."""
    if (folder / IN_SERVICE).is_dir():
        return (folder / IN_SERVICE).resolve()
    return folder / "model" if (folder / "model").is_dir() else folder


@contextmanager
def restoring(folder: Path) -> Iterator[None]:
    """Convert any failure within the context to an error about the saved model, in one line."""
    try:
        with reading(folder, "as a saved model", AGAIN):
            yield
    except InputError as e:
        if isinstance(e.__cause__, KeyError):
            key = e.__cause__
            raise InputError(f"{folder}: no {key} in the saved model; {AGAIN}") from key
        raise e if str(folder) in str(e) else InputError(f"{folder}: ", e) from e


def read_description(path: Path, saver: str) -> dict[str, Any]:
    """Read the description of a model alone; where there is none, name a run in the folder."""
    remedy = f"give the folder of a run or of {saver}"
    if not path.exists():
        below = sorted(path.parent.glob(f"**/model/{path.name}"))
        if below:
            remedy += f", such as {below[0].parents[1]}"
        raise no_file(path, "model", remedy)
    return read_json(path, remedy)


def to_arrays(method: Method, state: State) -> dict[str, np.ndarray]:
    """Return the arrays of a state that predicting needs, by name.

    The optimiser's moments are left out, and copies of what the server sends if the method does not
    need them. If only a global model predicts, these and the clients' memory are left out too.
    """
    received = method.broadcast(state.server, state.participants())
    everyones = method.views == ("global",)
    replaced = received if everyones or not method.remembers else {}
    left_out = ("clients/moments.", *(["clients/memory/"] if everyones else []))
    return {
        name: t.detach().cpu().contiguous().numpy()
        for name, t in state.flat().items()
        if not name.startswith(left_out) and name.removeprefix("clients/params/") not in replaced
    }


def check_finite_arrays(arrays: Mapping[str, np.ndarray]) -> None:
    """Check that arrays hold neither NaN nor infinity."""
    for name, values in arrays.items():
        if values.dtype.kind == "f" and not np.isfinite(values).all():
            raise InputError(f"{name} has values that are not finite; {AGAIN}")


def check_shapes(method: Method, arrays: Mapping[str, np.ndarray], n_clients: int) -> None:
    """Check that parameters are finite and have the shapes of a method's model."""
    for name, like in method.population.initial().items():
        held = (f"clients/params/{name}", f"clients/buffers/{name}", f"server/{name}")
        check_finite_arrays({key: arrays[key] for key in held if key in arrays})
        for group in ("params", "buffers"):
            key, expected = f"clients/{group}/{name}", (n_clients, *like.shape[1:])
            if key in arrays and arrays[key].shape != expected:
                raise InputError(
                    f"{key} has shape {arrays[key].shape}, the settings say {expected}; {AGAIN}"
                )


def from_arrays(
    arrays: Mapping[str, np.ndarray], round: int, seed: int, device: torch.device
) -> State:
    """Return the state that `to_arrays` converted to these arrays, which it takes over."""
    tensors = {
        name: torch.from_numpy(a) if a.flags.writeable else torch.tensor(a)
        for name, a in arrays.items()
    }
    on_device = {
        name: t if name == "clients/sizes" else t.to(device) for name, t in tensors.items()
    }
    return State.from_flat(on_device, round, seed)
