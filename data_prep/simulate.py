"""A small heterogeneous city that writes raw days in Telecom Italia's published layout.

For a first run, a demonstration or a test where the 19 GB of real records are not at hand. The
records are invented: no number obtained from them says anything about a real network.

The Internet activity of cell c in the 10 minutes t is

    scale[c] · profile[kind[c]](t) · event[c, t] · exp(shared[t] + slow[c, t] + fast[c, t])

with a weekly profile for each of four kinds of cell, a log-normal scale per cell, a city-wide and
a cell's own AR(1) noise, white noise, and now and then an event. The noise was fitted to the 25
cells of Milan (November 2013) that are public: what their workday and weekend means leave has
standard deviation 0.24 in the logarithm and autocorrelation 0.7 after 10 minutes, 0.5 after an
hour, and a fifth of its variance is shared. SMS and calls follow the Internet while people are
awake. There are no public holidays.

An empty field means that nobody was active: with activity v expected it is filled with probability
1 - exp(-v / `GRAIN`), and then holds v over that probability, so the mean stays v.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date, timedelta
from pathlib import Path

import numpy as np
import pandas as pd
import polars as pl
from scipy.interpolate import PchipInterpolator
from scipy.signal import lfilter
from tqdm import tqdm

from data_prep.cube import atomic_path
from data_prep.errors import InputError, choose

ZONE = "Europe/Rome"
SERVICES = ("sms_in", "sms_out", "call_in", "call_out", "internet")  # the files' order
SCALE = 0.35  # standard deviation in the logarithm of the cells' scales within a kind
SHARED, SLOW, FAST = 0.10, 0.17, 0.12  # standard deviations in the logarithm
MEMORY = 0.96  # of the AR(1) noise, from one 10 minutes to the next
EVENT_RATE = 0.03  # events a cell and day
GRAIN = 0.1  # the least activity that a filled field holds, about
HOME = 39
# Share of a country's activity in Italy's, before the kind's `foreign`; code 0 is "not known".
ABROAD = {0: 8e-4, 1: 6e-4, 7: 4e-4, 33: 12e-4, 34: 6e-4, 41: 10e-4, 44: 10e-4, 49: 12e-4}
# Per unit of Internet, by day: SMS in and out, calls in and out, Internet.
RATIOS = np.array([0.060, 0.040, 0.050, 0.055, 1.0])
# What is left of SMS and calls per unit of Internet at 0, 2, …, 22 h local time.
AWAKE = (0.35, 0.10, 0.03, 0.20, 0.80, 1.00, 1.00, 0.95, 1.00, 1.00, 0.85, 0.60)


@dataclass(frozen=True)
class Kind:
    """A kind of cell.

    Args:
        peak: median over its cells of the Internet activity in 10 busy minutes.
        foreign: how much of other countries' activity it sees, the city's mean being about 1.
        workday: activity relative to `peak` at 0, 2, …, 22 h local time, Monday to Thursday.
        saturday: the same for Saturday.
        sunday: the same for Sunday.
        friday: the same for Friday; None if it is like the other workdays.
    """

    peak: float
    foreign: float
    workday: tuple[float, ...]
    saturday: tuple[float, ...]
    sunday: tuple[float, ...]
    friday: tuple[float, ...] | None = None

    def week(self) -> tuple[float, ...]:
        """The profile from Monday 0 h to Sunday 22 h, every two hours, `(84,)`."""
        friday = self.friday or self.workday
        return self.workday * 4 + friday + self.saturday + self.sunday


KINDS = {
    "centre": Kind(  # offices and shops: a plateau by day, Saturday's shoppers, a calm Sunday
        peak=650.0,
        foreign=2.0,
        workday=(0.35, 0.26, 0.23, 0.28, 0.66, 0.93, 1.00, 0.95, 0.98, 0.92, 0.66, 0.50),
        saturday=(0.42, 0.31, 0.25, 0.25, 0.42, 0.68, 0.80, 0.84, 0.88, 0.78, 0.64, 0.54),
        sunday=(0.43, 0.32, 0.25, 0.23, 0.31, 0.48, 0.58, 0.62, 0.64, 0.58, 0.49, 0.42),
    ),
    "suburb": Kind(  # homes: a step in the morning, the evening the busiest
        peak=220.0,
        foreign=0.5,
        workday=(0.50, 0.39, 0.35, 0.42, 0.72, 0.66, 0.69, 0.69, 0.79, 0.94, 1.00, 0.82),
        saturday=(0.55, 0.42, 0.36, 0.37, 0.54, 0.74, 0.80, 0.77, 0.81, 0.90, 0.89, 0.76),
        sunday=(0.57, 0.44, 0.36, 0.35, 0.48, 0.70, 0.82, 0.79, 0.83, 0.95, 0.99, 0.77),
    ),
    "nightlife": Kind(  # bars and clubs: quiet days, Friday and Saturday until the small hours
        peak=360.0,
        foreign=1.5,
        workday=(0.40, 0.26, 0.21, 0.23, 0.36, 0.45, 0.50, 0.48, 0.56, 0.70, 0.74, 0.62),
        friday=(0.40, 0.26, 0.21, 0.23, 0.36, 0.46, 0.52, 0.51, 0.62, 0.82, 1.08, 1.35),
        saturday=(1.30, 0.85, 0.42, 0.27, 0.32, 0.44, 0.52, 0.54, 0.63, 0.85, 1.15, 1.45),
        sunday=(1.40, 0.95, 0.45, 0.28, 0.30, 0.40, 0.48, 0.48, 0.51, 0.56, 0.54, 0.46),
    ),
    "industrial": Kind(  # plants and warehouses: shifts on workdays, next to nothing otherwise
        peak=170.0,
        foreign=0.4,
        workday=(0.20, 0.18, 0.19, 0.38, 0.90, 1.00, 0.88, 0.98, 0.82, 0.42, 0.27, 0.22),
        saturday=(0.20, 0.18, 0.18, 0.23, 0.33, 0.37, 0.34, 0.29, 0.27, 0.24, 0.22, 0.20),
        sunday=(0.19, 0.17, 0.16, 0.17, 0.19, 0.21, 0.22, 0.22, 0.22, 0.21, 0.20, 0.19),
    ),
}


@dataclass(frozen=True)
class City:
    """A published grid, its ids counted row by row from the south-west.

    Args:
        tag: what the file names call it.
        grid: name of the grid's file.
        features: key of the feature list in it.
        columns: cells in a row.
        rows: number of rows.
        n_cells: cells of the published data set, the most that can be simulated.
        centre: id of the cell in the city's middle.
        origin: longitude and latitude in degrees of the grid's south-west corner.
        size: of a cell, in degrees of longitude and latitude.
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


