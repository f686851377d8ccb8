"""PeMS's texts of stations, WebTRIS, GTFS-ride and portable counters."""

import json
import zipfile

import numpy as np
import pandas as pd
import pytest
from mentions import mentions

from data_prep.base.errors import InputError
from data_prep.sets.table import read
from stforecast.cli.info import describe

DAY = pd.date_range("2024-03-01", periods=96, freq="15min")


def test_texts_of_pems_stations(tmp_path, caplog):
    for day in ("01", "02"):
        lines = [
            f"{t:%m/%d/%Y %H:%M:%S},{s},4,101,N,ML,.5,10,{100 * ((s, t.hour) != (400017, 3))},"
            f"{t.hour + s % 10},.05,65.3,10,50,.05,65.5,1" + ",10,51,.05,65.5,1" * (s == 400001)
            + ",,,,," * (s == 400017)
            for t in pd.date_range(f"2024-03-{day}", periods=288, freq="5min")
            for s in (400001, 400017)
        ]  # fmt: skip
        name = f"d04_text_station_5min_2024_03_{day}.txt"
        (tmp_path / "pems").mkdir(exist_ok=True)
        (tmp_path / "pems" / name).write_text("\n".join(lines) + "\n")
    cube = read(tmp_path / "pems")
    assert cube.sizes == {"time": 576, "cell": 2}
    assert str(cube["time"].to_numpy()[288])[:16] == "2024-03-02T00:00", "month first"
    truth = np.tile(np.repeat(np.arange(24.0), 12), 2)
    np.testing.assert_array_equal(cube["flow"].to_numpy()[:, 0], truth + 1)
    np.testing.assert_array_equal(
        cube["flow"].to_numpy()[:, 1], np.where(truth == 3, np.nan, truth + 7)
    )
    assert set(cube.data_vars) == {"flow", "occupancy", "speed"}
    assert cube["speed"].attrs["units"] == "mile/hour"
    assert mentions(caplog.text, "24 rows", "imputed")


@pytest.mark.parametrize("form", ["csv", "json"])
def test_webtris(tmp_path, form):
    rows = pd.DataFrame({
        "Site Name": "M25/4876B",
        "Report Date": DAY.strftime("%d/%m/%Y 00:00:00" if form == "csv" else "%Y-%m-%dT00:00:00"),
        "Time Period Ending": (DAY + pd.Timedelta("14min")).strftime("%H:%M:%S"),
        "Time Interval": np.arange(96).astype(str),
        "521 - 660 cm": "",
        "Avg mph": (60 + np.arange(96) % 3).astype(str),
        "Total Volume": (100 + 3 * np.arange(96) % 7).astype(str),
    })  # fmt: skip
    path = tmp_path / f"report.{form}"
    links = [{"rel": "nextPage", "href": "x"}]
    records = {"Header": {"row_count": 96, "links": links}, "Rows": rows.to_dict("records")}
    path.write_text(rows.to_csv(index=False) if form == "csv" else json.dumps(records))
    cube = read(path, time_format="%d/%m/%Y %H:%M:%S" if form == "csv" else "")
    assert cube["cell"].to_numpy().tolist() == ["M25/4876B"]
    assert cube["Total Volume"].to_numpy()[:, 0].tolist() == (100 + 3 * np.arange(96) % 7).tolist()
    assert cube["Avg mph"].attrs["units"] == "mile/hour"
    assert "Time Interval" not in cube


@pytest.mark.parametrize("packed", [True, False])
def test_gtfs_ride(tmp_path, packed):
    texts = {
        "agency.txt": "agency_id,agency_name\nRIDE,Transit\n",
        "board_alight.txt": "trip_id,stop_id,stop_sequence,boardings,alightings,service_date,"
        "service_arrival_time\n"
        "T1,A,1,5,3,20240301,6:15:00\nT1,B,2,3,1,20240301,6:18:00\nT2,A,1,2,0,20240301,25:10:00\n"
        "T2,B,2,1,6,20240301,\n",
        "stop_times.txt": "trip_id,arrival_time,stop_id,stop_sequence\nT2,25:20:00,B,2\n",
    }
    path = tmp_path / ("feed.zip" if packed else "feed")
    if packed:
        with zipfile.ZipFile(path, "w") as made:
            for name, text in texts.items():
                made.writestr(name, text)
    else:
        path.mkdir()
        for name, text in texts.items():
            (path / name).write_text(text)
    with pytest.raises(InputError) as e:
        read(path)
    assert e.value.names("agg")
    cube = read(path, resample="1h", agg="total")
    assert str(cube["time"].to_numpy()[-1])[:16] == "2024-03-02T01:00"
    assert cube["boardings"].to_numpy()[[0, -1]].tolist() == [[5, 3], [2, 1]]
    assert cube["alightings"].to_numpy().sum() == 10


def test_the_real_feed_of_gtfs_ride(exports_dir):
    cube = read(exports_dir / "gtfs-ride.zip", resample="1h", agg="total", values="boardings")
    assert cube["boardings"].sum().item() == 19


