"""Figures of finished image runs, for `stforecast vision plot`: every function in `PLOTS` makes one."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from matplotlib.figure import Figure

from vision.plots.partition import partition

__all__ = ["PLOTS", "partition"]

PLOTS: Mapping[str, Callable[..., Figure]] = {}
"""Every figure by name; each takes runs and options of its own."""
