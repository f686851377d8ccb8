"""Figures of finished runs, for `stforecast plot`: every function here marked `listed` makes one.

Runs that differ only in their seed share a colour and an entry in the legend, "fuels (3 runs)";
each figure's docstring says how it combines them. Colours follow the order of the runs, so the same
runs have the same colours in every figure. Figures name what they cannot draw.
"""

from collections.abc import Callable
from typing import Any

from data_prep.registry import Registry, is_listed

PLOTS: Registry[Callable[..., Any]] = Registry(
    "figure", "stforecast.plots", is_entry=is_listed, group="stforecast.plots"
)
"""Every figure by name; each takes runs and its own options."""
