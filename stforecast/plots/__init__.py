"""Figures of finished runs, for `stforecast plot`: every function here marked `figure` makes one.

From Python, `stforecast.plots.cdf([forecaster, "runs/other"], ax=ax)` takes fitted forecasters, and
finished runs or their folders.

Runs that differ only in their seed share a colour and an entry in the legend, "fuels (3 runs)";
each figure's docstring explains how it combines them. A method has the same colour in every figure
and report, see `stforecast.bench.curves`. Figures name what they cannot draw. They raise
`InputError` for an unknown metric, name or cell, and for runs that cannot be drawn together.
"""

from collections.abc import Callable
from typing import Any

from data_prep.base.registry import Registry, is_listed

PLOTS: Registry[Callable[..., Any]] = Registry(
    "figure", "stforecast.plots", is_entry=is_listed, group="stforecast.plots"
)
"""Every figure by name; each takes runs and its own options."""


def __getattr__(name: str) -> Callable[..., Any]:
    """Return the figure of that name, such as `stforecast.plots.cdf`."""
    if name.startswith("_") or name.replace("_", "-") not in PLOTS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return PLOTS[name.replace("_", "-")]
