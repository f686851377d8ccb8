"""A table of sites describes the cells of a table of traffic."""

import contextlib
import json
import logging
import sqlite3
import struct
import sys

import numpy as np
import pandas as pd
import pytest
from mentions import mentions

from data_prep.base.errors import InputError
from data_prep.cube import open_cube
from data_prep.readers.features import rings_of
from data_prep.sets.table import prepare, read

TIMES = pd.date_range("2024-05-01", periods=30, freq="h")


@pytest.fixture
def traffic(tmp_path):
    rows = [(t, f"S{i}_1", f"S{i}", i + 1.0) for t in TIMES for i in range(3)]
    path = tmp_path / "traffic.csv"
    pd.DataFrame(rows, columns=["time", "Cell Name", "Site Name", "v"]).to_csv(path, index=False)
    return path


def sites(tmp_path, text):
    (tmp_path / "sites.csv").write_text(text)
    return str(tmp_path / "sites.csv")


def test_columns_of_cells_become_coordinates(traffic, tmp_path, caplog):
    caplog.set_level(logging.INFO)
    rows = ["S1_1;9,25;45,5;Zulu;150,5", "S0_1;9,125;45,25;Yankee;100", "S9_1;9;45;Zulu;1"]
    file = sites(tmp_path, "\n".join(["Cell;Longitude;Latitude;Vendor;Mbit/s", *rows, ""]))
    ds = open_cube(prepare(traffic, tmp_path / "o.nc", sites=file))
    np.testing.assert_array_equal(ds["lon"], [9.125, 9.25, np.nan])
    np.testing.assert_array_equal(ds["lat"], [45.25, 45.5, np.nan])
    assert ds["Vendor"].values.tolist() == ["Yankee", "Zulu", ""]
    np.testing.assert_array_equal(ds["Mbit per s"], [100, 150.5, np.nan])
    assert mentions(caplog.text, "sites.csv", "1 cell: S2_1")


def test_rows_may_be_of_sites_with_several_sectors(traffic, tmp_path, caplog):
    file = sites(tmp_path, "site,sector,vendor\nS0,1,A\nS0,2,A\nS1,1,B\nS2,1,A\n")
    ds = read(traffic, sites=file)
    assert ds["vendor"].values.tolist() == ["A", "B", "A"]
    assert "'sector' differ" in caplog.text


def test_projected_positions_need_their_system(traffic, tmp_path, monkeypatch):
    file = sites(tmp_path, "cell,X,Y\nS0_1,500000,5000000\nS1_1,500100,5000100\nS2_1,500200,1\n")
    with pytest.raises(InputError, match=r"X and Y .* crs='EPSG:25832'"):
        read(traffic, sites=file)
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "pyproj", None)
        with pytest.raises(InputError, match=r"crs .* 'stforecast\[maps\]'"):
            read(traffic, sites=file, crs="EPSG:25832")
    pytest.importorskip("pyproj")
    ds = read(traffic, sites=file, crs="EPSG:25832")
    assert ds["lon"].values[0] == pytest.approx(9.0)  # the central meridian of zone 32
    with pytest.raises(InputError, match="unknown system 'EPSG:0'"):
        read(traffic, sites=file, crs="EPSG:0")


def square(x, y, size=2.0):
    return [[x, y], [x + size, y], [x + size, y + size], [x, y + size], [x, y]]


def test_polygons_of_geojson_place_the_cells(traffic, tmp_path):
    shapes = [
        ("Polygon", [square(8, 44), square(8.5, 44.5, 0.5)]),
        ("MultiPolygon", [[square(0, 0)], [square(4, 0)[::-1]]]),
        ("Point", [7.5, 46.5, 300.0]),
    ]
    features = [
        {"type": "Feature", "properties": {"Cell Name": f"S{i}_1", "vendor": "AB"[i % 2], "lon": 1},
         "geometry": {"type": kind, "coordinates": at}}
        for i, (kind, at) in enumerate(shapes)
    ]  # fmt: skip
    path = tmp_path / "cells.geojson"
    path.write_text(json.dumps({"type": "FeatureCollection", "features": features}))
    ds = read(traffic, sites=str(path))
    np.testing.assert_allclose(ds["lon"], [9, 3, 7.5])
    np.testing.assert_allclose(ds["lat"], [45, 1, 46.5])
    assert ds["vendor"].values.tolist() == ["A", "B", "A"]
    assert "outline" not in ds  # One is a point.
    path.write_text('{"features": []}')
    with pytest.raises(InputError, match=r"cells.geojson: .*feature"):
        read(traffic, sites=str(path))
    path.write_text('{"features": [{"properties": {}, "geometry": {"type": "Polygon"}}]}')
    with pytest.raises(InputError, match=r"cells\.geojson: .* as GeoJSON"):
        read(traffic, sites=str(path))


