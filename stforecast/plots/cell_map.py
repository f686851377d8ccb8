"""Map of the cells, coloured by error, and the places of cells."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pandas as pd
import xarray as xr
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.collections import Collection, LineCollection, PatchCollection
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.patches import PathPatch, Rectangle
from matplotlib.path import Path

from data_prep.base.errors import InputError
from data_prep.city.simulate import CITIES, City
from data_prep.cube import open_cube
from data_prep.readers.features import OUTLINE, rings_of
from data_prep.sets.milan import MILAN
from data_prep.sets.trentino import TRENTINO
from stforecast.bench.curves import as_curves, columns, in_lines, title_panel
from stforecast.bench.drawing import CHARACTERS_PER_INCH, SMALL, TWO_COLUMNS, panels
from stforecast.bench.run_groups import ALL
from stforecast.comparison.names import error_name, finite_mean, refuse_different_tests
from stforecast.comparison.table import errors_by_cell
from stforecast.data.covariates import strongest_neighbours
from stforecast.forecasting.results import ForecastRun, data_of
from stforecast.plots.figure import figure


@figure
def map(  # The command is called so.
    runs: Sequence[ForecastRun],
    *,
    metric: str = "raw_mae",
    width: float = TWO_COLUMNS,
) -> Figure:
    """Map of the cells, coloured by their test error.

    A panel for each method, the lowest mean first. Squares are those of the published grid, points
    are sensors with their strongest roads. North is up. Errors are means over seeds. The colour
    scale leaves out the highest and lowest 2 % of cells, which have the colours at its ends.

    Args:
        runs: runs tested on the same targets, of data with places.
        metric: error of each cell over all steps; raw_… is in the data's units.
        width: width of the figure in inches.
    """
    curves = as_curves(runs)
    refuse_different_tests(runs)
    where = _places(curves[0].group.runs[0])
    values = [errors_by_cell(curve.group, metric)[ALL].to_numpy() for curve in curves]
    means = [finite_mean(of_cells) for of_cells in values]
    order = np.argsort(means, kind="stable")
    known = np.concatenate([of_cells[np.isfinite(of_cells)] for of_cells in values])
    if not len(known):
        raise InputError("no cell of these runs has a finite value; there is nothing to draw")
    low, high = np.quantile(known, (0.02, 0.98))  # So that one cell does not set all colours.
    norm, colors = Normalize(low, high if high > low else low + 1), "YlOrRd"
    in_row = min(columns(width), len(curves))
    titles = [f"{curves[i].group.label}: mean {means[i]:.3g}" for i in order]
    further_lines = max(in_lines(title, width / in_row).count("\n") for title in titles)
    # In inches, the scale of colours takes 0.8 and a line of a title 0.14.
    height = _height(where, width / in_row) + 0.8 / math.ceil(len(curves) / in_row)
    height += 0.14 * further_lines
    fig, axes = panels(width, height, len(curves), n_columns=in_row)
    for ax, i, title in zip(axes, order, titles, strict=True):
        _draw(ax, where, values[i], norm, colors)
        title_panel(ax, title, width / in_row)
    shown = ScalarMappable(norm, colors)
    bar = fig.colorbar(shown, ax=axes, extend="both", location="bottom", fraction=0.05, aspect=40)
    bar.ax.tick_params(labelsize=SMALL)
    text = f"test {error_name(metric, runs)}. {where.note}"
    bar.set_label(textwrap.fill(text, int(0.9 * width * CHARACTERS_PER_INCH)), fontsize=SMALL)
    return fig


def _places(run: ForecastRun) -> Places:
    path = data_of(run.about)
    cube = open_cube(path) if path.is_file() else None
    with run.open_forecasts() as forecasts:
        found = find_places(forecasts, cube)
    if found.kind == "tiles":
        raise InputError(
            f"{run.folder}: its data have no locations of cells; prepare a cube with lon and lat"
        )
    return found


def _height(where: Places, width: float) -> float:
    """Return the height of a panel with equal scales, in inches, with room for its title."""
    corners = [ring for rings in where.outlines for ring in rings]
    plane = np.concatenate(corners).T if corners else (where.east, where.north)
    spans = [np.ptp(v) + size for v, size in zip(plane, where.size, strict=True)]
    ratio = spans[1] / spans[0] if spans[0] > 0 else 1.0
    return float(0.35 + 0.9 * width * min(max(ratio, 0.3), 1.5))


def _draw(ax: Axes, where: Places, values: np.ndarray, norm: Normalize, colors: str) -> None:
    known = np.isfinite(values)
    drawn: Collection
    if where.kind == "squares":
        width, height = where.size
        squares = [
            Rectangle((x - width / 2, y - height / 2), width, height)
            for x, y in zip(where.east, where.north, strict=True)
        ]
        drawn = PatchCollection(squares, edgecolor="white", linewidth=0.2)
        ax.add_collection(drawn)
    elif where.kind == "outlines":
        shapes = [
            PathPatch(Path.make_compound_path(*(Path(ring, closed=True) for ring in rings)))
            for rings in where.outlines
        ]
        drawn = PatchCollection(shapes, edgecolor="white", linewidth=0.4)
        ax.add_collection(drawn)
    else:
        ends = np.stack([where.east, where.north], axis=1)[where.roads]
        ax.add_collection(LineCollection(list(ends), color="0.85", linewidth=0.5, zorder=0.5))
        drawn = ax.scatter(where.east, where.north, 9, linewidth=0)
    drawn.set_array(np.ma.masked_where(~known, values))
    drawn.set_cmap(colormaps[colors].with_extremes(bad="0.8"))
    drawn.set_norm(norm)
    ax.autoscale_view()
    # The layout leaves no room for titles above axes that get smaller for their aspect.
    ax.set_aspect("equal", adjustable="datalim")
    ax.grid(visible=False)
    ax.spines[:].set_visible(False)
    ax.set_xticks([])
    ax.set_yticks([])


N_ROADS = 2
"""Number of roads to draw from each sensor, the strongest."""


@dataclass(frozen=True, eq=False)
class Places:
    """Places of cells.

    Attributes:
        kind: `squares`, `outlines`, `points`, or `tiles` if places are unknown.
        east: `(cells,)` kilometres east of the middle; empty for tiles.
        north: `(cells,)` kilometres north of the middle.
        size: width and height of a square in kilometres.
        roads: `(roads, 2)` positions of the cells that a road joins.
        note: description of the map.
        outlines: rings of each cell, `(corners, 2)` kilometres east and north; empty without them.
    """

    kind: Literal["squares", "outlines", "points", "tiles"]
    east: np.ndarray
    north: np.ndarray
    size: tuple[float, float]
    roads: np.ndarray
    note: str
    outlines: Sequence[Sequence[np.ndarray]] = ()


def find_places(forecasts: xr.Dataset, cube: xr.Dataset | None) -> Places:
    """Find the places of the cells of a run's forecasts; its data are None if they are gone."""
    cells = forecasts["cell"].to_numpy()
    source = "" if cube is None else str(cube.attrs.get("source", ""))
    # The city whose published grid the cells are of, also if they are simulated.
    of_source = {MILAN.source: "milan", TRENTINO.source: "trentino"}.get(source)
    known = (c for name, c in CITIES.items() if name == of_source or f"city {name}," in source)
    city = next(known, None)
    if {"lon", "lat"} <= set(forecasts.coords):
        lon, lat = (forecasts[name].to_numpy().astype(float) for name in ("lon", "lat"))
    elif city is not None and cells.dtype.kind in "iu":
        row, column = np.divmod(cells - 1, city.columns)
        lon, lat = (
            start + (place + 0.5) * size
            for start, place, size in zip(city.origin, (column, row), city.size, strict=True)
        )
    else:
        return _tiles("The data have no locations: tiles are sorted by value, the highest first.")
    if not (np.isfinite(lon).all() and np.isfinite(lat).all()):
        return _tiles("Some cells have no location: tiles are sorted by value, the highest first.")
    outlines: list[list[np.ndarray]] = []
    if cube is not None and OUTLINE in cube.coords:
        at = cube.indexes["cell"].get_indexer(pd.Index(cells))
        texts = cube[OUTLINE].to_numpy()[at]
        if (at >= 0).all() and all(texts):
            outlines = [rings_of(str(text)) for text in texts]
    roads = _roads(forecasts, None if outlines else cube)
    return _on_plane(lon, lat, city, roads, outlines)


