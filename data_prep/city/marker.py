"""Marker file beside simulated days, with the settings of the simulation."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from datetime import date, timedelta
from importlib.metadata import version
from pathlib import Path

from data_prep.atomic import atomic_path
from data_prep.errors import InputError, check_regular

NAME = "SIMULATED.json"
MAX_DAYS = 10_000
NOTE = "Invented by `stforecast simulate`: no number here says anything about a real network."


@dataclass(frozen=True)
class Simulation:
    """Settings of a simulation; the same version reproduces the days from them.

    Args:
        city: city whose layout the days have, `"milan"` or `"trentino"`.
        start: first day, as YYYY-MM-DD.
        days: number of days.
        cells: number of cells.
        seed: random seed.
        version: version of this package.
        kinds: cell id to the kind of the cell, such as `"suburb"`.
        preset: name of the preset.
    """

    city: str
    start: str
    days: int
    cells: int
    seed: int
    kinds: Mapping[str, str]
    preset: str = "heterogeneous"
    version: str = field(default_factory=lambda: version("stforecast"))

    def write(self, folder: Path) -> None:
        """Write the marker into a folder."""
        with atomic_path(folder / NAME) as part:
            part.write_text(json.dumps({"note": NOTE} | asdict(self), indent=1) + "\n")

    @property
    def source(self) -> str:
        """Origin of the days, in one line."""
        return (
            f"simulated by stforecast simulate (preset {self.preset}, city {self.city}, "
            f"{self.cells} cells, {self.days} days from {self.start}, seed {self.seed}, "
            f"version {self.version})"
        )

    @property
    def dates(self) -> set[date]:
        """Dates of the simulated days."""
        first = date.fromisoformat(self.start)
        return {first + timedelta(days=i) for i in range(self.days)}

    def check_days(self, city: str, dates: Iterable[date], folder: Path) -> None:
        """Refuse days that were not simulated: a cube is either real or simulated.

        Args:
            city: data set that the days are read as.
            dates: dates of the days in the folder.
            folder: folder of the marker, for the error.

        Raises:
            InputError: if there is such a day.
        """
        other = sorted(set(dates) - (self.dates if city == self.city else set()))
        if other:
            raise InputError(
                f"{folder / NAME}: says that {self.city} was simulated from {self.start} for "
                f"{self.days} days, but the folder also holds {city} {other[0]}; keep simulated "
                "and real days in separate folders"
            )


def read_marker(folder: Path) -> Simulation | None:
    """Read the marker of a folder; None if there is none, as beside real days.

    Raises:
        InputError: if the marker cannot be read.
    """
    path = folder / NAME
    check_regular(path, "file", "remove it if the days are real")
    if not path.is_file():
        return None
    try:
        content = json.loads(path.read_text())
        del content["note"]
        simulation = Simulation(**content)
        if not 0 < simulation.days <= MAX_DAYS or not simulation.dates:
            raise ValueError(f"{simulation.days} days")
    except (OSError, ValueError, KeyError, TypeError, ArithmeticError, RecursionError) as e:
        raise InputError(
            f"{path}: not what `stforecast simulate` writes ({e}); simulate into a new folder, or "
            "remove the file if the days are real"
        ) from e
    return simulation
