"""Figures of finished image runs: every function in `PLOTS` makes one for `vision plot`."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from matplotlib.figure import Figure

from vision.plots.anchors import anchors
from vision.plots.comparisons import bars, sweep
from vision.plots.curves import communication, rounds
from vision.plots.partition import partition
from vision.plots.prototypes import prototypes
from vision.plots.retention import retention
from vision.plots.stream import stages, stream

__all__ = [
    "PLOTS",
    "anchors",
    "bars",
    "communication",
    "partition",
    "prototypes",
    "retention",
    "rounds",
    "stages",
    "stream",
    "sweep",
]

PLOTS: Mapping[str, Callable[..., Figure]] = {
    plot.__name__: plot
    for plot in (
        partition,
        rounds,
        bars,
        sweep,
        communication,
        prototypes,
        anchors,
        stream,
        stages,
        retention,
    )
}
"""Every figure by name; each takes runs and options of its own."""
