"""The download folder: safe names, partial files, disk space."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PureWindowsPath

from data_prep.download.sources import Item
from data_prep.errors import InputError


def inside(out: Path, name: str, origin: str) -> Path:
    """Return the path of `name` under `out`.

    Raises:
        InputError: if it would lie outside.
    """
    windows = PureWindowsPath(name)  # handles both kinds of slash, drives and shares
    if windows.anchor or ".." in windows.parts or not windows.name or not name.isprintable():
        raise InputError(f"{origin}: holds a file named {name!r}, which would leave {out}; refused")
    return out / name


def check_space(out: Path, items: list[Item]) -> None:
    """Create the folder and check that the missing items fit on its disk.

    Raises:
        InputError: if they do not fit.
    """
    paths = {inside(out, i.name, i.origin): i.size or 0 for i in items}
    needed = sum(size - size_of(partial(p)) for p, size in paths.items() if not p.exists())
    with disk(out):
        out.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(out).free
    if needed > free:
        raise InputError(
            f"{out}: {needed / 1e9:.1f} GB are needed and {free / 1e9:.1f} GB are free; free some "
            "space, choose another folder or fetch fewer files with --only"
        )


def partial(path: Path) -> Path:
    """Return the path of a file until it is complete and verified."""
    return path.with_name(path.name + ".part")


def lock_of(path: Path) -> Path:
    """Return the path of the lock of a file, which its download holds."""
    return path.with_name(path.name + ".lock")


def tag_of(part: Path) -> Path:
    """Return the path of the saved ETag of a partial file's version."""
    return part.with_name(part.name + ".etag")


def size_of(path: Path) -> int:
    """Return the size of a file in bytes, 0 if it does not exist."""
    return path.stat().st_size if path.exists() else 0


@contextmanager
def disk(path: Path) -> Iterator[None]:
    """Convert errors of a full or read-only disk to input errors with advice."""
    try:
        yield
    except OSError as e:
        raise InputError(
            f"{e.filename or path}: {e.strerror or e}; make room or choose another folder and run "
            "again, it continues where it stopped"
        ) from e
