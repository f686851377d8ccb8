"""Compiles a C source of this folder once a machine and loads it."""

from __future__ import annotations

import ctypes
import hashlib
import logging
import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

log = logging.getLogger(__name__)

COMPILE = ("-c", "-O3", "-march=native", "-ffast-math", "-fno-finite-math-only", "-fPIC")
"""NaN is not assumed away: a diverged client must be seen."""

LINK = ("-shared", "-lm")
"""Apart from compiling: gcc's link with -ffast-math makes the whole process flush denormals."""


def load(source: str, variants: Mapping[str, Mapping[str, str]]) -> ctypes.CDLL | None:
    """The shared library of a source, compiled once for each variant and kept in the user's cache.

    Args:
        source: name of the file in this folder.
        variants: macros to define, by name of the variant.

    Returns:
        The library, or None where there is no compiler or it fails (said in the log).
    """
    compiler = shutil.which(os.environ.get("CC", "cc"))
    if compiler is None or os.environ.get("STFORECAST_KERNELS") == "off":
        return None
    text = (Path(__file__).parent / source).read_text()
    about = [text, compiler, str(COMPILE), str(dict(variants)), platform.machine(), _cpu()]
    key = hashlib.sha256("\0".join(about).encode()).hexdigest()[:16]
    library = _cache() / f"{Path(source).stem}-{key}.so"
    try:
        if not library.exists():
            _build(compiler, text, variants, library)
        return ctypes.CDLL(str(library))
    except (OSError, subprocess.CalledProcessError) as e:
        log.warning("no compiled kernel (%s); going on without", e)
        return None


def _build(
    compiler: str, text: str, variants: Mapping[str, Mapping[str, str]], library: Path
) -> None:
    library.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=library.parent) as folder:
        objects = []
        for name, macros in variants.items():
            defined = [f"-D{macro}={value}" for macro, value in macros.items()]
            objects.append(f"{folder}/{name}.o")
            command = [compiler, *COMPILE, *defined, "-xc", "-", "-o", objects[-1]]
            subprocess.run(command, input=text, text=True, check=True, capture_output=True)
        made = f"{folder}/{library.name}"
        subprocess.run([compiler, *objects, *LINK, "-o", made], check=True, capture_output=True)
        Path(made).replace(library)


def _cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "stforecast"


def _cpu() -> str:
    """What tells processors apart that share a home folder."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line for line in lines if line.startswith("flags")), "")
