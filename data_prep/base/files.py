"""Atomic writing, so that a file is complete or absent; locks and checksums of files.

A lock is one of the kernel (`flock`), so it is released whenever its process ends.
"""

from __future__ import annotations

import errno
import glob
import hashlib
import logging
import os
import platform
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from data_prep.base.errors import InputError, Words, reading

try:
    import fcntl
except ImportError:  # pragma: no cover  not on Windows
    fcntl = None  # type: ignore[assignment]  # None if unavailable

log = logging.getLogger(__name__)

WAIT = Words("wait for it or choose another {out}")
"""What a process is told that finds a place locked, unless its command has other options."""


def lock_handle(handle: int) -> None:
    """Lock an open file or folder until it is closed; `OSError` if another process holds it."""
    if fcntl is None:  # pragma: no cover  not on Windows
        raise OSError(errno.ENOSYS, "this system has no flock")
    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)


@contextmanager
def file_lock(path: Path, place: Path, remedy: str | Words = WAIT) -> Iterator[None]:
    """Hold the lock of a `place` within the context.

    Another process gets an error with the remedy. The locked file names the process, and is
    removed afterwards. On a file system without locks only a warning is logged.
    """
    with naming_full_disk(path):
        handle = _take(path, place, remedy)
    try:
        yield
    finally:
        with suppress(OSError):
            path.unlink()  # Before it is unlocked: waiting processes then notice it and retry.
        os.close(handle)


def _take(path: Path, place: Path, remedy: str | Words) -> int:
    """Lock the file, write the process's name into it and return its handle."""
    while True:
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            try:
                lock_handle(handle)
            except OSError as e:
                if e.errno in (errno.EWOULDBLOCK, errno.EACCES):  # Another process holds it.
                    holder = path.read_text(errors="replace").strip() or "another process"
                    raise InputError(f"{place}: {holder} is writing there; ", remedy) from e
                advice = "make sure that no other process writes there"
                log.warning("%s: cannot be locked (%s); %s", place, e.strerror, advice)
            with suppress(FileNotFoundError):  # Its last holder may have removed the file.
                if os.path.samestat(path.stat(), os.fstat(handle)):
                    os.ftruncate(handle, 0)
                    os.write(handle, f"process {os.getpid()} on {platform.node()}".encode())
                    return handle
        except BaseException:
            os.close(handle)
            raise
        os.close(handle)


FULL_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def _code(error: Exception) -> int | None:
    """Return the system's error code, which HDF5 and Rust give only in their messages."""
    match = re.search(r"(?:errno = |os error )(\d+)", str(error))
    return int(match[1]) if match else getattr(error, "errno", None)


def is_full(error: Exception) -> bool:
    """Return whether a file cannot be written because the disk, a quota or a limit of size is full.

    >>> is_full(OSError(errno.ENOSPC, "No space left on device")), is_full(OSError("no disk"))
    (True, False)
    """
    return _code(error) in FULL_DISK


class WriteError(OSError, InputError):
    """A file that cannot be written.

    It is also an `OSError`, so that callers can catch it and suggest a better remedy.

    >>> str(WriteError(Path("a.nc"), OSError(errno.ENOSPC, "No space left on device")))
    'a.nc: cannot be written (No space left on device); free some space or choose another place'
    >>> str(WriteError(Path("a.nc"), OSError(errno.EROFS, "Read-only file system")))
    'a.nc: cannot be written (Read-only file system); choose another place'
    """

    def __init__(self, path: Path, cause: Exception) -> None:
        code = _code(cause)
        reason = os.strerror(code) if code else " ".join(str(cause).split())
        OSError.__init__(self, code or errno.EIO, reason, str(path))
        self.parts = (str(self),)

    def __reduce__(self) -> tuple[type[WriteError], tuple[Path, OSError]]:
        # Processes exchange errors by pickling; the inherited method passes other arguments.
        return type(self), (Path(self.filename), OSError(self.errno, self.strerror))

    def __str__(self) -> str:
        remedy = "free some space or choose" if self.errno in FULL_DISK else "choose"
        return f"{self.filename}: cannot be written ({self.strerror}); {remedy} another place"


@contextmanager
def naming_full_disk(place: Path) -> Iterator[None]:
    """Raise a `WriteError` of a file or folder if the disk is full within the context.

    The system does not name a file that is open, and safetensors has an error of its own.
    """
    try:
        yield
    except WriteError:
        raise
    except Exception as e:
        if not is_full(e):
            raise
        raise WriteError(Path(getattr(e, "filename", None) or place), e) from e


def check_target(path: Path) -> None:
    """Create the parent folder of a file to write; call it before a long computation."""
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
    except Exception as e:
        other = getattr(e, "filename", None)
        if other is not None and not str(other).startswith(str(folder)):
            raise  # another file caused the error
        if isinstance(e, OSError) or is_full(e):
            raise WriteError(path, e) from e
        raise
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        if lock is not None:
            os.close(lock)


def claim_folder(parent: Path, prefix: str, suffix: str = "") -> tuple[Path, int | None]:
    """Create a folder that only this user may enter; those of killed processes are removed.

    The handle locks it until it is closed; it is None if locks are not supported.
    """
    for folder in parent.glob(f"{glob.escape(prefix)}*{glob.escape(suffix)}/"):
        try:
            lock = _folder_lock(folder)
        except OSError:
            continue  # its process is still running
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)
    while True:
        folder = Path(tempfile.mkdtemp(suffix, prefix, parent))
        try:
            lock = _folder_lock(folder)
        except (BlockingIOError, FileNotFoundError):
            continue  # another process considered it abandoned before it was locked
        except OSError:
            return folder, None
        if folder.exists():
            return folder, lock
        os.close(lock)


def _folder_lock(folder: Path) -> int:
    """Open and lock a folder.

    The folder is locked, not the file, because HDF5 itself locks the files that it writes.
    """
    handle = os.open(folder, os.O_RDONLY)
    try:
        lock_handle(handle)
    except OSError:
        os.close(handle)
        raise
    return handle


def checksum(path: Path, algorithm: str = "sha256") -> str:
    """Return the checksum of a file by an algorithm of `hashlib`, such as `"sha256:…"`."""
    remedy = "check its permissions and the disk"
    with reading(path, "to its end", remedy), path.open("rb") as file:
        return f"{algorithm}:{hashlib.file_digest(file, algorithm).hexdigest()}"


def path_of(text: str) -> Path:
    """Return the path of a file; a database of SQLite may be given as a URL.

    Raises:
        InputError: for another URL; the message repeats nothing of it that may be secret.

    >>> path_of("a.csv").name, path_of("sqlite:///counts.db").name
    ('a.csv', 'counts.db')
    """
    found = re.match(r"([A-Za-z][\w+.-]*)://(/?)", text)
    if found is None:
        return Path(text)
    if found[1] == "sqlite" and found[2]:
        return Path(text[found.end() :])
    raise InputError(
        f"a URL of {found[1]}, expected a file, a database as sqlite:///FILE, or a .sql file with "
        "-- postgresql://HOST/DATABASE in its first line and a query below"
    )