# Origins and sizes fit the published polygons, Trentino's (a tilted grid) near Trento.
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


def simulate(
    out: Path,
    *,
    city: str = "milan",
    cells: int = 100,
    days: int = 14,
    seed: int = 1,
    start: str = "2013-11-01",
    progress: bool = False,
) -> list[Path]:
    """Write raw days of an invented city, its grid and the kinds of its cells.

    Writes `sms-call-internet-mi-YYYY-MM-DD.txt` (Trentino: `-tn-`) for each local day, the grid as
    `milano-grid.geojson` (`trentino-grid.geojson`) and `cells.csv` with `cell,kind`. Two runs with
    equal arguments write equal bytes on one machine, and more `days` leave the first ones as they
    are.

    Args:
        out: folder to write to, created if absent.
        city: whose layout to use, milan or trentino.
        cells: number of cells, a block around the city's centre.
        days: number of days.
        seed: of everything random.
        start: first day, as YYYY-MM-DD.
        progress: whether to show a progress bar.

    Returns:
        The raw files, one a day.

    Raises:
        InputError: if an argument is out of range or `out` already holds raw files.
    """
    out = Path(out)
    first = _check(out, city, cells, days, seed, start)
    place = CITIES[city]
    ids = _block(place, cells)
    kinds = _zones(place, ids)
    _write_grid(out / place.grid, place, ids)
    with atomic_path(out / "cells.csv") as part:
        pl.DataFrame({"cell": ids, "kind": kinds}).write_csv(part)
    paths = []
    activity = _activity(kinds, first, days, seed)
    for day, (times, mean, rng) in enumerate(
        tqdm(activity, "simulate", days, unit="day", disable=not progress)
    ):
        path = out / f"sms-call-internet-{place.tag}-{first + timedelta(days=day)}.txt"
        _write_day(path, ids, kinds, times, mean, rng)
        paths.append(path)
    return paths


