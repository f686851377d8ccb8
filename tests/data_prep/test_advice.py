"""What the reader advises is right when it is obeyed, and what it does not know it asks."""

import json

import numpy as np
import pandas as pd
import pytest
import xarray as xr
from mentions import mentions

from data_prep.base.errors import InputError
from data_prep.preparation import open_again, preparation_of
from data_prep.sets.table import read

HOURS = pd.date_range("2024-05-10", periods=72, freq="h")


def save(path, columns):
    path.parent.mkdir(exist_ok=True)
    pd.DataFrame(columns).to_csv(path, index=False)
    return path


def question(path, **options):
    """Return what the reader asks, with options as one types them."""
    with pytest.raises(InputError) as refused:
        read(path, **options)
    return refused.value.typed


def test_ids_that_differ_at_each_time_are_cells(tmp_path):
    """As detectors of a city, of which many rows are missing."""
    rng = np.random.default_rng(1)
    rows = [(t, 100101010000167 + 101 * i, 10 * i + t.hour, 60) for i in range(30) for t in HOURS]
    rows = [row for row in rows if rng.random() < 0.6]
    table = pd.DataFrame(rows, columns=["time", "det_15", "q_kfz", "v_kfz"])
    ds = read(save(tmp_path / "a.csv", table), allow_gaps=True)
    assert ds.sizes["cell"] == 30
    assert np.nanmax(ds["q_kfz"].values[0]) % 10 == 0
    table["det_15"] = rng.integers(0, 9, len(table))
    asked = question(save(tmp_path / "a.csv", table), layout="services")
    assert "--duplicates" not in asked
    assert "pass --cell det_15" in asked


@pytest.mark.parametrize("mark", ["", "NULL", "-", "."])
def test_the_first_record_may_have_no_value(tmp_path, mark):
    table = pd.DataFrame({"time": HOURS.repeat(2), "cell": ["Milano", "Lodi"] * 72, "v": "7"})
    table.loc[0, "v"] = mark
    ds = read(save(tmp_path / "a.csv", table))
    assert ds.sizes == {"time": 72, "cell": 2}
    assert int(ds["v"].isnull().sum()) == 1


@pytest.mark.parametrize("freq", ["MS", "ME", "YS"])
def test_months_and_years_are_refused_for_good(tmp_path, freq):
    times = pd.date_range("2010-01-31", periods=20, freq=freq)
    asked = question(save(tmp_path / "a.csv", {"time": times, "cell": "a", "v": range(20)}))
    assert "give records of days or weeks" in asked
    assert "--" not in asked


@pytest.mark.parametrize(
    "columns",
    [
        {"Month": ["2024-01", "2024-02", "2024-03"]},
        {"Monat": ["Jan 2024", "Feb 2024", "Mrz 2024"]},
        {"Year": [2024] * 3, "Month": ["January", "February", "March"]},
    ],
)
def test_months_without_days_are_refused_for_good(tmp_path, columns):
    asked = question(save(tmp_path / "a.csv", {**columns, "A4 km12": [5, 6, 8], "A4 km20": 3}))
    assert "give records of days or weeks" in asked
    assert "--" not in asked


def test_a_step_has_a_unit(tmp_path):
    path = save(tmp_path / "a.csv", {"a": [1.5, 2, 3]})
    assert "step is '15'" in question(path, start="2024-05-10", step="15")


def week(path, first="2024-05-10", **columns):
    """Save a table of a week of hours, of which each column is a function of the hour."""
    times = pd.date_range(first, periods=168, freq="h")
    hour = np.arange(168)
    values = {
        name: column(hour) if callable(column) else column for name, column in columns.items()
    }
    return save(path, {"time": times, **values})


def test_stations_in_files_are_asked_for(tmp_path):
    for i, first in enumerate(["2024-05-10", "2024-05-17"]):
        week(
            tmp_path / "weeks" / f"road{'AB'[i]}.csv",
            first,
            flow=lambda h, i=i: h % 24 + i,
            speed=50,
        )
        week(
            tmp_path / "two" / f"{'AB'[i]}.csv", flow=lambda h, i=i: h % 24 + i, height=lambda h: h
        )
        week(
            tmp_path / "1" / f"{i}.csv",
            **{"Number": lambda h: h + 1, "Ch 1": lambda h, i=i: h % 7 + i},
        )
    for name in ("weeks", "two"):
        asked = question(tmp_path / name)
        assert "pass --cell file if each" in asked
        assert "--duplicates" not in asked
        assert read(tmp_path / name, cell="file", allow_gaps=True).sizes["cell"] == 2
    read(tmp_path / "weeks", layout="services", allow_gaps=True)
    ds = read(tmp_path / "1", cell="file")
    assert list(ds.data_vars) == ["Ch 1"]
    assert ds["Ch 1"].values[0].tolist() == [0, 1]


