"""Tables of one's own: long and wide, from files and from frames, and all that can be wrong."""

import gzip
import hashlib
import io
import json
import logging

import numpy as np
import pandas as pd
import polars as pl
import pytest
import xarray as xr
from mentions import mentions

from data_prep.base.errors import InputError
from data_prep.cube import make_cube, open_cube
from data_prep.readers.columns import numbers
from data_prep.readers.decode import read_table
from data_prep.readers.numbers import may_be_grouped
from data_prep.readers.options import TableOptions
from data_prep.readers.origin import Origin
from data_prep.readers.resampling import even_step
from data_prep.readers.steps import from_frame
from data_prep.readers.times import regular_steps
from data_prep.sets.table import prepare, read

NAN = np.nan
TIMES = pd.date_range("2024-03-30T22:00", periods=3, freq="30min")
VALUES = np.array([[1.5, -2.0], [NAN, 0.0], [5.0, 6.0]])

LONG = """time,cell,speed
2024-03-30T22:00,3,-2
2024-03-30T22:00,1,1.5
2024-03-30T23:00,1,5
2024-03-30T22:30,1,
2024-03-30T22:30,3,0
2024-03-30T23:00,3,6
"""
WIDE = """time,1,3
2024-03-30T22:00,1.5,-2
2024-03-30T22:30,NaN,0
2024-03-30T23:00,5,6
"""


@pytest.fixture
def prepared(tmp_path):
    """Write a text as a file, prepare it and open the cube."""

    def prepare_text(text, name="my.csv", **options):
        raw = tmp_path / name
        raw.write_bytes(text if isinstance(text, bytes) else text.encode())
        return open_cube(prepare(raw, tmp_path / "out.nc", **options)).load()

    return prepare_text


def expected(name, cell=(1, 3), **changes):
    arguments = {
        "values": {name: VALUES},
        "time": TIMES,
        "cell": np.array(cell),
        "title": "any",
        "source": "any",
        "license": "any",
        "units": "1",
    }
    return make_cube(**(arguments | changes))


@pytest.mark.parametrize(("text", "name"), [(LONG, "speed"), (WIDE, "value")])
def test_text_becomes_the_cube_built_by_hand(prepared, text, name):
    ds = prepared(text)
    xr.testing.assert_equal(ds, expected(name))
    assert ds[name].attrs == {"units": "1", "long_name": name, "zero_is_missing": 0}
    assert ds.attrs["time_zone"] == "UTC"
    assert ds.attrs["clock"] == "utc"
    digest = hashlib.sha256(text.encode()).hexdigest()
    assert json.loads(ds.attrs["source_checksums"]) == {"my.csv": f"sha256:{digest}"}


def test_options_reach_the_cube(prepared):
    options = {"units": "mile/hour", "time_zone": "America/Los_Angeles", "clock": "local"}
    ds = prepared(WIDE, name="my.csv", zero_is_missing=True, **options)
    assert ds["value"].attrs["units"] == "mile/hour"
    assert ds["value"].attrs["zero_is_missing"] == 1
    assert ds.attrs["time_zone"] == "America/Los_Angeles"
    assert ds.attrs["clock"] == "utc"
    np.testing.assert_array_equal(ds["time"], TIMES + pd.Timedelta("7h"))
    assert prepared(WIDE, clock="local").attrs["clock"] == "local"


def test_wide_variable_and_columns_have_names(tmp_path):
    (tmp_path / "my.csv").write_text("date,a,b,note\n2024-01-01,1,2,x\n2024-01-02,3,4,y\n")
    prepare(tmp_path / "my.csv", tmp_path / "o.nc", name="flow", values="b,a", layout="wide")
    ds = open_cube(tmp_path / "o.nc")
    assert list(ds["cell"].values) == ["b", "a"]
    np.testing.assert_array_equal(ds["flow"], [[2, 1], [4, 3]])


