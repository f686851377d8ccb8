"""Location and kind of benchmark files."""

from __future__ import annotations

from pathlib import Path

from data_prep.base.errors import InputError, close_to
from stforecast.bench.grid_file import read_toml

IMAGES = "images"
"""Value of the key `task` in a benchmark of images."""

CONFIGS = Path(__file__).parent / "configs"

CLONE = Path("experiments/configs")
"""Folder of the benchmarks in a clone of the package, under which they may be named too."""


def find_config(path: Path) -> Path:
    """Return the file, or the benchmark of the package with that name.

    Raises:
        InputError: if there is neither, listing the benchmarks of the package.

    >>> find_config(Path("quick")).name
    'quick.toml'
    >>> find_config(Path("experiments/configs/trials/fuels_ablation.toml")).parent.name
    'trials'
    >>> find_config(Path("medium/gldp_table1")).parent.name
    'medium'
    """
    if path.exists():
        return path
    known = packaged()
    inside = path.relative_to(CLONE) if path.is_relative_to(CLONE) else path
    name = inside.with_suffix("").as_posix()
    if path.suffix in ("", ".toml") and name in known:
        return known[name]
    raise InputError(
        f"{path}: no such file; give one, or a benchmark of the package: "
        f"{', '.join(known)}{close_to(name, known)}"
    )


def packaged() -> dict[str, Path]:
    """Return the benchmarks of the package by name."""
    files = sorted(CONFIGS.glob("**/*.toml"))
    return {path.relative_to(CONFIGS).with_suffix("").as_posix(): path for path in files}


def is_image_file(path: Path) -> bool:
    """Return whether a TOML file is a benchmark of images."""
    return read_toml(path).get("task") == IMAGES
