"""Run folders: what every run on disk shares, whatever was learned.

`run.json` is written last, so its presence says "complete".
"""

from __future__ import annotations

import json
import platform
from collections.abc import Iterable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pandas as pd

from data_prep.cube import atomic_path
from data_prep.errors import InputError

ABOUT = "run.json"
"""Name of the file that says what a run is."""

PACKAGES = ("stforecast", "torch", "numpy", "pandas", "scikit-learn", "xarray")


def check_new(out: Path) -> None:
    """Make sure before the work that its results can be written.

    Raises:
        InputError: if the folder holds a finished run, or a file is in the way.
    """
    if (out / ABOUT).exists():
        raise InputError(f"{out} already holds a finished run; choose another --out or delete it")
    nearest = next(path for path in (out, *out.parents) if path.exists())
    if not nearest.is_dir():
        raise InputError(f"{nearest} is a file; choose a folder for --out")


def write_about(out: Path, about: dict[str, Any]) -> None:
    """Write what the run is, with the versions of what made it."""
    versions = {"python": platform.python_version(), **{p: version(p) for p in PACKAGES}}
    with atomic_path(out / ABOUT) as part:
        part.write_text(json.dumps({**about, "versions": versions}, indent=2) + "\n")


def read_about(folder: Path, command: str) -> dict[str, Any]:
    """What a finished run is.

    Args:
        folder: of the run.
        command: that writes such folders, for the message.

    Raises:
        InputError: if the folder holds none.
    """
    try:
        about = json.loads((folder / ABOUT).read_text())
    except (OSError, ValueError) as e:
        raise InputError(
            f"{folder}: not a finished run ({type(e).__name__} at {ABOUT}); give a folder that "
            f"`{command}` wrote"
        ) from e
    if not isinstance(about, dict) or "settings" not in about:
        raise InputError(f"{folder / ABOUT}: no settings in it; `{command}` writes them")
    return about


def find_folders(folders: Iterable[Path], command: str) -> list[Path]:
    """Every finished run's folder in the given ones and below them, in order of name.

    Raises:
        InputError: naming a folder that holds none.
    """
    runs = []
    for folder in folders:
        found = sorted(folder.rglob(ABOUT)) if folder.is_dir() else []
        if not found:
            raise InputError(f"{folder}: no finished run here; `{command}` writes one")
        runs += [path.parent for path in found]
    return runs


def write_csv(table: pd.DataFrame, path: Path) -> None:
    """Write a table whole or not at all."""
    with atomic_path(path) as part:
        table.to_csv(part, index=False)
