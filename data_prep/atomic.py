"""Files that are written whole or not at all, whatever stops the writer."""

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

try:
    import fcntl
except ImportError:  # pragma: no cover  not on Windows
    fcntl = None  # type: ignore[assignment]  # None says that there is none

FREE = "free some space or choose another place, then do the same again"
_CODE = re.compile(r"(?:errno = |os error )(\d+)")
"""How HDF5 and Rust tell the system's error code, in the text alone."""


class WriteError(OSError, InputError):
    """A file that cannot be written.

    It stays an `OSError` for those who know a better remedy than the one in its message.

    >>> str(WriteError(Path("a.nc"), OSError(errno.ENOSPC, "No space left on device")))
    'a.nc: cannot be written (No space left on device); free some space or choose another place, \
then do the same again'
    """

    def __init__(self, path: Path, cause: OSError) -> None:
        told = _CODE.search(str(cause))
        code = int(told[1]) if told else cause.errno
        reason = os.strerror(code) if code else " ".join(str(cause).split())
        OSError.__init__(self, code or errno.EIO, reason, str(path))

    def __str__(self) -> str:
        return f"{self.filename}: cannot be written ({self.strerror}); {FREE}"


def check_target(path: Path) -> None:
    """Make the folder that a file is to be written to; worth doing before long work.

    Raises:
        InputError: if the path is a folder or a device itself, or its folder cannot be made.
    """
    if path.is_dir():
        raise InputError(f"{path}: is a folder, expected a file to write; add a name to it")
    if path.exists() and not path.is_file():
        raise InputError(f"{path}: is a device or a pipe, expected a file to write; name another")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as e:
        raise InputError(
            f"{path.parent}: cannot be made ({e.strerror}); choose another folder"
        ) from e


@contextmanager
def atomic_path(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Give a temporary path, and move what is there to `path` only if the block succeeds.

    It lies in a hidden folder beside `path`, which is locked for as long as its writer lives. Those
    that killed writers of the same file left behind are removed.

    Raises:
        InputError: if no file can be written to `path`.
        WriteError: if the system does not let it be written, such as on a full disk.
    """
    path = Path(path)
    check_target(path)
    try:
        _remove_abandoned(path)
        folder, lock = _claim_folder(path)
    except OSError as e:
        raise WriteError(path, e) from e
    try:
        part = folder / path.name
        part.touch()
        yield part
        part.chmod(0o644)
        part.replace(path)
    except WriteError:
        raise
    except OSError as e:
        if e.filename is not None and not str(e.filename).startswith(str(folder)):
            raise  # another file is at fault
        raise WriteError(path, e) from e
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        if lock is not None:
            os.close(lock)


def _claim_folder(path: Path) -> tuple[Path, int | None]:
    """A new folder beside `path`, and its lock; None where the file system has no locks."""
    while True:
        folder = Path(tempfile.mkdtemp(".part", f".{path.name}.", path.parent))
        try:
            lock = _lock(folder)
        except (BlockingIOError, FileNotFoundError):
            continue  # another process took it for abandoned before it was locked
        except OSError:
            return folder, None
        if folder.exists():
            return folder, lock
        os.close(lock)


def _remove_abandoned(path: Path) -> None:
    """Remove the folders of killed writers of `path`: the system unlocked them."""
    for folder in path.parent.glob(f".{glob.escape(path.name)}.*.part/"):
        try:
            lock = _lock(folder)
        except OSError:
            continue  # its writer lives
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def _lock(folder: Path) -> int:
    """Open and lock a folder.

    HDF5 locks the files that it writes in the same way, so a file could not be locked here.

    Raises:
        OSError: if another process holds it, it is gone or cannot be locked.
    """
    if fcntl is None:  # pragma: no cover  not on Windows
        raise OSError(errno.ENOSYS, "this system has no flock")
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(handle)
        raise
    return handle
