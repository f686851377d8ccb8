"""Reference forecasters, which a federated method should beat, one file each.

All read and forecast z-scored series. A missing reading that they do not impute otherwise counts as
0.0, the training mean, as in `stforecast.data.windows`; missing targets are left out of the fits.
Every class here with a `name` is registered.
"""

from __future__ import annotations

from data_prep.base.registry import Registry, is_named
from stforecast.baselines.base import Baseline, Peer

BASELINES: Registry[type[Baseline]] = Registry(
    "reference forecaster",
    "stforecast.baselines",
    is_entry=is_named(Baseline),
    group="stforecast.baselines",
    sort_by=lambda kind: (
        issubclass(kind, Peer),
        kind.reads_windows,
        kind.pooled,
        bool(kind.learned),
        kind.name,
    ),
)
"""Every reference forecaster by name: simplest first, other libraries last."""
