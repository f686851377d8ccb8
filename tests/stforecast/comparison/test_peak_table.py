"""Errors in peak hours and in the others."""

import pytest

from stforecast.bench.run_groups import group_runs
from stforecast.comparison.further_tables import peak_table
from stforecast.comparison.rows import Row


@pytest.mark.quick(3)
@pytest.mark.parametrize(
    ("about", "hours"),
    [
        ({"time_zone": "UTC"}, "(12:00–13:00, UTC)"),
        ({"time_zone": "Europe/Rome"}, "(13:00–14:00, Europe/Rome)"),
        ({}, "(12:00–13:00, local time)"),
    ],
)
def test_the_caption_names_the_time_zone_of_its_hours(make_run, about, hours):
    run = make_run()
    forecasts = run.forecasts().assign_attrs(about)
    forecasts["y"][:, 1::2] = 1.0
    forecasts.to_netcdf(run.folder / "forecasts.nc", engine="h5netcdf")
    rows = [Row(group) for group in group_runs([run])]
    assert f"day's mean {hours}, and off-peak" in peak_table(rows)
