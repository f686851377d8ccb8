"""Abilene and GÉANT: small files in the published layouts (weeks, TOTEM, SNDlib)."""

import gzip
import json
import logging

import numpy as np
import pandas as pd
import pytest

from data_prep.base.errors import InputError
from data_prep.cube import open_cube
from data_prep.sets import abilene, geant
from data_prep.sets.matrices import FIRST_DAYS, STEPS, read_snapshot

NAMES = ["ATLA-M5_ATLA-M5", "ATLA-M5_NYCMng", "NYCMng_ATLA-M5", "NYCMng_NYCMng"]


def week(start=0, n_steps=STEPS):
    """Measured values of a week of two routers, `(time, pair)`."""
    return np.arange(start, start + 4 * n_steps).reshape(n_steps, 4) % 9973


def write_week(folder, name, measured):
    """Write the measured values with four estimates each."""
    values = np.repeat(measured, 5, axis=1)
    values[:, np.arange(values.shape[1]) % 5 != 0] = 7
    lines = "\n".join(" ".join(map(str, row)) for row in values)
    path = folder / f"{name}.gz"
    path.write_bytes(gzip.compress(f"{lines}\n".encode(), compresslevel=1))
    return path


def write_demands(folder):
    lines = [f"{name.replace('_', ',')} {i}\n" for i, name in enumerate(NAMES, 1)]
    (folder / "demands").write_text("# dmd(s,d) dmd_index\n" + "".join(lines))


def test_weeks_become_a_cube_with_gaps_where_the_publisher_has_none(tmp_path, caplog):
    write_week(tmp_path, "X05", week())
    write_week(tmp_path, "X06", week(5))
    write_demands(tmp_path)
    with caplog.at_level(logging.WARNING):
        ds = open_cube(abilene.prepare(tmp_path, tmp_path / "out.nc")).load()
    assert ds["cell"].values.tolist() == NAMES
    traffic = ds["traffic"].to_numpy()
    assert traffic.shape == (16 * 288, 4)  # 2004-04-22 to 2004-05-07
    assert str(ds["time"].values[0]).startswith("2004-04-22T00:00")
    np.testing.assert_allclose(traffic[:STEPS], week() * 100 * 8 / 300 / 1e6)
    assert np.isnan(traffic[STEPS:-STEPS]).all()
    np.testing.assert_allclose(traffic[-STEPS:], week(5) * 8 / 3e6)
    assert "576 of 4608 steps have no matrix; left as NaN" in caplog.text
    assert ds["traffic"].attrs["units"] == "Mbit/s"
    assert list(json.loads(ds.attrs["source_checksums"])) == ["X05.gz", "X06.gz"]


def test_the_day_that_two_weeks_hold_must_be_the_same(tmp_path):
    first = week()
    write_week(tmp_path, "X20", first)
    write_week(tmp_path, "X21", np.vstack([first[-288:], week(3, STEPS - 288)]))
    ds = abilene.read(tmp_path)
    assert ds.sizes["time"] == 13 * 288
    np.testing.assert_allclose(ds["traffic"][STEPS:], week(3, STEPS - 288) * 8 / 3e6)
    write_week(tmp_path, "X21", week(1))
    with pytest.raises(InputError, match=r"X21\.gz: differs from the week before on 2004-08-13"):
        abilene.read(tmp_path)


def test_pairs_are_numbered_where_their_names_are_absent(tmp_path, caplog):
    write_week(tmp_path, "X01", week())
    with caplog.at_level(logging.WARNING):
        ds = abilene.read(tmp_path, step="1h")
    assert ds["cell"].values.tolist() == ["1", "2", "3", "4"]
    assert "no file demands here" in caplog.text
    np.testing.assert_allclose(ds["traffic"][0], week()[:12].mean(axis=0) * 8 / 3e6)


def test_first_days_follow_each_other_but_for_one():
    days = pd.DatetimeIndex(list(FIRST_DAYS.values()))
    assert len(days) == 24
    assert [name for name, gap in zip(FIRST_DAYS, days.diff(), strict=True)
            if gap < pd.Timedelta("7D")] == ["X21"]  # fmt: skip
    assert [source.name for source in abilene.SOURCES] == [
        *(f"{name}.gz" for name in FIRST_DAYS), "demands",
    ]  # fmt: skip