def wkb(kind, rings, order="<"):
    """Write a polygon, or a multipolygon of one-ring polygons, as WKB."""
    mark = bytes([order == "<"])
    if kind == 6:
        parts = [wkb(3, [ring], order) for ring in rings]
        return mark + struct.pack(f"{order}II", 6, len(parts)) + b"".join(parts)
    body = struct.pack(f"{order}II", kind, len(rings))
    for ring in rings:
        flat = np.array(ring, float).ravel()
        body += struct.pack(f"{order}I{len(flat)}d", len(ring), *flat)
    return mark + body


def geopackage(path, code, blobs):
    with contextlib.closing(sqlite3.connect(path)) as base, base:
        base.execute("CREATE TABLE gpkg_spatial_ref_sys (srs_id, organization, "
                     "organization_coordsys_id)")  # fmt: skip
        base.execute("CREATE TABLE gpkg_geometry_columns (table_name, column_name, srs_id)")
        base.execute("INSERT INTO gpkg_spatial_ref_sys VALUES (?, 'EPSG', ?)", (code, code))
        base.execute("INSERT INTO gpkg_geometry_columns VALUES ('my cells', 'geom', ?)", (code,))
        base.execute('CREATE TABLE "my cells" (fid INTEGER, geom BLOB, cell TEXT, height REAL)')
        for i, (envelope, blob) in enumerate(blobs):
            head = b"GP\0" + bytes([envelope << 1 | 1]) + struct.pack("<i", code)
            head += bytes(8 * {0: 0, 1: 4}[envelope])
            base.execute('INSERT INTO "my cells" VALUES (?, ?, ?, ?)',
                         (i, head + blob, f"S{i}_1", 10.0 * i))  # fmt: skip
    return str(path)


def test_polygons_of_a_geopackage_place_the_cells(traffic, tmp_path):
    blobs = [
        (0, wkb(3, [square(8, 44)])),
        (1, wkb(3, [square(2, 40)], ">")),
        (0, wkb(6, [square(0, 0), square(4, 0)])),
    ]
    ds = read(traffic, sites=geopackage(tmp_path / "cells.gpkg", 4326, blobs))
    np.testing.assert_allclose(ds["lon"], [9, 3, 3])
    np.testing.assert_allclose(ds["lat"], [45, 41, 1])
    np.testing.assert_array_equal(ds["height"], [0, 10, 20])
    rings = [rings_of(text) for text in ds["outline"].values]
    assert [ring.tolist() for ring in rings[2]] == [square(0, 0), square(4, 0)]
    assert rings[0][0].tolist() == square(8, 44)
    (tmp_path / "bad.gpkg").write_bytes(b"SQLite format 3\0" + bytes(99))
    with pytest.raises(InputError, match=r"bad\.gpkg: .* as GeoPackage"):
        read(traffic, sites=str(tmp_path / "bad.gpkg"))
    pytest.importorskip("pyproj")
    metres = [(0, wkb(3, [square(499990 + i, 5e6, 20)])) for i in range(3)]
    ds = read(traffic, sites=geopackage(tmp_path / "utm.gpkg", 25832, metres))
    assert ds["lon"].values[0] == pytest.approx(9.0)
    assert rings_of(ds["outline"].values[0])[0].mean(axis=0)[0] == pytest.approx(9.0, abs=1e-3)


def test_outlines_with_many_corners_keep_their_shape(traffic, tmp_path):
    angles = np.linspace(0, 2 * np.pi, 5001)
    circle = np.stack([9 + np.cos(angles), 45 + np.sin(angles)], axis=1)
    blobs = [(0, wkb(3, [circle])) for _ in range(3)]
    ds = read(traffic, sites=geopackage(tmp_path / "cells.gpkg", 4326, blobs))
    (ring,) = rings_of(ds["outline"].values[0])
    assert len(ring) == 61
    np.testing.assert_array_equal(ring[0], ring[-1])
    np.testing.assert_allclose(np.hypot(*(ring - [9, 45]).T), 1, atol=1e-5)
    x, y = ring.T
    area = abs(x[:-1] @ y[1:] - x[1:] @ y[:-1]) / 2
    assert 0.98 * np.pi < area < np.pi


def test_a_table_of_other_cells_is_refused(traffic, tmp_path):
    with pytest.raises(InputError, match=r"ids .* S0_1, S1_1"):
        read(traffic, sites=sites(tmp_path, "cell,vendor\nT0,A\n"))


def test_degrees_may_be_texts(tmp_path):
    rows = [f"{t},{c},1" for t in pd.date_range("2024-05-10", periods=4, freq="h") for c in "ab"]
    (tmp_path / "a.csv").write_text("\n".join(["time,cell,v", *rows, ""]))
    (tmp_path / "sites.csv").write_text("cell;lon;lat\na;9.25W;45°30'\nb;-9,5;45,25S\n")
    ds = read(tmp_path / "a.csv", sites=tmp_path / "sites.csv")
    assert ds["lon"].values.tolist() == [-9.25, -9.5]
    assert ds["lat"].values.tolist() == [45.5, -45.25]
    (tmp_path / "sites.csv").write_text("cell,lon,lat\na,9 west,45\nb,9,45\n")
    with pytest.raises(InputError, match="lon is '9 west'"):
        read(tmp_path / "a.csv", sites=tmp_path / "sites.csv")
