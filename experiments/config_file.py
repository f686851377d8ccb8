"""Location and kind of benchmark files."""

from __future__ import annotations

from pathlib import Path

from data_prep.errors import InputError, close_to
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
    files = CONFIGS.glob("**/*.toml")
    packaged = {p.relative_to(CONFIGS).with_suffix("").as_posix(): p for p in files}
    inside = path.relative_to(CLONE) if path.is_relative_to(CLONE) else path
    name = inside.with_suffix("").as_posix()
    if path.suffix in ("", ".toml") and name in packaged:
        return packaged[name]
    raise InputError(
        f"{path}: no such file; give one, or a benchmark of the package: "
        f"{', '.join(sorted(packaged))}{close_to(name, packaged)}"
    )


def benchmarks() -> str:
    """Return the names and titles of the benchmarks of the package."""
    from tabulate import tabulate

    rows = []
    for path in sorted(CONFIGS.glob("**/*.toml")):
        table = read_toml(path)
        kind = "images" if table.get("task") == IMAGES else "forecasts"
        name = path.relative_to(CONFIGS).with_suffix("").as_posix()
        rows.append([name, kind, table.get("title", "")])
    return tabulate(rows, headers=["benchmark", "of", "title"])


def is_image_file(path: Path) -> bool:
    """Return whether a TOML file is a benchmark of images."""
    return read_toml(path).get("task") == IMAGES
