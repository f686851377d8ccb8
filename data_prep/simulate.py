"""Simulate raw days of a small heterogeneous city in Telecom Italia's published layout.

The records serve first runs, demonstrations and tests without the 19 GB of real records. They are
invented: results on them say nothing about a real network. The file `SIMULATED.json` beside them
marks them as simulated, and `stforecast prepare` reads it. `data_prep.city` describes the model.
"""

from __future__ import annotations

from datetime import date, timedelta
from pathlib import Path
from typing import Literal

from tqdm import tqdm

from data_prep.city.activity import simulated_days
from data_prep.city.marker import MAX_DAYS, Simulation
from data_prep.city.places import CITIES, block, write_grid, zones
from data_prep.city.presets import PRESETS
from data_prep.city.raw_day import write_day
from data_prep.errors import InputError, choose

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
        progress: whether to show a progress bar.

    Returns:
        The raw files, one per day.

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
    of_cells = dict(zip(map(str, ids.tolist()), kinds.tolist(), strict=True))
    Simulation(city, start, days, cells, seed, of_cells, preset).write(out)
    write_grid(out / place.grid, place, ids)
    paths = []
    simulated = simulated_days(kinds, first, days, seed, settings)
    for day, (times, mean, rng) in enumerate(
        tqdm(simulated, "simulate", days, unit="day", disable=not progress)
    ):
        path = out / f"sms-call-internet-{place.tag}-{first + timedelta(days=day)}.txt"
        write_day(path, ids, kinds, times, mean, rng)
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
