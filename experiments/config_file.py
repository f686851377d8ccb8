"""Benchmark files: where they are, and which kind of benchmark they hold."""

from __future__ import annotations

from pathlib import Path

from data_prep.errors import InputError
from stforecast.bench.grid_file import read_toml

IMAGES = "images"
"""What the key `task` says in a benchmark of images."""


def find_config(path: Path) -> Path:
    """The file that is meant: it, or the one of that name that comes with the package.

    Raises:
        InputError: listing those if there is neither.

    >>> find_config(Path("quick")).name
    'quick.toml'
    """
    if path.exists():
        return path
    packaged = {p.stem: p for p in (Path(__file__).parent / "configs").glob("*.toml")}
    # With a folder it means a file of the user's, but for one as in a clone of the package.
    own = path.suffix not in ("", ".toml") or str(path.parent) not in (".", "experiments/configs")
    if not own and path.stem in packaged:
        return packaged[path.stem]
    raise InputError(
        f"{path}: no such file; give one, or a benchmark of the package: "
        f"{', '.join(sorted(packaged))}"
    )


def is_image_file(path: Path) -> bool:
    """Whether a TOML file is a benchmark of images."""
    return read_toml(path).get("task") == IMAGES
