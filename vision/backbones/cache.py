"""Cache of features, keyed by the content of their inputs, in memory and on disk."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from data_prep.atomic import atomic_path
from data_prep.errors import InputError, reading

DIGEST = 16
"""Bytes of a digest: among 10⁹ images a collision has a probability of 10⁻²¹."""


class FeatureCache:
    """Cache of vectors by digest; safe to use from several threads.

    On disk, each call of `add` writes a `.npy` file of single-precision records `(digest, feature)`
    whose name is a hash of the digests. No file is rewritten, so parallel runs may share a folder.

    Args:
        width: length of a vector.
        folder: folder that keeps vectors between runs; None keeps them in memory only.
        limit: largest number of vectors in memory; the oldest are dropped.

    Raises:
        InputError: if a file is damaged or of another width; names the file.
    """

    def __init__(self, width: int, folder: Path | None = None, limit: int | None = None) -> None:
        self._record = np.dtype([("digest", f"V{DIGEST}"), ("feature", "<f4", (width,))])
        self._folder, self._limit = folder, limit
        self._rows: dict[bytes, Tensor] = {}
        self._lock = threading.Lock()
        for path in sorted(folder.glob("*.npy")) if folder else ():
            self._read(path)

    def __len__(self) -> int:
        return len(self._rows)

    def get(self, digests: Sequence[bytes]) -> list[Tensor | None]:
        """Return the vector `(width,)` of each digest, None if it is not cached."""
        with self._lock:
            return [self._rows.get(d) for d in digests]

    def add(self, digests: Sequence[bytes], features: Tensor) -> None:
        """Add vectors `(n, width)`."""
        rows = features.detach().cpu().clone()
        with self._lock:
            self._rows.update(zip(digests, rows, strict=True))
            surplus = len(self._rows) - self._limit if self._limit else 0
            for digest in list(self._rows)[: max(0, surplus)]:
                del self._rows[digest]
        if self._folder and len(rows):
            self._write(self._folder, digests, rows)

    def _write(self, folder: Path, digests: Sequence[bytes], rows: Tensor) -> None:
        records = np.empty(len(rows), self._record)
        records["digest"] = [np.void(d) for d in digests]
        records["feature"] = rows.numpy()
        name = hashlib.blake2b(b"".join(digests), digest_size=DIGEST).hexdigest()
        with atomic_path(folder / f"{name}.npy") as part, part.open("wb") as file:
            np.save(file, records, allow_pickle=False)

    def _read(self, path: Path) -> None:
        with reading(path, "as features", "delete it"):
            records = np.load(path, allow_pickle=False)
        if records.dtype != self._record:
            raise InputError(
                f"{path}: holds {records.dtype}, expected {self._record}; delete it or give "
                "another cache folder"
            )
        features = torch.from_numpy(records["feature"].copy())
        digests = [d.tobytes() for d in records["digest"]]
        self._rows.update(zip(digests, features, strict=True))


def digests_of(*tensors: Tensor, salt: str = "") -> list[bytes]:
    """Return a digest of the content of each row.

    Args:
        tensors: each `(n, …)`; a digest covers the same row of all tensors.
        salt: distinguishes different computations on the same tensors.

    Example:
        >>> a, b, c = digests_of(torch.tensor([[0.0, 1.0], [0.0, 1.0], [1.0, 0.0]]))
        >>> a == b, a == c
        (True, False)
    """
    arrays = [t.detach().cpu().contiguous().numpy() for t in tensors]
    found = []
    for rows in zip(*arrays, strict=True):
        digest = hashlib.blake2b(salt.encode(), digest_size=DIGEST)
        for row in rows:
            digest.update(row.tobytes())
        found.append(digest.digest())
    return found