@pytest.mark.parametrize(
    ("text", "name"),
    [
        (LONG.replace(",", ";"), "my.csv"),
        (LONG.replace(",", "\t"), "my.tsv"),
        (LONG.replace(",", "|"), "my.csv"),
        (LONG.replace("\n", "\r\n"), "my.csv"),
        (b"\xef\xbb\xbf" + LONG.encode(), "my.csv"),
        (gzip.compress(LONG.encode(), mtime=0), "my.csv.gz"),
        ("".join(f'"{x}"\n'.replace(",", '","') for x in LONG.splitlines()), "my.csv"),
    ],
)
def test_dialects_of_text(prepared, text, name):
    xr.testing.assert_equal(prepared(text, name), expected("speed"))


def test_a_total_of_one_other_cell_stays(prepared):
    """Two equal cells may be two: only a total of several is one for certain."""
    rows = "".join(f"2024-01-0{day},{day},{day}\n" for day in range(1, 5))
    found = prepared(f"time,Total,Zoo\n{rows}", "my.csv", layout="wide")
    assert found["cell"].values.tolist() == ["Total", "Zoo"]


@pytest.mark.parametrize("long", [True, False])
def test_parquet(tmp_path, long):
    table = pl.read_csv(io.StringIO(LONG if long else WIDE), try_parse_dates=True)
    table.write_parquet(tmp_path / "my.parquet")
    prepare(tmp_path / "my.parquet", tmp_path / "o.nc")
    ds = open_cube(tmp_path / "o.nc")
    xr.testing.assert_equal(ds.load(), expected("speed" if long else "value"))


def test_parquet_keeps_its_time_zone(tmp_path):
    zoned = pl.Series(TIMES.to_numpy()).dt.replace_time_zone("UTC").dt.convert_time_zone
    table = pl.DataFrame({"time": zoned("Europe/Rome"), "1": VALUES[:, 0], "3": VALUES[:, 1]})
    table.write_parquet(tmp_path / "my.parquet")
    ds = open_cube(prepare(tmp_path / "my.parquet", tmp_path / "o.nc"))
    xr.testing.assert_equal(ds.load(), expected("value"))
    assert ds.attrs["time_zone"] == "Europe/Rome"


def test_what_pandas_writes_without_a_name_for_the_index(prepared):
    text = pd.DataFrame(VALUES, index=TIMES, columns=[1, 3]).to_csv()
    assert text.startswith(",1,3")
    xr.testing.assert_equal(prepared(text), expected("value"))


def test_long_agrees_with_pandas_pivot_in_any_order():
    rng = np.random.default_rng(1)
    index = pd.MultiIndex.from_product(
        [pd.date_range("2024-01-01", periods=50, freq="10min"), [5, 11, 400]],
        names=["time", "cell"],
    )
    df = pd.DataFrame({"up": rng.normal(size=150), "down": rng.normal(size=150)}, index=index)
    df = df.reset_index().sample(frac=1, random_state=1, ignore_index=True)
    ds = read(df)
    for name in ("up", "down"):
        pivot = df.pivot(index="time", columns="cell", values=name)
        pd.testing.assert_frame_equal(
            ds[name].to_pandas(), pivot, check_freq=False, check_index_type=False
        )


def test_wide_frame_is_sorted_by_time_and_keeps_its_cells():
    df = pd.DataFrame(VALUES, index=TIMES, columns=["b", "a"])
    ds = from_frame(df.iloc[[2, 0, 1]])
    xr.testing.assert_equal(ds, expected("value", cell=("b", "a")))


def test_zoned_index_becomes_utc_across_the_spring_change():
    index = pd.date_range("2024-03-31T00:00", periods=4, freq="h", tz="Europe/Rome")
    ds = from_frame(pd.DataFrame({1: range(4)}, index=index))
    assert list(ds.indexes["time"]) == list(pd.date_range("2024-03-30T23:00", periods=4, freq="h"))
    assert ds.attrs["time_zone"] == "Europe/Rome"
    assert ds.attrs["clock"] == "utc"


def test_time_zone_of_the_option_wins_and_an_offset_has_no_name():
    index = pd.date_range("2024-01-01", periods=2, freq="h", tz="UTC")
    df = pd.DataFrame({1: [1, 2]}, index=index)
    assert from_frame(df).attrs["time_zone"] == "UTC"
    rome = TableOptions(time_zone="Europe/Rome")
    assert from_frame(df, options=rome).attrs["time_zone"] == "Europe/Rome"
    offset = df.set_axis(pd.to_datetime(["2024-01-01T01:00+01:00", "2024-01-01T02:00+01:00"]))
    assert from_frame(offset).attrs["time_zone"] == "UTC"
    assert from_frame(offset).indexes["time"][0] == pd.Timestamp("2024-01-01")


