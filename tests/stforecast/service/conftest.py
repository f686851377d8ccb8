"""A small town in service: a long table with dates of its country, a run, and later days."""

import shutil
from pathlib import Path

import pytest
from in_service import DAYS, RULE, values, write

from data_prep.sets.table import prepare
from stforecast.forecasting.runs import run
from stforecast.service.update import update


@pytest.fixture(scope="session")
def town(tmp_path_factory):
    """Folder of a run of the first days, and of a table of each day after them."""
    folder = tmp_path_factory.mktemp("town")
    wide = values()
    options = {"time": "When", "time_zone": "Europe/Rome", "clock": "local", "units": "GB"}
    cube = prepare(
        write(wide.iloc[: 24 * DAYS], folder / "first.csv"), folder / "first.nc", **options
    )
    settings = {"split": "time:0.7,0.15,0.15", "horizon": 24, "intervals": "conformal"}
    run("ridge", cube, folder / "run", settings)
    (folder / "run" / "service.toml").write_text(RULE)
    for day in range(DAYS, 40):
        write(wide.iloc[24 * day : 24 * day + 24], folder / f"{day}.csv")
    return folder


@pytest.fixture
def service(town, tmp_path):
    """Copy of the town's run, and a function from a day's number to its table."""
    shutil.copytree(town / "run", tmp_path / "run")
    return tmp_path / "run", lambda day: Path(town / f"{day}.csv")


@pytest.fixture(scope="session")
def town_updated(town):
    """Folder of the town's run after its first day."""
    shutil.copytree(town / "run", town / "updated")
    update(town / "updated", town / f"{DAYS}.csv")
    return town / "updated"


@pytest.fixture
def updated(town_updated, service):
    """As `service`, after the first day."""
    run, day = service
    shutil.rmtree(run)
    return shutil.copytree(town_updated, run, symlinks=True), day
