"""Tables as people have them: taken where one reading fits, asked for an option where two do."""

import datetime
import logging
import re
import zipfile

import numpy as np
import pandas as pd
import pytest
from mentions import mentions

from data_prep.base.errors import InputError
from data_prep.base.limits import ALLOWANCE
from data_prep.cube import observed
from data_prep.readers.options import TableOptions
from data_prep.readers.steps import from_frame
from data_prep.sets.table import prepare, read

HOURS = pd.date_range("2017-10-23 03:00", periods=48, freq="h")
DAYS = pd.date_range("2017-10-01", periods=20, freq="D")
VALUES = np.arange(48) + 0.5
NAN = np.nan


@pytest.fixture
def table(tmp_path, caplog):
    """Write columns as a CSV file, and give its path."""
    caplog.set_level(logging.INFO)

    def write(columns, **options):
        pd.DataFrame(columns).to_csv(tmp_path / "my.csv", **{"index": False, **options})
        return tmp_path / "my.csv"

    return write


def refusal(path, **options):
    with pytest.raises(InputError) as e:
        read(path, **options)
    assert "\n" not in str(e.value)
    return e.value.typed


@pytest.mark.parametrize(
    ("form", "order"),
    [
        ("%m/%d/%Y %H:%M:%S", "month/day/year"),
        ("%d.%m.%Y %H:%M", "day/month/year"),
        ("%m/%d/%Y %I:%M:%S %p", "month/day/year"),
    ],
)
def test_dates_that_tell_their_order_are_taken_and_said(table, form, order, caplog):
    ds = read(table({"time": HOURS.strftime(form), "a": VALUES}))
    np.testing.assert_array_equal(ds.indexes["time"], HOURS)
    assert mentions(caplog.text, "my.csv:", f"{order} ({form})")


@pytest.mark.parametrize(
    ("time_format", "month"), [("dayfirst", 10), ("monthfirst", 1), ("%m/%d/%Y", 1)]
)
def test_dates_that_do_not_need_the_option(table, time_format, month):
    path = table({"time": ["01/10/2017"], "a": 1.0})
    message = refusal(path)
    assert mentions(message, "line 2:", "'01/10/2017': day")
    assert mentions(message, "--time-format dayfirst", "--time-format monthfirst")
    assert read(path, time_format=time_format).indexes["time"][0].month == month


def test_times_of_another_format(table):
    path = table({"time": DAYS.strftime("%Y week %W, %a"), "a": 1.0})
    assert "give its own format, such as --time-format '%d %b %Y %H:%M'" in refusal(path)
    path = table({"time": DAYS.strftime("%d %b %Y"), "a": 1.0})
    assert list(read(path, time_format="%d %b %Y").indexes["time"]) == list(DAYS)
    assert "time '01 Oct 2017' is not %d" in refusal(path, time_format="%d")
    assert "give dayfirst, monthfirst, excel or a strptime" in refusal(path, time_format="iso")
    assert "give a strptime format" in refusal(path, time_format="%Q %d")
    digits = table({"time": DAYS.strftime("%Y%m%d"), "a": 1.0})
    assert "are not all day/month/year" in refusal(digits, time_format="dayfirst")
    path = table({"time": DAYS.strftime("%Y%m%d"), "a": 1.0})
    assert list(read(path, time_format="%Y%m%d").indexes["time"]) == list(DAYS)
    path = table({"time": DAYS.strftime("%d.%m.%Y 00:00 +0100"), "a": 1.0})
    zoned = read(path, time_format="%d.%m.%Y %H:%M %z")
    assert zoned.indexes["time"][0] == pd.Timestamp("2017-09-30 23:00")


def test_a_frame_is_told_the_line_of_pandas_that_converts_its_times():
    frame = pd.DataFrame({"a": [1.0, 2.0]}, index=["01/02/2017", "02/02/2017"])
    line = "`df.index = pd.to_datetime(df.index, format='%d/%m/%Y')"
    with pytest.raises(InputError, match=re.escape(line)):
        from_frame(frame)


@pytest.mark.parametrize("n", [2, 120])
@pytest.mark.parametrize(("sep", "asked"), [(";", True), ("\t", True), (",", False)])
def test_three_decimals_throughout_may_be_thousands(table, sep, n, asked):
    """Such as the vehicles of a day in a country whose points separate thousands."""
    days = pd.date_range("2024-01-01", periods=n, freq="D")
    path = table({"time": days, "cell": "a", "v": [f"{12 + i / 7:.3f}" for i in range(n)]}, sep=sep)
    if asked:
        message = refusal(path)
        assert mentions(message, "my.csv", "'v'", "'12.000'", "--decimal point", "--decimal comma")
        assert read(path, decimal="comma")["v"].values[:2, 0].tolist() == [12000, 12143]
    found = read(path, decimal="point" if asked else "auto")
    assert found["v"].values[:2, 0].tolist() == [12, 12.143]


@pytest.mark.parametrize(
    ("other", "value"),
    [("w", "7.5"), ("w", "0.125"), ("w", "1234.125"), ("w", "7.1250"), ("lat", "45.464")],
)
def test_another_number_of_digits_tells_that_points_are_decimal(table, other, value):
    columns = {"time": HOURS[:2], "cell": "a", "v": ["1.234", "5.678"], other: value}
    ds = read(table(columns, sep=";"))
    assert ds["v"].values.tolist() == [[1.234], [5.678]]