@pytest.mark.parametrize(
    "texts",
    [
        ["2024-10-27T02:30+02:00", "2024-10-27T02:30+01:00"],
        ["2024-10-27 00:30:00Z", "2024-10-27 01:30:00+0000"],
        ["2024-10-26T22:30-02", "2024-10-27T01:30+00:00"],
        ["20241027T003000Z", "20241027T013000Z"],
        ["1729989000", "1729992600"],
        ["1729989000000", "1729992600000"],
        ["1729989000.0", "1729992600.0"],
        [1729989000, 1729992600],
        [1729989000000, 1729992600000],
    ],
)
def test_absolute_times_become_utc(texts):
    ds = read(pd.DataFrame({"time": texts, "cell": 1, "value": [1.0, 2.0]}))
    assert list(ds.indexes["time"]) == list(
        pd.to_datetime(["2024-10-27 00:30", "2024-10-27 01:30"])
    )


@pytest.mark.parametrize(
    ("times", "options", "said"),
    [
        (["2024-01-01 00:00", "2024-01-01 01:00"], {}, True),
        (["2024-01-01 00:00", "2024-01-01 01:00"], {"time_zone": "UTC"}, False),
        (["2024-01-01 00:00Z", "2024-01-01 01:00Z"], {}, False),
        (["2024-01-01", "2024-01-02"], {}, False),
    ],
)
def test_it_is_said_that_times_without_a_zone_are_read_as_utc(times, options, said, caplog):
    with caplog.at_level(logging.INFO):
        read(pd.DataFrame({"time": times, "cell": 1, "value": [1, 2]}), **options)
    assert ("times have no offset and are read as UTC" in caplog.text) == said


def test_times_without_a_zone_and_dates():
    ds = read(pd.DataFrame({"time": ["2024-10-27", "20241028"], "cell": 1, "value": [1, 2]}))
    assert list(ds.indexes["time"]) == list(pd.to_datetime(["2024-10-27", "2024-10-28"]))


@pytest.mark.parametrize(
    ("times", "message"),
    [
        ([1729989000, 1729992600000], "row 1: .*1729992600000 .*ambiguous"),
        ([0, 1], "row 0: time 0 "),
        (["20241301", "20241302"], "row 0: .*20241301 .*ambiguous"),
        (["11/12/13 00:00", "11/12/13 01:00"], "day.*month"),
        (["31/12/2013", "12/31/2013"], "row 0: .*'31/12/2013', .*ISO 8601"),
        (["2024-01-01", "2024-01-32"], "row 1: .*'2024-01-32'"),
        (
            ["2024-01-01T00:00Z", "2024-01-01T01:00"],
            "row 1: .*'2024-01-01T01:00' .*00:00Z' .*row 0",
        ),
        (["2024-01-01", None], "row 1: empty"),
        (["0001-01-01", "0001-01-02"], "(1678 to 2261|expected ISO 8601)"),
    ],
)
def test_unclear_times_are_refused(times, message):
    with pytest.raises(InputError, match=message):
        read(pd.DataFrame({"time": times, "cell": 1, "value": [1, 2]}))


def test_absolute_times_have_no_local_clock():
    df = pd.DataFrame({"time": ["2024-01-01T00:00Z"], "cell": 1, "value": 1.0})
    with pytest.raises(InputError, match=r"clock .*set"):
        read(df, clock="local")


@pytest.mark.parametrize(
    ("ids", "cells"),
    [
        (["10", "9"], [9, 10]),
        (["007", "12"], ["007", "12"]),
        (["b", "a"], ["a", "b"]),
        (["-1", "2"], ["-1", "2"]),
    ],
)
def test_ids_of_a_file_are_integers_only_if_nothing_is_lost(prepared, ids, cells):
    of_two = "".join(f"2024-01-0{day},{cell},1\n" for day in (1, 2) for cell in ids)
    ds = prepared(f"time,cell,value\n{of_two}")
    assert ds["cell"].values.tolist() == cells
    wide = prepared(f"time,{','.join(ids)}\n2024-01-01,1,2\n2024-01-02,1,2\n", layout="wide")
    assert sorted(wide["cell"].values.tolist()) == cells


