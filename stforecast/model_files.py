"""The two files of a saved model: `forecaster.json` and `state.safetensors`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file, save_file

from data_prep.checksum import checksum
from data_prep.cube import atomic_path
from data_prep.errors import InputError, reading

FORMAT = 1
"""Version of the saved layout."""

AGAIN = "fit and save it again"
"""What to do with a saved model that is of no use."""


def write_model(folder: Path, about: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
    """Write both files, each whole or not at all, with the version and the arrays' checksum.

    Args:
        folder: made if it is not there.
        about: settings and the like, for JSON.
        arrays: what was learned, by name.
    """
    with atomic_path(folder / "state.safetensors") as part:
        # Unlike ascontiguousarray, require leaves a number a number.
        save_file({name: np.require(a, requirements="C") for name, a in arrays.items()}, part)
        about = {"format": FORMAT, **about, "state": checksum(part)}
    with atomic_path(folder / "forecaster.json") as part:
        part.write_text(json.dumps(about, indent=2) + "\n")


def read_state(path: Path, expected: str | None) -> dict[str, np.ndarray]:
    """The arrays of a saved model; nothing is unpickled.

    Args:
        path: the file.
        expected: its checksum; None for models from before it was kept.

    Raises:
        InputError: if the file is damaged or another one.
    """
    with reading(path, "as arrays", AGAIN):
        if expected is not None and checksum(path) != expected:
            raise InputError(
                f"{path}: cannot be trusted: it has {checksum(path)}, forecaster.json says "
                f"{expected}; {AGAIN}"
            )
        return load_file(path)


def read_about(path: Path) -> dict[str, Any]:
    """What a saved model says of itself.

    Raises:
        InputError: if the file cannot be read or is of another version.
    """
    remedy = "give the folder of a run or of Forecaster.save"
    try:
        about = json.loads(path.read_text())
    except OSError as e:
        raise InputError(f"{path}: cannot be read ({e.strerror}); {remedy}") from e
    except (ValueError, RecursionError) as e:
        raise InputError(f"{path}: is not JSON ({e}); {remedy}") from e
    if not isinstance(about, dict) or about.get("format") != FORMAT:
        found = about.get("format") if isinstance(about, dict) else type(about).__name__
        raise InputError(f"{path}: format {found!r}, this version reads {FORMAT}; {remedy}")
    return about
