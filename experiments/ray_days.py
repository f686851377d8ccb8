"""Parallel summation of raw days by Ray (extra `ray`), one task per raw file.

Each raw day is summed into the folder where `data_prep.telecom_italia.day_store` looks for it, and
`prepare` continues from there.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from data_prep.errors import InputError
from stforecast.bench.ray_engine import each

log = logging.getLogger(__name__)


def sum_days(name: str, raw: Path, out: Path, *, progress: bool = False, **options: Any) -> None:
    """Sum a Telecom Italia set's raw days into the folder where `prepare` finds them.

    Unreadable files are left to `prepare`, which reports them.

    Args:
        name: `milan` or `trentino`.
        raw: folder of the daily files.
        out: the cube that will be written.
        progress: whether to show a progress bar.
        **options: options of `prepare`.

    Raises:
        InputError: if the data set has no raw days, or the folder or an option is invalid.
    """
    store, days = _days(name, raw, out, options)
    items = [(store, day) for day in days]
    for i, problem in each(_sum_day, items, f"{name}: days", progress=progress).items():
        log.warning("%s: %s", days[i].path.name, problem)


def _days(name: str, raw: Path, out: Path, options: dict[str, Any]) -> tuple[Any, list[Any]]:
    """Return the store of summed days and the raw days, as in `TelecomItalia.prepare`."""
    import numpy as np

    from data_prep import DATA_SETS
    from data_prep.atomic import check_target
    from data_prep.telecom_italia.day_store import DayStore
    from data_prep.telecom_italia.grid import read_grid
    from data_prep.telecom_italia.raw_folder import find_days
    from data_prep.telecom_italia.release import TelecomItalia, intervals_per_step

    release = getattr(DATA_SETS.find(name).prepare, "__self__", None)
    if not isinstance(release, TelecomItalia):
        raise InputError(f"{name} is one file, which Ray cannot split; leave out --engine")
    check_target(out)
    grid = options.get("grid")
    known = read_grid(grid).cells if grid else np.arange(1, release.max_cell + 1)
    store = DayStore(out, intervals_per_step(options.get("step", "1h")))
    return store, find_days(raw, release.prefix, known, release.time_zone)


def _sum_day(item: tuple[Any, Any]) -> None:
    store, day = item
    store.day(day)
