"""The steps of reading a table: formats, and what the steps say."""

import logging
import zipfile

import pandas as pd
import polars as pl
import pytest

from data_prep.base.errors import InputError
from data_prep.described import of_table
from data_prep.preparation import open_again, preparation_of
from data_prep.readers import open as open_
from data_prep.readers.formats import FORMATS, Format, Part, format_of, names_table, tables_among
from data_prep.readers.formats.json import Json
from data_prep.readers.options import TableOptions
from data_prep.readers.origin import STEPS, collecting_notes
from data_prep.sets.table import read

EXPORT = "Report\n\nZeit;Zelle;Last (GB)\n" + "".join(
    f"0{day}.05.2024 {hour:02}:00;{cell};{hour},5\n"
    for day in (1, 2)
    for hour in range(24)
    for cell in "AB"
)


class Queries(Format):
    """Answers to queries, which are JSON with a field `status`."""

    name, suffixes = "queries", (".json",)

    @classmethod
    def recognises(cls, begin):
        return begin.startswith(b'{"status"')


@pytest.fixture
def export(tmp_path):
    path = tmp_path / "export.csv"
    path.write_text(EXPORT)
    return path


def test_options_are_checked_when_they_are_made():
    with pytest.raises(InputError, match=r"'dot'; .*: auto, comma"):
        TableOptions(decimal="dot")
    with pytest.raises(InputError, match=r"start.*step"):
        TableOptions(start="2024-01-01T00:00")
    with pytest.raises(InputError, match="agg is 'sum'"):
        TableOptions(agg="sum")


def test_a_format_is_found_by_the_end_of_a_name(tmp_path):
    for name, expected in {"a.csv.gz": "csv", "A.XLSX": "excel", "b.feather": "arrow"}.items():
        (tmp_path / name).touch()
        assert format_of(tmp_path / name) is FORMATS[expected]
        assert names_table(name)
    assert not names_table("a.nc")


def test_json_beside_tables_in_a_folder_describes_them(tmp_path):
    (tmp_path / "about.json").touch()
    assert tables_among(sorted(tmp_path.iterdir())) == [tmp_path / "about.json"]
    (tmp_path / "a.csv").touch()
    assert tables_among(sorted(tmp_path.iterdir())) == [tmp_path / "a.csv"]


def test_tables_below_folders_are_found_by_info_as_by_prepare(tmp_path, monkeypatch):
    for day in ("2024-05-01", "2024-05-02"):
        (tmp_path / day).mkdir()
        rows = "".join(f"{day} {hour:02}:00,A,{hour}\n" for hour in range(24))
        (tmp_path / day / "counts.csv").write_text(f"time,cell,count\n{rows}")
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "hook.csv").touch()
    assert of_table(tmp_path).cube.sizes["time"] == read(tmp_path).sizes["time"] == 48
    monkeypatch.setattr(open_, "MOST_BELOW", 3)
    with pytest.raises(InputError, match="3 files below"):
        of_table(tmp_path)


def test_of_two_formats_with_one_suffix_content_decides(tmp_path, monkeypatch):
    found = dict(FORMATS.found())
    found["queries"] = type(found["json"])(Queries, "a test")
    monkeypatch.setattr(FORMATS, "found", lambda: found)
    path = tmp_path / "a.json"
    path.write_text('{"status": "success"}')
    assert format_of(path) is Queries
    path.write_text('[{"a": 1}]')
    assert format_of(path) is Json
    assert format_of(path, b'{"status"') is Queries


def test_a_format_without_parts_of_its_own_has_one(tmp_path):
    path = tmp_path / "a.csv"
    assert Format.parts(path, TableOptions(sheet="B")) == [Part("a.csv", path, sheet="B")]


def test_steps_say_what_they_decided_in_their_order(export, caplog):
    caplog.set_level(logging.INFO)
    with collecting_notes() as notes:
        cube = read(export)
    assert not [r for r in caplog.records if r.name.startswith("data_prep.readers")]
    said = {note.step: note.text for note in notes}
    assert set(said) <= set(STEPS)
    assert "rows" in said["decode"] or "semicolons" in said["decode"]
    assert "first 2 lines" in said["head"] or "line 3" in said["head"]
    assert said["units"] == "units Last (GB): GB; pass --units to convert them"
    assert "48 steps" in said["steps"]
    assert {note.table for note in notes} == {"export.csv"}
    assert cube.equals(read(export))
    assert [r for r in caplog.records if "pass" in r.getMessage()]