def test_portable_counters(tmp_path):
    titles = ["Site Code: 000123", "Station: Main Street", "Start Date: 3/5/2024", ""]
    rows = [
        f"{i + 1},{t:%m/%d/%Y},{t:%I:%M %p},{i % 9},OK,{i % 7},OK"
        for i, t in enumerate(pd.date_range("2024-03-05", periods=192, freq="15min"))
    ]
    path = tmp_path / "counter.csv"
    path.write_text("\n".join([*titles, "#,Date,Time,NB,NB-status,SB,SB-status", *rows, ""]))
    cube = read(path, layout="wide", values="NB,SB")
    np.testing.assert_array_equal(cube["value"].sel(cell="NB"), np.arange(192) % 9)
    assert "--layout" in describe(path).text


def test_spans_of_hours_are_times_and_no_cells(tmp_path):
    rows = [
        f"S 12;{way};{day:%d/%m/%Y};{day.hour}-{day.hour + 1};{i};{2 * i + 5}"
        for i, day in enumerate(pd.date_range("2024-05-06", periods=48, freq="h"))
        for way in ("in", "out")
    ]
    path = tmp_path / "classes.csv"
    path.write_text("\n".join(["Site;Direction;Date;Hour;Cars;Lorries", *rows, ""]))
    ds = read(path)
    assert ds.sizes == {"time": 48, "cell": 2}
    assert ds["Cars"].sel(cell="out").to_numpy().tolist() == [*range(48)]


def test_a_column_of_hours_in_another_form_is_never_a_cell(tmp_path):
    rows = [
        f"2024-05-0{day},h{hour},{way},{hour}"
        for day in (1, 2)
        for hour in range(24)
        for way in "AB"
    ]
    (tmp_path / "a.csv").write_text("\n".join(["date,hour,way,flow", *rows, ""]))
    with pytest.raises(InputError, match="already in"):
        read(tmp_path / "a.csv")


def test_a_separator_at_the_end_of_each_row_but_the_names_is_no_column(tmp_path):
    hours = pd.date_range("2024-05-06", periods=24, freq="h")
    path = tmp_path / "a.csv"
    path.write_text("time;cell;flow\n" + "".join(f"{t};{c};7;\n" for t in hours for c in "AB"))
    assert dict(read(path).sizes) == {"time": 24, "cell": 2}
    path.write_text(path.read_text().replace("B;7;", "B;7;8"))
    with pytest.raises(InputError, match="4 fields, expected 3"):
        read(path)


def test_rows_of_a_peak_hour_are_left_out(tmp_path):
    rows = [f"2024-05-06 {hour:02}:00,{hour},{2 * hour}" for hour in range(24)]
    end = ["Total,276,552", "AM Peak Hour,08:00,08:00", ""]
    (tmp_path / "a.csv").write_text("\n".join(["time,North,South", *rows, *end]))
    ds = read(tmp_path / "a.csv", layout="wide")
    assert ds["value"].sum("time").to_numpy().tolist() == [276, 552]


def test_a_workbook_for_each_station_names_the_cell_by_its_file(tmp_path):
    """As PeMS exports them: a report, and a sheet that describes it."""
    openpyxl = pytest.importorskip("openpyxl")
    times = pd.date_range("2024-05-26", periods=48, freq="h").strftime("%m/%d/%Y %H:%M")
    for at, station in enumerate(("1108148", "1108150")):
        book = openpyxl.Workbook()
        report, about = book.active, book.create_sheet("Report Description")
        report.title = "Report Data"
        report.append(["Hour", "Flow (Veh/Hour)", "% Observed"])
        for i, time in enumerate(times):
            report.append([time, 2 * i + at, 0 if i == 5 else 100])
        about.append(["VDS", station])
        book.save(tmp_path / f"{station}.xlsx")
    ds = read(tmp_path)
    assert ds["cell"].to_numpy().tolist() == [1108148, 1108150]
    flow = next(iter(ds.data_vars.values())).to_numpy()
    assert flow[:5].tolist() == [[2 * i, 2 * i + 1] for i in range(5)]
    assert np.isnan(flow[5]).all()


@pytest.mark.parametrize("weeks", [0, 1])
def test_a_line_above_the_columns_may_name_the_cell(tmp_path, weeks):
    """Files of one week are asked for together, and of several weeks after each other."""
    for at, site in enumerate(("Elm St", "Oak Ave")):
        days = pd.date_range("2024-05-06", periods=96, freq="15min") + weeks * at * pd.Timedelta(
            "7D"
        )
        rows = "".join(f"{t:%Y-%m-%d},{t:%H:%M},{i % 9 + at}\n" for i, t in enumerate(days))
        titles = f"Site Name:,{site},\nSerial:,00{at},\n,,\n"
        (tmp_path / f"count{at}.csv").write_text(f"{titles}Date,Time,Vehicles\n{rows}")
    with pytest.raises(InputError) as e:
        read(tmp_path)
    offer = "--cell 'head:Site Name'"
    assert offer in e.value.offers
    ds = read(tmp_path, cell="head:Site Name", allow_gaps=True)
    assert ds["cell"].to_numpy().tolist() == ["Elm St", "Oak Ave"]
    counts = next(iter(ds.data_vars.values()))
    sums = [sum(i % 9 + at for i in range(96)) for at in (0, 1)]
    assert counts.sum("time").to_numpy().tolist() == sums
    assert read(tmp_path / "count0.csv", cell="head:Site Name")["cell"].item() == "Elm St"
    with pytest.raises(InputError, match=r"'Site'.*Site Name, Serial"):
        read(tmp_path, cell="head:Site")
