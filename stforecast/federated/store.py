"""Clients' states in memory-mapped files, for more clients than fit in memory.

A tensor of the store is an ordinary tensor whose memory is a file: unused rows are not resident,
and the system writes back used ones. Methods and cohorts need no changes.
"""

from __future__ import annotations

import itertools
import os
import shutil
import tempfile
import weakref
from pathlib import Path

import torch
from torch import Tensor

from data_prep.errors import InputError


class Store:
    """A folder of plain files, one per tensor, which is removed with this object.

    Args:
        folder: parent folder; by default the system's folder for temporary files.
    """

    def __init__(self, folder: str | os.PathLike[str] | None = None) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="stforecast-", dir=folder))
        self._names = itertools.count()
        weakref.finalize(self, shutil.rmtree, self.folder, ignore_errors=True)

    def zeros(self, like: Tensor) -> Tensor:
        """Return zeros of a tensor's shape and type, which take no space until they are written.

        Raises:
            InputError: if they do not fit on the disk.
        """
        size = like.numel() * like.element_size()
        if size > (free := shutil.disk_usage(self.folder).free):
            raise InputError(
                f"{self.folder.parent}: {free / 1e9:.1f} GB free, but the clients' states need "
                f"{size / 1e9:.1f} GB more; set TMPDIR to a folder on a larger disk"
            )
        path = self.folder / f"{next(self._names)}.bin"
        mapped = torch.from_file(str(path), shared=True, size=like.numel(), dtype=like.dtype)
        return mapped.view(like.shape)

    def copy(self, tensor: Tensor) -> Tensor:
        """Return a copy of a tensor in the store."""
        return self.zeros(tensor).copy_(tensor)
