"""Convert raw traffic records to a cube: an `xarray.Dataset` with dimensions `(time, cell)`.

- `cube` defines, reads and writes cubes, also those that are larger than memory.
- `sets` has a module for each data set, such as `milan`, or for those of one publisher or layout:
  `dcrnn` (METR-LA, PEMS-BAY), `pems`, `tgcn`, `counted`; and `table` for a user's own. What several
  share is beside them: `telecom_italia` (Milan, Trentino) and `roads` (all detectors). Tables of
  users are read by `readers`.
- `download` fetches official files; `city` simulates raw files of an invented one.

Nothing here imports torch.
"""

from collections.abc import Callable
from types import ModuleType
from typing import Any

from data_prep.base.registry import Registry


def _is_data_set(thing: Any) -> bool:
    named = isinstance(thing, ModuleType) or (isinstance(thing, type) and vars(thing).get("name"))
    return bool(named) and hasattr(thing, "SOURCES") and hasattr(thing, "prepare")


DATA_SETS: Registry[Any] = Registry(
    "data set", "data_prep.sets", is_entry=_is_data_set, group="stforecast.datasets"
)
"""Modules by the name that a user types, e.g. `milan` for `data_prep.sets.milan`, and classes.

The docstring of a data set's module is the data sheet (the first line a title), `SOURCES` says
where the official files are, and `prepare(raw, out, *, …, progress=False)` writes the cube; its
keyword-only parameters are the options of `stforecast prepare`, or those of `read`, or of a class
`Options`, if it has one.
Without sources, `BY_HAND` may say where to fetch the files. A class with a `name` has the same.
"""


def options_of(data_set: Any) -> Callable[..., Any]:
    """Return what has the options of a data set as its keyword-only parameters."""
    found = (getattr(data_set, name, None) for name in ("Options", "read"))
    result: Callable[..., Any] = next(filter(None, found), data_set.prepare)
    return result
