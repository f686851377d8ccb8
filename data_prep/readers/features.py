"""Read places of cells as GeoJSON or GeoPackage: points, or polygons with their centroids.

GeoJSON is RFC 7946. A GeoPackage (OGC 12-128) is an SQLite database whose geometries are WKB behind
a header.
"""

from __future__ import annotations

import gzip
import json
import math
import sqlite3
import struct
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from data_prep.base.errors import InputError, no_file, reading, some
from data_prep.base.limits import read_bounded
from data_prep.readers.columns import LATITUDES, LONGITUDES, named
from data_prep.readers.origin import Origin

FEATURES = (".geojson", ".geojson.gz", ".gpkg")
"""Ends of the names of files of places."""

OUTLINE = "outline"
"""Name of the column of outlines."""

DEGREES = {"4326", "4979", "CRS84", "4258"}

Rings = list[np.ndarray]
Row = tuple[dict[str, Any], tuple[str, Any]]
"""Properties of a feature, and the kind and the coordinates of its geometry."""

REMEDY = "save it again as GeoJSON"


def read_features(path: Path) -> tuple[pd.DataFrame, Origin, str | None]:
    """Return a row for each feature, with the columns `lon` and `lat`, and the system of these.

    The system is None if they are degrees, else a name such as `"EPSG:25832"`. Polygons have their
    outer rings, simplified, in the column `outline`, see `as_outline`.
    """
    if not path.is_file():
        raise no_file(path, "places", "give a .geojson or .gpkg file")
    if path.suffix.lower() == ".gpkg":
        uri = f"{path.resolve().as_uri()}?mode=ro&immutable=1"
        with (
            reading(path.name, "as GeoPackage", REMEDY),
            closing(sqlite3.connect(uri, uri=True)) as base,
        ):
            base.execute("PRAGMA trusted_schema = OFF")  # Its schema cannot call functions.
            rows, crs = _read_geopackage(base, path)
    else:
        with reading(path.name, "as GeoJSON", REMEDY):
            opener = gzip.open if path.suffix.lower() == ".gz" else open
            content = json.loads(read_bounded(path, 2**28, opener))
            rows = [_feature(f) for f in content["features"]]
            # Before 2016, a file could name its system.
            system = str(content.get("crs", {}).get("properties", {}).get("name", "4326"))
            code = system.rpartition(":")[2]
            crs = None if code in DEGREES else f"EPSG:{code}"
    if not rows:
        raise InputError(f"{path.name}: holds no feature; give the file with the cells' places")
    table = pd.DataFrame([about for about, _ in rows])
    table = table.drop(columns=named(map(str, table.columns), LONGITUDES | LATITUDES))
    centres = [_centre(*shape) for _, shape in rows]
    table["lon"], table["lat"] = np.array(centres, dtype=float).T
    outlines = [_outer_rings(*shape) for _, shape in rows]
    if all(outlines):
        most = int(np.clip(60_000 // len(rows), 8, 60))  # Corners of a cell.
        table[OUTLINE] = [as_outline(_simplified(rings, most)) for rings in outlines]
    return table, Origin(path.name, "feature", 1, is_file=True), crs


def _feature(feature: dict[str, Any]) -> Row:
    properties = feature["properties"] or {}
    about = {k: v for k, v in properties.items() if not isinstance(v, dict | list)}
    if "id" in feature:
        about.setdefault("id", feature["id"])
    shape = feature["geometry"] or {"type": "", "coordinates": []}
    return about, (shape["type"], shape["coordinates"])


def _centre(kind: str, at: Any) -> tuple[float, float]:
    """Return a point, or the centroid of polygons without their holes; NaN of other shapes."""
    if kind == "Point":
        return float(at[0]), float(at[1])
    rings = _outer_rings(kind, at)
    try:
        return centroid(rings) if rings else (math.nan, math.nan)
    except ZeroDivisionError:
        x, y = rings[0][0]
        return float(x), float(y)


def _outer_rings(kind: str, at: Any) -> Rings:
    """Return the outer rings of polygons, `(corners, 2)` each; none of other shapes."""
    polygons = {"Polygon": [at], "MultiPolygon": at}.get(kind, [])
    return [np.array([corner[:2] for corner in rings[0]], float) for rings in polygons if rings]


def _simplified(rings: Rings, most: int) -> Rings:
    """Return the largest rings with about `most` corners in all, those that shape them most.

    Corners of the smallest triangles with their neighbours go first (Visvalingam and Whyatt, 1993).

    >>> ring = np.array([[0, 0], [1, 0.001], [2, 0], [2, 2], [0, 2], [0, 0]])
    >>> _simplified([ring], 4)[0].tolist()
    [[0.0, 0.0], [2.0, 0.0], [2.0, 2.0], [0.0, 2.0], [0.0, 0.0]]
    """
    largest = sorted(rings, key=lambda ring: -np.ptp(ring, axis=0).prod())[:8]
    most, simplified = max(4, most // len(largest)), []
    for corners in (ring[:-1] for ring in largest):
        while len(corners) > most:
            a, b = np.roll(corners, 1, axis=0) - corners, np.roll(corners, -1, axis=0) - corners
            areas = np.abs(a[:, 0] * b[:, 1] - b[:, 0] * a[:, 1])
            n = max(1, (len(corners) - most) // 4)
            corners = np.delete(corners, np.argsort(areas, kind="stable")[:n], axis=0)
        simplified.append(np.concatenate([corners, corners[:1]]))
    return simplified


def as_outline(rings: Rings) -> str:
    """Write closed rings `(corners, 2)` as JSON, a list of rings of pairs of x and y.

    They have five decimals: a metre in degrees.

    >>> as_outline([np.array([[9.0, 45.5], [9.1, 45.5], [9.0, 45.6], [9.0, 45.5]])])
    '[[[9.0,45.5],[9.1,45.5],[9.0,45.6],[9.0,45.5]]]'
    """
    return json.dumps([ring.round(5).tolist() for ring in rings], separators=(",", ":"))


def rings_of(outline: str) -> Rings:
    """Return the rings that `as_outline` wrote."""
    return [np.array(ring, dtype=float) for ring in json.loads(outline)]


def centroid(rings: Rings) -> tuple[float, float]:
    """Return the centroid of closed rings, `(corners, 2)` each, by the shoelace formula.

    Coordinates are relative to the first corner; otherwise the products for squares of 1e-3 degrees
    at 45 degrees would lose precision.

    Raises:
        ZeroDivisionError: if the rings have no area.

    >>> centroid([np.array([[0, 0], [2, 0], [2, 4], [0, 4], [0, 0]], float)])
    (1.0, 2.0)
    """
    origin = rings[0][0]
    area, moment = 0.0, np.zeros(2)
    for ring in rings:
        a, b = ring[:-1] - origin, ring[1:] - origin
        cross = a[:, 0] * b[:, 1] - b[:, 0] * a[:, 1]
        sign = np.sign(cross.sum()) or 1.0
        area += sign * cross.sum()
        moment += sign * ((a + b) * cross[:, None]).sum(axis=0)
    if not area:
        raise ZeroDivisionError("no area")
    x, y = origin + moment / (3 * area)
    return float(x), float(y)


def _read_geopackage(base: sqlite3.Connection, path: Path) -> tuple[list[Row], str | None]:
    layers = base.execute(
        "SELECT g.table_name, g.column_name, s.organization, s.organization_coordsys_id "
        "FROM gpkg_geometry_columns g JOIN gpkg_spatial_ref_sys s USING (srs_id) "
        "JOIN sqlite_master m ON m.name = g.table_name AND m.type = 'table'"
    ).fetchall()
    if len(layers) != 1:
        found = some([repr(name) for name, *_ in layers]) or "none"
        raise InputError(f"{path.name}: its layers are {found}, expected one; save the one alone")
    name, column, organization, code = layers[0]
    quoted = '"' + str(name).replace('"', '""') + '"'
    records = base.execute(f"SELECT * FROM {quoted}")
    names = [about[0] for about in records.description]
    at = names.index(column)
    rows = []
    for row in records:
        about = {n: v for n, v in zip(names, row, strict=True) if not isinstance(v, bytes)}
        about.pop(column, None)
        rows.append((about, _geometry(row[at])))
    return rows, None if str(code) in DEGREES else f"{organization}:{code}"


def _geometry(blob: bytes | None) -> tuple[str, Any]:
    """Return the kind and the coordinates of a geometry, as GeoJSON has them."""
    if not blob:
        return "", []
    if blob[:2] != b"GP":
        raise ValueError("a geometry without the header GP")
    envelope = (0, 32, 48, 48, 64)[blob[3] >> 1 & 7]
    return _wkb(blob, 8 + envelope)[:2]


def _wkb(data: bytes, at: int) -> tuple[str, Any, int]:
    """Return the kind, the coordinates and the end of a geometry in WKB."""
    order = "<" if data[at] == 1 else ">"
    code = struct.unpack_from(f"{order}I", data, at + 1)[0]
    extra = code // 1000 % 10 if code < 4000 else (code >> 30 & 2 != 0) + (code >> 30 & 1)
    width = 2 + (extra > 0) + (extra == 3)
    at, kind = at + 5, code % 1000 if code < 4000 else code & 0xFF

    def points(n: int) -> list[list[float]]:
        nonlocal at
        flat = struct.unpack_from(f"{order}{n * width}d", data, at)
        at += 8 * n * width
        return [list(flat[i : i + width]) for i in range(0, len(flat), width)]

    def count() -> int:
        nonlocal at
        at += 4
        return int(struct.unpack_from(f"{order}I", data, at - 4)[0])

    if kind == 1:
        return "Point", points(1)[0], at
    if kind == 3:
        return "Polygon", [points(count()) for _ in range(count())], at
    if kind == 6:
        polygons = []
        for _ in range(count()):
            _, rings, at = _wkb(data, at)
            polygons.append(rings)
        return "MultiPolygon", polygons, at
    return "", [], at