@pytest.mark.parametrize(("later", "size"), [("7.5", 1), ("7,5", 1000), ("0.125", 1)])
def test_a_decimal_mark_that_one_file_leaves_open_is_that_of_another(tmp_path, later, size):
    for day, texts in enumerate((["1.234", "5.678"], [later, later]), 1):
        rows = "".join(f"2024-03-0{day} 0{hour}:00;a;{v}\n" for hour, v in enumerate(texts))
        (tmp_path / f"d{day}.csv").write_text(f"time;cell;v\n{rows}")
    found = read(tmp_path, allow_gaps=True)["v"].values[:, 0]
    assert found[:2].tolist() == [1.234 * size, 5.678 * size]
    assert found[-1] == float(later.replace(",", "."))


def test_points_of_sites_that_may_separate_thousands_have_no_option(tmp_path, table):
    path = table({"time": HOURS[:2], "cell": "a", "v": 1.5})
    sites = tmp_path / "sites.csv"
    sites.write_text("cell;users\na;1.234\nb;2.345\n")
    message = refusal(path, sites=str(sites))
    assert mentions(message, "sites.csv", "'users'", "'1.234'")
    assert "--decimal" not in message
    sites.write_text("cell;users\na;1234\nb;2345\n")
    assert read(path, sites=str(sites))["users"].values.tolist() == [1234]


@pytest.mark.parametrize("scale", [1, 1000])
def test_decimal_commas_are_taken_where_nothing_else_fits(table, scale, caplog):
    path = table({"time": HOURS, "a": VALUES * scale, "b": 2}, sep=";", decimal=",")
    if scale > 1:
        path.write_text(re.sub(r"(\d)(\d{3},)", r"\1.\2", path.read_text()))
    ds = read(path, layout="wide")
    np.testing.assert_array_equal(ds["value"].values, np.stack([VALUES * scale, 2 + 0 * VALUES], 1))
    assert "my.csv: decimal commas" in caplog.text


def test_commas_that_may_separate_thousands_need_the_option(table):
    path = table({"time": HOURS[:2], "a": ["1,234", "5,678"]}, sep=";")
    message = refusal(path)
    assert mentions(message, "'a' holds '1,234':", "comma")
    assert read(path, decimal="comma")["value"].values.tolist() == [[1.234], [5.678]]
    assert read(path, decimal="point")["value"].values.tolist() == [[1234.0], [5678.0]]
    path = table({"time": HOURS[:3], "a": ["1,5", "2,5", "x"]}, sep=";")
    assert "column 'a' holds '1,5', which has a decimal comma" in refusal(path)
    df = pd.DataFrame({"time": HOURS[:2], "cell": 1, "a": ["0,5", "1,5"]})
    with pytest.raises(InputError, match=r"holds '0,5'.*astype") as e:
        read(df, decimal="point")
    exec(re.findall("`(.*)`", str(e.value))[0], {"df": df})
    assert read(df)["a"].values.tolist() == [[0.5], [1.5]]


def test_a_table_has_one_decimal_mark_and_no_thousands_after_a_zero(table, caplog):
    columns = {"time": HOURS[:2], "a": ["0.234", "0.250"], "b": ["1,5", "2"]}
    path = table(columns, sep=";")
    for decimal in ("auto", "comma"):
        message = refusal(path, layout="wide", decimal=decimal)
        assert mentions(message, "'a' holds '0.234'", "point")
    assert "column 'b' holds '1,5', which has a decimal comma" in refusal(
        path, layout="wide", decimal="point"
    )
    path = table(columns | {"a": ["1.234", "2"], "c": ["1", "-2.345.678"]}, sep=";")
    ds = read(path, layout="wide")
    assert ds["value"].values.tolist() == [[1234.0, 1.5, 1.0], [2.0, 2.0, -2345678.0]]
    assert "'1,5' in column 'b'" in caplog.text
    assert "thousands in columns 'a', 'c'" in caplog.text
    ds = read(table(columns | {"b": 1.5}, sep=";"), layout="wide")
    assert ds["value"].values.tolist() == [[0.234, 1.5], [0.25, 1.5]]


def test_a_file_without_a_header(table):
    path = table({"time": HOURS, "a": VALUES, "b": VALUES}, header=False)
    message = refusal(path)
    assert "my.csv, line 1: '2017-10-23 03:00:00', '0.5', '0.5'" in message
    assert "--no-header" in message
    ds = read(path, no_header=True)
    assert ds["cell"].values.tolist() == [2, 3]
    np.testing.assert_array_equal(ds.indexes["time"], HOURS)
    services = read(path, no_header=True, layout="long", cell="2", values="3")
    assert list(services.data_vars) == ["3"]
    bare = table({"a": VALUES, "b": VALUES}, header=False)
    assert read(bare, no_header=True, start="2020-01-01", step="2h").sizes["cell"] == 2


