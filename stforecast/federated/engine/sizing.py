"""How a run uses the machine: its device, cohort size, memory and precision, threads and files.

On a CPU a cohort's parameters and gradients should fit its worker's share of the last-level cache;
on a GPU the cohort fills the free memory. A model computes in bfloat16 only where a measurement
shows that it saves time.

Workers are threads of this process with one torch thread each. The cohorts of a round have
different clients, so no number changes. Two one-thread workers are faster than two threads inside
each small product, since they synchronise once a round.

If the clients' state does not fit in memory, it is in a store: an ordinary tensor whose memory is a
file. Unused rows are not resident, and the system writes back used ones. Methods and cohorts need
no changes.
"""

from __future__ import annotations

import copy
import ctypes
import hashlib
import itertools
import logging
import math
import mmap
import re
import shutil
import tempfile
import time
import weakref
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import TypeVar

import torch
from torch import Tensor, nn

from data_prep.base import limits
from data_prep.base.errors import InputError, Words
from data_prep.base.files import naming_full_disk
from stforecast.federated.core.data import ClientData
from stforecast.federated.core.method import Method
from stforecast.federated.core.population import Population
from stforecast.federated.core.tensors import total_bytes
from stforecast.federated.core.training import STEPS, Training, moment_names
from stforecast.federated.kernels.compiler import cache_folder, processor_flags

log = logging.getLogger(__name__)

CPU_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
USUAL_CACHE = 16 * 2**20
"""Assumed bytes if the system does not report its cache sizes."""

FEWEST, MOST = 4, 64
"""Bounds of a cohort on a CPU; with fewer clients, torch's overhead exceeds the computation."""

ROWS = 1024
"""Samples in a cohort's batch on a CPU, so that activations stay in cache."""

COPIES = 3
"""Memory of a client in training, with gradients and activations, over that of its parameters."""