def test_text_ids_of_a_frame_stay_text():
    ds = from_frame(pd.DataFrame([[1.0, 2.0]], index=TIMES[:1], columns=["773869", "1"]))
    assert ds["cell"].values.tolist() == ["773869", "1"]


def test_columns_without_numbers_are_left_out_with_a_warning(prepared, caplog):
    text = "time,cell,road,speed,empty\n2024-01-01,1,A1,5,\n2024-01-02,1,A2,6,\n"
    with caplog.at_level(logging.WARNING):
        ds = prepared(text)
    assert list(ds.data_vars) == ["speed", "empty"]
    assert np.isnan(ds["empty"]).all()
    assert mentions(caplog.text, "my.csv: columns", "['road']")


def test_text_that_is_the_same_in_all_rows_of_a_cell_is_kept(prepared, caplog):
    rows = ["2024-01-01,b,Two,x,5", "2024-01-01,a,One,x,6", "2024-01-02,b,Two,y,7"]
    with caplog.at_level(logging.INFO):
        ds = prepared("\n".join(["time,cell,operator,road,speed", *rows, "2024-01-02,a,One,x,8\n"]))
    assert ds["operator"].dims == ("cell",)
    assert dict(zip(ds["cell"].values, ds["operator"].values, strict=True)) == {
        "a": "One", "b": "Two",
    }  # fmt: skip
    assert "road" not in ds
    assert mentions(caplog.text, "column operator", "value")
    assert mentions(caplog.text, "columns", "['road']")


def test_the_frame_of_a_user_loses_no_column():
    df = pd.DataFrame({"a": [1.0, 2.0], "b": ["x", "y"]}, index=TIMES[:2])
    with pytest.raises(InputError, match=r"DataFrame, row 0: .* 'b' holds 'x'"):
        from_frame(df)
    for column in ([True, False], TIMES[:2]):
        with pytest.raises(InputError, match="row 0: column 'a'"):
            from_frame(pd.DataFrame({"a": column}, index=TIMES[:2]))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"my\.csv, line 1: nothing"),
        ("time,cell,value\n", r"my\.csv: 0 rows .*3 columns"),
        ("time,cell,v,v\n2024-01-01,1,2,3\n", "line 1: column 'v' .*once"),
        ("t,cell,v\nnow,1,2\n", "column 'time' .*'t', 'cell', 'v'"),
        (
            "date,ds,v\n2024-01-01,1,2\n",
            "'date', 'ds' .*time='date' .*time='ds'",
        ),
        ("time,cell,v\n2024-01-01,1,2\n2024-01-02,1,2x\n", "line 3: .*'v' .*'2x'"),
        ("time,cell,v\n2024-01-01,1,2\n2024-01-02,1,inf\n", "line 3: .*'v' .*'inf'"),
        ("time,cell,v\n2024-01-01,1,2\nyesterday,1,2\n", "line 3: 'yesterday'"),
        ("time,cell,v\n2024-01-01,1,2\n2024-01-02,,2\n", "line 3: empty"),
        ("time,cell,v\n2024-01-01,,2\n2024-01-02,,2\n", "line 2: empty"),
        ("time,cell,v\n2024-01-01,1,2\n2024-01-02,1\n", "line 3: 2 fields, .*3"),
        ("time,cell,v\n2024-01-01,1,2\n2024-01-02,1,2,9\n", "line 3: 4 fields, .*3"),
        ("time,cell,v\n2024-01-01,1,2\n\n2024-01-02\n", "line 4: 1 field, .*3"),
        ("time,cell,v\n2024-01-01,1,x\n2024-01-02,1,y\n", "numbers .* time, cell"),
        ("time,cell,lon\n2024-01-01,1,9.1\n", "variable.*'lon'"),
        (
            "time,cell,v\n2024-01-01,1,2\n2024-01-02,1,2\n2024-01-01,1,3\n",
            "line 4: .*2024-01-01 00:00:00, .*1 .*line 2",
        ),
        (
            "time,where,v\n2024-01-01,1,2\n2024-01-01,2,2\n",
            r"\(where, v\).*column of cells",
        ),
        (
            "time,a\n2024-01-01,1\n2024-01-02,2\n2024-01-03,2\n2024-01-04T01:00,2\n",
            "2024-01-03 00:00:00 .*2024-01-04 01:00:00 .*1 days 01:00.*1 day ",
        ),
        (
            "time,a\n2024-01-01,1\n2024-01-02,2\n2024-01-05,2\n",
            "2 of 5 .*2024-01-02 .*row 2024-01-05",
        ),
        (
            "time,a\n2024-03-31 00:00,1\n2024-03-31 01:00,2\n2024-03-31 03:00,2\n"
            "2024-03-31 04:00,2\n",
            "clock .*time_zone='Europe/Berlin' .*clock='local'",
        ),
        (
            "time,cell,v\n"
            "2024-01-01,1,2\n2024-01-01,2,2\n2024-01-02,1,2\n2024-01-03,1,2\n2024-01-03,2,2\n",
            "1 of 6 .* 2024-01-02 00:00:00, cell 2",
        ),
    ],
)
def test_damaged_files_are_refused_by_line(prepared, text, message):
    with pytest.raises(InputError, match=message) as raised:
        prepared(text)
    assert "\n" not in str(raised.value)


