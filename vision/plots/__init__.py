"""Figures of finished image runs: every function here that is marked `listed` makes one."""

from collections.abc import Callable
from typing import Any

from data_prep.base.registry import Registry, is_listed

PLOTS: Registry[Callable[..., Any]] = Registry(
    "figure", "vision.plots", is_entry=is_listed, group="stforecast.image_plots"
)
"""Every figure by name; each takes runs and its own options."""
