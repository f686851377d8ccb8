"""Measurements, publications and series through `prepare table`: from files to a cube."""

import gzip
import json

import numpy as np
import pytest
from measured_files import SITE, XML, flow

from data_prep.base.errors import InputError
from data_prep.sets.table import read
from stforecast.cli.info import describe


def event(end, value):
    counters = {"measTypes": {"sMeasTypesList": ["load"]}}
    results = {"measObjInstId": "NRCellDU=1", "measResults": [{"p": 1, "sValue": value}]}
    return {
        "event": {
            "commonEventHeader": {"lastEpochMicrosec": end * 1_000_000},
            "perf3gppFields": {
                "measDataCollection": {
                    "granularityPeriod": 900,
                    "measuredEntityDn": "E1",
                    "measInfoList": [{**counters, "measValuesList": [results]}],
                }
            },
        }
    }


@pytest.fixture
def folder(tmp_path):
    """A file of each quarter hour, one of them packed and one sent twice."""
    for i in range(8):
        end = f"2024-03-01T0{1 + i // 4}:{15 * (i % 4):02}:00+01:00"
        text = XML.format(end=end, value=10 + i)
        path = tmp_path / "pm" / f"A20240301.{i:04}.xml"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        if i == 3:
            path.with_name("again.xml.gz").write_bytes(gzip.compress(text.encode()))
    return path.parent


def test_a_folder_of_quarter_hours_is_one_table(folder):
    cube = read(folder)
    assert cube["load"].shape == (8, 1)
    np.testing.assert_array_equal(cube["load"].to_numpy()[:, 0], np.arange(10.0, 18.0))
    assert str(cube["cell"].item()) == "E1,NRCellDU=1"
    assert str(cube["time"].to_numpy()[0])[:16] == "2024-02-29T23:45", "the begin, in UTC"
    cube = read(folder, values="bins[2]")
    assert cube["bins[2]"].to_numpy().tolist() == [[4.0]] * 8


def test_objects_of_several_classes_are_asked_about(folder):
    (folder / "A20240301.0009.xml").write_text(
        XML.format(end="2024-03-01T03:00:00+01:00", value=1).replace("NRCellDU", "Carrier")
    )
    with pytest.raises(InputError, match="Carrier") as e:
        read(folder)
    assert e.value.names("object_class")
    told = describe(folder)
    assert "--object-class" in told.text
    assert told.next_command.startswith("stforecast prepare table --raw")
    assert len(read(folder, object_class="NRCellDU")["time"]) == 8


@pytest.fixture
def names(tmp_path):
    path = tmp_path / "counters.csv"
    path.write_text("counter,name,unit\nload,DL volume,MB\nbins,Users,\n0815,Alarms,\n")
    return path


def test_counters_get_their_names_and_units_from_a_table(folder, names):
    cube = read(folder, names=str(names))
    assert cube["DL volume"].to_numpy()[:2, 0].tolist() == [10.0, 11.0]
    assert cube["DL volume"].attrs["units"] == "MB"
    cube = read(folder, names=str(names), values="Users[2]")
    assert cube["Users[2]"].to_numpy().tolist() == [[4.0]] * 8


def test_a_table_of_names_also_names_columns_of_texts(tmp_path, names):
    path = tmp_path / "export.csv"
    rows = [f"2024-03-01 0{h}:00,{c},{h}" for h in range(5) for c in "ab"]
    path.write_text("\n".join(["time,cell,0815", *rows]))
    assert read(path, names=str(names))["Alarms"].to_numpy()[:, 0].tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("counter,name\nother,Other\n", "none of .*'load'.* 'other'"),
        ("counter,name\nload,cell\n", "several columns .*'cell'"),
        ("counter\nload\n", "one column"),
    ],
)
def test_tables_that_name_no_counters_are_refused(folder, names, text, said):
    names.write_text(text)
    with pytest.raises(InputError, match=said):
        read(folder, names=str(names))


def test_events_hold_the_same(tmp_path):
    path = tmp_path / "events.json"
    path.write_text(json.dumps([event(1_700_000_100 + 900 * i, str(i)) for i in range(4)]))
    assert read(path)["load"].to_numpy()[:, 0].tolist() == [0.0, 1.0, 2.0, 3.0]


def test_publications_of_each_minute_are_one_table(tmp_path):
    for minute in range(3):
        values = flow(1, 60 + minute) + flow(2, 120)
        text = SITE.format(site="A", time=f"2024-01-01T00:0{minute}:00Z", values=values)
        (tmp_path / f"{minute}.xml").write_text(text)
    cube = read(tmp_path)
    assert cube["cell"].to_numpy().tolist() == ["A/1", "A/2"]
    assert cube["flow"].sel(cell="A/1").to_numpy().tolist() == [60.0, 61.0, 62.0]


def test_series_of_prometheus(tmp_path):
    times = range(1_700_000_040, 1_700_000_340, 60)
    series = [{"metric": {"__name__": "load", "cell": c},
               "values": [[t, str(i)] for i, t in enumerate(times)]} for c in "ab"]  # fmt: skip
    answer = {"status": "success", "data": {"resultType": "matrix", "result": series}}
    path = tmp_path / "answer.json.gz"
    path.write_bytes(gzip.compress(json.dumps(answer).encode()))
    assert read(path)["load"].to_numpy().tolist() == [[i, i] for i in range(5)]


def test_points_of_influxdb(tmp_path):
    lines = [f"load,cell={c} bytes={i}i {1_700_000_040 + 60 * i}" for i in range(4) for c in "ab"]
    path = tmp_path / "points.lp"
    path.write_text("\n".join(lines))
    assert read(path)["bytes"].to_numpy().tolist() == [[i, i] for i in range(4)]


def test_other_xml_is_refused_by_name(tmp_path):
    path = tmp_path / "other.xml"
    path.write_text("<table><row/></table>")
    with pytest.raises(InputError, match=r"other\.xml"):
        read(path)