def test_a_line_cut_short_at_the_end_of_a_download_is_refused(prepared):
    with pytest.raises(InputError, match=r"line 4: 2 fields, .*3"):
        prepared(WIDE[: WIDE.rindex(",")])
    with pytest.raises(InputError, match=r"my\.csv\.gz: "):
        prepared(gzip.compress(LONG.encode() * 99)[:-20], "my.csv.gz")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("none.csv", r"none\.csv: .*nothing"),
        ("folder", "folder: .*folder"),
        ("my.xls", r"my\.xls: .*'\.xls', .*\.csv, .*\.parquet"),
        ("my.xlsx", r"my\.xlsx: .*Excel"),
        ("my.parquet", r"my\.parquet: .*Parquet"),
    ],
)
def test_what_is_no_table(tmp_path, name, message):
    (tmp_path / "folder").mkdir()
    for file in ("my.xls", "my.xlsx", "my.parquet"):
        (tmp_path / file).write_text(LONG)
    with pytest.raises(InputError, match=message):
        prepare(tmp_path / name, tmp_path / "o.nc")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"layout": "tall"},
            "layout 'tall'; .*auto, cells-above, long, services, ",
        ),
        ({"clock": "gmt"}, "clock 'gmt'; .*local, utc"),
        ({"duplicates": "max"}, "duplicates 'max'; .*error, mean"),
        ({"time_zone": "Rome"}, "'Rome'; .*IANA"),
        ({"values": "sped"}, "'sped' .*'time', 'cell', 'speed'"),
        ({"cell": "id", "layout": "long"}, "column 'id'"),
    ],
)
def test_options_list_what_is_valid(prepared, options, message):
    with pytest.raises(InputError, match=message):
        prepared(LONG, **options)


@pytest.mark.parametrize(
    ("duplicates", "zero_is_missing", "value"),
    [("sum", False, 5.0), ("mean", False, 5 / 3), ("sum", True, 5.0), ("mean", True, 2.5)],
)
def test_duplicates_are_merged_over_what_was_recorded(duplicates, zero_is_missing, value):
    options = TableOptions(duplicates=duplicates, zero_is_missing=zero_is_missing)
    index = TIMES[[0, 0, 0, 0, 1, 1]]
    values = [0.0, 2.0, 3.0, NAN, NAN, NAN]
    wide = from_frame(pd.DataFrame({1: values}, index=index), options=options)
    np.testing.assert_allclose(wide["value"], [[value], [NAN]])
    df = pd.DataFrame({"time": index, "cell": 1, "v": values})
    long = read(df, duplicates=duplicates, zero_is_missing=zero_is_missing)
    np.testing.assert_allclose(long["v"], [[value], [NAN]])


