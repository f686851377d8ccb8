"""Checksums, to say of which bytes something was made."""

import hashlib
from pathlib import Path


def checksum(path: Path, algorithm: str = "sha256") -> str:
    """Checksum of a file, such as `"sha256:…"`.

    Args:
        path: the file.
        algorithm: one of Python's `hashlib`.
    """
    with path.open("rb") as file:
        return f"{algorithm}:{hashlib.file_digest(file, algorithm).hexdigest()}"
