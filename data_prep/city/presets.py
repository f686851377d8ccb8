"""Presets of an invented city: how much activity its cells have, and how similar they are."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Preset:
    """Settings of a city's activity, see `data_prep.city.activity`.

    Args:
        cells: default number of cells.
        days: default number of days.
        kind: the only kind of cell; empty for all four.
        scale: standard deviation of the logarithm of the cells' scales within a kind.
        shared: standard deviation of the logarithm of the city's AR(1) noise.
        slow: the same of each cell's AR(1) noise.
        fast: the same of its white noise.
        event_rate: events per cell and day.
        hourly: lowest and highest mean activity of a cell in an hour, between which cells are
            spread evenly in the logarithm; activity is then a whole number, drawn from a Poisson
            distribution. None for the kinds' own scales and activity that is not counted.
    """

    cells: int = 100
    days: int = 14
    kind: str = ""
    scale: float = 0.35
    shared: float = 0.10
    slow: float = 0.17
    fast: float = 0.12
    event_rate: float = 0.03
    hourly: tuple[float, float] | None = None


PRESETS = {
    "heterogeneous": Preset(),  # Noise and events are fitted to Milan's public cells.
    "dense": Preset(kind="centre", scale=0.1, shared=0.17, slow=0.08, fast=0.05),
    # As in rural Trentino, most of a cell's variance is noise: counts, bursts and level changes.
    "sparse": Preset(
        cells=24, days=62, shared=0.05, slow=0.4, fast=0.3, event_rate=0.5, hourly=(3.0, 60.0)
    ),
}
"""Preset by name; the first is the default."""