def test_files_of_a_cell_are_named_by_a_pattern(tmp_path):
    for cell in "AB":
        for day in (10, 11):
            times = pd.date_range(f"2024-05-{day}", periods=24, freq="h")
            save(tmp_path / "all" / f"{cell}_{day}.csv", {"time": times, "flow": 1.0, "speed": 2.5})
    ds = read(tmp_path / "all", cell="file:(.+)_")
    assert ds.sizes == {"time": 48, "cell": 2}
    assert preparation_of(ds)["options"]["cell"] == "file:(.+)_"
    again = open_again(tmp_path / "all", preparation_of(ds))
    xr.testing.assert_identical(again["flow"], ds["flow"])
    assert "nothing like 'C(.)'" in question(tmp_path / "all", cell="file:C(.)")
    assert "give a valid pattern" in question(tmp_path / "all", cell="file:(")


@pytest.mark.parametrize("dates", [("2024-05-10", "10.05.24"), ("2023-05-10", "2024-12")])
def test_dates_in_names_of_files_agree_with_their_content(tmp_path, dates):
    for date, day in zip(dates, (10, 11), strict=True):
        times = pd.date_range(f"2024-05-{day}", periods=24, freq="h")
        save(tmp_path / "all" / f"flow_{date}.csv", {"time": times, "flow": 1.0, "speed": 2.5})
    if dates[0].startswith("2024"):
        assert read(tmp_path / "all").sizes == {"time": 48, "cell": 1}
    else:
        assert "--cell file" in question(tmp_path / "all")


def test_exports_that_overlap_are_joined_where_they_agree(tmp_path):
    table = pd.DataFrame(
        {"time": HOURS.repeat(2), "cell": ["a", "b"] * 72, "v": np.arange(144) % 7}
    )
    save(tmp_path / "all" / "export_1.csv", table[:120])
    save(tmp_path / "all" / "export_2.csv", table)
    ds = read(tmp_path / "all")
    assert list(ds.data_vars) == ["v"]
    assert ds["v"].values.ravel().tolist() == table["v"].tolist()
    table.loc[3, "v"] = 99
    save(tmp_path / "all" / "export_2.csv", table)
    assert "other values in 1 of 120 rows" in question(tmp_path / "all")
    save(tmp_path / "all" / "export_2.csv", table.assign(v=table["v"] + 1))
    assert "pass --cell cell,file if each table is a cell, --layout long" in question(
        tmp_path / "all"
    )
    assert list(read(tmp_path / "all", layout="long").data_vars) == ["export_1", "export_2"]
    assert read(tmp_path / "all", cell="cell,file", allow_gaps=True).sizes["cell"] == 4


def test_rows_without_times_are_counted_only_if_their_order_is_known(tmp_path):
    numbers = np.random.default_rng(1).integers(0, 99, (50, 3))
    (tmp_path / "n.csv").write_text("\n".join(",".join(map(str, row)) for row in numbers) + "\n")
    counted = {"start": "2024-05-10", "step": "15min"}
    assert "pass --no-header if they are values, --layout wide" in question(
        tmp_path / "n.csv", **counted
    )
    assert (
        read(tmp_path / "n.csv", no_header=True, **counted)["value"].values.tolist()
        == numbers.tolist()
    )
    hours = ";".join(f"{hour}:00" for hour in range(24))
    rows = [f"MQ_{c};" + ";".join(str(100 * c + hour) for hour in range(24)) for c in (1, 2)]
    (tmp_path / "day.csv").write_text("\n".join([f"Name;{hours}", *rows, ""]))
    assert "--step 1h --cell Name" in question(tmp_path / "day.csv")
    counted = {"start": "2024-05-10", "step": "1h"}
    assert "pass --cell Name if" in question(tmp_path / "day.csv", **counted)
    ds = read(tmp_path / "day.csv", cell="Name", **counted)
    assert ds["value"].values.tolist() == [[100 + hour, 200 + hour] for hour in range(24)]


def test_events_are_counted_and_their_codes_not_added_up(tmp_path):
    rng = np.random.default_rng(2)
    times = pd.Timestamp("2024-05-10") + pd.to_timedelta(rng.integers(1, 9e6, 5000).cumsum(), "us")
    codes = {"EventId": rng.integers(81, 84, 5000), "Parameter": rng.integers(1, 30, 5000)}
    asked = question(save(tmp_path / "a.csv", {"time": times, "DeviceId": 7, **codes}))
    assert "count them with --resample 1h --agg count" in asked
    assert "total" not in asked
    assert "mean" not in asked


