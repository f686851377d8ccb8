"""A small town: three cells, ten days of hours."""

import numpy as np
import pandas as pd
import pytest

from data_prep.cube import make_cube, write_cube


@pytest.fixture(scope="session")
def table():
    """Wide table (time × cell): a daily wave, noise of its own in each cell."""
    hours = pd.date_range("2013-11-01", periods=240, freq="h", name="time")
    rng = np.random.default_rng(0)
    wave = 1 + 0.5 * np.sin(2 * np.pi * hours.hour.to_numpy() / 24)
    values = np.array([100.0, 50.0, 400.0]) * (wave[:, None] + 0.1 * rng.normal(size=(240, 3)))
    return pd.DataFrame(values, hours, pd.Index([11, 22, 33], name="cell"))


@pytest.fixture(scope="session")
def cube(table):
    """The table as a cube of a place in Italy: two services, one reading is missing."""
    internet = table.to_numpy().copy()
    internet[100, 1] = np.nan
    return make_cube(
        {"internet": internet, "sms": 2 * table.to_numpy()},
        table.index,
        table.columns.to_numpy(),
        title="a small town",
        source="invented",
        license="none",
        units="MB",
        time_zone="Europe/Rome",
    )


@pytest.fixture
def cube_path(cube, tmp_path):
    return write_cube(cube, tmp_path / "town.nc")


@pytest.fixture(scope="session")
def tiny():
    """Settings that train in well under a second."""
    return {"split": "days:7,1,2", "rounds": 2, "hidden_size": 8, "device": "cpu"}
