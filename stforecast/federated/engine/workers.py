"""Parallel training of cohorts, and files for more clients than fit in memory.

A tensor of the store is an ordinary tensor whose memory is a file: unused rows are not resident,
and the system writes back used ones. Methods and cohorts need no changes.

Workers are threads of this process with one torch thread each. The cohorts of a round have
different clients, so no number changes. Two one-thread workers are faster than two threads inside
each small product, since they synchronise once a round.
"""

from __future__ import annotations

import copy
import itertools
import os
import shutil
import tempfile
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from typing import TypeVar

import torch
from torch import Tensor, nn

from data_prep.base.errors import InputError
from stforecast.federated.core.method import Method


class Store:
    """A folder of plain files, one per tensor, which is removed with this object."""

    def __init__(self, folder: str | os.PathLike[str] | None = None) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="stforecast-", dir=folder))
        self._names = itertools.count()
        weakref.finalize(self, shutil.rmtree, self.folder, ignore_errors=True)

    def zeros(self, like: Tensor) -> Tensor:
        """Return zeros of a tensor's shape and type, which take no space until they are written."""
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


Item = TypeVar("Item")
Result = TypeVar("Result")


class Workers:
    """A method and n - 1 copies, one for each thread, since a model runs one cohort at a time.

    A model that `draws` from torch's generator, as `nn.Dropout` does, has one: threads share it.
    """

    def __init__(self, method: Method, n: int) -> None:
        self.draws = has_dropout(method)
        n = 1 if self.draws else n
        self.methods = [method, *(copy.deepcopy(method) for _ in range(n - 1))]

    def __len__(self) -> int:
        return len(self.methods)

    @property
    def parallel(self) -> bool:
        """Return whether several cohorts train at the same time."""
        return len(self.methods) > 1

    def map(self, work: Callable[[Method, Item], Result], items: Sequence[Item]) -> list[Result]:
        """Return `[work(method, item) for item in items]`."""
        if not self.parallel or len(items) < 2:
            return [work(self.methods[0], item) for item in items]
        free: SimpleQueue[Method] = SimpleQueue()
        for method in self.methods:
            free.put(method)

        def run(item: Item) -> Result:
            method = free.get()
            try:
                return work(method, item)
            finally:
                free.put(method)

        threads = torch.get_num_threads()
        torch.set_num_threads(1)  # This also limits the math library, in all threads.
        try:
            one = torch.set_num_threads
            with ThreadPoolExecutor(len(self.methods), initializer=one, initargs=(1,)) as pool:
                return list(pool.map(run, items))
        finally:
            torch.set_num_threads(threads)


def has_dropout(method: Method) -> bool:
    """Return whether the method's model draws from torch's generator, judged by its layers."""
    modules = list(method.population.model.modules())
    by_name = any(getattr(m, name, 0) for m in modules for name in ("dropout", "drop_prob"))
    return by_name or any(isinstance(m, nn.modules.dropout._DropoutNd) and m.p for m in modules)
