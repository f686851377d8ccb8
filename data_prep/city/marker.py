"""The file beside simulated days which says that they are simulated, and how."""

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
    """What was simulated; with the same version, these arguments write the same days again.

    Args:
        city: whose layout the days have, `"milan"` or `"trentino"`.
        start: first day, as YYYY-MM-DD.
        days: number of days.
        cells: number of cells.
        seed: of everything random.
        version: of this package.
        kinds: cell id to the kind of the cell, such as `"suburb"`.
    """

    city: str
    start: str
    days: int
    cells: int
    seed: int
    kinds: Mapping[str, str]
    version: str = field(default_factory=lambda: version("stforecast"))

    def write(self, folder: Path) -> None:
        """Leave the marker in a folder."""
        with atomic_path(folder / NAME) as part:
            part.write_text(json.dumps({"note": NOTE} | asdict(self), indent=1) + "\n")

    @property
    def source(self) -> str:
        """Where the days come from, in a line."""
        return (
            f"simulated by stforecast simulate (city {self.city}, {self.cells} cells, "
            f"{self.days} days from {self.start}, seed {self.seed}, version {self.version})"
        )

    @property
    def dates(self) -> set[date]:
        """The days that were simulated."""
        first = date.fromisoformat(self.start)
        return {first + timedelta(days=i) for i in range(self.days)}

    def check_days(self, city: str, dates: Iterable[date], folder: Path) -> None:
        """Refuse days that were not simulated: a cube is either real or invented.

        Args:
            city: the data set that the days are to be.
            dates: of the days in the folder.
            folder: where the marker lies, to name it.

        Raises:
            InputError: naming the first such day.
        """
        other = sorted(set(dates) - (self.dates if city == self.city else set()))
        if other:
            raise InputError(
                f"{folder / NAME}: says that {self.city} was simulated from {self.start} for "
                f"{self.days} days, but there is {city} {other[0]} too; keep simulated and real "
                "days in folders of their own"
            )


def read_marker(folder: Path) -> Simulation | None:
    """What was simulated in a folder; None if it has no marker, as where the days are real.

    Raises:
        InputError: if there is a marker that cannot be read.
    """
    path = folder / NAME
    check_regular(path, "file", "take it away if the days are real")
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