def _check(out: Path, city: str, cells: int, days: int, seed: int, start: str) -> date:
    if city not in CITIES:
        raise choose("city", city, CITIES)
    place = CITIES[city]
    if not 1 <= cells <= place.n_cells:
        raise InputError(f"cells is {cells}; give 1 to {place.n_cells}, the cells of {city}")
    if days < 1:
        raise InputError(f"days is {days}; give at least 1")
    if seed < 0:
        raise InputError(f"seed is {seed}; give 0 or more")
    try:
        first = date.fromisoformat(start)
    except ValueError as e:
        raise InputError(f"start is {start!r}; give a day as YYYY-MM-DD") from e
    there = sorted(out.glob("sms-call-internet-*")) + [p for p in [out] if p.is_file()]
    if there:
        raise InputError(f"{there[0]}: already there; simulate into an empty folder")
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as e:
        raise InputError(f"{out}: cannot be made ({e.strerror}); choose another folder") from e
    return first


def _block(place: City, n_cells: int) -> np.ndarray:
    """Ids of a nearly square block around the centre, ascending, `(cell,)`."""
    columns = min(math.ceil(math.sqrt(n_cells)), place.columns)
    rows = math.ceil(n_cells / columns)
    row, column = divmod(place.centre - 1, place.columns)
    south = min(max(row - rows // 2, 0), place.rows - rows)
    west = min(max(column - columns // 2, 0), place.columns - columns)
    y, x = np.divmod(np.arange(n_cells), columns)
    return (south + y) * place.columns + west + x + 1


def _zones(place: City, ids: np.ndarray) -> np.ndarray:
    """The kind of each cell, a quarter each: the middle, south-west of it, the corner, the rest."""
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


def _write_grid(path: Path, place: City, ids: np.ndarray) -> None:
    """Write the cells' outlines as the publisher does."""
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


def _weekly(values: tuple[float, ...], hours: np.ndarray) -> np.ndarray:
    """A smooth curve through values at even distances over a week, at `hours` since Monday 0 h."""
    knots = np.linspace(0, 7 * 24, len(values) + 1)
    around = np.concatenate([knots[-3:-1] - 168, knots, knots[1:3] + 168])
    closed = np.array(values)[np.arange(-2, len(values) + 3) % len(values)]
    return PchipInterpolator(around, closed)(hours)


def _activity(
    kinds: np.ndarray, first: date, days: int, seed: int
) -> Iterator[tuple[pd.DatetimeIndex, np.ndarray, np.random.Generator]]:
    """Day by day: its steps `(step,)`, Internet activity `(step, cell)`, the day's generator.

    Only the state of the AR(1) noise passes from a day to the next.
    """
    n_cells = len(kinds)
    rng = np.random.default_rng([seed, 0])
    scale = np.array([KINDS[k].peak for k in kinds]) * np.exp(SCALE * rng.normal(size=n_cells))
    spread = np.array([SLOW] * n_cells + [SHARED])
    state = rng.normal(size=(1, n_cells + 1))
    for day in range(days):
        rng = np.random.default_rng([seed, 1 + day])
        midnight = pd.Timestamp(first + timedelta(days=day))
        times = pd.date_range(
            midnight, midnight + pd.Timedelta(days=1), freq="10min", tz=ZONE, inclusive="left"
        )
        hours = np.asarray(times.day_of_week * 24 + times.hour + times.minute / 60)
        shocks = math.sqrt(1 - MEMORY**2) * rng.normal(size=(len(times), n_cells + 1))
        noise, _ = lfilter([1.0], [1.0, -MEMORY], shocks, axis=0, zi=MEMORY * state)
        state = noise[-1:]
        noise = noise * spread
        log_noise = noise[:, :-1] + noise[:, -1:] + FAST * rng.normal(size=(len(times), n_cells))
        curves = {kind: _weekly(KINDS[kind].week(), hours) for kind in KINDS}
        profile = np.stack([curves[k] for k in kinds], axis=1)
        yield times, scale * profile * _events(hours % 24, n_cells, rng) * np.exp(log_noise), rng


def _events(hours: np.ndarray, n_cells: int, rng: np.random.Generator) -> np.ndarray:
    """Factor `(step, cell)`: 1, and a bell of about an hour where a crowd gathers."""
    gain = np.exp(rng.normal(0.3, 0.6, n_cells)) * (rng.random(n_cells) < EVENT_RATE)
    peak, width = rng.uniform(10, 21, n_cells), rng.uniform(0.3, 0.8, n_cells)
    return 1 + gain * np.exp(-0.5 * ((hours[:, None] - peak) / width) ** 2)


def _write_day(
    path: Path,
    ids: np.ndarray,
    kinds: np.ndarray,
    times: pd.DatetimeIndex,
    internet: np.ndarray,
    rng: np.random.Generator,
) -> None:
    """Write one raw day: a row for each cell, interval and country with any activity."""
    awake = _weekly(AWAKE * 7, np.asarray(times.hour + times.minute / 60))
    services = internet[:, :, None] * RATIOS
    services[:, :, :4] *= awake[:, None, None]
    services[:, :, :4] *= np.exp(0.2 * rng.normal(size=(*internet.shape, 4)))
    foreign = np.array([KINDS[k].foreign for k in kinds])[:, None]
    key = {
        "cell": np.tile(ids, len(times)),
        "time": np.repeat(times.as_unit("ms").asi8, len(ids)),
    }
    frames = [_rows(key, HOME, services, rng)]
    # Roaming data were dear in 2013: visitors call and write, and use little Internet.
    roaming = services * foreign * np.array([1.0, 1.0, 1.0, 1.0, 0.1])
    for country, share in ABROAD.items():
        crowd = np.exp(rng.normal(-0.5, 1.0, size=(*internet.shape, 1)))
        frames.append(_rows(key, country, share * crowd * roaming, rng))
    table = pl.concat(frames).sort("cell", "time", "country")
    with atomic_path(path) as part:
        table.write_csv(part, separator="\t", include_header=False, float_precision=6)


def _rows(
    key: dict[str, np.ndarray], country: int, mean: np.ndarray, rng: np.random.Generator
) -> pl.DataFrame:
    """One country's rows with any activity; `mean` is `(step, cell, service)`."""
    filled = -np.expm1(-mean / GRAIN)
    values = np.where(rng.random(mean.shape) < filled, mean / filled, np.nan)
    values = values.reshape(-1, len(SERVICES))
    rows = ~np.isnan(values).all(axis=1)
    columns = {name: values[rows, i] for i, name in enumerate(SERVICES)}
    frame = pl.DataFrame({k: v[rows] for k, v in key.items()} | columns)
    return frame.select(
        "cell",
        "time",
        pl.lit(country, pl.Int64).alias("country"),
        pl.col(*SERVICES).fill_nan(None),
    )