def _tiles(note: str) -> Places:
    nothing = np.empty(0)
    return Places("tiles", nothing, nothing, (1.0, 1.0), np.empty((0, 2), dtype=int), note)


def _on_plane(
    lon: np.ndarray,
    lat: np.ndarray,
    city: City | None,
    roads: np.ndarray,
    outlines: Sequence[Sequence[np.ndarray]],
) -> Places:
    """Project degrees to kilometres around the middle, which is exact enough for a city."""
    middle_lon, middle_lat = ((v.min() + v.max()) / 2 for v in (lon, lat))
    to_north = 111.2  # Kilometres of a degree of latitude.
    to_east = to_north * np.cos(np.radians(middle_lat))
    span = (
        f"{_degrees(lon.min(), 'EW')} to {_degrees(lon.max(), 'EW')}, "
        f"{_degrees(lat.min(), 'NS')} to {_degrees(lat.max(), 'NS')}"
    )
    width, height = city.size if city else (0.0, 0.0)
    middle, scale = np.array([middle_lon, middle_lat]), np.array([to_east, to_north])
    kind: Literal["squares", "outlines", "points"]
    kind, what = "points", "A point for each cell"
    if city:
        kind, what = "squares", "Squares of the published grid"
    elif outlines:
        kind, what = "outlines", "The cells' own outlines, simplified"
    lines = f", with the {N_ROADS} strongest roads of each sensor as lines" if len(roads) else ""
    return Places(
        kind,
        (lon - middle_lon) * to_east,
        (lat - middle_lat) * to_north,
        (width * to_east, height * to_north),
        roads,
        f"{what}{lines}; north is up, {span}.",
        [[(ring - middle) * scale for ring in rings] for rings in outlines if not city],
    )


def _degrees(value: float, signs: str) -> str:
    """Format a coordinate.

    >>> _degrees(-118.2412, "EW")
    '118.241° W'
    """
    return f"{abs(value):.3f}° {signs[int(value < 0)]}"


def _roads(forecasts: xr.Dataset, cube: xr.Dataset | None) -> np.ndarray:
    """Return the strongest roads between the tested cells, each once."""
    nothing = np.empty((0, 2), dtype=int)
    if cube is None or "adjacency" not in cube:
        return nothing
    known, cells = cube.indexes["cell"], forecasts["cell"].to_numpy()
    at = known.get_indexer(pd.Index(cells))
    if (at < 0).any():
        return nothing
    near = strongest_neighbours(cube["adjacency"].to_numpy()[np.ix_(at, at)], N_ROADS)
    ends = np.stack([np.repeat(np.arange(len(cells)), N_ROADS), near.ravel()], axis=1)
    return np.unique(np.sort(ends[ends[:, 1] >= 0], axis=1), axis=0)
