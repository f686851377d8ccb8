"""The data sets that can be prepared: every module here with a `prepare` and `SOURCES`."""

from __future__ import annotations

import importlib
import pkgutil
from types import ModuleType

import data_prep
from data_prep.errors import choose


def data_sets() -> dict[str, ModuleType]:
    """Modules by the name that a user types, e.g. `metr-la` for `data_prep.metr_la`.

    A data set is one module: its docstring is the data sheet (the first line a title), `SOURCES`
    says where the official files are, and `prepare(raw, out, *, …, progress=False)` writes the
    cube; its keyword-only parameters are the options of `stforecast prepare`.
    """
    modules = (
        importlib.import_module(f"data_prep.{m.name}")
        for m in pkgutil.iter_modules(data_prep.__path__)
    )
    return {
        m.__name__.rpartition(".")[2].replace("_", "-"): m
        for m in modules
        if hasattr(m, "SOURCES") and hasattr(m, "prepare")
    }


def find_data_set(name: str) -> ModuleType:
    """The data set of that name.

    Raises:
        InputError: listing the names if there is none.
    """
    known = data_sets()
    if name not in known:
        raise choose("data set", name, known)
    return known[name]