def cohort_size(
    population: Population, n_clients: int, batch_size: int, device: torch.device, workers: int = 1
) -> int:
    """Return the number of clients that train together; on a CPU, all workers get equal shares."""
    if population.loops(device):
        return 1
    of_client = total_bytes(population.initial())
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return max(1, min(n_clients, free // 2 // (COPIES * of_client)))
    if device.type != "cpu":
        return n_clients
    in_cache = cache_bytes() // workers // (2 * of_client)
    most = max(FEWEST, min(in_cache, ROWS // batch_size, MOST))
    turns = math.ceil(n_clients / (workers * most))
    return max(FEWEST, math.ceil(n_clients / (workers * turns)))


def cache_bytes() -> int:
    """Return the size of the largest cache of the first core."""
    sizes = []
    for path in CPU_CACHES.glob("index*/size"):
        if found := re.fullmatch(r"(\d+)([KM])", path.read_text().strip()):
            sizes.append(int(found[1]) * (2**10 if found[2] == "K" else 2**20))
    return max(sizes, default=USUAL_CACHE)


def keep_freed_memory() -> None:
    """Let this process retain the memory that it frees, if the C library supports it.

    By default, glibc returns the memory of a batch's activations and gradients to the system and
    requests it again for the next batch, which takes a 20th of a round.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return
    m_trim_threshold, m_mmap_threshold = -1, -3  # Of glibc's malloc.h.
    mallopt(m_mmap_threshold, 32 * 2**20)  # The largest there is.
    mallopt(m_trim_threshold, 256 * 2**20)


@dataclass(frozen=True)
class Memory:
    """Predicted memory of a run, in bytes.

    Attributes:
        clients: state of all clients: parameters, buffers and the optimiser's moments.
        best: copy of the best round.
        training: further memory of the cohorts in training.
        data: samples.
    """

    clients: int
    best: int
    training: int
    data: int

    @property
    def total(self) -> int:
        """Total bytes, all in memory."""
        return self.clients + self.best + self.resident

    @property
    def resident(self) -> int:
        """Bytes that stay in memory if the clients' state is in files."""
        return self.training + self.data

    def fits(self, allowed: int | None = None) -> bool:
        """Return whether all of it fits in memory; if not, the clients' states belong in files."""
        allowed = allowed or limits.allowed_memory()
        if self.resident > allowed:
            raise InputError(
                f"the run needs {self.resident / 1e9:.1f} GB besides the clients' "
                f"states, of {allowed / 1e9:.1f} GB; ",
                Words("allow more memory, or take a smaller {cohort} or fewer cells"),
            )
        return self.total <= allowed

    def __str__(self) -> str:
        """Describe the bytes in words, for the log."""
        return (
            f"{self.total / 1e9:.2f} GB (clients {self.clients / 1e9:.2f}, best round "
            f"{self.best / 1e9:.2f}, training {self.training / 1e9:.2f}, data "
            f"{self.data / 1e9:.2f})"
        )


def predicted_memory(
    population: Population,
    training: Training,
    n_clients: int,
    n_in_training: int,
    data: Sequence[ClientData],
    *,
    keeps_model: bool,
    best: bool,
) -> Memory:
    """Predict the memory of a run, without what its method adds.

    `keeps_model` is whether clients keep their models between rounds.
    """
    of_client = total_bytes(population.initial())
    copies = 1 + sum(name != STEPS for name in moment_names(training))
    kept = keeps_model + (0 if training.optimizer_state == "round" else copies - 1)
    return Memory(
        clients=n_clients * of_client * kept,
        best=n_clients * of_client if best and keeps_model else 0,
        training=n_in_training * of_client * (copies + COPIES),
        data=sum(t.untyped_storage().nbytes() for d in data for t in d.tensors.values()),
    )


def parse_bytes(text: str) -> int:
    """Parse a size such as 8GB.

    >>> parse_bytes("8GB"), parse_bytes("500 mb")
    (8000000000, 500000000)
    """
    found = re.fullmatch(r"(\d+(?:\.\d+)?) ?([KMGT]B|)", text.strip().upper())
    if not found or not float(found[1]):
        raise InputError(f"memory is {text!r}; give a size such as 500MB or 8GB")
    units = {"": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
    return int(float(found[1]) * units[found[2]])


def bfloat16_pays(population: Population, x: Tensor, threads: int) -> bool:
    """Return whether a training step of a population is faster in bfloat16.

    The answer is kept on the machine, so that repeated and resumed runs compute the same numbers.
    It is measured again for another model, batch, number of threads, processor or version of torch.
    """
    folder = cache_folder()  # None without a folder that can be trusted.
    shapes = [(name, tuple(t.shape)) for name, t in population.initial().items()]
    machine = processor_flags(), torch.__version__
    about = *machine, repr(population.model), shapes, tuple(x.shape), threads
    key = hashlib.sha256(repr(about).encode()).hexdigest()[:16]
    kept = folder / f"bfloat16-{key}" if folder else None
    if kept and kept.is_file():
        pays, where = kept.read_text() == "yes", f", by {kept}"
    else:
        single, narrow = seconds(population, x, threads)
        pays, where = narrow <= 0.97 * single, ""
        times = 1e3 * narrow, 1e3 * single
        log.debug("bfloat16: %.2f ms a step, single precision %.2f ms", *times)
        if kept:
            with naming_full_disk(kept):
                kept.write_text("yes" if pays else "no")
    log.debug("precision: %s%s", "bfloat16" if pays else "single, which is faster here", where)
    return pays


def seconds(population: Population, x: Tensor, threads: int) -> tuple[float, float]:
    """Return the seconds of a training step in single precision and in bfloat16."""
    fastest = {False: float("inf"), True: float("inf")}
    before, asked = torch.get_num_threads(), population.mixed
    torch.set_num_threads(threads)
    population.train()
    try:
        with torch.random.fork_rng(devices=[]):
            for _ in range(6):
                for mixed in fastest:
                    population.mixed = mixed
                    fastest[mixed] = min(fastest[mixed], _step(population, x))
    finally:
        population.mixed = asked
        torch.set_num_threads(before)
    return fastest[False], fastest[True]


def _step(population: Population, x: Tensor) -> float:
    """Return the seconds of a forward and a backward pass."""
    params = {name: t.requires_grad_() for name, t in population.parameters(len(x)).items()}
    state = {**params, **population.buffers(len(x))}
    start = time.perf_counter()
    prediction = population.decode(state, population.encode(state, x))
    if prediction.requires_grad:
        torch.autograd.grad(prediction.sum(), list(params.values()), allow_unused=True)
    return time.perf_counter() - start


def pick_device(name: str) -> torch.device:
    """Return the device of this name; `auto` is a GPU if there is one, else the CPU."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if name.partition(":")[0] not in ("cpu", "cuda"):
        raise InputError(f"device is {name!r}; choose auto, cpu or cuda")
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise InputError(f"device is {name!r}, but torch finds no GPU; ", Words("use {device:cpu}"))
    return torch.device(name)


class Store:
    """A temporary folder of plain files, one per tensor, which is removed with this object."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="stforecast-"))
        self._names = itertools.count()
        weakref.finalize(self, shutil.rmtree, self.folder, ignore_errors=True)

    def zeros(self, like: Tensor) -> Tensor:
        """Return zeros of a tensor's shape and type, which take no space until they are written."""
        if not (size := like.numel() * like.element_size()):
            return torch.zeros(like.shape, dtype=like.dtype)
        if size > (free := shutil.disk_usage(self.folder).free):
            raise InputError(
                f"{self.folder.parent}: {free / 1e9:.1f} GB free, but the clients' states need "
                f"{size / 1e9:.1f} GB more; set TMPDIR to a folder on a larger disk"
            )
        with (self.folder / f"{next(self._names)}.bin").open("w+b") as file:
            file.truncate(size)
            mapped = mmap.mmap(file.fileno(), size)
        found = torch.frombuffer(mapped, dtype=like.dtype).view(like.shape)
        MAPPED[found.data_ptr()] = mapped
        return found

    def copy(self, tensor: Tensor) -> Tensor:
        """Return a copy of a tensor in the store."""
        return self.zeros(tensor).copy_(tensor)


MAPPED = weakref.WeakValueDictionary[int, mmap.mmap]()
"""Files of tensors in memory, by the address of the first value."""


def release_pages(tensors: Iterable[Tensor]) -> None:
    """Take what files hold out of the memory, until it is read again; others stay there.

    Changes are kept in the files of a `Store`, and lost in a mapped model.
    """
    for tensor in tensors:
        if (mapped := MAPPED.get(tensor.data_ptr())) and hasattr(mapped, "madvise"):
            mapped.madvise(mmap.MADV_DONTNEED)


Item = TypeVar("Item")
Result = TypeVar("Result")


class Workers:
    """A method and n - 1 copies, one for each thread, since a model runs one cohort at a time.

    A model that `draws` from torch's generator, as `nn.Dropout` does, has one: threads share it.
    """

    def __init__(self, method: Method, n: int) -> None:
        modules = list(method.population.model.modules())
        by_name = any(getattr(m, name, 0) for m in modules for name in ("dropout", "drop_prob"))
        dropouts = (m for m in modules if isinstance(m, nn.modules.dropout._DropoutNd))
        self.draws = by_name or any(m.p for m in dropouts)
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

        threads, limit = torch.get_num_threads(), torch.set_num_threads
        limit(1)  # This also limits the math library, in all threads.
        try:
            with ThreadPoolExecutor(len(self.methods), initializer=limit, initargs=(1,)) as pool:
                return list(pool.map(run, items))
        finally:
            limit(threads)