@pytest.mark.parametrize("small", [1e-3, 1.0])
def test_quantities_of_a_cell_are_not_cells(tmp_path, small):
    names = [
        f"q{name}" for name in ("red", "blue", "cyan", "pink", "black", "white", "gray", "tan")
    ]
    sizes = np.geomspace(small, 1e5, 8)
    columns = {n: (np.arange(168) + 1.5) * size for n, size in zip(names, sizes, strict=True)}
    path = week(tmp_path / "a.csv", **columns)
    if small < 1:
        assert "of sizes too different for cells" in question(path)
    else:
        assert read(path).sizes["cell"] == 8


def test_times_of_messages_and_of_their_content_are_asked_for(tmp_path):
    messages = []
    for i, time in enumerate(HOURS):
        broker = {"timestamp": int(time.timestamp() * 1000) + 7, "offset": i}
        messages.append({**broker, "value": {"ts": f"{time}Z", "load": i % 7}})
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, messages)))
    assert "choose one: --time timestamp or --time value.ts" in question(tmp_path / "a.jsonl")
    ds = read(tmp_path / "a.jsonl", time="value.ts")
    assert list(ds.data_vars) == ["value"]
    assert ds["value"].values.ravel().tolist() == [i % 7 for i in range(72)]


@pytest.mark.parametrize(
    ("flag", "good", "bad"),
    [
        ("Reliability", "Reliable", "Unreliable"), ("suspect", "false", "true"), ("valid", 1, 0),
        ("flow-status", "ok", "Error"), ("speed status", "ok", "Error"), ("% Observed", 100, 75),
    ],
)  # fmt: skip
def test_a_flag_that_spoils_a_value_makes_it_missing(tmp_path, caplog, flag, good, bad):
    flags = [good] * 168
    flags[5] = flags[9] = bad
    path = week(tmp_path / "a.csv", flow=lambda h: h % 24, speed=50.5, **{flag: flags})
    ds = read(path)
    assert set(ds.data_vars) == {"flow", "speed"}
    spoilt = np.flatnonzero(ds["flow"].isnull()).tolist()
    assert spoilt == ([] if flag == "speed status" else [5, 9])
    assert mentions(caplog.text, f"{(2 if 'status' in flag else 4)} values", f"by {flag!r}")
    if flag == "% Observed":
        assert not read(path, values=f"flow,{flag}", layout="services")["flow"].isnull().any()


def test_a_speed_of_minus_one_is_none(tmp_path, caplog):
    columns = {"flow": lambda h: h % 24, "speed": lambda h: np.where(h % 24, 50.5, -1)}
    ds = read(week(tmp_path / "a.csv", **columns))
    assert int(ds["speed"].isnull().sum()) == 7
    assert mentions(caplog.text, "7 values", "speeds", "-1")


@pytest.mark.parametrize("name", ["Both", "Total"])
def test_the_sum_of_cells_is_found_whatever_its_name(tmp_path, caplog, name):
    rng = np.random.default_rng(4)
    cells = {cell: rng.integers(0, 90, 168) for cell in ("North", "South", "East")}
    cells[name] = cells["North"] + cells["South"] + (cells["East"] if name == "Total" else 0)
    table = pd.DataFrame(cells, pd.date_range("2024-05-10", periods=168, freq="h"))
    table = table.stack().rename_axis(["time", "cell"]).rename("flow").reset_index()
    ds = read(save(tmp_path / "a.csv", table))
    assert ds.sizes["cell"] == (3 if name == "Total" else 4)
    text = "the sum of North, South, and kept; leave it out with cells='not:Both'"
    assert ("cell Total is left out" if name == "Total" else text) in caplog.text
    caplog.clear()
    read(save(tmp_path / "a.csv", table[table["cell"] != name]))
    assert "sum of" not in caplog.text


def test_tables_in_folders_of_a_folder_are_named_by_these(tmp_path):
    for cell in "AB":
        (tmp_path / "all").mkdir(exist_ok=True)
        for day in (10, 11):
            times = pd.date_range(f"2024-05-{day}", periods=24, freq="h")
            table = {"time": times, "flow": np.arange(24) + ord(cell), "speed": 2.5}
            save(tmp_path / "all" / cell / f"2024-05-{day}.csv", table)
    ds = read(tmp_path / "all", cell="file:^([^/]+)/")
    assert ds.sizes == {"time": 48, "cell": 2}
    assert "--cell 'file:^([^/]+)/'" in question(tmp_path / "all")
