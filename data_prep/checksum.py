"""Checksums of files."""

import hashlib
from pathlib import Path

from data_prep.errors import reading


def checksum(path: Path, algorithm: str = "sha256") -> str:
    """Return the checksum of a file, such as `"sha256:…"`.

    Args:
        path: the file.
        algorithm: name of an algorithm in Python's `hashlib`.

    Raises:
        InputError: if the file cannot be read.
    """
    remedy = "check its permissions and the disk"
    with reading(path, "to its end", remedy), path.open("rb") as file:
        return f"{algorithm}:{hashlib.file_digest(file, algorithm).hexdigest()}"
