import dataclasses

import numpy as np
import pandas as pd
import pytest
import xarray as xr

from data_prep.base.errors import InputError
from stforecast.data.series import as_series


def test_a_cube_gives_values_ids_times_and_unit_of_the_service(cube):
    series = as_series(cube, "internet")
    np.testing.assert_array_equal(series.values, cube["internet"])
    assert np.isnan(series.values[100, 1])
    assert series.values.dtype == np.float64
    assert series.cells.tolist() == [11, 22, 33]
    assert series.times[[0, -1]].tolist() == [
        pd.Timestamp("2013-11-01"),
        pd.Timestamp("2013-11-10 23:00"),
    ]
    assert (series.service, series.units, series.name) == ("internet", "MB", "a small town")
    assert series.clock == "utc"
    assert series.calendar.local_times(np.array([0])) == pd.Timestamp("2013-11-01 01:00")


def test_a_path_gives_what_the_cube_gives(cube, cube_path):
    series = as_series(cube_path, "sms")
    np.testing.assert_array_equal(series.values, cube["sms"])
    assert series.name == str(cube_path)
    np.testing.assert_array_equal(as_series(str(cube_path), "sms").values, series.values)


def test_a_table_gives_its_columns(table):
    series = as_series(table)
    np.testing.assert_array_equal(series.values, table)
    assert (series.cells.tolist(), series.name) == ([11, 22, 33], "the table")


@pytest.mark.parametrize(
    ("form", "zone"), [("%d/%m/%Y %H:%M", None), ("%Y-%m-%d %H:%M", None), ("%Y-%m-%dT%HZ", "UTC")]
)
def test_an_index_of_texts_is_read(table, form, zone):
    series = as_series(table.set_axis(table.index.strftime(form)))
    assert (series.zone, series.times[30]) == (zone, table.index[30])


def test_a_long_table_whose_index_is_its_times_is_told_so(table):
    long = table.rename_axis("time").reset_index().melt("time", var_name="cell").set_index("time")
    with pytest.raises(InputError, match=r"df.reset_index\(\)"):
        as_series(long)


def test_a_local_clock_is_kept(cube):
    series = as_series(cube.assign_attrs(clock="local"), "internet")
    assert series.clock == "local"
    assert series.calendar.local_times(np.array([0])) == pd.Timestamp("2013-11-01 00:00")


def test_dimensions_in_another_order_are_turned(cube):
    series = as_series(cube.transpose("cell", "time"), "internet")
    np.testing.assert_array_equal(series.values, cube["internet"])


def test_zero_that_says_missing_becomes_nan(cube):
    zeroed = cube.copy(deep=True)
    zeroed["sms"][5, 0] = 0.0
    assert as_series(zeroed, "sms").values[5, 0] == 0.0
    zeroed["sms"].attrs["zero_is_missing"] = 1
    assert np.isnan(as_series(zeroed, "sms").values[5, 0])


def test_the_only_service_need_not_be_named(cube):
    assert as_series(cube[["sms"]]).service == "sms"


def test_one_of_several_services_must_be_named(cube_path):
    with pytest.raises(InputError) as error:
        as_series(cube_path)
    assert str(error.value) == (
        f"{cube_path} has several services; choose one with service: internet, sms"
    )


def test_a_wrong_service_lists_the_right_ones_and_the_file(cube_path):
    with pytest.raises(InputError) as error:
        as_series(cube_path, "net")
    assert str(error.value) == (f"{cube_path}: unknown service 'net'; choose one of: internet, sms")


def test_what_is_no_cube_is_refused():
    with pytest.raises(InputError, match="no dimension 'time'"):
        as_series(xr.Dataset({"a": ("x", [1, 2])}))


def test_select_takes_cells_in_the_order_asked_for(cube):
    chosen = as_series(cube, "sms").select(np.array([33, 11]))
    np.testing.assert_array_equal(chosen.values, cube["sms"].to_numpy()[:, [2, 0]])
    assert chosen.cells.tolist() == [33, 11]


def test_roads_are_those_between_the_selected_cells(cube):
    roads = np.arange(9.0).reshape(3, 3)
    series = dataclasses.replace(as_series(cube, "sms"), adjacency=roads)
    assert series.select(np.array([33, 11])).adjacency.tolist() == [[8, 6], [2, 0]]


def test_steps_before_the_series_are_its_own_and_missing(cube):
    series = as_series(cube, "sms")
    longer = series.preceded(2)
    assert longer.times.equals(pd.date_range("2013-10-31 22:00", periods=242, freq="h"))
    assert longer.calendar.time(0) == longer.times[0]
    assert np.isnan(longer.values[:2]).all()
    np.testing.assert_array_equal(longer.values[2:], series.values)


def test_select_names_a_cell_that_is_not_there(cube):
    with pytest.raises(InputError, match=r"town: 1 .*2 cells .*44"):
        as_series(cube, "sms").select(np.array([11, 44]))


def test_cells_are_ordered_by_the_numbers_in_their_names():
    times = pd.date_range("2024-01-01", periods=3, freq="h")
    cells = ["c10", "b", "c9", "c1"]
    series = as_series(pd.DataFrame(np.arange(12.0).reshape(3, 4), times, cells))
    ordered = series.ordered()
    assert ordered.cells.tolist() == ["b", "c1", "c9", "c10"]
    assert ordered.values[0].tolist() == [1.0, 3.0, 2.0, 0.0]
    assert ordered.ordered() is ordered


def test_units_of_a_frame_are_those_of_its_attributes():
    times = pd.date_range("2024-01-01", periods=3, freq="h")
    table = pd.DataFrame({"a": [1.0, 2.0, 3.0]}, times)
    table.attrs["units"] = "GB"
    assert as_series(table).units == "GB"
