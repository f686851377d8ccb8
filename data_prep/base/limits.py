"""Limits on the memory that a file may take; declared sizes are checked before reading.

There are two limits. The content must fit into the free memory of the machine and of the container
(`check_size`). And a file may not take far more than a valid file of its size could
(`check_expansion`): a few kilobytes can declare, or unpack to, many gigabytes.
"""

from __future__ import annotations

import io
import math
import os
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from typing import IO, Any

import psutil

from data_prep.base.errors import InputError

CHUNK = 2**20
UNKNOWN = 2**34
"""Bytes of memory to assume if the system does not report them."""

ALLOWANCE = 2**27
"""Bytes that a file of any size may take."""

EXPANSION = 64
"""Bytes of memory, beyond the allowance, per byte of a file.

Measured traffic packs 2:1 to 10:1, cubes of mostly zeros 50:1; a bomb packs 1,000:1 and more.
"""

VARIABLE = "STFORECAST_EXPANSION"
"""Environment variable that overrides `EXPANSION`, for a valid file that exceeds it."""


def allowed_memory(root: Path = Path("/")) -> int:
    """Return the bytes of memory available to this process; 16 GiB if unknown.

    This is the minimum of the machine's free memory and the memory left by the control groups
    (versions 1 and 2) of the process and their ancestors. Cached files count as free, since the
    system can drop them.
    """
    try:
        free = int(psutil.virtual_memory().available)
    except (OSError, psutil.Error):
        free = UNKNOWN
    return max(0, min([free, *(n for n in _left_by_groups(root) if n is not None)]))


def _left_by_groups(root: Path) -> Iterator[int | None]:
    """Yield the memory left by each control group, from the process's own to the mounted one."""
    own: dict[str, str] = {}  # controllers to the path of the process's group; version 2 names none
    for line in _lines(root / "proc/self/cgroup"):
        _, controllers, path = line.split(":", 2)
        own |= dict.fromkeys(controllers.split(","), path)
    for line in _lines(root / "proc/self/mountinfo"):
        before, _, after = line.partition(" - ")
        _, _, _, top, mount, *_ = before.split(" ")
        kind, _, options = after.split(" ")[:3]
        if kind == "cgroup2" and "" in own:
            names, path = ("memory.max", "memory.current", "inactive_file"), own[""]
        elif kind == "cgroup" and "memory" in options.split(",") and "memory" in own:
            names = "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"
            path = own["memory"]
        else:
            continue
        # A container often sees only the mounted folder of a group and its ancestors.
        inner = PurePosixPath(path)
        below = inner.relative_to(top) if inner.is_relative_to(top) else PurePosixPath()
        for part in (below, *below.parents):
            if ".." not in part.parts:
                yield _left(root / mount.lstrip("/") / part, *names)


def _left(group: Path, limit: str, usage: str, cached: str) -> int | None:
    """Return the limit minus the usage without cached files; None without a limit."""
    try:
        most, used = (int((group / name).read_text()) for name in (limit, usage))
    except (OSError, ValueError):  # The root has no such file; "max" is no limit.
        return None
    lines = (line.split() for line in _lines(group / "memory.stat"))
    return most - used + next((int(line[1]) for line in lines if line[:1] == [cached]), 0)


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:
        return []


def check_size(n_bytes: int, what: object) -> None:
    """Refuse data that would take more than half of the free memory; a megabyte always fits."""
    if n_bytes <= CHUNK:  # To ask how much is free takes as long as to read a small array.
        return
    limit = allowed_memory() // 2
    if n_bytes > limit:
        raise InputError(
            f"{what} would take {n_bytes / 1e9:.4g} GB of memory, expected at most "
            f"{limit / 1e9:.3g} GB, half of the free memory; check that the file is "
            "valid, or give a part of the data"
        )


def check_expansion(n_bytes: int, path: Path, what: object = None, ratio: int = EXPANSION) -> None:
    """Refuse data that would take far more memory than a valid file of its size, or too much.

    `n_bytes` is what the file declares, or has unpacked to so far. A valid file takes at most
    `ratio` bytes for each of its own, beyond the `ALLOWANCE`.
    """
    what = path if what is None else what
    if n_bytes > most_from(path, ratio):
        packed = path.stat().st_size
        raise InputError(
            f"{what} would take {n_bytes / 1e9:.4g} GB of memory, far more than the "
            f"{packed / 1e6:.3g} MB of {path.name} should; check that the file is valid, and if it "
            f"is, set {VARIABLE} to {math.ceil(n_bytes / max(packed, 1))} or more"
        )
    check_size(n_bytes, what)


def most_from(path: Path, ratio: int = EXPANSION) -> int:
    """Return the maximum bytes of memory of a valid file of this size."""
    said = os.environ.get(VARIABLE, str(ratio))
    if not said.isascii() or not said.isdigit():
        raise InputError(f"{VARIABLE} is {said!r}; give a whole number such as 1000, or unset it")
    return ALLOWANCE + int(said) * path.stat().st_size


def read_bounded(path: Path, most: int, opener: Callable[..., Any] = open) -> bytes:
    """Read a file of at most `most` bytes, with an opener such as `gzip.open`."""
    with opener(path, "rb") as file:
        data: bytes = file.read(most + 1)
    if len(data) > most:
        raise InputError(f"{path}: has more than {most:,} bytes, expected fewer; get it again")
    return data


def read_expanded(packed: IO[bytes], path: Path, cost: Callable[[bytes], int] = len) -> bytes:
    """Read the rest of a compressed file, if `check_expansion` allows its size.

    `cost` returns the bytes that a piece of the content takes in memory when it is used.
    """
    content, size, most = io.BytesIO(), 0, CHUNK
    while part := packed.read(CHUNK):
        size += cost(part)
        if most == CHUNK and size > most:  # A megabyte always fits.
            most = min(most_from(path), allowed_memory() // 2)
        if size > most:
            check_expansion(size, path, f"{path}: unpacked, it")
        content.write(part)
    return content.getvalue()
