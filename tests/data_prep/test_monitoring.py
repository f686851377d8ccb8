"""Series of Prometheus and points of InfluxDB, read into tables."""

import gzip
import json
from datetime import UTC, datetime

import pytest

from data_prep.readers.formats.monitoring import (
    prometheus_series,
    table_of_lines,
    table_of_series,
)


def matrix(*series):
    return {"status": "success", "data": {"resultType": "matrix", "result": list(series)}}


def series(values, **labels):
    return {"metric": labels, "values": values}


def test_a_real_answer_has_a_cell_for_each_series(exports_dir):
    document = json.loads(gzip.decompress((exports_dir / "prometheus-matrix.json.gz").read_bytes()))
    table = table_of_series(prometheus_series(document))
    assert table.columns == ["time", "cell", "up"]
    assert len(table) == sum(len(each["values"]) for each in document)
    assert table["cell"].n_unique() == len(document)
    first = document[0]
    names = {name for each in document for name in each["metric"]} - {"__name__"}
    rows = table.filter(cell=",".join(first["metric"].get(name, "") for name in sorted(names)))
    assert rows["up"].to_list() == [float(v) for _, v in first["values"]]
    assert rows["time"][0] == datetime(2019, 7, 28, 10, 0, 9, 804000, tzinfo=UTC)


def test_metrics_are_columns_and_labels_that_differ_the_cell():
    document = matrix(
        series([[60, "1"], [120, "NaN"]], __name__="up", cell="a", site="x"),
        series([[60, "5"]], __name__="load", cell="a", site="x"),
        series([[120, "+Inf"]], __name__="load", cell="b", site="x"),
    )
    table = table_of_series(prometheus_series(document))
    found = {
        (row["cell"], row["time"].minute): (row["up"], row["load"]) for row in table.to_dicts()
    }
    assert found == {("a", 1): (1.0, 5.0)}, "rows without any number go"


@pytest.mark.parametrize(
    "document",
    [[], {}, {"data": []}, [1], [{"metric": 1}], [{"metric": {}}], {"data": {"result": 0}}],
)
def test_other_documents_are_no_series(document):
    assert prometheus_series(document) is None


LINES = r"""# a comment
load,cell=7,site=north\ west bytes=12i,users=3u,note="a, b=c 9" 1700000000000000000
load,cell=8,site=north\ west bytes=1.5e2,ok=true 1700000000000000000

load,site=north\ west,cell=7 bytes=14i 1700003600000000000
"""


def test_points_become_a_table():
    table = table_of_lines(LINES.splitlines())
    assert table["time"][0] == datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC)
    assert table.select("cell", "bytes", "users").rows() == [
        ("7", 12.0, 3.0), ("7", 14.0, None), ("8", 150.0, None)
    ]  # fmt: skip


def test_the_unit_of_times_follows_from_their_size():
    texts = [f"load,cell=7 bytes=1 17000000{'0' * n}" for n in (2, 5, 8, 11)]
    assert len({table_of_lines([text])["time"][0] for text in texts}) == 1


def test_fields_of_several_measurements_are_told_apart():
    table = table_of_lines(["a,cell=1 x=1 1700000000", "b,cell=1 x=2 1700000000"])
    assert table.select("a.x", "b.x").rows() == [(1.0, 2.0)]


def test_the_same_point_twice_stays_to_be_asked_about():
    table = table_of_lines(["a,cell=1 x=1,y=3 1700000000", "a,cell=1 x=2 1700000000"])
    assert sorted(table["x"].to_list()) == [1.0, 2.0]


@pytest.mark.parametrize(
    ("line", "said"),
    [("load,cell=7 bytes=1", "no time"), ("load", "line 1"), ('a b="c" 17000', "no numbers")],
)
def test_what_is_no_point_is_refused(line, said):
    with pytest.raises(ValueError, match=said):
        table_of_lines([line])
