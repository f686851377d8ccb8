"""Figures of finished runs, for `stforecast plot`: every function here marked `listed` makes one.

Runs that differ in nothing but their seed share a colour and an entry in the legend, "fuels (3
runs)"; what a figure does with them stands in its docstring. Colours go by the place in the list of
runs: the same runs have the same colours in every figure. What cannot be drawn is named in it.
"""

from collections.abc import Callable
from typing import Any

from data_prep.registry import Registry, is_listed

PLOTS: Registry[Callable[..., Any]] = Registry(
    "figure", "stforecast.plots", is_entry=is_listed, group="stforecast.plots"
)
"""Every figure by name; each takes runs and options of its own."""
