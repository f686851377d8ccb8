"""Kernels whose products are in tiles of the processor (Intel AMX), which are emulated in C."""

import os
from pathlib import Path

import pytest
from small_files import made_once

from stforecast.federated.kernels import compiler
from stforecast.federated.kernels.compiler import library, supported, tiles

EMULATED = Path(__file__).parent / "emulated"


@pytest.fixture
def forget():
    """A function after which the library and what it can do are found out anew, as at the end."""

    def forget():
        for known in (library, supported, tiles):
            known.cache_clear()

    yield forget
    forget()


@pytest.fixture(scope="session")
def built(tmp_path_factory):
    """Folder that keeps the emulated kernels."""
    return made_once(tmp_path_factory, "emulated", Path.touch)


@pytest.fixture
def emulated_tiles(built, monkeypatch, forget):
    """Kernels in tiles, on any machine, and a function `multiply` for their products alone."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(built))
    monkeypatch.setenv("CFLAGS", f"{os.environ.get('CFLAGS', '')} -O1 -I{EMULATED}")
    monkeypatch.setattr(compiler, "SOURCES", (*compiler.SOURCES, str(EMULATED / "product.c")))
    monkeypatch.setattr(compiler, "VARIANTS", {"tiles": compiler.VARIANTS["tiles"]})
    monkeypatch.setattr(compiler, "processor_flags", lambda: "flags: amx_bf16 amx_tile")
    monkeypatch.setattr(compiler, "_tiles_permitted", lambda: True)
    forget()
    return library()