def test_allowed_gaps_are_nan_and_logged(prepared, caplog):
    rows = "2024-01-01,1,1\n2024-01-02,1,2\n2024-01-04,1,4\n2024-01-01,2,3\n2024-01-04,2,5\n"
    text = f"time,cell,v\n{rows}"
    with caplog.at_level(logging.WARNING):
        ds = prepared(text, allow_gaps=True)
    np.testing.assert_array_equal(ds["v"], [[1, 3], [2, NAN], [NAN, NAN], [4, 5]])
    assert mentions(caplog.text, "1 of 4", "row")
    assert mentions(caplog.text, "1 of 8", "row")


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ([1.5, 2.5], "cell id 1.5"),
        ([1, "a"], "cell id 1 "),
        (["a", "a"], "cell 'a' .*once"),
        (pd.MultiIndex.from_tuples([("a", 1), ("a", 2)]), "is a tuple"),
    ],
)
def test_ids_of_a_frame_are_integers_or_text(columns, message):
    df = pd.DataFrame([[1.0, 2.0]], index=TIMES[:1], columns=columns)
    with pytest.raises(InputError, match=message):
        from_frame(df)


def test_regular_steps_places_each_time():
    axis, at = regular_steps(TIMES[[2, 0, 0, 1]], "t")
    assert list(axis) == list(TIMES)
    assert at.tolist() == [2, 0, 0, 1]
    axis, at = regular_steps(TIMES[[1]], "t")
    assert (list(axis), at.tolist()) == ([TIMES[1]], [0])


def test_a_stray_time_is_named_against_the_usual_step():
    minutes = pd.to_timedelta([0, 5, 10, 12, 15, 20], unit="min")
    message = "00:10:00 to 2024-01-01 00:12:00 is 0 days 00:02:00, most steps are 5 minutes"
    with pytest.raises(InputError, match=message):
        regular_steps(pd.Timestamp("2024-01-01") + minutes, "t")


def test_read_table_and_numbers(tmp_path):
    (tmp_path / "d.csv").write_text("from,to,cost\n007,1,2.5\n1,007,\n")
    df, origin = read_table(tmp_path / "d.csv", text_columns=("from", "to"))
    assert df["from"].tolist() == ["007", "1"]
    assert origin == Origin("d.csv", "line", 2, is_file=True)
    np.testing.assert_array_equal(numbers(df["cost"], origin), [2.5, NAN])


def test_values_of_an_absurd_sum_are_refused(prepared, recwarn):
    text = "time,cell,v\n2024-01-01T00:00,7,9e15\n2024-01-01T00:00,7,9e15\n2024-01-01T01:00,7,1\n"
    with pytest.raises(InputError, match=r"v is 1.8e.16 .*2024-01-01 00:00:00, cell 7"):
        prepared(text, duplicates="sum")
    assert not recwarn


def test_a_column_whose_name_is_a_number_is_named_without_its_type(prepared):
    with pytest.raises(InputError, match="column 4143 holds 'x'"):
        prepared("time,4142,4143\n2024-01-01T00:00,1,x\n2024-01-01T01:00,1,2\n")


def test_a_last_line_without_an_end_is_read_with_a_notice_unless_it_was_cut(prepared, caplog):
    text = "time,1,2\n" + "".join(f"2024-01-0{i},{i}.5,{i}.25\n" for i in range(1, 8))
    whole = prepared(text)["value"].to_numpy()
    assert "line end" not in caplog.text
    np.testing.assert_array_equal(prepared(text[:-1])["value"], whole)
    assert mentions(caplog.text, "line 8", "'7.25'")
    with pytest.raises(InputError, match=r"line 8: '7\.2' .* decimals"):
        prepared(text[:-2])
    with pytest.raises(InputError, match=r"line 8: "):
        prepared(text[:-6])


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        ("time,a,b\n2024-01-01,1,2\n2024-01-02,1,2\n", {"cell": "a"}, "wide, .*cell"),
        ("time,cell,v\n2024-01-01,a,2\n2024-01-02,a,2\n", {"name": "w"}, "long, .*'w'"),
        ("time,cell,v\n2024-01-01,a,2\n2024-01-02,a,2\n", {"crs": "EPSG:25832"}, "crs.*sites"),
        ("time,a,b\n2024-01-01,1,2\n2024-01-02,1,2\n", {"layout": "cells-above"}, "cells-above"),
    ],
)
def test_options_that_a_layout_does_not_read_are_refused(tmp_path, text, options, message):
    path = tmp_path / "t.csv"
    path.write_text(text)
    layout = "wide" if "cell" in options else "long"
    with pytest.raises(InputError, match=message):
        read(path, **{"layout": layout, **options})


