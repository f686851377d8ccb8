"""The hourly copy of Milan that circulates on Kaggle, as it is."""

import numpy as np
import pandas as pd
import pytest

from data_prep.base.errors import InputError
from data_prep.cube import local_time, open_cube
from data_prep.sets import milan

HEADER = "datetime,CellID,countrycode,smsin,smsout,callin,callout,internet"
CELLS = (1, 2, 40)


def write_day(folder, date, cells=CELLS, hours=range(24)):
    """A day with two countries a cell: internet is hour + cell from one, 0.5 from the other."""
    lines = [HEADER]
    for hour in hours:
        for cell in cells:
            lines += [f"{date} {hour:02d}:00:00,{cell},0,,,,,0.5"]
            lines += [f"{date} {hour:02d}:00:00,{cell},39,1.5,0.25,,,{hour + cell}"]
    folder.mkdir(exist_ok=True)
    path = folder / f"sms-call-internet-mi-{date}.csv"
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.fixture
def raw(tmp_path):
    for day in range(1, 8):
        write_day(tmp_path / "raw", f"2013-11-0{day}")
    return tmp_path / "raw"


def prepare(raw, **options):
    with open_cube(milan.prepare(raw, raw.parent / "out.nc", **options)) as ds:
        return ds.load()


def test_a_week_is_summed_over_countries_at_local_hours(raw):
    ds = prepare(raw)
    assert ds.sizes == {"time": 168, "cell": 3}
    assert local_time(ds)[0] == pd.Timestamp("2013-11-01 00:00")
    hours = np.tile(np.arange(24), 7)[:, None]
    np.testing.assert_allclose(ds["internet"], hours + np.array(CELLS) + 0.5)
    np.testing.assert_allclose(ds["sms"], 1.75)
    np.testing.assert_array_equal(ds["call"], 0)
    assert ds.attrs["source_checksums"].count("sha256:") == 7
    assert ds.attrs["title"].endswith("hourly copy")


def test_steps_and_cells_are_chosen_as_for_raw_days(raw):
    ds = prepare(raw, step="2h", cells="2")
    np.testing.assert_allclose(ds["internet"][:2, 0], [0 + 1 + 2 * 2.5, 2 + 3 + 2 * 2.5])
    with pytest.raises(InputError, match="choose step='1h' or a multiple"):
        prepare(raw, step="30min")
    with pytest.raises(InputError, match="no cell '7' among"):
        prepare(raw, cells="7")


def test_missing_days_and_hours_are_nan_if_allowed(raw):
    (raw / "sms-call-internet-mi-2013-11-03.csv").unlink()
    with pytest.raises(InputError, match=r"6 of 7 days .*missing 2013-11-03"):
        prepare(raw)
    write_day(raw, "2013-11-04", hours=range(1, 24))
    with pytest.raises(InputError, match=r"23 of 24 hours \(missing 00:00\)"):
        prepare(raw)
    ds = prepare(raw, allow_gaps=True)
    missing = np.isnan(ds["internet"]).all("cell").values
    np.testing.assert_array_equal(np.flatnonzero(missing), range(48, 73))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (HEADER, HEADER.lower(), ""),
        ("CellID", "Cell", "line 1: .*expected 'datetime,cellid"),
        ("2013-11-01 05:00:00,2,39,", "2013-11-01 05:00:00,2,39", "a line lacks fields"),
        ("2013-11-01 05:00:00,2,39,", "2013-11-02 05:00:00,2,39,", "line 35: is not at a whole"),
        ("2013-11-01 05:00:00,2,39,", "2013-11-01 05:10:00,2,39,", "line 35: is not at a whole"),
        ("2013-11-01 05:00:00,2,39,", "2013-11-01 05:00:00,20000,39,", "not one of the 10000"),
        ("2013-11-01 05:00:00,2,39,", "2013-11-01 05:00:00,2,0,", "line 34: repeats the hour"),
        ("2013-11-01 05:00:00,2,39,", "2013-11-01 05:00:00,,39,", "line 35: lacks its time"),
        ("2013-11-01 05:00:00,2,39,1.5", "2013-11-01 05:00:00,2,39,-1", "line 35: .*negative"),
        ("2013-11-01 05:00:00,2,39,1.5", "2013-11-01 05:00:00,2,39,x", "cannot be read as the"),
        ("2013-11-01 05:00:00,2,39,", "yesterday,2,39,", "cannot be read as the hourly copy"),
    ],
)
def test_a_damaged_file_is_refused(raw, old, new, message):
    path = raw / "sms-call-internet-mi-2013-11-01.csv"
    path.write_text(path.read_text().replace(old, new, 1))
    if not message:
        prepare(raw)
        return
    with pytest.raises(InputError, match=message) as e:
        prepare(raw)
    assert "\n" not in str(e.value)


def test_a_file_cut_between_two_lines_is_refused(raw):
    path = write_day(raw, "2013-11-01", cells=range(1, 40))
    path.write_text("\n".join(path.read_text().splitlines()[:-40]) + "\n")
    with pytest.raises(InputError, match="the file is cut"):
        prepare(raw)


def test_a_name_without_a_day_is_refused(raw):
    (raw / "sms-call-internet-mi-copy.csv").write_text(HEADER)
    with pytest.raises(InputError, match="expected a name like"):
        prepare(raw)
