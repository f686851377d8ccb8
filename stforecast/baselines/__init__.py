"""Reference forecasters, which a federated method has to beat, one file each.

All read and forecast z-scored series. A missing reading that no rule of theirs replaces counts as
0.0, the training mean, as in `stforecast.data.windows`; missing targets are left out of the fits.
Every class here that has a `name` is one.
"""

from __future__ import annotations

from data_prep.registry import Registry, is_named
from stforecast.baselines.base import Baseline


def _simplest_first(kind: type[Baseline]) -> tuple[bool, bool, bool, str]:
    return kind.reads_windows, kind.pooled, bool(kind.learned), kind.name


BASELINES: Registry[type[Baseline]] = Registry(
    "reference forecaster",
    "stforecast.baselines",
    is_entry=is_named(Baseline),
    group="stforecast.baselines",
    sort_by=_simplest_first,
)
"""Every reference forecaster by name, those that learn less first."""