@pytest.mark.parametrize("cells", [None, [1, 2]])
def test_a_table_without_times_takes_a_start_and_a_step(table, cells):
    columns = {"v": VALUES} if cells is None else {"cell": np.repeat(cells, 24), "v": VALUES}
    path = table(columns)
    message = refusal(path)
    assert "my.csv: no column 'time'" in message
    assert "--start 2024-01-01T00:00 --step 1h" in message
    ds = read(path, start="2020-02-01T00:00+01:00", step="30min")
    assert ds.sizes == {"time": 48 // len(cells or [1]), "cell": len(columns)}
    assert list(ds.indexes["time"][:2]) == list(
        pd.to_datetime(["2020-01-31 23:00", "2020-01-31 23:30"])
    )
    assert "start and step belong together" in refusal(path, start="2020-01-01")
    for odd in ("soon", "01/02/2020", "now", "NaT"):
        assert f"start is {odd!r}; write it like" in refusal(path, start=odd, step="1h")
    assert "step is '7min'; give a length" in refusal(path, start="2020-01-01", step="7min")
    timed = table({"time": HOURS, "v": VALUES})
    assert "has times in column 'time'" in refusal(timed, start="2020-01-01", step="1h")


def test_names_that_are_nearly_right(table):
    path = table({"Time": HOURS, "Plant": "A", "v": VALUES})
    assert "(did you mean 'Plant'?)" in refusal(path, cell="plnat")
    assert "(did you mean 'Time'?)" in refusal(path, time="tme")
    assert "(did you mean 'v'?)" in refusal(path, values="V", cell="Plant")


def test_usual_names_are_taken_and_said_and_the_calendar_is_no_service(table, caplog):
    columns = {"Timestamp": HOURS, "Station_ID": ["007"] * 48, "HOUR": HOURS.hour, "v": VALUES}
    ds = read(table(columns))
    assert (list(ds.data_vars), ds["cell"].values.tolist()) == (["v"], ["007"])
    for text in (
        "using column 'Timestamp' for the times; pass time for another",
        "using column 'Station_ID' for the cells: 007; pass cell for another",
        "not taken as values: HOUR; pass values to choose columns",
    ):
        assert text in caplog.text
    assert list(read(table(columns), values="HOUR").data_vars) == ["HOUR"]


def test_the_first_notice_has_ids_as_they_are_written(table, caplog):
    caplog.set_level(logging.INFO)
    path = table({"time": np.repeat(HOURS, 2), "node_no": ["07", "12"] * 48, "v": VALUES[0]})
    assert read(path)["cell"].values.tolist() == ["07", "12"]
    assert mentions(caplog.text, "'node_no'", "cells: 07, 12")


def test_a_text_that_makes_times_unique_names_the_cells(table, caplog):
    columns = {"time": [*HOURS, *HOURS], "plant": ["A"] * 48 + ["B"] * 48, "v": [*VALUES, *VALUES]}
    assert read(table(columns))["cell"].values.tolist() == ["A", "B"]
    assert mentions(caplog.text, "'plant'", "cells: A, B")
    same = read(table(columns | {"line": columns["plant"]}))
    assert same["line"].values.tolist() == ["A", "B"]
    message = refusal(table(columns | {"line": [*"AB" * 24, *"BA" * 24]}))
    assert mentions(message, "'plant', 'line'", "--cell plant", "--cell line")


@pytest.mark.parametrize("folder", [False, True])
def test_ids_of_digits_stay_as_they_are_written_and_notices_come_once(tmp_path, folder, caplog):
    caplog.set_level(logging.INFO)
    rows = [f"{t},{c},{t.hour + int(c)}" for t in HOURS for c in ("04", "007")]
    parts = [rows[:48], rows[48:]] if folder else [rows]
    for i, part in enumerate(parts):
        text = "\n".join(["when,zone_no,v", *part[:3], "A note of the portal", *part[3:]])
        (tmp_path / f"d{i}.csv").write_text(text + "\n")
    ds = read(tmp_path if folder else tmp_path / "d0.csv")
    assert ds["cell"].values.tolist() == ["007", "04"]
    np.testing.assert_array_equal(ds["v"], HOURS.hour.to_numpy()[:, None] + [7, 4])
    notices = [record.getMessage() for record in caplog.records]
    assert len(notices) == len(set(notices)) > 2


def test_columns_that_may_be_cells_or_services_need_the_option(table, caplog):
    path = table({"time": HOURS} | {f"counter{i}": VALUES for i in range(7)})
    message = refusal(path)
    assert "my.csv: 7 columns (counter0, counter1, " in message
    assert mentions(message, "--layout wide", "cell, --layout services")
    assert read(path, layout="wide").sizes["cell"] == 7
    services = read(path, layout="services")
    assert (services["cell"].values.tolist(), len(services.data_vars)) == (["my"], 7)
    assert mentions(caplog.text, "7 columns", "counter0, ")
    named = table({"time": HOURS, "sensor 1": VALUES, "sensor 2": VALUES})
    assert read(named).sizes["cell"] == 2


def test_records_of_uneven_times_are_resampled(table, caplog):
    times = pd.date_range("2017-10-23", periods=60, freq="2min").to_series().reset_index(drop=True)
    times[[7, 9]] += pd.Timedelta("37s")
    path = table({"time": times.drop(range(20, 25)), "a": np.arange(60.0)[np.r_[:20, 25:60]]})
    message = refusal(path)
    assert mentions(message, "0 days 00:02:37,", "2 minutes (4 of 54")
    assert mentions(message, "--resample 2min --agg mean", "--agg sum")
    ds = read(path, resample="10min", agg="mean")
    expected = np.arange(60.0).reshape(12, 5).mean(axis=1)
    expected[4] = NAN
    np.testing.assert_allclose(ds["value"].values[:, 0], expected)
    assert "missing: 8.3 % of value" in caplog.text
    np.testing.assert_allclose(read(path, resample="10min", agg="sum")["value"][:, 0], 5 * expected)
    assert "say how to merge the records of a step: --agg sum" in refusal(path, resample="10min")
    assert "agg is 'sum' without a step" in refusal(path, agg="sum")
    assert "resample is '7min'; give a length" in refusal(path, resample="7min", agg="sum")
    assert "its records are 2 minutes apart" in refusal(path, resample="1min", agg="sum")


@pytest.mark.parametrize("later", ["60D", "48h", "5h"])
def test_stations_of_different_periods_are_masked(table, later, caplog):
    times = [*HOURS, *(HOURS + pd.Timedelta(later))]
    path = table({"time": times, "cell": ["A"] * 48 + ["B"] * 48, "v": [*VALUES, *VALUES]})
    values = observed(read(path), "v")
    for cell in values.transpose("cell", "time").to_numpy():
        np.testing.assert_array_equal(cell[~np.isnan(cell)], VALUES)
    assert mentions(caplog.text, "2 of 2", "rows", "cell A")


def test_cells_are_kept_and_left_out(table):
    columns = {"time": np.tile(HOURS[:2], 12), "cell": np.repeat(range(1, 13), 2), "v": 1.0}
    path = table(columns)
    assert read(path, cells="3,7-9")["cell"].values.tolist() == [3, 7, 8, 9]
    assert read(path, cells="not:2-11")["cell"].values.tolist() == [1, 12]
    message = refusal(path, cells="12,13")
    assert mentions(message, "my.csv:", "cell '13'", "12 cells,", "'1'")
    assert "leaves no cell" in refusal(path, cells="not:1-12")
    wide = table({"time": HOURS, "north": VALUES, "south": VALUES})
    assert read(wide, layout="wide", cells="not:north")["cell"].values.tolist() == ["south"]
    assert "(did you mean 'south'?)" in refusal(wide, layout="wide", cells="suoth")
    columns["v"] = np.where(columns["cell"] == 5, np.inf, 1.0)
    assert "line 10: column 'v' holds 'inf'" in refusal(table(columns), cells="4-12")
    total = pd.DataFrame({"time": ["Total"], "cell": [""], "v": [24.0]})
    rows = pd.DataFrame(columns).astype(str)
    with_total = table(pd.concat([rows[:2], total, rows[2:]]))
    assert "line 11: column 'v' holds 'inf'" in refusal(with_total, cells="4-12")
    read(table(columns), cells="not:5")


def test_columns_of_places_become_coordinates(table, caplog):
    columns = {"time": [*HOURS, *HOURS], "cell": np.repeat([1, 2], 48), "v": 1.0,
               "Longitude": np.repeat([9.1, 9.2], 48), "lat": 45.4}  # fmt: skip
    ds = read(table(columns))
    assert (ds["lon"].values.tolist(), ds["lat"].values.tolist()) == ([9.1, 9.2], [45.4, 45.4])
    assert list(ds.data_vars) == ["v"]
    columns["lat"] = np.linspace(40, 50, 96)
    assert "lon" not in read(table(columns)).coords
    assert mentions(caplog.text, "degrees", "left")


def write_book(path, rows, *more):
    openpyxl = pytest.importorskip("openpyxl")
    book = openpyxl.Workbook()
    for row in rows:
        book.active.append(row)
    for name in more:
        book.create_sheet(name).append(["time", 1])
    book.save(path)
    return path


def test_sheets_of_one_name_with_the_same_times_and_cells_are_named_by_file(tmp_path):
    times = [datetime.datetime(2017, 10, 23, hour) for hour in range(4)]
    for i, name in enumerate(["north.xlsx", "south.xlsx"]):
        rows = [["time", 7, 8], *([t, 1.5 + i, 2.5 + i] for t in times)]
        write_book(tmp_path / name, rows, "Notes")
    message = refusal(tmp_path)
    assert "tables north, south" in message
    assert "--cell file" in message


def test_a_sheet_of_a_workbook(tmp_path, caplog):
    caplog.set_level(logging.INFO)
    times = [datetime.datetime(2017, 10, 23, hour) for hour in range(4)]
    rows = [["time", 7, 8, None], *([t, 1.5, i, None] for i, t in enumerate(times)), [None]]
    path = write_book(tmp_path / "a.xlsx", rows)
    ds = read(path)
    assert ds["cell"].values.tolist() == [7, 8]
    np.testing.assert_array_equal(ds["value"], [[1.5, i] for i in range(4)])
    assert list(ds.indexes["time"]) == times
    missing = [*rows[:2], [times[1], "NA", 1], *rows[3:]]
    ds = read(write_book(tmp_path / "na.xlsx", missing))
    np.testing.assert_array_equal(ds["value"], [[NAN if i == 1 else 1.5, i] for i in range(4)])
    several = write_book(tmp_path / "b.xlsx", rows, "Notes")
    assert read(several).sizes["cell"] == 2
    assert mentions(caplog.text, "b.xlsx:", "'Notes'")
    assert "(did you mean 'Sheet'?)" in refusal(several, sheet="sheet1")
    assert read(several, sheet="Sheet").sizes["cell"] == 2
    bare = write_book(tmp_path / "c.xlsx", rows[1:])
    assert "c.xlsx, row 1: " in refusal(bare)
    assert read(bare, no_header=True).sizes["time"] == 4
    texts = [
        ["Zeit", "Station", "v"],
        ["23.10.2017 00:00", "A", "1,5"],
        ["23.10.2017 01:00", "A", 2],
    ]
    long = write_book(tmp_path / "d.xlsx", texts)
    assert read(long, time="Zeit", decimal="comma")["v"].values.tolist() == [[1.5], [2.0]]
    assert read(long)["v"].values.tolist() == [[1.5], [2.0]]


def test_a_workbook_that_unpacks_to_too_much_is_refused_unread(tmp_path):
    path = write_book(tmp_path / "bomb.xlsx", [["time", 1], ["2017-10-23", 1]])
    with zipfile.ZipFile(path, "a", zipfile.ZIP_DEFLATED, compresslevel=1) as book:
        book.writestr("xl/media/zeros.bin", bytes(2 * ALLOWANCE))
    assert "bomb.xlsx: unpacked, it would take" in refusal(path)


def test_a_cell_named_as_ids_are_is_asked_for(tmp_path):
    """A column `station` of a wide table holds counts: no time occurs twice."""
    path = tmp_path / "wide.csv"
    rows = [f"2024-01-01T{hour:02}:00,{hour * 3 + 1},{hour}" for hour in range(24)]
    path.write_text("\n".join(["time,station,park", *rows]))
    with pytest.raises(InputError, match=r"'station' .* layout='wide'"):
        read(path)
    assert read(path, layout="wide").cell.to_numpy().tolist() == ["station", "park"]
    long = [f"2024-01-01T{hour:02}:00,7,{hour}" for hour in range(24)]
    path.write_text("\n".join(["time,station,value", *long]))
    assert read(path).cell.to_numpy().astype(str).tolist() == ["7"]
    path.write_text("\n".join(["time,station", *(row.rpartition(",")[0] for row in rows)]))
    assert read(path).cell.to_numpy().tolist() == ["station"]


def test_sums_that_lack_records_are_missing(table, caplog):
    hours = pd.date_range("2024-03-03 23:00", "2024-03-06 13:00", freq="h")
    path = table({"time": hours, "a": 2.0, "b": np.where(hours.day == 5, NAN, 1.0)})
    ds = read(path, layout="wide", resample="1D", agg="sum")
    np.testing.assert_array_equal(ds["value"], [[NAN, NAN], [48, 24], [48, NAN], [NAN, NAN]])
    assert mentions(caplog.text, "my.csv: 4 of 8 sums", "1 day")
    assert mentions(caplog.text, "2024-03-03 00:00:00, cell a,", "1 of 24")
    assert "missing: 62.5 % of value" in caplog.text
    means = read(path, layout="wide", resample="1D", agg="mean")["value"]
    np.testing.assert_array_equal(means, [[2, 1], [2, 1], [2, NAN], [2, 1]])
    assert mentions(caplog.text, "4 of 8 means", "1 day")
    assert "none is complete: write a 0" in refusal(path, values="a", resample="7D", agg="sum")


def test_records_of_each_cell_are_counted_once_and_by_its_own_step(table):
    hours = pd.date_range("2024-03-04", periods=48, freq="h")
    times = [*hours, *hours[::2], *hours, *hours[24:]]
    cells = ["a"] * 48 + ["b"] * 24 + ["c"] * 72
    path = table({"time": times, "cell": cells, "v": 1.0, "w": [NAN, *[1.0] * 143]})
    ds = read(path, resample="1D", agg="sum", duplicates="sum")
    np.testing.assert_array_equal(ds["v"], [[24, 12, 24], [24, 12, 48]])
    np.testing.assert_array_equal(ds["w"], [[NAN, 12, 24], [24, 12, 48]])
    zeros = table({"time": hours, "a": np.where(hours == hours[3], 0.0, 1.0)})
    sums = read(zeros, resample="1D", agg="sum", zero_is_missing=True)["value"]
    np.testing.assert_array_equal(sums, [[NAN], [24]])


def test_a_unit_of_an_option_is_spelled_as_one_of_a_header(table):
    by_header = read(table({"time": HOURS, "cell": "a", "speed (mph)": VALUES}))
    by_option = read(table({"time": HOURS, "cell": "a", "speed": VALUES}), units="mph")
    found = [next(iter(ds.values())).attrs["units"] for ds in (by_header, by_option)]
    assert found == ["mile/hour", "mile/hour"]
    ds = from_frame(pd.DataFrame({"a": VALUES}, HOURS), options=TableOptions(units="kbps"))
    assert ds["value"].attrs["units"] == "kbit/s"


def test_units_in_the_names_of_cells_become_one(table, caplog):
    """Such as detectors of two makers, which no other option tells apart."""
    wide = {"layout": "wide"}
    ds = read(table({"time": HOURS, "a (GB)": VALUES, "b (MB)": 1000 * VALUES}), **wide)
    assert ds["value"].attrs["units"] == "B"
    np.testing.assert_allclose(ds["value"], 1e9 * np.stack([VALUES, VALUES], axis=1))
    assert mentions(caplog.text, "GB ('a (GB)'), MB ('b (MB)')", "B")
    speeds = table({"time": HOURS, "a (mph)": VALUES, "b (km/h)": VALUES})
    np.testing.assert_allclose(read(speeds, **wide)["value"][0], VALUES[0] * np.r_[1.609344, 1])
    ways = read(table({"time": HOURS, "Bridge (S)": VALUES, "Bridge (W)": VALUES}), **wide)
    assert ways["value"].attrs["units"] == "1"


def test_a_sum_of_levels_is_said(table, caplog):
    """Vehicles add up over time and lanes, but neither their speeds nor the share of the time."""
    columns = {"time": HOURS.repeat(2), "cell": ["a", "b"] * 48}
    numbers = {"Flow": 1.0, "Speed (km/h)": 99.0, "Occupancy": 0.1, "Volume (veh/h)": 4.0}
    path = table({**columns, **numbers})
    levels = "sums of Speed, Occupancy, Volume, which are likely levels or rates; prepare these"
    for options in ({"resample": "2h", "agg": "sum"}, {"duplicates": "sum"}):
        caplog.clear()
        read(path, **options)
        assert levels in caplog.text
    caplog.clear()
    read(path, resample="2h", agg="mean", duplicates="mean")
    read(path, resample="2h", agg="sum", values="Flow")
    assert "sums of" not in caplog.text


@pytest.mark.parametrize(("zeros", "said"), [(2, False), (3, True)])
def test_speeds_of_0_are_said(table, tmp_path, caplog, zeros, said):
    """Where nobody drives, detectors often write a speed of 0; 0 vehicles are a count."""
    values = np.r_[np.zeros(zeros), VALUES[zeros:]]
    path = table({"time": HOURS, "cell": "a", "flow": values, "Mean Speed": values})
    prepare(path, tmp_path / "my.nc")
    found = f"my.csv: Mean Speed: speeds of 0, {zeros} times; if no vehicle was measured then"
    assert (found in caplog.text) == said
    assert "flow: speeds" not in caplog.text
    caplog.clear()
    prepare(path, tmp_path / "other.nc", values="Mean Speed", zero_is_missing=True)
    assert "speeds of 0" not in caplog.text


def test_speeds_of_0_are_said_before_their_mean_hides_them(table, caplog):
    values = np.where(np.arange(48) % 2, 90.0, 0.0)
    path = table({"time": HOURS, "cell": "a", "flow": values, "speed": values})
    read(path, resample="2h", agg="mean")
    assert mentions(caplog.text, "my.csv: speed:", "0, 24 times")
    caplog.clear()
    wide = table({"time": HOURS, "a": values, "b": values})
    read(wide, layout="wide", name="v", units="km/h", resample="2h", agg="mean")
    assert mentions(caplog.text, "my.csv: v:", "0, 48 times")
    caplog.clear()
    path = table({"time": HOURS, "cell": "a", "flow": values, "speed": values})
    assert read(path, resample="2h", agg="mean", zero_is_missing=True)["speed"].min() == 90.0
    assert "speeds of 0" not in caplog.text


def test_one_unit_of_several_services_is_said(table, caplog):
    columns = {"time": HOURS, "cell": "a", "flow": 1.0, "speed": 99.0}
    read(table(columns), units="km/h")
    assert mentions(caplog.text, "km/h", "flow, speed")
    caplog.clear()
    read(table(columns), units="km/h", values="speed")
    assert "the unit" not in caplog.text


def test_uneven_records_are_summed_with_a_warning(table, caplog):
    seconds = pd.to_timedelta([3, 10, 11, 12, 50, 65, 5400], unit="s")
    times = pd.Timestamp("2024-03-04") + seconds
    ds = read(table({"time": times, "a": 2.0 ** np.arange(7)}), resample="1h", agg="sum")
    np.testing.assert_array_equal(ds["value"], [[63], [64]])
    assert "uneven times" in caplog.text


def test_cells_without_a_value_are_pointed_out(table, caplog):
    columns = {"time": HOURS, "a": VALUES, "b": NAN, "c": 0.0}
    path = table(columns)
    read(path, layout="wide")
    assert mentions(caplog.text, "my.csv: 1 cell", "b;", "cells='not:b'")
    read(path, layout="wide", zero_is_missing=True)
    assert mentions(caplog.text, "2 cells", "b, c;", "cells='not:b,c'")
    caplog.clear()
    read(path, layout="wide", cells="not:b")
    assert "without a value" not in caplog.text
    many = {f"c{n}": NAN for n in range(6)}
    read(table({"time": HOURS, "a": VALUES, **many}), layout="wide")
    assert "cells='not:c0,c1,c2,c3,c4,c5'" in caplog.text
    from_frame(pd.DataFrame(columns).set_index("time"))
    assert "`df.drop(columns=['b'])`" in caplog.text


@pytest.mark.parametrize("wide", [False, True])
def test_duplicates_are_treated_before_they_are_resampled(table, wide):
    times = pd.date_range("2024-01-01", periods=120, freq="30min")
    rows = [(t, c, 1.0) for t in times for c in "ab"] + [(t, "a", 3.0) for t in times[:3]]
    columns = pd.DataFrame(rows, columns=["time", "cell", "v"])
    if wide:
        columns = columns[columns["cell"] == "a"][["time", "v"]]
    path = table(columns)
    hourly = {"layout": "wide" if wide else "long", "resample": "1h"}
    for agg in ("sum", "mean"):
        assert "pass --duplicates sum or --duplicates mean" in refusal(path, **hourly, agg=agg)
        few = table(columns.iloc[[0, 1, 2, -3]])
        assert "--duplicates" not in refusal(few, **hourly, agg=agg)
        path = table(columns)

    def first_cell(agg, duplicates):
        ds = read(path, **hourly, agg=agg, duplicates=duplicates)
        return ds[next(iter(ds.data_vars))].values[:4, 0].tolist()

    assert first_cell("sum", "mean") == [4.0, 3.0, 2.0, 2.0]
    assert first_cell("sum", "sum") == [8.0, 5.0, 2.0, 2.0]
    assert first_cell("mean", "sum") == [4.0, 2.5, 1.0, 1.0]


def test_a_counter_that_runs_on_is_told_from_traffic(table, tmp_path, caplog):
    rng = np.random.default_rng(5)
    runs = rng.integers(1, 90, (48, 3)).cumsum(axis=0)
    runs[30:, 0] -= runs[30, 0]  # A reset.
    prepare(table({"time": HOURS} | {str(i): runs[:, i] for i in range(3)}), tmp_path / "runs.nc")
    assert mentions(caplog.text, "value:", "counter", "3 cells")
    caplog.clear()
    steps = {str(i): np.diff(runs[:, i], prepend=0) for i in range(3)}
    prepare(table({"time": HOURS} | steps), tmp_path / "steps.nc")
    assert "runs on" not in caplog.text


def written_trips(path):
    """Three trips from A, one from B, in the first and the last of three hours."""
    rows = ["2024-03-04 08:05:00,A,q7", "2024-03-04 08:05:00,A,x1e", "2024-03-04 08:59:59,B,5e2"]
    text = "\n".join(["pickup,origin_zone,hash", *rows, "2024-03-04 10:30:00,A,zz"])
    path.write_text(f"{text}\n")
    return path


def test_records_without_numbers_are_counted_once_it_is_asked_for(tmp_path, caplog):
    caplog.set_level(logging.INFO)
    path = written_trips(tmp_path / "trips.csv")
    message = refusal(path)
    assert mentions(message, "event", "count")
    assert message.endswith("--resample 1h --agg count")
    ds = read(path, resample="1h", agg="count")
    assert ds["cell"].values.tolist() == ["A", "B"]
    np.testing.assert_array_equal(ds["count"], [[2, 1], [0, 0], [1, 0]])
    assert "any is 0" in caplog.text
    single = read(path, resample="1h", agg="count", cell="hash").sum("cell")
    np.testing.assert_array_equal(single["count"], [3, 0, 1])
    pd.DataFrame({"time": HOURS}).to_csv(tmp_path / "shop.csv", index=False)
    shop = read(tmp_path / "shop.csv", resample="12h", agg="count")
    assert (shop["cell"].item(), shop["count"].values.ravel().tolist()) == (
        "shop",
        [9, 12, 12, 12, 3],
    )


def test_options_that_counting_does_not_read_are_refused(tmp_path):
    path = written_trips(tmp_path / "trips.csv")
    counted = {"resample": "1h", "agg": "count"}
    assert refusal(path, agg="count").endswith("give --resample too, such as 10min")
    assert refusal(path, **counted, values="hash").endswith(
        "leave out --values hash, or give --agg total"
    )
    assert refusal(path, **counted, duplicates="sum").endswith("leave out --duplicates sum")
    assert "events are rows of a long table only" in refusal(path, **counted, layout="wide")
    path.write_text(
        path.read_text().replace("origin_zone,hash", "from,to") + "2024-03-04 12:00,B,zz"
    )
    message = refusal(path, **counted)
    assert mentions(message, "'from', 'to'", "--cell from")


def test_a_day_without_any_record_is_a_gap_and_no_zero(tmp_path):
    times = pd.date_range("2024-03-04", "2024-03-11", freq="10min", inclusive="left")
    times = times[times.normalize() != pd.Timestamp("2024-03-06")]
    pd.DataFrame({"time": times, "cell": "a"}).to_csv(tmp_path / "calls.csv", index=False)
    counted = {"resample": "6h", "agg": "count"}
    message = refusal(tmp_path / "calls.csv", **counted)
    assert mentions(message, "2024-03-06 00:00:00", "2024-03-06 18:00:00")
    found = read(tmp_path / "calls.csv", **counted, allow_gaps=True)["count"].values.ravel()
    np.testing.assert_array_equal(found, [36] * 8 + [NAN] * 4 + [36] * 16)
    rare = times[::144]
    pd.DataFrame({"time": rare, "cell": "a"}).to_csv(tmp_path / "rare.csv", index=False)
    found = read(tmp_path / "rare.csv", **counted)["count"].values.ravel()
    assert found.tolist() == [float(i % 4 == 0 and i != 8) for i in range(25)]


def test_the_autumn_hour_of_a_wall_clock_is_not_added_up_twice(table):
    zoned = pd.date_range("2024-10-26", "2024-10-28", freq="30min", tz="Europe/Rome")
    path = table({"time": zoned.tz_localize(None), "a": 1.0})
    hourly = {"layout": "wide", "resample": "1h", "agg": "sum"}
    assert "time 2024-10-27 02:00:00 is already in line" in refusal(path, **hourly, clock="local")
    ds = read(path, **hourly, clock="local", time_zone="Europe/Rome")
    assert set(ds["value"].values[:-1, 0]) == {2.0}


@pytest.mark.parametrize("layout", ["wide", "long"])
@pytest.mark.parametrize("zone", [{}, {"time_zone": "Europe/Rome"}])
def test_an_hour_shown_twice_is_not_called_a_duplicate(table, layout, zone):
    zoned = pd.date_range("2024-10-26", "2024-10-28", freq="1h", tz="Europe/Rome")
    path = table({"time": zoned.tz_localize(None), "cell": 7, "a": 1.0})
    said = refusal(path, layout=layout, **zone)
    assert "already in" in said
    assert mentions(said, "--clock local", "--time-zone")
    values = [*range(len(HOURS)), 9.5]
    again = table({"time": [*HOURS, HOURS[1]], "cell": 7, "a": values})
    assert "daylight" not in refusal(again, layout=layout, **zone)


@pytest.mark.parametrize("layout", ["wide", "services"])
def test_a_table_without_any_value_is_refused(table, layout):
    path = table({"time": HOURS, "a": "NaN", "b": "nan"})
    assert "my.csv: all values of " in refusal(path, layout=layout)


BUSY = pd.date_range("2024-01-01", periods=240, freq="h")


def columns_of(values):
    """Return the columns of a wide table of values `(240, cells)`."""
    return {"time": BUSY} | {f"c{i}": column for i, column in enumerate(values.T)}


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ((slice(50, 51), 2, -500), "-500 of cell c2 at 2024-01-03 02:00:00;"),
        (
            (slice(100, 130), 1, 0),
            "cell c1 from 2024-01-05 04:00:00 to 2024-01-06 09:00:00;",
        ),
        (
            (slice(200, None), 3, NAN),
            "cell c3 at 2024-01-09 07:00:00, 40 steps",
        ),
        ((slice(200, 202), slice(None), -1), "-1 of cell c2 at 2024-01-09 08:00:00, … (10"),
        (
            (slice(0, None, 10), slice(None), -9999),
            "-9999, 120 times",
        ),
        (
            (slice(50, 53), 2, 255),
            "255, 3 times",
        ),
        (
            (slice(50, 56), 2, [2046, 2047] * 3),
            "2046, 3 times",
        ),
        (
            (slice(0, None, 10), 2, 9.99),
            "9.99, 24 times",
        ),
        (
            (BUSY.hour > 22, slice(None), NAN),
            "23:00 to 23:00;",
        ),
    ],
)
def test_odd_values_are_named_in_one_line(table, tmp_path, caplog, change, expected):
    values = np.random.default_rng(1).uniform(5, 9, (240, 5))
    values[:, 4] *= np.arange(240) % 24 > 8  # Nights without traffic are usual.
    prepare(table(columns_of(values)), tmp_path / "sound.nc", layout="wide")
    assert not [r for r in caplog.records if r.levelno >= logging.WARNING]
    steps, cell, value = change
    values[steps, cell] = value
    prepare(table(columns_of(values)), tmp_path / "odd.nc", layout="wide")
    (said,) = [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]
    assert "my.csv: value: " in said
    assert expected in said


