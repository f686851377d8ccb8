"""File lock that keeps two processes from writing to one place.

It is a lock of the kernel (`flock`), so it is released whenever its process ends.
"""

from __future__ import annotations

import errno
import logging
import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from data_prep.errors import InputError

try:
    import fcntl
except ImportError:  # pragma: no cover  not on Windows
    fcntl = None  # type: ignore[assignment]  # None if unavailable

log = logging.getLogger(__name__)

HELD = (errno.EWOULDBLOCK, errno.EACCES)
"""Errors of `flock` if another process holds the lock."""


def lock_handle(handle: int) -> None:
    """Lock an open file or folder until it is closed.

    Raises:
        OSError: if another process holds the lock, or the place cannot be locked.
    """
    if fcntl is None:  # pragma: no cover  not on Windows
        raise OSError(errno.ENOSYS, "this system has no flock")
    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)


@contextmanager
def file_lock(path: Path, place: Path) -> Iterator[None]:
    """Hold the lock within the context.

    On a file system without locks it only logs a warning.

    Args:
        path: file to lock; it names the process, and is removed afterwards.
        place: place that is written to, for messages.

    Raises:
        InputError: if another process holds the lock.
        OSError: if the file cannot be written.
    """
    handle = _take(path, place)
    try:
        yield
    finally:
        with suppress(OSError):
            path.unlink()  # Before it is unlocked: waiting processes then notice it and retry.
        os.close(handle)


def _take(path: Path, place: Path) -> int:
    """Lock the file, write the process's name into it and return its handle."""
    while True:
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            _lock(handle, path, place)
            if _is_there(path, handle):
                os.ftruncate(handle, 0)
                os.write(handle, f"process {os.getpid()} on {platform.node()}".encode())
                return handle
        except BaseException:
            os.close(handle)
            raise
        os.close(handle)


def _lock(handle: int, path: Path, place: Path) -> None:
    try:
        lock_handle(handle)
    except OSError as e:
        if e.errno in HELD:
            holder = path.read_text(errors="replace").strip() or "another process"
            raise InputError(
                f"{place}: {holder} is writing there; wait for it or choose another --out"
            ) from e
        log.warning(
            "%s: cannot be locked (%s); make sure that no other process writes there",
            place, e.strerror,
        )  # fmt: skip


def _is_there(path: Path, handle: int) -> bool:
    """Return whether the path still names the open file; its last holder may have removed it."""
    try:
        return os.path.samestat(path.stat(), os.fstat(handle))
    except FileNotFoundError:
        return False
