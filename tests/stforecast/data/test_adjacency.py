"""The roads between cells, from a cube to the series that a model reads."""

import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from data_prep.base.errors import InputError
from data_prep.cube import make_cube, open_cube, write_cube
from stforecast.data.series import as_series

ROADS = np.array([[1.0, 0.5, 0.0], [0.0, 1.0, 0.2], [0.3, 0.0, 1.0]])


@pytest.fixture
def cube():
    cube = make_cube(
        {"speed": np.ones((4, 3))},
        pd.date_range("2012-03-01", periods=4, freq="5min"),
        np.array(["a", "b", "c"]),
        title="three detectors",
        source="invented",
        license="none",
        units="mile/hour",
    )
    ends = {"cell_to": ["a", "b", "c"]}
    return cube.assign(adjacency=(("cell", "cell_to"), ROADS.copy())).assign_coords(ends)


def test_it_stands_in_the_order_of_the_cells(cube):
    np.testing.assert_array_equal(as_series(cube).adjacency, ROADS)
    turned = as_series(cube.isel(cell_to=[2, 0, 1]).transpose("cell_to", ...))
    np.testing.assert_array_equal(turned.adjacency, ROADS)


def test_some_cells_have_the_roads_between_them(cube):
    expected = [[1.0, 0.3], [0.0, 1.0]]
    np.testing.assert_array_equal(as_series(cube.isel(cell=[0, 2])).adjacency.T, expected)
    np.testing.assert_array_equal(as_series(cube).select(["a", "c"]).adjacency.T, expected)


def test_a_cube_without_some_cells_can_be_written(cube, tmp_path):
    """As the error of cells without a value says."""
    write_cube(cube, tmp_path / "all.nc")
    open_cube(tmp_path / "all.nc").drop_sel(cell=["b"]).to_netcdf(tmp_path / "some.nc")
    series = as_series(tmp_path / "some.nc")
    assert series.cells.tolist() == ["a", "c"]
    np.testing.assert_allclose(series.adjacency, [[1.0, 0.0], [0.3, 1.0]])


def test_roads_can_be_added_as_the_document_says(cube, tmp_path):
    new, weights = tmp_path / "new.nc", ROADS
    write_cube(cube.drop_vars(["adjacency", "cell_to"]), tmp_path / "old.nc")
    cube = open_cube(tmp_path / "old.nc")
    page = (Path(__file__).parents[3] / "docs" / "data.md").read_text()
    (code,) = re.findall(r"^```python\n([\s\S]*?)^```$", page, re.M)
    exec(code, {"cube": cube, "weights": weights, "new": new})
    np.testing.assert_array_equal(as_series(new).adjacency, ROADS)


def test_a_cube_without_roads_has_none(cube):
    assert as_series(cube.drop_vars(["adjacency", "cell_to"])).adjacency is None


def test_damaged_roads_are_refused(cube):
    with pytest.raises(InputError, match=r"cell b .*'cell_to'"):
        as_series(cube.isel(cell_to=[0, 2]))
    cube["adjacency"][1, 1] = -1
    with pytest.raises(InputError, match=r"negative.*finite"):
        as_series(cube)
