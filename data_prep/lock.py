"""A lock that one process at a time has, so that no two write to one place.

The lock is the kernel's (`flock`), so it is gone with its process, however that ends.
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
    fcntl = None  # type: ignore[assignment]  # None says that there is none

log = logging.getLogger(__name__)

HELD = (errno.EWOULDBLOCK, errno.EACCES)
"""Errors of `flock` that say that another process has the lock."""


@contextmanager
def file_lock(path: Path, place: Path) -> Iterator[None]:
    """Within the context no other process gets the lock.

    A file system without locks is told of in a warning.

    Args:
        path: the file that is locked; it names the process, and is removed again.
        place: what is written to meanwhile, for messages.

    Raises:
        InputError: if another process has the lock.
        OSError: if the file cannot be written.
    """
    handle = _take(path, place)
    try:
        yield
    finally:
        with suppress(OSError):
            path.unlink()  # While it is locked: others find it gone, and try again.
        os.close(handle)


def _take(path: Path, place: Path) -> int:
    """Handle of the locked file, which says whose it is."""
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
        if fcntl is None:  # pragma: no cover  not on Windows
            raise OSError(errno.ENOSYS, "this system has no flock")
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as e:
        if e.errno in HELD:
            holder = path.read_text(errors="replace").strip() or "another process"
            raise InputError(
                f"{place}: {holder} is writing there; wait for it or choose another --out"
            ) from e
        log.warning(
            "%s: cannot be locked (%s); see to it that no other process writes there",
            place, e.strerror,
        )  # fmt: skip


def _is_there(path: Path, handle: int) -> bool:
    """Whether the path still names the open file, which whoever had the lock may have removed."""
    try:
        return os.path.samestat(path.stat(), os.fstat(handle))
    except FileNotFoundError:
        return False
