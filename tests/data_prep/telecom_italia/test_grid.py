import gzip
import hashlib
import json

import numpy as np
import pytest

from data_prep.base.errors import InputError
from data_prep.sets.telecom_italia.cells import read_grid


def square(cell, lon=9.0, lat=45.0, size=1.0):
    ring = [[0, 0], [size, 0], [size, size], [0, size], [0, 0]]
    return {
        "properties": {"cellId": cell},
        "geometry": {"type": "Polygon", "coordinates": [[[lon + x, lat + y] for x, y in ring]]},
    }


@pytest.fixture
def write(tmp_path):
    def write(features, key="features", name="grid.geojson"):
        path = tmp_path / name
        text = json.dumps({"type": "FeatureCollection", key: features}).encode()
        path.write_bytes(gzip.compress(text) if name.endswith(".gz") else text)
        return path

    return write


@pytest.mark.parametrize("key", ["features", "trentinogrid"])
@pytest.mark.parametrize("name", ["grid.geojson", "grid.geojson.gz"])
def test_centroids_sorted_by_id(write, key, name):
    path = write([square(7, 10, 46, 2), square(3, 9, 45, 0.5)], key, name)
    grid = read_grid(path)
    assert grid.cells.tolist() == [3, 7]
    assert grid.lon.tolist() == [9.25, 11]
    assert grid.lat.tolist() == [45.25, 47]
    assert grid.checksum == f"sha256:{hashlib.sha256(path.read_bytes()).hexdigest()}"


def test_centroid_is_that_of_the_area_and_not_of_the_corners(write):
    feature = square(1)
    # An L of three unit squares: its area's centroid is at 5/6, its corners' mean at 1.
    corners = [[0, 0], [2, 0], [2, 1], [1, 1], [1, 2], [0, 2], [0, 0]]
    feature["geometry"]["coordinates"] = [corners]
    grid = read_grid(write([feature]))
    assert (grid.lon[0], grid.lat[0]) == pytest.approx((5 / 6, 5 / 6))


def test_at_gives_the_order_asked_for(write):
    grid = read_grid(write([square(i, lon=float(i)) for i in range(5)])).at(np.array([4, 1]))
    assert grid.cells.tolist() == [4, 1]
    assert grid.lon.tolist() == [4.5, 1.5]


def test_at_refuses_unknown_ids(write):
    grid = read_grid(write([square(1), square(2)]))
    with pytest.raises(InputError, match=r"grid\.geojson: .* 8, 9 \(2 of 3 "):
        grid.at(np.array([1, 8, 9]))


def metres(feature):
    feature["geometry"]["coordinates"] = [[[514_000, 5_034_000], [514_235, 5_034_000]] * 2]
    return feature


BAD = {
    "double id": ([square(1), square(1)], "cellId 1 occurs more than once"),
    "text id": ([square(1), square("x")], "feature 1 has cellId 'x', expected a whole number"),
    "true id": ([square(True)], "feature 0 has cellId True, expected a whole number"),
    "no id": ([{"geometry": None}], "feature 0 has cellId None"),
    "point": (
        [{**square(1), "geometry": {"type": "Point"}}],
        "feature 0 .*'Point'.* not a polygon",
    ),
    "no geometry": ([{**square(1), "geometry": None}], "feature 0 .* is not a polygon in degrees"),
    "no area": ([square(1, size=0)], "feature 0 .* is not a polygon in degrees"),
    "metres": ([square(1, 514_000, 5_034_000, 235)], "not a polygon in degrees of longitude"),
    "nothing": ([], "no list of features under 'features' or 'trentinogrid'"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_grid_is_refused(write, name):
    features, reason = BAD[name]
    with pytest.raises(InputError, match=rf"grid.geojson: .*{reason}"):
        read_grid(write(features))


@pytest.mark.parametrize("text", [b"no json", b"\x1f\x8bno gzip", b"\xff\xfe"])
def test_what_is_no_json_is_refused(tmp_path, text):
    path = tmp_path / "grid.geojson"
    path.write_bytes(text)
    with pytest.raises(InputError, match=r"grid\.geojson: .* as GeoJSON"):
        read_grid(path)


def test_a_list_is_refused(tmp_path):
    path = tmp_path / "grid.geojson"
    path.write_text("[1]")
    with pytest.raises(InputError, match=r"features.*list"):
        read_grid(path)


def test_no_file_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"GeoJSON.*found nothing"):
        read_grid(tmp_path / "grid.geojson")


def test_official_grid_of_milan_has_its_first_row_in_the_south(traffic_dir):
    grid = read_grid(traffic_dir / "milano-grid.geojson.gz")
    assert grid.cells.tolist() == list(range(1, 10_001))
    lat, lon = grid.lat.reshape(100, 100), grid.lon.reshape(100, 100)
    assert grid.lat[0] < grid.lat[9900]
    assert (np.diff(lat, axis=0) > 0).all()
    assert (np.diff(lon, axis=1) > 0).all()
    duomo = grid.at(np.array([5060]))
    assert (duomo.lon[0], duomo.lat[0]) == pytest.approx((9.1919, 45.4642), abs=0.003)


def test_official_grid_of_trentino(traffic_dir):
    grid = read_grid(traffic_dir / "trentino-grid.geojson.gz")
    assert len(grid.cells) == 6_575
    assert (grid.cells[0], grid.cells[-1]) == (38, 11_454)
    trento = grid.cells[np.argmin(np.hypot(grid.lon - 11.1217, grid.lat - 46.0679))]
    assert trento in range(1, 11_467)
