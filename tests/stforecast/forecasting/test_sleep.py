"""Which cells can sleep: promises on sample paths, their probability, and the energy saved."""

import numpy as np
import pandas as pd
import pytest
import xarray as xr

from data_prep.base.errors import InputError
from stforecast.forecasting.groups import Groups
from stforecast.forecasting.sleep import Sleep, plan_sleep

CELLS = np.array(["a", "b", "c"])
SITE = Groups.of_columns({"site": ["x", "x", "x"]}, CELLS)


def paths_of(loads, units="1"):
    """Sample paths `(path, cell, time)` of hours."""
    times = pd.date_range("2024-03-30 23:00", periods=np.shape(loads)[2], freq="h")
    coords = {"cell": CELLS[: np.shape(loads)[1]], "time": times}
    attrs = {"units": units, "time_zone": "Europe/Rome"}
    return xr.DataArray(np.array(loads, float), coords, ("path", "cell", "time"), "calls", attrs)


def repeated(*cells, n=8):
    return np.array([cells], float).repeat(n, axis=0)


def test_a_small_site_by_hand():
    # a is below 3 in the last three hours, b in the last two; c never.
    loads = repeated([5, 2, 1, 1], [6, 6, 2, 2], [4, 4, 4, 7])
    found = plan_sleep(paths_of(loads), SITE, 8.0, Sleep(3, 0.8))
    rows = found.table.set_index("cell")
    assert rows["hours"].to_dict() == {"a": 3.0, "b": 1.0}
    # In the last hour, c has room for 1 and a and b have 3; the hour before, 4 for 3.
    assert str(rows.loc["b", "begin"]) == "2024-03-31 03:00:00+02:00"
    assert str(rows.loc["a", "end"]) == "2024-03-31 05:00:00+02:00"
    assert rows["moved_load"].to_dict() == {"a": 1.333, "b": 2.0}
    assert rows["probability"].tolist() == [0.8, 0.8]  # 4 of 4 paths, and the future.
    slope = (224 - 130) / 8  # Loads keep their energy, as all capacities are equal.
    assert found.energy_saved == pytest.approx(4 * 55 / (12 * 130 + slope * loads[0].sum()))


def test_loads_move_in_proportion_to_capacity():
    loads = repeated([1, 1], [2, 2], [2, 2])
    limits = {"a": 4.0, "b": 10.0, "c": 30.0}
    asked = Sleep(1.5, 0.8, idle=100, full=200, asleep=20)
    found = plan_sleep(paths_of(loads), SITE, limits, asked)
    before = 300 + 100 * (1 / 4 + 2 / 10 + 2 / 30)
    # A quarter of a's load moves to b, the rest to c.
    after = 20 + 200 + 100 * (2.25 / 10 + 2.75 / 30)
    assert found.energy_saved == pytest.approx(1 - after / before)


def random_loads(seed, n=80):
    rng = np.random.default_rng(seed)
    return rng.gamma(4, 1, (n, 3, 6)) * rng.uniform(0.3, 1, (n, 1, 1))


@pytest.mark.parametrize("seed", range(5))
def test_no_promise_breaks_an_earlier_one(seed):
    loads, asked = random_loads(seed), Sleep(6, 0.7)
    found = plan_sleep(paths_of(loads), SITE, 9.0, asked)
    assert len(found.table)
    assert (found.held(loads[:40]).sum(axis=1) >= 0.7 * 41 - 1e-9).all()
    shares = found.held(loads[40:]).sum(axis=1) / 41
    assert found.table["probability"].tolist() == pytest.approx(shares.round(4))


def test_more_certain_first_carriers_sleep_no_longer():
    loads, hours = random_loads(1), []
    first = str(CELLS[loads[:40].mean(axis=(0, 2)).argmin()])
    for wanted in (0.5, 0.7, 0.9):
        table = plan_sleep(paths_of(loads), SITE, 9.0, Sleep(6, wanted)).table
        hours.append(table.set_index("cell")["hours"].get(first, 0.0))
    assert hours == sorted(hours, reverse=True)
    assert hours[0] > hours[-1]


def test_who_is_alone_or_unknown_neither_sleeps_nor_carries():
    loads = repeated([1, 1], [np.nan, np.nan], [1, 1])
    pairs = Groups.of_columns({"site": ["x", "x", "y"]}, CELLS)
    found = plan_sleep(paths_of(loads), pairs, 8.0, Sleep(3, 0.8))
    assert found.table.empty
    assert found.energy_saved == 0
    assert found.held(loads).shape == (0, 8)
    # Nobody covers an area in which all sleep, even without load.
    assert (
        len(plan_sleep(paths_of(repeated([0, 0], [0, 0], [0, 0])), SITE, 8.0, Sleep(3, 0.8)).table)
        == 2
    )


def test_observed_loads_that_are_missing_break_promises():
    found = plan_sleep(paths_of(repeated([1, 1], [5, 5], [5, 5])), SITE, 8.0, Sleep(3, 0.8))
    assert found.table["cell"].tolist() == ["a"]
    observed = np.array([[[1, 1], [5, 5], [5, 5]], [[1, np.nan], [5, 5], [5, 5]],
                         [[1, 1], [np.nan, 5], [8, 5]], [[1, 1], [np.nan, 5], [5, 5]]])  # fmt: skip
    assert found.held(observed).tolist() == [[True, False, False, True]]


def test_impossible_wishes_are_refused():
    paths = paths_of(repeated([1, 1], [1, 1], [1, 1]))
    with pytest.raises(InputError, match=r"8 tested .* 0\.95, .*38"):
        plan_sleep(paths, SITE, 8.0, Sleep(3))
    with pytest.raises(InputError, match="one step"):
        plan_sleep(paths.isel(time=[0]), SITE, 8.0, Sleep(3, 0.8))
    with pytest.raises(InputError, match="threshold is 0"):
        plan_sleep(paths, SITE, 0.0, Sleep(3, 0.8))
    two = Groups.of_columns({"site": list("xxy"), "sector": list("pqr")}, CELLS)
    with pytest.raises(InputError, match="site, sector"):
        plan_sleep(paths, two, 8.0, Sleep(3, 0.8))


@pytest.mark.parametrize(
    "text",
    ["", "10", "below", "below=x", "probability=0.9", "below=1,below=2", "below=1,idel=3",
     "below=0", "below=nan"],
)  # fmt: skip
def test_a_wish_that_cannot_be_read_is_refused(text):
    with pytest.raises(InputError, match="below"):
        Sleep.read(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("below=1,probability=90", r"probability is 90; it must be in \(0, 1\)"),
        ("below=1,idle=300", "power is 75 W asleep, 300 W idle and 224 W full; it must rise"),
        ("below=1,asleep=-1", "asleep is -1"),
        ("below=-1", "below is -1; it must be positive"),
    ],
)
def test_a_number_out_of_its_range_is_named(text, message):
    with pytest.raises(InputError, match=message):
        Sleep.read(text)


def test_a_wish_is_read():
    assert Sleep.read("below=10, probability=0.9,idle=100") == Sleep(10, 0.9, 100)
