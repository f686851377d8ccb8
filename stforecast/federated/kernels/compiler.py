"""Compile the C sources of this folder once per machine, load them and call their functions."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import logging
import os
import platform
import shlex
import shutil
import stat
import subprocess
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

log = logging.getLogger(__name__)

SOURCES = (
    *("vectors.c", "prefetch.c", "factors.c", "products.c", "gru.c", "features.c"),
    *("convolution.c", "sparse.c", "images.c", "adam.c", "column.c", "perceptron.c"),
)
"""Source files, compiled as one in this order."""

VARIANTS = {
    "float": {"REAL": "float", "INTEGER": "int"},
    "double": {"REAL": "double", "INTEGER": "long long"},
    "bfloat16": {"REAL": "float", "INTEGER": "int", "BFLOAT16": "1"},
}
"""Macros of each variant, by its name. Tensors of the last one are float32; only the factors of
products are rounded."""

NAMES = {torch.float32: "float", torch.float64: "double", torch.bfloat16: "bfloat16"}
"""Variant of each precision."""

LANES = 16
"""Divisor of all widths: the widest vector of any processor."""


def usable(size: int, *tensors: Tensor, products: bool = False) -> bool:
    """Return whether the kernels can run on tensors whose last axis has this size.

    Kernels other than products are not used if autocast asks for another precision, and none while
    a model is traced for export.
    """
    dtype = tensors[0].dtype
    fit = size % LANES == 0 and dtype in (torch.float32, torch.float64)
    fit = fit and all(t.is_cpu and t.dtype == dtype for t in tensors)
    if not fit or torch.jit.is_tracing() or library() is None:
        return False
    if not torch.is_autocast_enabled("cpu"):
        return True
    return products and dtype == torch.float32 and precision(dtype) in supported()


def precision(dtype: torch.dtype) -> torch.dtype:
    """Return the precision of products of such tensors: autocast's, or else their own."""
    if torch.is_autocast_enabled("cpu"):
        return torch.get_autocast_dtype("cpu")
    return dtype


@cache
def supported() -> frozenset[torch.dtype]:
    """Return the variants that were compiled: those that this processor can run."""
    return frozenset(dtype for dtype in NAMES if hasattr(library(), f"gru_forward_{NAMES[dtype]}"))


def call(
    name: str, dtype: torch.dtype, *arguments: int | float | Tensor | ctypes.Array[Any] | None
) -> None:
    """Call a C function of a precision; a tensor is passed as the address of its first value.

    Raises:
        MemoryError: if the function cannot allocate memory.
        IndexError: if a key is out of range.
    """
    function = getattr(library(), f"{name}_{NAMES[dtype]}")
    if function.argtypes is None:
        numbers = {int: ctypes.c_ssize_t, float: ctypes.c_double}  # Others are pointers.
        function.argtypes = [numbers.get(type(a), ctypes.c_void_p) for a in arguments]
    given = [a.data_ptr() if isinstance(a, Tensor) else a for a in arguments]
    if code := function(*given):
        raise {1: MemoryError, 2: IndexError}[code](name)


@cache
def library() -> ctypes.CDLL | None:
    """Return the compiled kernels from the user's cache; None without a compiler, or if it fails.

    A cached file is loaded only if no other user can have written it, and it is undamaged.
    """
    if os.environ.get("STFORECAST_KERNELS") == "off":
        return None
    name = os.environ.get("CC", "cc")
    compiler = shutil.which(name)
    if compiler is None:
        log.warning(
            "no C compiler %s, so no compiled kernels: GRUs train about half as fast; install gcc "
            "or clang, or set STFORECAST_KERNELS=off to hide this warning",
            name,
        )
        return None
    text = "".join((Path(__file__).parent / source).read_text() for source in SOURCES)
    flags = "-c -O3 -march=native -fno-math-errno -fno-trapping-math -fPIC"
    command = (compiler, *flags.split(), *shlex.split(os.environ.get("CFLAGS", "")))
    about = [text, str(command), str(VARIANTS), platform.machine(), processor_flags()]
    key = hashlib.sha256("\0".join(about).encode()).hexdigest()[:16]
    try:
        if (cache := cache_folder()) is None:
            with tempfile.TemporaryDirectory(prefix="stforecast-") as folder:
                return ctypes.CDLL(str(_build(command, text, key, Path(folder))))
        built = next((p for p in cache.glob(f"kernels-{key}-*.so") if _is_sound(p)), None)
        return ctypes.CDLL(str(built or _build(command, text, key, cache)))
    except (OSError, subprocess.CalledProcessError) as e:
        log.warning("no compiled kernels (%s); continuing without them", e)
        return None


def _build(command: tuple[str, ...], text: str, key: str, cache: Path) -> Path:
    """Build the library; it is moved into place whole, as others may build it at the same time."""
    run = functools.partial(subprocess.run, text=True, check=True, capture_output=True)
    with tempfile.TemporaryDirectory(dir=cache) as folder:
        objects = []
        for variant, macros in VARIANTS.items():
            target = f"{folder}/{variant}.o"
            defined = [f"-D{macro}={value}" for macro, value in {"NAME": variant, **macros}.items()]
            try:
                run([*command, *defined, "-xc", "-", "-o", target], input=text)
            except subprocess.CalledProcessError:
                if variant != "bfloat16":  # Some processors and compilers lack its instructions.
                    raise
            else:
                objects.append(target)
        made = Path(folder) / "kernels.so"
        run([command[0], *objects, "-shared", "-lm", "-o", str(made)])
        made.chmod(0o700)
        return made.replace(cache / f"kernels-{key}-{_checksum(made)}.so")


def _checksum(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _is_sound(path: Path) -> bool:
    """Return whether a library is the user's own and has the checksum that its name ends with.

    Loading a damaged one kills the process; loading another user's runs that user's code.
    """
    if path.is_symlink() or not path.is_file() or not _is_own(path):
        return False
    return path.stem.endswith(f"-{_checksum(path)}")


def _is_own(path: Path) -> bool:
    about = path.stat()
    return about.st_uid == os.geteuid() and not about.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def cache_folder() -> Path | None:
    """Return the user's folder of compiled kernels; None if no such folder can be trusted."""
    try:
        base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        cache = base / "stforecast"
        cache.mkdir(parents=True, exist_ok=True, mode=0o700)
    except (OSError, RuntimeError) as e:  # Path.home: an unknown user without HOME.
        log.info("no folder for compiled kernels (%s): they are compiled for each run", e)
        return None
    if _is_own(cache) and os.access(cache, os.W_OK | os.X_OK):
        return cache
    log.warning(
        "%s: belongs to another user, or others may write to it, so kernels are compiled for each "
        "run; take it over, or: chmod 700 %s",
        cache,
        cache,
    )
    return None


def processor_flags() -> str:
    """Return an identifier of the processor, as different ones may share a home folder."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line for line in lines if line.startswith(("flags", "Features"))), "")