def test_steps_up_to_a_refusal_are_known(export):
    with collecting_notes() as notes, pytest.raises(InputError, match="no column 'place'"):
        read(export, cell="place")
    assert [note.step for note in notes][-1] in ("times", "layout")
    assert not any(note.step == "steps" for note in notes)


def test_a_frame_in_memory_is_read_by_the_same_steps():
    hours = pd.date_range("2024-01-01", periods=3, freq="h")
    frame = pd.DataFrame({"time": hours, "station": "a", "v": [1.0, 2.0, 3.0]})
    with collecting_notes() as notes:
        assert read(frame, layout="long")["v"].values.ravel().tolist() == [1.0, 2.0, 3.0]
    assert "decode" not in {note.step for note in notes}
    assert any(note.text == "long: a row for each time and cell, as given" for note in notes)


def write_stations(folder, first_days):
    for name, day in first_days.items():
        hours = pd.date_range(day, periods=24, freq="h", name="time")
        flow = pd.Series(range(24), hours, dtype=float) + len(name)
        table = pd.DataFrame({"Flow (veh/h)": flow, "Speed (km/h)": 90 - flow})
        table.to_csv(folder / f"{name}.csv")


def test_files_without_a_column_of_cells_are_asked_about(tmp_path):
    """A file for each station, of other weeks, is not one series of the same cell."""
    write_stations(tmp_path, {"A4.km1": "2024-05-01", "A4.km2-west": "2024-05-02"})
    with pytest.raises(InputError) as e:
        read(tmp_path)
    assert e.value.names("cell")
    assert e.value.names("layout")
    cube = read(tmp_path, cell="file")
    assert cube["cell"].values.tolist() == ["A4.km1", "A4.km2-west"]
    assert cube["Flow"].sel(cell="A4.km2-west").values[24:].tolist() == [n + 11 for n in range(24)]
    assert cube["Flow"].attrs["units"] == "veh/h"
    assert read(tmp_path, layout="services").sizes == {"time": 48, "cell": 1}
    with zipfile.ZipFile(tmp_path / "all.zip", "w") as packed:
        for path in tmp_path.glob("*.csv"):
            packed.write(path, path.name)
    assert read(tmp_path / "all.zip", cell="file")["Flow"].equals(cube["Flow"])
    later = open_again(tmp_path / "A4.km1.csv", preparation_of(cube))
    assert later["cell"].values.tolist() == ["A4.km1"]


def test_files_of_days_by_their_names_are_one_cell(tmp_path):
    write_stations(tmp_path, {"2024-05-01": "2024-05-01", "2024-05-02": "2024-05-02"})
    assert read(tmp_path).sizes == {"time": 48, "cell": 1}


def test_files_with_the_same_times_may_be_cells(tmp_path):
    write_stations(tmp_path, {"north.east": "2024-05-01", "south": "2024-05-01"})
    for options in ({"layout": "services"}, {"cell": "file"}):
        assert read(tmp_path, **options)["cell"].values.tolist() == ["north.east", "south"]


def test_two_files_of_one_name_are_no_two_cells(tmp_path):
    write_stations(tmp_path, {"a": "2024-05-01"})
    (tmp_path / "a.tsv").write_text((tmp_path / "a.csv").read_text())
    with pytest.raises(InputError, match="'a' names several"):
        read(tmp_path, cell="file")


def test_truths_are_no_values_but_may_describe_cells(tmp_path):
    """Polars cannot compare them with 0; as numbers they would be 1 and 0."""
    hours = pd.date_range("2024-01-01", periods=48, freq="h").repeat(2)
    table = pd.DataFrame({"time": hours, "cell": ["a", "b"] * 48, "v": range(96)})
    for name, truths in {"ok": [True] * 96, "macro": [True, False] * 48}.items():
        table.assign(**{name: truths}).to_csv(tmp_path / f"{name}.csv", index=False)
    assert list(read(tmp_path / "ok.csv").data_vars) == ["v"]
    cube = read(tmp_path / "macro.csv")
    assert list(cube.data_vars) == ["v"]
    assert cube["macro"].values.tolist() == [True, False]


def test_decimal_commas_in_a_format_with_types_are_read(tmp_path):
    hours = [f"2024-01-01T{hour:02}:00" for hour in range(24)]
    table = pl.DataFrame({"time": hours, "cell": "a", "v": [f"{hour},5" for hour in range(24)]})
    table.write_parquet(tmp_path / "a.parquet")
    assert read(tmp_path / "a.parquet")["v"].values.ravel().tolist() == [h + 0.5 for h in range(24)]
