"""Counters that run on are read as what they rise by in each step."""

import logging
import re
import shlex

import numpy as np
import pandas as pd
import pytest
from mentions import mentions

from data_prep.base.errors import InputError
from data_prep.cube import open_cube
from data_prep.sets.table import read
from stforecast.cli.main import cli

STEPS = pd.date_range("2024-03-04", periods=96, freq="5min")
TRUE = np.random.default_rng(8).integers(1e6, 9e6, (96, 2)).astype(np.uint64)
"""Octets of each step and device."""

INCREASE = {"resample": "5min", "agg": "increase"}


def polls(path, counters, times=STEPS, **others):
    """Write the readings of two devices at the begin of each step."""
    frames = [
        pd.DataFrame({"time": times, "device": f"edge{i}", "octets": counters[:, i], **others})
        for i in range(2)
    ]
    pd.concat(frames).to_csv(path, index=False)
    return path


def running(first=0):
    """Return readings at the begins of steps: what passed before, from a first value on."""
    return np.uint64(first) + np.concatenate([TRUE[:1] * np.uint64(0), TRUE[:-1].cumsum(axis=0)])


@pytest.mark.repeats
def test_the_option_that_the_notice_names_gives_the_increments(tmp_path, capsys):
    path, command = polls(tmp_path / "snmp.csv", running()), ["prepare", "table", "--raw"]
    command += [str(path), "--out", str(tmp_path / "out.nc"), "--overwrite"]
    cli.main(command, standalone_mode=False, obj={})
    options = re.search(r"runs on: .* (--resample \S+ --agg increase)", capsys.readouterr().err)[1]
    assert options == "--resample 5min --agg increase"
    cli.main([*command, *shlex.split(options)], standalone_mode=False, obj={})
    with open_cube(tmp_path / "out.nc") as ds:
        np.testing.assert_array_equal(ds["octets"], TRUE[:-1])
        np.testing.assert_array_equal(ds["time"], STEPS[:-1].as_unit("ns"))
    assert "runs on" not in capsys.readouterr().err
    cli.main(["info", str(path)], standalone_mode=False, obj={})
    shown = capsys.readouterr().out
    assert mentions(shown, "counter", "in 2 cells", "edge0")
    assert f"snmp.csv {options} --horizon 24" in shown


@pytest.mark.parametrize(("bits", "first"), [(32, 2**32 - 10**8), (64, 2**64 - 10**8), (64, 2**63)])
def test_overflows_lose_nothing(tmp_path, bits, first):
    with np.errstate(over="ignore"):
        counters = running(first) % np.uint64(2**32) if bits == 32 else running(first)
    ds = read(polls(tmp_path / "snmp.csv", counters), **INCREASE)
    np.testing.assert_array_equal(ds["octets"], TRUE[:-1])


def test_after_a_reset_a_counter_starts_from_zero(tmp_path, caplog):
    counters = running(5 * 10**8).astype(np.int64)
    counters[40:, 1] -= counters[40, 1] - 7000
    ds = read(polls(tmp_path / "snmp.csv", counters), **INCREASE)
    expected = TRUE[:-1].astype(float)
    expected[39, 1] = 7000
    np.testing.assert_array_equal(ds["octets"], expected)
    assert mentions(caplog.text, "octets: 1 reset", "cells edge1")


def test_readings_between_steps_are_spread_and_long_gaps_are_missing(tmp_path):
    times = STEPS + pd.Timedelta("1min")
    constant = np.arange(96)[:, None] * np.array([300, 600])
    kept = [i for i in range(96) if i != 50]
    path = polls(tmp_path / "snmp.csv", constant[kept], times[kept])
    found = read(path, **INCREASE)["octets"].to_pandas()
    assert found.index[0] == STEPS[1]  # The first step lacks its first minute.
    missing = found.isna().all(axis=1)
    assert found.index[missing].tolist() == STEPS[49:52].tolist()
    assert (found[~missing] == [300, 600]).all(axis=None)
    hours = read(path, resample="1h", agg="increase")["octets"]
    np.testing.assert_allclose(hours, np.tile([3600.0, 7200.0], (6, 1)))


def test_a_wide_table_of_meters_has_days_of_its_zone(tmp_path):
    times = pd.date_range("2024-03-30", "2024-04-02", freq="1h", tz="Europe/Rome")
    meters = pd.DataFrame({"m1": np.arange(72.0), "m2": 5.0 * np.arange(72)}, times)
    meters.rename_axis("time").to_csv(tmp_path / "meters.csv")
    days = {"resample": "1D", "agg": "increase", "time_zone": "Europe/Rome", "layout": "wide"}
    found = read(tmp_path / "meters.csv", **days)["value"]
    np.testing.assert_allclose(found, [[24, 120], [23, 115], [24, 120]])


def test_a_level_beside_counters_is_refused_with_the_columns_to_choose(tmp_path, caplog):
    caplog.set_level(logging.INFO)
    load = np.random.default_rng(9).integers(0, 99, 96)
    path = polls(tmp_path / "snmp.csv", running(), load=load)
    with pytest.raises(InputError, match="'load' falls") as refused:
        read(path, **INCREASE)
    assert refused.value.typed.endswith("choose the counters with --values octets")
    np.testing.assert_array_equal(read(path, **INCREASE, values="octets")["octets"], TRUE[:-1])
    with pytest.raises(InputError, match="agg increase"):
        read(path, **INCREASE, duplicates="sum")