UNREAD = {
    "object_class": "X", "query": "SELECT 1", "records": "a.b", "sheet": "S", "encoding": "cp1252",
    "no_header": True,
}  # fmt: skip


@pytest.mark.parametrize("option", UNREAD)
@pytest.mark.parametrize("ending", [".csv", ".parquet", ".jsonl", ""])
def test_options_that_a_format_does_not_read_are_refused(tmp_path, ending, option):
    long = pd.read_csv(io.StringIO(LONG))
    read_by = {".csv": ["encoding", "no_header"], ".jsonl": ["records"]}
    path = tmp_path / f"t{ending}"
    writers = {".csv": "write_csv", ".parquet": "write_parquet", ".jsonl": "write_ndjson"}
    if ending:
        getattr(pl.DataFrame({c: long[c].tolist() for c in long}), writers[ending])(path)
    if option in read_by.get(ending, ()):
        assert "leave out" not in str(failure(path, option) or "")
    else:
        error = failure(path if ending else long, option)
        assert error.names(option)
        assert str(error).startswith(path.name if ending else "the DataFrame")


def failure(table, option):
    try:
        read(table, **{option: UNREAD[option]})
    except InputError as e:
        return e
    return None


def test_options_for_texts_are_said_to_be_unread_where_values_are_typed(caplog):
    caplog.set_level(logging.INFO)
    typed = pd.read_csv(io.StringIO(LONG), parse_dates=["time"])
    expected = read(typed)
    found = read(typed, time_format="dayfirst", decimal="comma")
    xr.testing.assert_equal(found, expected)
    assert mentions(caplog.text, "DataFrame", "decimal='comma'")
    assert mentions(caplog.text, "DataFrame", "time_format='dayfirst'")


def test_integers_that_would_be_rounded_are_refused(tmp_path):
    path = tmp_path / "t.csv"
    rows = "time,cell,v\n2024-01-01,a,{}\n2024-01-02,a,1\n"
    path.write_text(rows.format(2**53 - 1))
    assert read(path)["v"].max() == 2**53 - 1
    path.write_text(rows.format(2**53 + 1))
    with pytest.raises(InputError, match=r"'9007199254740993', .* finite"):
        read(path)


@pytest.mark.parametrize("name", ["NA", "nan", "null"])
def test_names_of_cells_that_count_as_empty_are_explained(tmp_path, name):
    path = tmp_path / "t.csv"
    path.write_text(f"time,cell,v\n2024-01-01,{name},2\n2024-01-02,{name},2\n")
    with pytest.raises(InputError, match=r"line 2: .* nan .*null"):
        read(path, layout="long")


def test_weeks_begin_on_mondays(tmp_path):
    path = tmp_path / "t.csv"
    days = pd.date_range("2024-01-01", periods=14)  # A Monday.
    path.write_text("time,cell,v\n" + "".join(f"{day:%Y-%m-%d},a,1\n" for day in days))
    cube = read(path, resample="7D", agg="sum")
    assert cube.indexes["time"].tolist() == [days[0], days[7]]
    assert cube["v"].to_numpy().ravel().tolist() == [7, 7]


@pytest.mark.parametrize(
    ("gaps", "step"),
    [
        ([2, 2, 2], 2),
        ([2, 2, 2, 4, 6], 2),
        ([2, 2, 2, 3], None),
        ([1, 1, 2, 3, 4], None),
        ([], None),
    ],
)
def test_an_even_step_is_that_of_half_of_the_records_and_divides_the_others(gaps, step):
    assert even_step(np.cumsum([0, *gaps])) == step


@pytest.mark.parametrize(("largest", "grouped"), [(999.0, True), (1000.0, False)])
def test_points_before_three_digits_may_be_of_thousands_unless_a_number_has_more(largest, grouped):
    assert may_be_grouped(pl.Series([1.234, largest])) == grouped


