"""Clients' states in memory-mapped files, where there are more of them than memory holds.

A tensor of the store is an ordinary tensor whose memory is a file: rows that nobody touches are not
resident, and the system writes back those that were. Methods and cohorts see no difference.
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
    """A folder of plain files, one a tensor, removed with this object.

    Args:
        folder: where to make it; by default the system's folder for temporary files.
    """

    def __init__(self, folder: str | os.PathLike[str] | None = None) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="stforecast-", dir=folder))
        self._names = itertools.count()
        weakref.finalize(self, shutil.rmtree, self.folder, ignore_errors=True)

    def zeros(self, like: Tensor) -> Tensor:
        """Zeros of a tensor's shape and type, which take no space until they are written.

        Raises:
            InputError: if the disk has no room for them.
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
        """A tensor's values in the store."""
        return self.zeros(tensor).copy_(tensor)