def changed(text):
    return lambda path: path.write_bytes(gzip.compress(text.encode()))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (changed("1 2 3\n"), r"1 lines, expected 2016"),
        (changed("1 2 3 4 5 6\n" * STEPS), r"line 1: 6 values, expected 720"),
        (changed("1 2 3 4 5 6 7 8 9 10\n" * STEPS), r"line 1: 10 values, expected 720"),
        (changed("1 2 3 4 5\n" * (STEPS - 1) + "1 2 3 4\n"), r"line 2016: 4 values"),
        (changed("x 2 3 4 5\n" * STEPS), r"cannot be read as a week of traffic matrices"),
        (changed("1 2 3 4 5\n" * 9 + "-1 2 3 4 5\n" * (STEPS - 9)), r"line 10: pair 1 has -"),
        (changed("nan 2 3 4 5\n" * STEPS), r"line 1: pair 1 has nan Mbit/s"),
        (lambda path: path.write_bytes(b"no gzip"), r"cannot be read as a week"),
    ],
)
def test_weeks_that_do_not_fit(tmp_path, damage, message):
    damage(tmp_path / "X01.gz")
    with pytest.raises(InputError, match=rf"X01\.gz.*{message}") as raised:
        abilene.read(tmp_path)
    assert "\n" not in str(raised.value)


def test_names_and_weeks_of_other_numbers_of_pairs(tmp_path):
    write_week(tmp_path, "X01", week())
    (tmp_path / "demands").write_text("A,A 1\nA,B 2\n")
    with pytest.raises(InputError, match=r"demands: 2 pairs of routers, expected .* 1 to 4"):
        abilene.read(tmp_path)
    write_week(tmp_path, "X02", week()[:, :1])
    with pytest.raises(InputError, match=r"X02\.gz: 1 pairs of routers, X01\.gz has 4"):
        abilene.read(tmp_path)


def totem(values, unit="kbps"):
    sources = "".join(
        f'<src id="{a}">' + "".join(f'<dst id="{b}">{v}</dst>' for b, v in row.items()) + "</src>"
        for a, row in values.items()
    )
    return (
        f'<?xml version="1.0"?><TrafficMatrixFile><info><units><unit type="bandwidth" '
        f'value="{unit}"/></units></info><IntraTM ASID="20965">{sources}</IntraTM>'
        "</TrafficMatrixFile>"
    )


def sndlib(demands, unit="MBITPERSEC"):
    rows = "".join(
        f'<demand id="{a}_{b}"><source>{a}</source><target>{b}</target>'
        f"<demandValue>\n {value} </demandValue></demand>"
        for a, b, value in demands
    )
    return (
        '<?xml version="1.0" encoding="ISO-8859-1"?><network xmlns="http://sndlib.zib.de/network" '
        f'version="1.0"><meta><granularity>5min</granularity><unit>{unit}</unit></meta>'
        f"<networkStructure><nodes/></networkStructure><demands>{rows}</demands></network>"
    )


def native(demands):
    rows = "".join(f"  {a}_{b} ( {a} {b} ) 1 {value} UNLIMITED\n" for a, b, value in demands)
    return (
        "?SNDlib native format; type: network; version: 1.0\n\nMETA (\n  granularity = 5min\n"
        "  unit = MBITPERSEC\n)\n\nNODES (\n  A ( -84.38 33.75 )\n)\n\nLINKS (\n"
        "  L ( A B ) 9920.00 0.00 0.00 0.00 ( 9920.00 0.00 )\n)\n\n"
        f"DEMANDS (\n{rows})\n\nADMISSIBLE_PATHS (\n)\n"
    )


def test_totem_matrices_become_a_cube(tmp_path, caplog):
    for minute, values in (
        ("00-15", {"1": {"2": 2500, "12": 1}, "12": {"1": 0}}),
        ("00-30", {"2": {"1": 500}}),
        ("00-45", {"1": {"2": 0}}),
        ("01-15", {"1": {"2": 1000}}),
    ):
        (tmp_path / f"IntraTM-2005-01-01-{minute}.xml").write_text(totem(values))
    with caplog.at_level(logging.WARNING):
        ds = open_cube(geant.prepare(tmp_path, tmp_path / "out.nc")).load()
    assert ds["cell"].values.tolist() == ["1_2", "1_12", "2_1", "12_1"]
    nothing = [np.nan] * 4
    expected = [[2.5, 0.001, 0, 0], [0, 0, 0.5, 0], nothing, nothing, [1, 0, 0, 0]]
    np.testing.assert_allclose(ds["traffic"], expected)
    times = pd.date_range("2005-01-01T00:15", periods=5, freq="15min")
    assert list(ds.indexes["time"]) == list(times)
    assert "2 of 5 steps have no matrix" in caplog.text  # one is absent, one is empty


