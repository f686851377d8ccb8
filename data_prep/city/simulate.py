"""Simulate raw days of a small heterogeneous city in Telecom Italia's published layout.

The records serve first runs, demonstrations and tests without the 19 GB of real records. They are
invented: results on them say nothing about a real network. The file `SIMULATED.json` beside them
marks them as simulated, and `stforecast prepare` reads it. `data_prep.city.activity` describes the
model.

SMS and calls follow Internet activity, scaled by time of day. An empty field means no activity: a
field of expected activity v is filled with probability 1 - exp(-v / `GRAIN`) and then holds v
divided by that probability, so its mean stays v.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from datetime import date, timedelta
from importlib.metadata import version
from pathlib import Path
from typing import Literal

import numpy as np
import pandas as pd
import polars as pl

from data_prep.base.errors import InputError, check_regular, choose
from data_prep.base.files import atomic_path
from data_prep.base.progress import each
from data_prep.city.activity import KINDS, PRESETS, interpolated_week, simulated_days
from data_prep.sets.telecom_italia.cdr import SERVICES

GRAIN = 0.1  # approximate minimum of a filled field


def write_day(
    path: Path,
    ids: np.ndarray,
    kinds: np.ndarray,
    times: pd.DatetimeIndex,
    internet: np.ndarray,
    rng: np.random.Generator,
    stuck: int = 0,
) -> None:
    """Write one raw day: a row for each cell, interval and country with any activity.

    The Internet activity of the `stuck` cell is its first value all day.
    """
    internet = np.where(ids == stuck, internet[0], internet)
    # Daytime activity per unit of Internet: SMS in and out, calls in and out, Internet; and the
    # factor of SMS and calls at 0, 2, …, 22 h local time.
    services = internet[:, :, None] * np.array([0.060, 0.040, 0.050, 0.055, 1.0])
    awake = (0.35, 0.10, 0.03, 0.20, 0.80, 1.00, 1.00, 0.95, 1.00, 1.00, 0.85, 0.60)
    by_time = interpolated_week(awake * 7, np.asarray(times.hour + times.minute / 60))
    services[:, :, :4] *= by_time[:, None, None]
    services[:, :, :4] *= np.exp(0.2 * rng.normal(size=(*internet.shape, 4)))
    foreign = np.where(ids == stuck, 0.0, [KINDS[k].foreign for k in kinds])[:, None]
    key = {"cell": np.tile(ids, len(times)), "time": np.repeat(times.as_unit("ms").asi8, len(ids))}
    frames = [_rows(key, 39, services, rng)]
    # Roaming data were expensive in 2013: visitors use SMS and calls, and little Internet.
    roaming = services * foreign * np.array([1.0, 1.0, 1.0, 1.0, 0.1])
    # Activity of a country relative to Italy's, before `CellKind.foreign`; code 0 is "not known".
    abroad = {0: 8e-4, 1: 6e-4, 7: 4e-4, 33: 12e-4, 34: 6e-4, 41: 10e-4, 44: 10e-4, 49: 12e-4}
    for country, share in abroad.items():
        crowd = np.exp(rng.normal(-0.5, 1.0, size=(*internet.shape, 1)))
        frames.append(_rows(key, country, share * crowd * roaming, rng))
    table = pl.concat(frames).sort("cell", "time", "country")
    with atomic_path(path) as part:
        table.write_csv(part, separator="\t", include_header=False, float_precision=6)


def _rows(
    key: dict[str, np.ndarray], country: int, mean: np.ndarray, rng: np.random.Generator
) -> pl.DataFrame:
    """Draw one country's rows with any activity from `mean` `(step, cell, service)`."""
    filled = -np.expm1(-mean / GRAIN)
    amounts = mean / np.where(filled > 0, filled, 1.0)
    values = np.where(rng.random(mean.shape) < filled, amounts, np.nan)
    values = values.reshape(-1, len(SERVICES))
    rows = ~np.isnan(values).all(axis=1)
    columns = {name: values[rows, i] for i, name in enumerate(SERVICES)}
    frame = pl.DataFrame({k: v[rows] for k, v in key.items()} | columns)
    return frame.select(
        "cell", "time", pl.lit(country, pl.Int64).alias("country"), pl.col(*SERVICES).fill_nan(None)
    )


