"""Tables as people have them: the error says what was read and how to mend it, and that works."""

import logging
import re

import numpy as np
import pandas as pd
import pytest

from data_prep.cube import open_cube
from data_prep.errors import InputError
from data_prep.table import prepare
from data_prep.tabular.frames import from_frame, from_long

HOURS = pd.date_range("2017-10-23 03:00", periods=48, freq="h")
DAYS = pd.date_range("2017-10-01", periods=20, freq="D")
VALUES = np.arange(48) + 0.5


@pytest.fixture
def table(tmp_path, monkeypatch):
    """Write columns as a CSV file, and give its path."""
    monkeypatch.chdir(tmp_path)

    def write(columns, **options):
        pd.DataFrame(columns).to_csv("my.csv", index=False, **options)
        return tmp_path / "my.csv"

    return write


def refusal(path, **options):
    with pytest.raises(InputError) as e:
        prepare(path, path.with_name("cube.nc"), **options)
    return str(e.value)


def mended(path, message, way=0, **options):
    """The cube of the table that a message's own line of pandas makes."""
    exec(re.findall(r"`(import pandas.*?)`", message)[way], {})
    return open_cube(prepare(path.with_name("mended.csv"), path.with_name("cube.nc"), **options))


@pytest.mark.parametrize(
    ("form", "order"),
    [
        ("%m/%d/%Y %H:%M:%S", "month/day/year"),
        ("%d.%m.%Y %H:%M", "day/month/year"),
        ("%m/%d/%Y %I:%M:%S %p", "month/day/year"),
    ],
)
def test_dates_that_tell_their_order(table, form, order):
    path = table({"time": HOURS.strftime(form), "a": VALUES})
    message = refusal(path)
    assert f"my.csv, line 2: cannot read time {HOURS[0].strftime(form)!r}, expected ISO" in message
    assert f"this is {order}, convert it with `" in message
    np.testing.assert_array_equal(mended(path, message).indexes["time"], HOURS)


@pytest.mark.parametrize(("way", "form"), [(0, "%d/%m/%Y"), (1, "%m/%d/%Y")])
def test_dates_that_do_not(table, way, form):
    times = DAYS[:12] if form == "%d/%m/%Y" else pd.date_range("2017-01-10", periods=3, freq="D")
    path = table({"time": times[times.day <= 12].strftime(form), "a": 1.0})
    message = refusal(path)
    assert "day and month cannot be told apart, convert it: if day/month/year, with `" in message
    assert mended(path, message, way).indexes["time"][0] == times[0]


def test_times_of_another_kind_and_of_a_frame(table):
    assert "convert it by its own format, such as with `" in refusal(
        table({"time": DAYS.strftime("%d %b %Y"), "a": 1.0})
    )
    frame = pd.DataFrame({"a": VALUES}, index=HOURS.strftime("%m/%d/%Y %H:%M"))
    line = "`df.index = pd.to_datetime(df.index, format='%m/%d/%Y %H:%M')`"
    with pytest.raises(InputError, match=re.escape(line)):
        from_frame(frame)


@pytest.mark.parametrize("scale", [1, 1000])
def test_decimal_commas(table, scale):
    path = table({"time": HOURS, "a": VALUES * scale}, sep=";", decimal=",")
    if scale > 1:
        path.write_text(re.sub(r"(\d)(\d{3},)", r"\1.\2", path.read_text()))
    message = refusal(path)
    assert "my.csv, line 2: column 'a' holds " in message
    assert "which has a decimal comma" in message
    np.testing.assert_array_equal(mended(path, message)["value"].values[:, 0], VALUES * scale)


def test_decimal_commas_of_a_frame():
    df = pd.DataFrame({"time": HOURS, "cell": 1, "a": [f"{v}".replace(".", ",") for v in VALUES]})
    with pytest.raises(InputError, match="row 0: column 'a' holds '0,5'") as e:
        from_long(df)
    exec(re.findall("`(.*)`", str(e.value))[0], {"df": df})
    np.testing.assert_array_equal(from_long(df)["a"].values[:, 0], VALUES)


def test_a_file_without_names_of_columns(table):
    path = table({"time": HOURS, "a": VALUES, "b": VALUES}, header=False)
    message = refusal(path)
    assert "my.csv, line 1: '2017-10-23 03:00:00', '0.5', '0.5' are values, expected" in message
    assert mended(path, message)["cell"].values.tolist() == ["cell1", "cell2"]


@pytest.mark.parametrize("cells", [None, [1, 2]])
def test_a_table_without_times(table, cells):
    columns = {"v": VALUES} if cells is None else {"cell": np.repeat(cells, 24), "v": VALUES}
    path = table(columns)
    message = refusal(path)
    assert "my.csv: no column 'time' among " in message
    assert mended(path, message).sizes == {"time": 48 // len(cells or [1]), "cell": len(columns)}


def test_names_that_are_nearly_right(table):
    path = table({"Time": HOURS, "Station": "A", "HOUR": HOURS.hour, "v": VALUES})
    for options, meant in (
        ({}, "'Time'"),
        ({"time": "Time", "cell": "station"}, "'Station'"),
        ({"time": "Time", "cell": "Station", "values": "hour"}, "'HOUR'"),
    ):
        message = refusal(path, **options)
        assert "among 'Time', 'Station', 'HOUR', 'v'" in message
        assert f"(did you mean {meant}?)" in message


def test_what_columns_are_taken_for_is_told(table, caplog):
    caplog.set_level(logging.INFO)
    path = table({"time": HOURS} | {f"counter{i}": VALUES for i in range(11)})
    prepare(path, path.with_name("cube.nc"))
    assert "took 11 columns for 11 cells: counter0, counter1" in caplog.text
    services = mended(path, caplog.text)
    assert (services.sizes["cell"], len(services.data_vars)) == (1, 11)
    caplog.clear()
    path = table({"time": HOURS, "cell": "A", "HOUR": HOURS.hour, "v": VALUES})
    prepare(path, path.with_name("cube.nc"))
    assert "took 2 columns for 2 services: HOUR, v; choose others with --values" in caplog.text
    caplog.clear()
    prepare(path, path.with_name("cube.nc"), values="v")
    assert not caplog.text


def test_records_off_the_usual_step(table):
    times = pd.date_range("2017-10-23", periods=60, freq="2min").to_series().reset_index(drop=True)
    times[[7, 9]] += pd.Timedelta("37s")
    path = table({"time": times.drop([20, 21]), "a": 1.0})
    message = refusal(path)
    assert "is 0 days 00:02:37, most steps are 0 days 00:02:00 (4 of 57 are not" in message
    df = pd.read_csv(path)
    even = eval(re.findall("`(df.assign.*?)`", message)[0], {"df": df, "pd": pd})
    even.to_csv(path)
    assert open_cube(prepare(path, path.with_name("o.nc"), allow_gaps=True)).sizes["time"] == 60


@pytest.mark.parametrize("later", ["60D", "48h"])
def test_stations_of_disjoint_periods(table, later, caplog):
    times = [*HOURS, *(HOURS + pd.Timedelta(later))]
    path = table({"time": times, "cell": ["A"] * 48 + ["B"] * 48, "v": [*VALUES, *VALUES]})
    message = refusal(path)
    assert "cell A has rows from 2017-10-23 03:00:00 to 2017-10-25 02:00:00, cell B has" in message
    assert "not at the same time; make a cube of each period or pass --allow-gaps" in message
    prepare(path, path.with_name("cube.nc"), allow_gaps=True)
    assert "not at the same time; left as NaN" in caplog.text