@pytest.mark.parametrize("ending", ["xml", "txt"])
def test_sndlib_matrices_of_both_formats(tmp_path, ending):
    write = {"xml": sndlib, "txt": native}[ending]
    for minute, demands in {"0000": [("A", "B", 1.5)], "0005": [("B", "A", 0.25)]}.items():
        name = f"demandMatrix-abilene-zhang-5min-20040301-{minute}.{ending}"
        (tmp_path / name).write_text(write(demands))
    ds = abilene.read(tmp_path)
    assert ds["cell"].values.tolist() == ["A_B", "B_A"]
    np.testing.assert_array_equal(ds["traffic"], [[1.5, 0], [0, 0.25]])
    with pytest.raises(InputError, match=r"no traffic matrix in this folder; unpack .*tar xjf"):
        geant.read(tmp_path)


BOMB = '<?xml version="1.0"?><!DOCTYPE x [<!ENTITY a "aaaa">]><x>&a;</x>'


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("<html>", "cannot be read as a traffic matrix"),
        (BOMB, "it defines its own entities"),
        ("<TrafficMatrixFile/>", "it states no unit"),
        (totem({}, "packets"), "its unit is 'packets', expected one of bps, kbps"),
        (totem({"1": {"2": "many"}}), "could not convert string to float: 'many'"),
        (totem({"1": {"2": -1}}), "-0.001 Mbit/s from 1 to 2, expected a number from 0 up"),
        (totem({"1": {"2": "nan"}}), "nan Mbit/s from 1 to 2"),
        (sndlib([("A", "B", 1), ("A", "B", 2)]), "A to B is there twice"),
        (sndlib([("A", "B", "")]), "could not convert string to float"),
        (totem({"1": {}}).replace('id="1"', ""), "all matrices are empty"),
    ],
)
def test_matrices_that_do_not_fit(tmp_path, text, message):
    (tmp_path / "IntraTM-2005-01-01-00-15.xml").write_text(text)
    with pytest.raises(InputError, match=message) as raised:
        geant.read(tmp_path)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("DEMANDS (\n)\n", "its unit is not MBITPERSEC"),
        ("unit = MBITPERSEC\n", "it has no section DEMANDS"),
        (native([]).replace("DEMANDS (\n", "DEMANDS (\n  A B 1\n"), "'A B 1' is no demand"),
    ],
)
def test_native_matrices_that_do_not_fit(tmp_path, text, message):
    path = tmp_path / "demandMatrix-abilene-zhang-5min-20040301-0000.txt"
    path.write_text(text)
    with pytest.raises(InputError, match=message):
        read_snapshot(path)


def test_names_and_times_that_do_not_fit(tmp_path):
    matrix = totem({"1": {"2": 1}})
    (tmp_path / "IntraTM-2005-13-01-00-15.xml").write_text(matrix)
    with pytest.raises(InputError, match=r"IntraTM-2005-13-01-00-15\.xml: cannot be read as a m"):
        geant.read(tmp_path)
    (tmp_path / "IntraTM-2005-13-01-00-15.xml").rename(tmp_path / "IntraTM-first.xml")
    with pytest.raises(InputError, match=r"IntraTM-first\.xml: .*does not end in a time"):
        geant.read(tmp_path)
    (tmp_path / "IntraTM-first.xml").rename(tmp_path / "IntraTM-2005-01-01-00-15.xml")
    (tmp_path / "IntraTM-2005-01-01-00-20.xml").write_text(matrix)
    with pytest.raises(InputError, match="a matrix of 2005-01-01 00:20:00 is between the steps"):
        geant.read(tmp_path)
    with pytest.raises(InputError, match="a file, expected a folder of traffic matrices; unpack"):
        geant.read(tmp_path / "IntraTM-2005-01-01-00-15.xml")
    with pytest.raises(InputError, match=r"no folder of traffic matrices here \(found nothing\)"):
        geant.read(tmp_path / "nowhere")
