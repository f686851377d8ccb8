"""Location and kind of benchmark files."""

from __future__ import annotations

from pathlib import Path

from data_prep.errors import InputError
from stforecast.bench.grid_file import read_toml

IMAGES = "images"
"""Value of the key `task` in a benchmark of images."""

FOLDERS = (".", "experiments/configs", "experiments/configs/trials")
"""Folders under which a benchmark of the package may be named: none, or that in a clone."""


def find_config(path: Path) -> Path:
    """Return the file, or the benchmark of the package with that name.

    Raises:
        InputError: if there is neither, listing the benchmarks of the package.

    >>> find_config(Path("quick")).name
    'quick.toml'
    >>> find_config(Path("experiments/configs/trials/fuels_ablation.toml")).parent.name
    'trials'
    """
    if path.exists():
        return path
    packaged = {p.stem: p for p in (Path(__file__).parent / "configs").glob("**/*.toml")}
    # A path with a folder is the user's file, unless it is the path in a clone of the package.
    own = path.suffix not in ("", ".toml") or str(path.parent) not in FOLDERS
    if not own and path.stem in packaged:
        return packaged[path.stem]
    raise InputError(
        f"{path}: no such file; give one, or a benchmark of the package: "
        f"{', '.join(sorted(packaged))}"
    )


def is_image_file(path: Path) -> bool:
    """Return whether a TOML file is a benchmark of images."""
    return read_toml(path).get("task") == IMAGES
