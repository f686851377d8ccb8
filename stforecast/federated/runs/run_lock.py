"""A lock on a folder that one process at a time may write results to.

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
from stforecast.federated.runs.run_folder import check_folder, writing

try:
    import fcntl
except ImportError:  # pragma: no cover  not on Windows
    fcntl = None  # type: ignore[assignment]  # None says that there is none

log = logging.getLogger(__name__)

LOCK = ".lock"
"""Name of the file that is locked; it names the process."""

HELD = (errno.EWOULDBLOCK, errno.EACCES)
"""Errors of `flock` that say that another process has the lock."""


@contextmanager
def locked(out: Path) -> Iterator[None]:
    """Within the context no other process gets the lock of the folder.

    A folder that is made for it and stays empty is removed again. A file system without locks is
    told of in a warning.

    Args:
        out: the folder; made if it is not there.

    Raises:
        InputError: if another process has the lock, or the folder cannot be written.
    """
    check_folder(out)
    made = [folder for folder in (out, *out.parents) if not folder.exists()]
    with writing(out, "choose another --out"):
        out.mkdir(parents=True, exist_ok=True)
        handle = _take(out / LOCK)
    try:
        yield
    finally:
        with suppress(OSError):  # The last one says that a folder is not empty.
            (out / LOCK).unlink()  # While it is locked: others find it gone, and try again.
            for folder in made:
                folder.rmdir()
        os.close(handle)


def _take(path: Path) -> int:
    """Handle of the locked file, which says whose it is."""
    while True:
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            _lock(handle, path)
            if _is_there(path, handle):
                os.ftruncate(handle, 0)
                os.write(handle, f"process {os.getpid()} on {platform.node()}".encode())
                return handle
        except BaseException:
            os.close(handle)
            raise
        os.close(handle)


def _lock(handle: int, path: Path) -> None:
    try:
        if fcntl is None:  # pragma: no cover  not on Windows
            raise OSError(errno.ENOSYS, "this system has no flock")
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as e:
        if e.errno in HELD:
            holder = path.read_text(errors="replace").strip() or "another process"
            raise InputError(
                f"{path.parent}: {holder} is writing there; wait for it or choose another --out"
            ) from e
        log.warning(
            "%s: cannot be locked (%s); see to it that no other process writes there",
            path.parent, e.strerror,
        )  # fmt: skip


def _is_there(path: Path, handle: int) -> bool:
    """Whether the path still names the open file, which whoever had the lock may have removed."""
    try:
        return os.path.samestat(path.stat(), os.fstat(handle))
    except FileNotFoundError:
        return False
