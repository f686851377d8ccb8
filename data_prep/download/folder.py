"""The folder that files are brought to: safe names, pieces of files, room on the disk."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PureWindowsPath

from data_prep.download.sources import Item
from data_prep.errors import InputError


def inside(out: Path, name: str, origin: str) -> Path:
    """The path of `name` under `out`; a name from elsewhere must not lead out of it.

    Raises:
        InputError: if it would.
    """
    windows = PureWindowsPath(name)  # knows both kinds of slash, drives and shares
    if windows.anchor or ".." in windows.parts or not windows.name or not name.isprintable():
        raise InputError(f"{origin}: holds a file named {name!r}, which would leave {out}; refused")
    return out / name


def check_space(out: Path, items: list[Item]) -> None:
    """Make the folder and see that what is missing of the items fits on its disk.

    Raises:
        InputError: if it does not.
    """
    paths = {inside(out, i.name, i.origin): i.size or 0 for i in items}
    needed = sum(size - size_of(partial(p)) for p, size in paths.items() if not p.exists())
    with disk(out):
        out.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(out).free
    if needed > free:
        raise InputError(
            f"{out}: {needed / 1e9:.1f} GB are needed and {free / 1e9:.1f} GB are free; free some "
            "space, choose another folder or bring fewer files with --only"
        )


def partial(path: Path) -> Path:
    """Where a file grows until it is whole and verified."""
    return path.with_name(path.name + ".part")


def lock_of(path: Path) -> Path:
    """What one download at a time has while it brings the file."""
    return path.with_name(path.name + ".lock")


def tag_of(part: Path) -> Path:
    """Where the ETag of the version that `part` is a piece of is kept between runs."""
    return part.with_name(part.name + ".etag")


def size_of(path: Path) -> int:
    """Bytes of a file, 0 if it is not there."""
    return path.stat().st_size if path.exists() else 0


@contextmanager
def disk(path: Path) -> Iterator[None]:
    """Say what to do when the disk is full or closed to us."""
    try:
        yield
    except OSError as e:
        raise InputError(
            f"{e.filename or path}: {e.strerror or e}; make room or choose another folder and run "
            "again, it continues where it stopped"
        ) from e
