"""Objects of JSON as web services, queues and context brokers write them."""

import gzip
import json
import zipfile

import pandas as pd
import pytest

from data_prep.base.errors import InputError
from data_prep.readers.formats import Part
from data_prep.readers.formats.json import Json
from data_prep.readers.options import TableOptions
from data_prep.readers.origin import collecting_notes
from data_prep.sets.table import read
from stforecast.cli.info import describe

HOURS = [f"2024-03-01T{h:02}:00:00Z" for h in range(24)]
ROWS = [{"time": t, "station": c, "flow": 10 * h + (c == "b")}
        for h, t in enumerate(HOURS) for c in "ab"]  # fmt: skip


def check(cube, service="flow"):
    assert cube["cell"].to_numpy().tolist() == ["a", "b"]
    assert cube[service].to_numpy().tolist() == [[10.0 * h, 10.0 * h + 1] for h in range(24)]


@pytest.fixture
def save(tmp_path):
    def save(content, name="export.json", indent=2):
        text = content if isinstance(content, str) else json.dumps(content, indent=indent)
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
        return path

    return save


@pytest.mark.parametrize("indent", [None, 2])
@pytest.mark.parametrize(
    "content",
    [
        ROWS,
        {"data": ROWS},
        {"status": "ok", "links": [{"href": "x"}, {"href": "y"}], "result": {"rows": ROWS}},
        {"stations": {c: {"station": c, "values": []} for c in "ab"}, "rows": ROWS},
    ],
)
def test_the_list_of_records_is_found(save, content, indent):
    check(read(save(content, indent=indent)))
    check(read(save(content, "export.json.gz", indent=indent)))


def test_several_lists_are_asked_about(save):
    path = save({"data": ROWS, "quality": [{"time": t, "share": 1} for t in HOURS]})
    with pytest.raises(InputError, match=r": data \(48\), quality") as e:
        read(path)
    assert "--records data" in e.value.typed
    assert "--records" in describe(path).text
    check(read(path, records="data"))
    with pytest.raises(InputError, match=r"'rows', but data \(48\)"):
        read(path, records="rows")


def test_objects_may_follow_each_other_over_several_lines(save):
    check(read(save("\n".join(json.dumps(row, indent=1) for row in ROWS))))
    check(read(save("\n".join(json.dumps({"records": ROWS[i::4]}, indent=1) for i in range(4)))))


def test_folders_and_zips_of_json_hold_one_table(save, tmp_path):
    for i, c in enumerate("ab"):
        values = [{"time": t, "flow": 10 * h + i} for h, t in enumerate(HOURS)]
        save({"station": c, "values": values}, f"answers/{c}.json")
    check(read(tmp_path / "answers"))
    assert describe(tmp_path / "answers").kind == "table"
    with zipfile.ZipFile(tmp_path / "answers.zip", "w") as packed:
        for c in "ab":
            packed.write(tmp_path / "answers" / f"{c}.json", f"{c}.json")
    check(read(tmp_path / "answers.zip"))


def test_messages_of_a_queue(save):
    lines = [
        {"topic": "counts", "partition": 0, "offset": 100 + i, "key": row["station"],
         "timestamp": int(pd.Timestamp(row["time"]).timestamp() * 1000),
         "value": json.dumps({"flow": row["flow"]}) if as_text else {"flow": row["flow"]}}
        for as_text in (True, False) for i, row in enumerate(ROWS)
    ]  # fmt: skip
    for messages in (lines[:48], lines[48:]):
        cube = read(save("\n".join(map(json.dumps, messages)), "queue.jsonl"))
        check(cube, "value.flow")
        assert set(cube.data_vars) == {"value.flow"}


def entity(row, form):
    """An entity of NGSI: v2 normalized, keyValues, or LD."""
    pair = {"v2": lambda t, v: {"type": t, "value": v, "metadata": {}},
            "keyValues": lambda t, v: v,
            "LD": lambda t, v: {"type": "Property", "value": v if t != "DateTime" else
                                {"@type": "DateTime", "@value": v}}}[form]  # fmt: skip
    place = {"type": "Point", "coordinates": [4.25, 52.5]}
    return {
        "id": row["station"],
        "type": "TrafficFlowObserved",
        "dateObserved": pair("DateTime", row["time"]),
        "intensity": pair("Number", row["flow"]),
        "location": {"type": "GeoProperty", "value": place} if form == "LD" else
        pair("geo:json", place),
    }  # fmt: skip


@pytest.mark.parametrize("form", ["v2", "keyValues", "LD"])
def test_entities_of_ngsi(save, form):
    cube = read(save([entity(row, form) for row in ROWS]))
    check(cube, "intensity")
    assert (cube["lon"][0].item(), cube["lat"][0].item()) == (4.25, 52.5)


def test_a_real_entity(exports_dir):
    path = exports_dir / "ngsi-trafficflowobserved.json"
    table = Json.read(Part(path.name, path), TableOptions(), ()).columns
    row = table.row(0, named=True)
    assert row["intensity"] == 197
    assert row["dateObservedFrom"] == "2016-12-07T11:10:00Z"
    assert "intensity.type" not in row


def test_telraam(save):
    report = [
        {"instance_id": -1, "segment_id": 9000000123, "date": t.replace("Z", ".000Z"),
         "interval": "hourly", "uptime": 0.75, "heavy": float(h), "car": 7.5, "car_lft": 3.5,
         "car_rgt": 4.0, "car_speed_hist_0to70plus": [0.5, 0.5], "timezone": "Europe/Brussels"}
        for h, t in enumerate(HOURS)
    ]  # fmt: skip
    path = save({"status_code": 200, "message": "ok", "report": report}, indent=None)
    with collecting_notes() as notes:
        cube = read(path)
    assert cube["heavy"].to_numpy()[:, 0].tolist() == [float(h) for h in range(24)]
    assert cube["cell"].to_numpy().tolist() == [9000000123]
    assert any("car_speed_hist_0to70plus" in note.text for note in notes)


def test_columns_keep_the_order_of_the_first_object(save):
    path = save([{"time": t, **{f"c{i}": i for i in range(40)}} for t in HOURS])
    table = Json.read(Part(path.name, path), TableOptions(), ()).columns
    assert table.columns == ["time", *(f"c{i}" for i in range(40))]
