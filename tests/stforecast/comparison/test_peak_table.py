"""Errors in peak hours and in the others."""

import pytest
from mentions import mentions

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
    assert f"load is above the day's mean {hours}, and off-peak" in table_of(make_run(), about)


def test_the_peak_of_a_speed_is_where_it_is_low(make_run):
    shown = table_of(make_run(), {"time_zone": "UTC"}, units="km/h")
    assert mentions(shown, "speed", "(00:00–01:00, UTC)")


def table_of(run, about, units="1"):
    """Tabulate a run of which every other target is 1."""
    forecasts = run.forecasts().assign_attrs(about)
    forecasts["y"][:, 1::2] = 1.0
    forecasts["y"].attrs["units"] = units
    forecasts.to_netcdf(run.folder / "forecasts.nc", engine="h5netcdf")
    caption, _ = peak_table([Row(group) for group in group_runs([run])])
    return caption