def test_a_single_time_step_is_refused_before_a_cube_is_written(tmp_path):
    (tmp_path / "one.csv").write_text("time,1\n2024-01-01,2\n")
    with pytest.raises(InputError, match=r"one\.csv: .*single"):
        prepare(tmp_path / "one.csv", tmp_path / "one.nc", layout="wide")
    assert not (tmp_path / "one.nc").exists()


@pytest.mark.parametrize("layout", ["long", "wide"])
def test_repeated_rows_are_left_out_and_counted_and_conflicting_ones_are_asked(
    layout, prepared, caplog
):
    name, cell = ("time,cell,v", "a,") if layout == "long" else ("time,a", "")
    rows = [f"2024-01-01 0{hour}:00,{cell}{hour}" for hour in (1, 1, 2, 3, 3, 4)]
    ds = prepared("\n".join([name, *rows]), layout=layout)
    assert ds[name[-1] if layout == "long" else "value"].to_numpy().ravel().tolist() == [1, 2, 3, 4]
    assert mentions(caplog.text, "2 repeated", "line 3")
    with pytest.raises(InputError, match=r"line 8: .*2024-01-01 02:00:00.*line 4"):
        prepared("\n".join([name, *rows, f"2024-01-01 02:00,{cell}9"]), layout=layout)


@pytest.mark.parametrize(
    "step",
    ["1h", *(pytest.param(s, marks=pytest.mark.repeats) for s in ("5min", "15min", "30min"))],
)
def test_hours_that_clocks_skipped_in_several_years_are_recognised(step, prepared):
    wall = pd.date_range("2022-03-01", "2023-04-10", freq=step, tz="UTC").tz_convert("Europe/Rome")
    wall = wall.tz_localize(None)
    wall = wall[~wall.duplicated()]
    text = "time,a\n" + "".join(f"{time},1\n" for time in wall)
    with pytest.raises(InputError, match=r"clock='local'"):
        prepared(text, layout="wide")
    gap = text.replace("2022-06-01 05:00:00,1\n", "")
    with pytest.raises(InputError, match="no row") as raised:
        prepared(gap, layout="wide")
    assert "local" not in str(raised.value)


@pytest.mark.parametrize("options", [{}, {"time_format": "%H:%M"}])
def test_times_of_day_ask_for_the_date(options, prepared):
    text = "time,a\n" + "".join(f"{hour % 24:02}:00,1\n" for hour in range(30))
    with pytest.raises(InputError, match=r"'00:00' .*start="):
        prepared(text, layout="wide", **options)
    given = {"layout": "wide", "start": "2024-01-01T00:00", "step": "1h"}
    assert len(prepared(text, **given).time) == 30
    with pytest.raises(InputError, match=r"line 5: time 04:00, .* 2024-01-01 03:00"):
        prepared(text.replace("03:00,1\n", "", 1), **given)


@pytest.mark.parametrize(
    ("orient", "advice"),
    [
        (
            "index",
            "one object .*'2024-01-01T00:00:00.000'",
        ),
        ("columns", "one object .*'a'"),
        ("split", "one object .*'columns'"),
    ],
)
def test_json_of_one_object_is_told_how_to_be_written(prepared, orient, advice):
    times = pd.date_range("2024-01-01", periods=50, freq="h")
    df = pd.DataFrame({"a": np.arange(50.0), "b": 1.5}, times)
    rows = json.loads(
        df.rename_axis("time").reset_index().to_json(orient="records", date_format="iso")
    )
    with pytest.raises(InputError, match=advice):
        prepared(df.to_json(orient=orient, date_format="iso"), "my.json", layout="wide")
    cube = prepared(json.dumps(rows), "my.json", layout="wide")  # As the advice has it.
    assert cube["value"].shape == (50, 2)


def test_digits_of_other_scripts_are_named_as_they_stand(prepared):
    with pytest.raises(InputError, match=r"line 3: .*'b' .*'٥'") as told:
        prepared("time,a,b\n2024-01-01,1,2\n2024-01-02,1,٥\n2024-01-03,1,2\n", layout="wide")
    assert "dtype" not in str(told.value)
