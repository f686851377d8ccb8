"""How much a file may bring into memory: what it declares is checked before it is read.

A small file can declare, or unpack to, more than any machine has. Whoever reads an array or unpacks
a text says here how large it is going to be.
"""

from __future__ import annotations

import bz2
import gzip
import os
from io import BufferedIOBase
from pathlib import Path

from data_prep.errors import InputError

CHUNK = 2**20


def memory() -> int:
    """Bytes of this machine's memory; 16 GiB where the system does not say."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return 2**34


def check_size(n_bytes: int, what: object) -> None:
    """Refuse what would take more than half of this machine's memory.

    Args:
        n_bytes: the size that it is going to have.
        what: what to call it in the error.

    Raises:
        InputError: if it is too large.
    """
    limit = memory() // 2
    if n_bytes > limit:
        raise InputError(
            f"{what} would take {n_bytes / 1e9:.4g} GB of memory, expected at most "
            f"{limit / 1e9:.3g} GB, half of this machine's; check that the file is sound, or give "
            "a part of the data"
        )


def gunzip(path: Path) -> bytes:
    """The content of a gzip file, if it is not too large.

    Raises:
        InputError: if it unpacks to more than `check_size` allows a text, which grows when parsed.
    """
    with gzip.open(path) as packed:
        return _bounded(packed, path)


def bunzip2(path: Path) -> bytes:
    """The content of a bzip2 file, if it is not too large.

    Raises:
        InputError: as `gunzip` does.
    """
    with bz2.open(path) as packed:
        return _bounded(packed, path)


def _bounded(packed: BufferedIOBase, path: Path) -> bytes:
    parts, size = [], 0
    while part := packed.read(CHUNK):
        size += len(part)
        check_size(4 * size, f"{path}: unpacked and parsed, it")
        parts.append(part)
    return b"".join(parts)
