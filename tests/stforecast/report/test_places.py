import numpy as np
import pytest
import xarray as xr

from data_prep.city.simulate import Simulation
from stforecast.plots.cell_map import find_places
from stforecast.report.section import map_of
from stforecast.report.tables import Arrays

MILAN = "doi:10.7910/DVN/EGZHFV"
SIMULATED = Simulation("milan", "2013-11-01", days=21, cells=4, seed=1, kinds={}).source


def forecasts(cells, **coords):
    found = xr.Dataset(coords={"cell": cells})
    return found.assign_coords({name: ("cell", values) for name, values in coords.items()})


def cube(cells, source="own counters", adjacency=None):
    found = xr.Dataset(coords={"cell": cells}, attrs={"source": source})
    return found if adjacency is None else found.assign(adjacency=(("cell", "to"), adjacency))


@pytest.mark.parametrize("source", [MILAN, SIMULATED])
def test_cells_of_milan_are_squares_row_by_row_from_the_south_west(source):
    cells = np.array([5060, 5061, 5160])
    found = find_places(forecasts(cells), cube(cells, source))
    assert found.kind == "squares"
    width, height = found.size
    np.testing.assert_allclose(np.diff(found.east[:2]), width)  # 5061 lies east of 5060
    np.testing.assert_allclose(found.north[2] - found.north[0], height)  # 5160 north of it
    np.testing.assert_allclose([width, height], 0.235, atol=0.003)  # kilometres, as published


def test_locations_of_the_data_come_first():
    cells = np.array([5060, 5061])
    found = find_places(forecasts(cells, lon=[9.0, 9.1], lat=[45.0, 45.0]), cube(cells, MILAN))
    np.testing.assert_allclose(np.diff(found.east), 0.1 * 111.2 * np.cos(np.radians(45)))


def test_outlines_of_the_data_are_drawn_around_the_middle():
    ring = "[[[10,0],[10,1],[12,1],[12,0],[10,0]]]"
    data = cube(["b", "a"]).assign_coords(outline=("cell", ["", ring]))
    found = find_places(forecasts(["a"], lon=[11.0], lat=[0.5]), data)
    assert found.kind == "outlines"
    width = 2 * 111.2 * np.cos(np.radians(0.5))
    np.testing.assert_allclose(np.ptp(found.outlines[0][0], axis=0), [width, 111.2])
    np.testing.assert_allclose(found.outlines[0][0].min(axis=0), [-width / 2, -55.6])
    page = map_of(found, Arrays())
    assert page["outlines"][0].count("M") == page["outlines"][0].count("Z") == 1
    np.testing.assert_allclose(page["bounds"], [-width / 2, -55.6, width / 2, 55.6])
    both = forecasts(["a", "b"], lon=[11.0, 9.0], lat=[0.5, 0.5])
    assert find_places(both, data).kind == "points"  # One has no outline.


def test_other_cells_with_locations_are_points_around_the_middle():
    found = find_places(forecasts(["a", "b"], lon=[10.0, 12.0], lat=[0.0, 1.0]), cube(["a", "b"]))
    assert found.kind == "points"
    np.testing.assert_allclose(found.east, [-111.2, 111.2], rtol=1e-3)
    np.testing.assert_allclose(found.north, [-55.6, 55.6], rtol=1e-3)
    assert "10.000° E to 12.000° E" in found.note


@pytest.mark.parametrize("coords", [{}, {"lon": [1.0, np.nan], "lat": [1.0, 2.0]}])
def test_cells_without_locations_are_tiles(coords):
    assert find_places(forecasts(["a", "b"], **coords), cube(["a", "b"])).kind == "tiles"
    assert find_places(forecasts(["a", "b"], **coords), None).kind == "tiles"


def test_each_road_is_drawn_once_and_between_tested_cells_alone():
    roads = np.array([[1.0, 0.9, 0.0], [0.8, 1.0, 0.5], [0.0, 0.0, 1.0]])
    data = cube(["a", "b", "c"], adjacency=roads)
    there = {"lon": [1.0, 2.0, 3.0], "lat": [1.0, 1.0, 1.0]}
    assert find_places(forecasts(["a", "b", "c"], **there), data).roads.tolist() == [[0, 1], [1, 2]]
    two = {name: values[:2] for name, values in there.items()}
    assert find_places(forecasts(["b", "a"], **two), data).roads.tolist() == [[0, 1]]
    assert len(find_places(forecasts(["a", "x"], **two), data).roads) == 0