NAME = "SIMULATED.json"
MAX_DAYS = 10_000


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
        stuck: cell whose Internet counter repeats one value on the last day; 0 for none.
    """

    city: str
    start: str
    days: int
    cells: int
    seed: int
    kinds: Mapping[str, str]
    preset: str = "heterogeneous"
    stuck: int = 0
    version: str = field(default_factory=lambda: version("stforecast"))

    def write(self, folder: Path) -> None:
        """Write the marker into a folder."""
        note = (
            "Invented by `stforecast simulate`: no number here says anything about a real network."
        )
        with atomic_path(folder / NAME) as part:
            part.write_text(json.dumps({"note": note} | asdict(self), indent=1) + "\n")

    @property
    def source(self) -> str:
        """Origin of the days, in one line."""
        stuck = f", cell {self.stuck} stuck on the last day" if self.stuck else ""
        return (
            f"simulated by stforecast simulate (preset {self.preset}, city {self.city}, "
            f"{self.cells} cells, {self.days} days from {self.start}, seed {self.seed}, "
            f"version {self.version}{stuck})"
        )

    @property
    def dates(self) -> set[date]:
        """Dates of the simulated days."""
        first = date.fromisoformat(self.start)
        return {first + timedelta(days=i) for i in range(self.days)}

    def check_days(self, city: str, dates: Iterable[date], folder: Path) -> None:
        """Refuse days that were not simulated: a cube is either real or simulated."""
        other = sorted(set(dates) - (self.dates if city == self.city else set()))
        if other:
            raise InputError(
                f"{folder / NAME}: says that {self.city} was simulated from {self.start} for "
                f"{self.days} days, but the folder also holds {city} {other[0]}; keep simulated "
                "and real days in separate folders"
            )


def read_marker(folder: Path) -> Simulation | None:
    """Read the marker of a folder; None if there is none, as beside real days."""
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


YEARS = (1900, 2199)


def simulate(
    out: Path,
    *,
    city: Literal["milan", "trentino"] = "milan",
    preset: Literal["heterogeneous", "dense", "sparse"] = "heterogeneous",
    cells: int | None = None,
    days: int | None = None,
    seed: int = 1,
    start: str = "2013-11-01",
    stuck: int = 0,
    progress: bool = False,
) -> list[Path]:
    """Write raw days of an invented city, its grid and the settings of the simulation.

    Writes `sms-call-internet-mi-YYYY-MM-DD.txt` (Trentino: `-tn-`) for each local day, the grid as
    `milano-grid.geojson` (`trentino-grid.geojson`) and `SIMULATED.json`: the arguments and the kind
    of each cell. Two runs with equal arguments write equal bytes on one machine. The first days do
    not depend on the number of `days`.

    Args:
        out: folder to write to, created if absent.
        city: city whose layout to use, milan or trentino.
        preset: activity of the cells: heterogeneous, four kinds of cell as active as Milan's;
            dense, high activity in similar cells; or sparse, 3 to 60 events an hour in a cell with
            bursts, as in Trentino's valleys.
        cells: number of cells, a block around the city's centre; by default 100, or 24 in a sparse
            city.
        days: number of days; by default 14, or 62 in a sparse city.
        seed: random seed.
        start: first day, as YYYY-MM-DD.
        stuck: cell whose Internet counter repeats one value on the last day; 0 for none.
        progress: whether to show a progress bar.

    Raises:
        InputError: if an argument is out of range or `out` already holds raw files.
    """
    if preset not in PRESETS:
        raise choose("preset", preset, PRESETS)
    settings, out = PRESETS[preset], Path(out)
    cells = settings.cells if cells is None else cells
    days = settings.days if days is None else days
    first = _check(out, city, cells, days, seed, start)
    place = CITIES[city]
    ids = block(place, cells)
    kinds = zones(place, ids, settings.kind)
    if stuck and stuck not in ids:
        raise InputError(f"stuck is {stuck}; give one of the cells, such as {ids[0]}")
    of_cells = dict(zip(map(str, ids.tolist()), kinds.tolist(), strict=True))
    Simulation(city, start, days, cells, seed, of_cells, preset, stuck).write(out)
    write_grid(out / place.grid, place, ids)
    paths = []
    simulated = simulated_days(kinds, first, days, seed, settings)
    shown = each(simulated, "simulate", "day", days, progress=progress)
    for day, (times, mean, rng) in enumerate(shown):
        path = out / f"sms-call-internet-{place.tag}-{first + timedelta(days=day)}.txt"
        write_day(path, ids, kinds, times, mean, rng, stuck if day == days - 1 else 0)
        paths.append(path)
    return paths


def _check(out: Path, city: str, cells: int, days: int, seed: int, start: str) -> date:
    if city not in CITIES:
        raise choose("city", city, CITIES)
    place = CITIES[city]
    if not 1 <= cells <= place.n_cells:
        raise InputError(f"cells is {cells}; give 1 to {place.n_cells}, the cells of {city}")
    if not 1 <= days <= MAX_DAYS:
        raise InputError(f"days is {days}; give at least 1 and at most {MAX_DAYS}")
    if seed < 0:
        raise InputError(f"seed is {seed}; give 0 or more")
    try:
        first = date.fromisoformat(start)
    except ValueError as e:
        raise InputError(f"start is {start!r}; give a day as YYYY-MM-DD") from e
    if not YEARS[0] <= first.year <= YEARS[1]:
        raise InputError(f"start is {start}; give a day in the years {YEARS[0]} to {YEARS[1]}")
    existing = sorted(out.glob("sms-call-internet-*")) + [p for p in [out] if p.is_file()]
    if existing:
        raise InputError(f"{existing[0]}: already exists; simulate into an empty folder")
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as e:
        raise InputError(f"{out}: cannot be created ({e.strerror}); choose another folder") from e
    return first


@dataclass(frozen=True)
class City:
    """A published grid whose ids count row by row from the south-west.

    Args:
        tag: abbreviation of the city in file names.
        grid: name of the grid's file.
        features: key of the feature list in it.
        columns: cells in a row.
        rows: number of rows.
        n_cells: cells of the published data set, the maximum that can be simulated.
        centre: id of the cell in the city's centre.
        origin: longitude and latitude in degrees of the grid's south-west corner.
        size: size of a cell, in degrees of longitude and latitude.
    """

    tag: str
    grid: str
    features: str
    columns: int
    rows: int
    n_cells: int
    centre: int
    origin: tuple[float, float]
    size: tuple[float, float]


# Origins and sizes fit the published polygons; Trentino's grid is tilted and fits near Trento.
CITIES = {
    "milan": City(
        "mi", "milano-grid.geojson", "features", 100, 100, 10_000, 5060,
        (9.0115, 45.3567), (0.003006, 0.002115),
    ),
    "trentino": City(
        "tn", "trentino-grid.geojson", "trentinogrid", 117, 98, 6_575, 5200,
        (10.4486, 45.6699), (0.012950, 0.008990),
    ),
}  # fmt: skip


def block(place: City, n_cells: int) -> np.ndarray:
    """Return the ids of a nearly square block around the centre, ascending, `(cell,)`."""
    columns = min(math.ceil(math.sqrt(n_cells)), place.columns)
    rows = math.ceil(n_cells / columns)
    row, column = divmod(place.centre - 1, place.columns)
    south = min(max(row - rows // 2, 0), place.rows - rows)
    west = min(max(column - columns // 2, 0), place.columns - columns)
    y, x = np.divmod(np.arange(n_cells), columns)
    return (south + y) * place.columns + west + x + 1


def zones(place: City, ids: np.ndarray, only: str = "") -> np.ndarray:
    """Return the kind of each cell, a quarter each, or the `only` one.

    The centre, nightlife south-west of it, industry in the south-east corner; the rest is suburb.
    """
    if only:
        return np.full(len(ids), only, dtype="<U10")
    y, x = np.divmod(ids - 1, place.columns)
    row, column = divmod(place.centre - 1, place.columns)
    reach = math.sqrt(len(ids)) / 3
    foci = {
        "centre": (row, column),
        "nightlife": (row - reach, column - reach),
        "industrial": (y.min(), x.max()),
    }
    kinds = np.full(len(ids), "suburb", dtype="<U10")
    for kind, (to_y, to_x) in foci.items():
        distance = np.hypot(y - to_y, x - to_x)
        distance[kinds != "suburb"] = np.inf
        kinds[np.argsort(distance, kind="stable")[: math.ceil(len(ids) / 4)]] = kind
    return kinds


def write_grid(path: Path, place: City, ids: np.ndarray) -> None:
    """Write the cells' outlines in the publisher's format."""
    corners = np.array([(0, 1), (1, 1), (1, 0), (0, 0), (0, 1)])
    features = []
    for number, cell in enumerate(ids.tolist()):
        south_west = divmod(cell - 1, place.columns)[::-1]
        ring = np.round(place.origin + np.add(south_west, corners) * place.size, 6)
        features.append(
            {
                "type": "Feature",
                "id": number,
                "properties": {"cellId": cell},
                "geometry": {"type": "Polygon", "coordinates": [ring.tolist()]},
            }
        )
    with atomic_path(path) as part:
        part.write_text(json.dumps({"type": "FeatureCollection", place.features: features}))
