"""Convert raw traffic records to a cube: an `xarray.Dataset` with dimensions `(time, cell)`.

- `cube` defines, reads and writes cubes; `chunked_writing` writes one that is larger than memory.
- A data set is one module, found by `registry`: `milan`, `metr_la`, `pems04` and so on, and `table`
  for a user's own. What several share is in a package: `telecom_italia` (Milan, Trentino), `dcrnn`
  (METR-LA, PEMS-BAY), `pems` (PEMS03, 04, 07, 08), `tgcn` (Los-loop, SZ-taxi), `matrices` (Abilene,
  GÉANT), `roads` (all detectors), `tabular` (tables).
- `download` fetches official files; `simulate` writes raw files of an invented `city`.

Nothing here imports torch.
"""

from types import ModuleType
from typing import Any

from data_prep.base.registry import Registry


def _is_data_set(thing: Any) -> bool:
    return isinstance(thing, ModuleType) and {"SOURCES", "prepare"} <= vars(thing).keys()


DATA_SETS: Registry[Any] = Registry(
    "data set", "data_prep.sets", is_entry=_is_data_set, group="stforecast.datasets"
)
"""Modules by the name that a user types, e.g. `metr-la` for `data_prep.sets.metr_la`.

The docstring of a data set's module is the data sheet (the first line a title), `SOURCES` says
where the official files are, and `prepare(raw, out, *, …, progress=False)` writes the cube; its
keyword-only parameters are the options of `stforecast prepare`. Without sources, `BY_HAND` may say
where to fetch the files.
"""