def test_values_below_zero_as_of_temperatures_are_not_odd(table, tmp_path, caplog):
    values = np.random.default_rng(1).normal(size=(240, 5))
    prepare(table(columns_of(values)), tmp_path / "cold.nc", layout="wide")
    assert "negative" not in caplog.text


@pytest.mark.parametrize(
    ("factor", "said"), [(1000, " times as high"), (1 / 1024, "1/1.0"), (1, None)]
)
def test_another_unit_from_a_file_on_is_named(tmp_path, caplog, factor, said):
    hours = pd.date_range("2024-01-01", periods=240, freq="h", name="time")
    daily = 5 + np.sin(2 * np.pi * hours.hour.to_numpy() / 24)
    table = pd.DataFrame({"a": daily, "b": 2 * daily}, hours)
    table.iloc[168:] *= factor
    (tmp_path / "days").mkdir()
    for day, rows in table.groupby(table.index.strftime("%Y-%m-%d")):
        rows.to_csv(tmp_path / "days" / f"{day}.csv")
    prepare(tmp_path / "days", tmp_path / "a.nc", layout="wide")
    found = [line for line in caplog.messages if "likely changes of unit" in line]
    assert len(found) == bool(said)
    assert all(said in line and "from 2024-01-08 on" in line for line in found)
