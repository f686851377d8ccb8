"""Checksums, to say of which bytes something was made."""

import hashlib
from pathlib import Path

from data_prep.errors import reading


def checksum(path: Path, algorithm: str = "sha256") -> str:
    """Checksum of a file, such as `"sha256:…"`.

    Args:
        path: the file.
        algorithm: one of Python's `hashlib`.

    Raises:
        InputError: if it cannot be read.
    """
    remedy = "see to its permissions and its disk"
    with reading(path, "to its end", remedy), path.open("rb") as file:
        return f"{algorithm}:{hashlib.file_digest(file, algorithm).hexdigest()}"
