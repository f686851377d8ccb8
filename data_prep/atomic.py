"""Atomic writing: a file is complete or absent, even if its writer is killed."""

from __future__ import annotations

import errno
import glob
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from data_prep.errors import InputError
from data_prep.lock import lock_handle

FREE = "free some space or choose another place, then try again"
_CODE = re.compile(r"(?:errno = |os error )(\d+)")
"""The system's error code in messages of HDF5 and Rust, which give it only there."""


class WriteError(OSError, InputError):
    """A file that cannot be written.

    It is also an `OSError`, so that callers can catch it and suggest a better remedy.

    >>> str(WriteError(Path("a.nc"), OSError(errno.ENOSPC, "No space left on device")))
    'a.nc: cannot be written (No space left on device); free some space or choose another place, \
then try again'
    """

    def __init__(self, path: Path, cause: OSError) -> None:
        match = _CODE.search(str(cause))
        code = int(match[1]) if match else cause.errno
        reason = os.strerror(code) if code else " ".join(str(cause).split())
        OSError.__init__(self, code or errno.EIO, reason, str(path))

    def __reduce__(self) -> tuple[type[WriteError], tuple[Path, OSError]]:
        # Processes exchange errors by pickling; the inherited method passes other arguments.
        return type(self), (Path(self.filename), OSError(self.errno, self.strerror))

    def __str__(self) -> str:
        return f"{self.filename}: cannot be written ({self.strerror}); {FREE}"


def check_target(path: Path) -> None:
    """Create the parent folder of a file to write; call it before a long computation.

    Raises:
        InputError: if the path is a folder or a device, or its parent cannot be created.
    """
    if path.is_dir():
        raise InputError(f"{path}: is a folder, expected a file to write; add a file name")
    if path.exists() and not path.is_file():
        raise InputError(f"{path}: is a device or a pipe, expected a file to write; name another")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as e:
        raise InputError(
            f"{path.parent}: cannot be created ({e.strerror}); choose another folder"
        ) from e


@contextmanager
def atomic_path(path: str | os.PathLike[str], mode: int = 0o644) -> Iterator[Path]:
    """Yield a temporary path, and move its file to `path` only if the block succeeds.

    The temporary file is in a hidden folder beside `path`, which stays locked while its writer
    runs. Folders left behind by killed writers of the same file are removed.

    Args:
        path: file to write.
        mode: who may read and write it.

    Raises:
        InputError: if `path` is not a valid target.
        WriteError: if writing fails, such as on a full disk.
    """
    path = Path(path)
    check_target(path)
    try:
        folder, lock = claim_folder(path.parent, f".{path.name}.", ".part")
    except OSError as e:
        raise WriteError(path, e) from e
    try:
        part = folder / path.name
        part.touch()
        yield part
        part.chmod(mode)
        part.replace(path)
    except WriteError:
        raise
    except OSError as e:
        if e.filename is not None and not str(e.filename).startswith(str(folder)):
            raise  # another file caused the error
        raise WriteError(path, e) from e
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        if lock is not None:
            os.close(lock)


def claim_folder(parent: Path, prefix: str, suffix: str = "") -> tuple[Path, int | None]:
    """Create a folder that only this user may enter; those of killed processes are removed.

    Args:
        parent: folder to create it in.
        prefix: beginning of its name.
        suffix: end of its name.

    Returns:
        The folder and a handle that locks it until it is closed, None if locks are not supported.
    """
    _remove_abandoned(parent, prefix, suffix)
    while True:
        folder = Path(tempfile.mkdtemp(suffix, prefix, parent))
        try:
            lock = _lock(folder)
        except (BlockingIOError, FileNotFoundError):
            continue  # another process considered it abandoned before it was locked
        except OSError:
            return folder, None
        if folder.exists():
            return folder, lock
        os.close(lock)


def _remove_abandoned(parent: Path, prefix: str, suffix: str) -> None:
    """Remove the folders of killed processes, whose locks the system has released."""
    for folder in parent.glob(f"{glob.escape(prefix)}*{glob.escape(suffix)}/"):
        try:
            lock = _lock(folder)
        except OSError:
            continue  # its process is still running
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def _lock(folder: Path) -> int:
    """Open and lock a folder.

    The folder is locked, not the file, because HDF5 itself locks the files that it writes.

    Raises:
        OSError: if another process holds the lock, or the folder is gone or cannot be locked.
    """
    handle = os.open(folder, os.O_RDONLY)
    try:
        lock_handle(handle)
    except OSError:
        os.close(handle)
        raise
    return handle
