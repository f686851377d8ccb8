"""Curves: runs that belong together in a figure, what they are called and how they are drawn."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import xarray as xr

from data_prep.errors import InputError
from stforecast.results import Run

COLORS = ("#0072b2", "#d55e00", "#009e73", "#e69f00", "#cc79a7", "#56b4e9")
"""Okabe and Ito's colours for all kinds of colour vision (jfly.uni-koeln.de/color), less the black
that observations have and the yellow that is faint on white."""

LINE_STYLES = ("-", "--", ":", "-.")
MARKERS = ("o", "s", "^", "D", "v", "P")

DATA_FACTS = ("data", "service")
"""What a name says whenever it is not the same for all curves of a figure."""

NO_DIFFERENCE = {"seed", "device", "cohort"}
"""Settings in which the runs of one curve may differ: they do not change what is computed."""


@dataclass(frozen=True)
class Curve:
    """Runs that differ in nothing but their seed, and how they are drawn.

    Attributes:
        base: the runs' own label.
        tags: what tells the curve from others of the figure.
        place: place among the figure's curves, from 0; decides on colour, line and marker.
        runs: at least one run, in the order given.
    """

    base: str
    tags: tuple[str, ...]
    place: int
    runs: tuple[Run, ...]

    @property
    def name(self) -> str:
        """Unique in the figure, as in "fuels (milan, tau 0.1)"."""
        return self._named()

    @property
    def label(self) -> str:
        """Name, with the number of runs if there are several: "fuels (tau 0.1, 3 runs)"."""
        return self._named(f"{len(self.runs)} runs") if len(self.runs) > 1 else self.name

    def run_label(self, run: Run) -> str:
        """Name of one of the runs: "fuels (tau 0.1, seed 2)"."""
        return self._named(f"seed {run.about['settings']['seed']}")

    def _named(self, *more: str) -> str:
        tags = (*self.tags, *more)
        return f"{self.base} ({', '.join(tags)})" if tags else self.base

    @property
    def color(self) -> str:
        """Colour; from the seventh curve on they come again, with other lines."""
        return COLORS[self.place % len(COLORS)]

    @property
    def marker(self) -> str:
        """Shape of the curve's points."""
        return MARKERS[self.place % len(MARKERS)]

    @property
    def line(self) -> dict[str, Any]:
        """Colour, style and width of the curve's lines."""
        style = LINE_STYLES[self.place // len(COLORS) % len(LINE_STYLES)]
        return {"color": self.color, "linestyle": style, "linewidth": 1.2}


def as_curves(runs: Sequence[Run]) -> list[Curve]:
    """Gather the runs that differ in nothing but their seed, and name every curve.

    A name is the runs' label with what it takes to tell the curves apart: data and service if the
    figure has several, then settings.

    Args:
        runs: finished runs; a folder given twice counts once.

    Raises:
        InputError: if there is none.
    """
    if not runs:
        raise InputError("no runs to draw; give at least one folder that `stforecast run` wrote")
    groups: dict[str, list[Run]] = {}
    for run in {run.folder.resolve(): run for run in runs}.values():
        groups.setdefault(json.dumps([run.label, _facts(run)]), []).append(run)
    tags = _tags([members[0] for members in groups.values()])
    return [
        Curve(members[0].label, tags[place], place, tuple(members))
        for place, members in enumerate(groups.values())
    ]


def _facts(run: Run) -> dict[str, Any]:
    """What may set a run's curve apart, in the order in which names should say it."""
    data = {"data": Path(run.about["data"]).stem, "service": run.about["service"]}
    told = NO_DIFFERENCE | data.keys()
    settings = {key: v for key, v in run.about["settings"].items() if key not in told}
    return {**data, **settings, "path": run.about["data"]}


def _tags(runs: Sequence[Run]) -> list[tuple[str, ...]]:
    """As many facts on each run as it takes, with its label, to tell it from the others."""
    facts = [_facts(run) for run in runs]
    tags: list[tuple[str, ...]] = [() for _ in runs]
    for key in dict.fromkeys(key for own in facts for key in own):
        so_far = [(run.label, tag) for run, tag in zip(runs, tags, strict=True)]
        for i, own in enumerate(facts):
            rivals = [
                other
                for other, name in zip(facts, so_far, strict=True)
                if key in DATA_FACTS or name == so_far[i]
            ]
            if any(other.get(key) != own.get(key) for other in rivals):
                plain = key in (*DATA_FACTS, "path")
                tags[i] += (str(own.get(key)) if plain else f"{key} {own.get(key)}",)
    return tags


def open_forecasts(run: Run) -> xr.Dataset:
    """`forecasts.nc`, lazily: a figure needs one step of it, or its attributes only."""
    return xr.open_dataset(run.folder / "forecasts.nc", engine="h5netcdf")


def quantity(runs: Sequence[Run], *, squared: bool = False) -> str:
    """What was forecast, with its unit: "speed (mph)", or "internet" where there is none.

    Several services together are "traffic".

    Args:
        runs: finished runs.
        squared: whether it is the square of it.
    """
    services = {run.about["service"] for run in runs}
    units = set()
    for run in runs:
        with open_forecasts(run) as ds:
            units.add(ds["y"].attrs.get("units", "1"))
    name = services.pop() if len(services) == 1 else "traffic"
    if len(units) > 1:
        return f"{name} (own units)"
    (unit,) = units
    return name if unit == "1" else f"{name} ({unit}{'²' if squared else ''})"
