import gzip
import inspect
import json
import logging
import os
import random
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import xarray as xr
from waiting import Killed

from data_prep.base.errors import InputError
from data_prep.cube import local_time, make_cube, open_cube
from data_prep.sets import milan, trentino
from data_prep.sets.telecom_italia import folder as day_store
from data_prep.sets.telecom_italia.cdr import SERVICES

PREFIX = "sms-call-internet-mi-"


def write_day(folder, date, cells=(1, 2), intervals=range(144), prefix=PREFIX, suffix=".txt"):
    """A raw day in which each service has its own number: cell x (1, 2, 3, 4, 5) + interval / 8."""
    start = pd.Timestamp(date, tz="Europe/Rome")
    lines = [
        f"{cell}\t{int(t.timestamp()) * 1000}\t39\t"
        + "\t".join(str(cell * k + i / 8) for k in range(1, 6))
        for cell in cells
        for i in intervals
        for t in [start + i * pd.Timedelta("10min")]
    ]
    path = Path(folder) / f"{prefix}{date}{suffix}"
    path.parent.mkdir(exist_ok=True)
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.fixture
def raw(tmp_path):
    """Two days of two cells."""
    for date in ("2013-11-01", "2013-11-02"):
        write_day(tmp_path / "raw", date)
    return tmp_path / "raw"


@pytest.fixture
def out(tmp_path):
    return tmp_path / "milan.nc"


def prepare(raw, out, **options):
    with open_cube(milan.prepare(raw, out, **options)) as ds:
        return ds.load()


def test_the_cube_is_what_its_docs_say(raw, out):
    ds = prepare(raw, out, step="10min")
    interval = np.tile(np.arange(144), 2)[:, None] / 8
    cell = np.array([[1, 2]])
    services = {s: cell * k + interval for k, s in enumerate(SERVICES, 1)}
    totals = {
        "sms": services["sms_in"] + services["sms_out"],
        "call": services["call_in"] + services["call_out"],
        "net": services["internet"],
    }
    expected = make_cube(
        services | totals,
        pd.date_range("2013-10-31 23:00", periods=288, freq="10min"),
        np.array([1, 2]),
        title="Telecommunication activity in Milan, Telecom Italia, November and December 2013",
        source="doi:10.7910/DVN/EGZHFV",
        license="ODbL-1.0",
        units="1",
        time_zone="Europe/Rome",
        long_names={
            "sms_in": "SMS received",
            "sms_out": "SMS sent",
            "call_in": "calls received",
            "call_out": "calls made",
            "internet": "internet activity",
            "sms": "SMS received and sent",
            "call": "calls received and made",
            "net": "internet activity",
        },
        checksums=json.loads(ds.attrs["source_checksums"]),
    )
    how = {"data_set": "milan", "options": {"allow_gaps": False, "step": "10min"}}
    assert json.loads(ds.attrs.pop("preparation")) == how
    xr.testing.assert_identical(ds, expected)
    assert list(json.loads(ds.attrs["source_checksums"])) == [
        f"{PREFIX}2013-11-01.txt",
        f"{PREFIX}2013-11-02.txt",
    ]


def test_times_are_utc_and_the_wall_clock_is_that_of_the_place(raw, out):
    ds = prepare(raw, out)
    assert ds.indexes["time"][0] == pd.Timestamp("2013-10-31 23:00")
    assert local_time(ds)[0] == pd.Timestamp("2013-11-01 00:00")
    assert local_time(ds)[-1] == pd.Timestamp("2013-11-02 23:00")


@pytest.mark.quick(5)
@pytest.mark.parametrize(
    ("step", "n"), [("10min", 288), ("30min", 96), ("1h", 48), ("8h", 6), ("1D", 2)]
)
def test_steps_sum_their_intervals(raw, out, step, n):
    ds = prepare(raw, out, step=step)
    assert ds.sizes["time"] == n
    assert float(ds["net"].sum()) == 2 * sum(5 * c + i / 8 for c in (1, 2) for i in range(144))
    per_step = 288 // n
    assert float(ds["sms_in"][1, 0]) == sum(1 + i % 144 / 8 for i in range(per_step, 2 * per_step))


def test_the_place_for_the_cube_is_checked_before_any_day_is_read(tmp_path):
    with pytest.raises(InputError, match="is a folder"):
        milan.prepare(tmp_path / "nowhere", tmp_path)


@pytest.mark.parametrize("step", ["5min", "15min", "7h", "2D", "0h", "-1h", "long", "50min", ""])
def test_other_steps_are_refused(raw, out, step):
    with pytest.raises(InputError, match=f"step '{step}' .* 10 min"):
        milan.prepare(raw, out, step=step)


def test_a_cell_that_a_day_does_not_have_is_zero_on_it(raw, out):
    write_day(raw, "2013-11-03", cells=(2, 3))
    ds = prepare(raw, out, step="1D")
    assert ds["cell"].values.tolist() == [1, 2, 3]
    assert (ds["net"] == 0).values.tolist() == [[False, False, True]] * 2 + [[True, False, False]]


def test_new_years_day_is_included(tmp_path, out):
    for date in ("2013-12-31", "2014-01-01"):
        write_day(tmp_path / "raw", date)
    assert local_time(prepare(tmp_path / "raw", out))[-1] == pd.Timestamp("2014-01-01 23:00")


def test_a_single_file_is_enough(raw, out):
    assert prepare(raw / f"{PREFIX}2013-11-02.txt", out).sizes["time"] == 24


@pytest.mark.repeats
def test_packed_days_equal_plain_ones(raw, out):
    plain = prepare(raw, out)
    path = raw / f"{PREFIX}2013-11-02.txt"
    path.with_name(f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes()))
    path.unlink()
    xr.testing.assert_equal(prepare(raw, out), plain)


def test_only_the_cells_asked_for(raw, out):
    write_day(raw, "2013-11-03", cells=(2, 3, 7))
    everything = prepare(raw, out)
    some = prepare(raw, out, cells="7,1-2")
    xr.testing.assert_equal(some, everything.sel(cell=[1, 2, 7]))
    xr.testing.assert_equal(prepare(raw, out, cells="not:3-5"), some)
    with pytest.raises(InputError, match=r"milan.*cell '4'.* 4"):
        milan.prepare(raw, out, cells="3,4")
    with pytest.raises(InputError, match=r"milan.*cell '10001'.* 10000"):
        milan.prepare(raw, out, cells="1,10001")


@pytest.mark.repeats
def test_a_sample_is_drawn_from_the_ids_of_all_days(raw, out):
    write_day(raw, "2013-11-03", cells=range(3, 9))
    expected = sorted(random.Random(4).sample(range(1, 9), 3))
    assert prepare(raw, out, sample=3, seed=4)["cell"].values.tolist() == expected


def square(cell):
    ring = [[cell, 45], [cell + 1, 45], [cell + 1, 46], [cell, 46], [cell, 45]]
    return {
        "properties": {"cellId": cell},
        "geometry": {"type": "Polygon", "coordinates": [ring]},
    }


@pytest.fixture
def grid(tmp_path):
    path = tmp_path / "grid.geojson"
    path.write_text(json.dumps({"features": [square(cell) for cell in range(1, 6)]}))
    return path


def test_the_grid_gives_places_and_a_sample_of_all_its_cells(raw, out, grid):
    ds = prepare(raw, out, grid=grid)
    assert ds["lon"].values.tolist() == [1.5, 2.5]
    assert ds["lat"].values.tolist() == [45.5, 45.5]
    assert "grid.geojson" in json.loads(ds.attrs["source_checksums"])
    everywhere = prepare(raw, out, grid=grid, sample=5)
    assert everywhere["cell"].values.tolist() == [1, 2, 3, 4, 5]
    assert (everywhere["net"][:, 2:] == 0).all()


def test_cells_outside_the_grid_are_refused(raw, out, grid):
    path = write_day(raw, "2013-11-03", cells=(1, 2, 9))
    with pytest.raises(InputError, match=rf"{path}: line 289: .* 9 .* 5 "):
        milan.prepare(raw, out, grid=grid)


def test_a_missing_day_is_refused_or_nan(raw, out, caplog):
    write_day(raw, "2013-11-05")
    reason = r"milan: 3 of 5 days from 2013-11-01 to 2013-11-05 \(missing 2013-11-03, 2013-11-04\)"
    with pytest.raises(InputError, match=f"{reason}; .* allow_gaps=True"):
        milan.prepare(raw, out)
    with caplog.at_level(logging.WARNING):
        ds = prepare(raw, out, step="1D", allow_gaps=True)
    assert ds["net"].isnull().values.tolist() == [[n, n] for n in (False, False, True, True, False)]
    assert "left as NaN" in caplog.text


def test_a_step_that_does_not_divide_a_missing_short_day_is_refused(tmp_path, out):
    write_day(tmp_path / "raw", "2014-03-29")
    path = write_day(tmp_path / "raw", "2014-03-31")
    reason = f"{path}: the days before 2014-03-31 do not make whole steps of 0 days 02:00:00"
    with pytest.raises(InputError, match=reason):
        milan.prepare(tmp_path / "raw", out, step="2h", allow_gaps=True)
    assert prepare(tmp_path / "raw", out, allow_gaps=True).sizes["time"] == 24 + 23 + 24


def test_a_missing_interval_is_refused_or_nan_for_all_cells(raw, out, caplog):
    intervals = [i for i in range(144) if i != 104]
    write_day(raw, "2013-11-02", intervals=intervals)
    write_day(raw, "2013-11-03", cells=(1, 2, 3))
    reason = r"milan: 2013-11-02 has 143 of 144 intervals \(missing 17:20 local\) in .*11-02.txt; "
    with pytest.raises(InputError, match=f"{reason}.* allow_gaps=True"):
        milan.prepare(raw, out)
    with caplog.at_level(logging.WARNING):
        ds = prepare(raw, out, allow_gaps=True)
    missing = ds["net"].isnull().values
    assert np.flatnonzero(missing.all(axis=1)).tolist() == [24 + 17]
    assert missing.sum() == 3
    assert "143 of 144 intervals (missing 17:20" in caplog.text


def test_an_interval_of_some_cells_counts_as_recorded(raw, out):
    path = write_day(raw, "2013-11-02", cells=(1,))
    one_row = write_day(out.parent / "other", "2013-11-02", cells=(2,), intervals=[0])
    path.write_text(path.read_text() + one_row.read_text())
    ds = prepare(raw, out, step="10min")
    assert not ds["net"].isnull().any()
    assert float(ds["net"][144 + 1, 1]) == 0


def test_a_file_cut_between_two_lines_is_refused(tmp_path, out):
    write_day(tmp_path / "raw", "2013-11-01", cells=range(1, 41))
    write_day(tmp_path / "raw", "2013-11-02", cells=range(1, 30))
    reason = "11-02.txt: found no cell after 29, other days have 11 up to 40: the file is cut"
    with pytest.raises(InputError, match=reason):
        milan.prepare(tmp_path / "raw", out)


def test_a_renamed_day_is_refused(raw, out):
    shutil.copy(raw / f"{PREFIX}2013-11-01.txt", raw / f"{PREFIX}2013-11-03.txt")
    with pytest.raises(InputError, match=r"11-03\.txt: line 1: .* 2013-11-01 00:00 local"):
        milan.prepare(raw, out)


@pytest.mark.parametrize(
    "name",
    ["2013-11-01 (1).txt", "2013-11-03.txt.part", "2013-13-01.txt", "2013-11-03.csv", "x.txt"],
)
def test_a_name_that_does_not_tell_its_day_is_refused(raw, out, name):
    (raw / f"{PREFIX}{name}").write_text("1\t2\n")
    with pytest.raises(InputError) as e:
        milan.prepare(raw, out)
    assert f"{PREFIX}{name}: expected a name like {PREFIX}2013-11-01.txt; rename it" in str(e.value)


def test_two_files_of_one_day_are_refused(raw, out):
    path = raw / f"{PREFIX}2013-11-02.txt"
    path.with_name(f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes()))
    with pytest.raises(InputError, match=r"11-02\.txt .* 2013-11-02"):
        milan.prepare(raw, out)


def test_other_files_of_the_folder_are_left_alone(raw, out):
    write_day(raw, "2013-11-05", prefix="sms-call-internet-tn-")
    (raw / "README.txt").write_text("hello")
    assert prepare(raw, out).sizes["time"] == 48


def test_no_folder_and_no_files_are_refused(tmp_path, out):
    with pytest.raises(InputError, match="nowhere: no"):
        milan.prepare(tmp_path / "nowhere", out)
    with pytest.raises(InputError, match=f"found nothing, .* {PREFIX}YYYY"):
        milan.prepare(tmp_path, out)
    write_day(tmp_path / "raw", "2013-11-01", prefix="sms-call-internet-tn-")
    with pytest.raises(InputError, match="found sms-call-internet-tn-"):
        milan.prepare(tmp_path / "raw", out)


@pytest.fixture
def reads(monkeypatch):
    """Names of the raw files read; a run is killed when it reads more than `reads.limit`."""

    class Reads(list):
        limit = 99

    reads = Reads()
    read_day = day_store.read_day

    def counting(day, per_step):
        if len(reads) == reads.limit:
            raise Killed
        reads.append(day.date.day)
        return read_day(day, per_step)

    monkeypatch.setattr(day_store, "read_day", counting)
    return reads


def test_a_killed_run_goes_on_where_it_stopped(raw, out, reads):
    write_day(raw, "2013-11-03")
    reads.limit = 2
    with pytest.raises(Killed):
        milan.prepare(raw, out)
    assert not out.exists()
    reads.limit = 99
    resumed = prepare(raw, out)
    assert reads == [1, 2, 3]
    xr.testing.assert_identical(resumed, prepare(raw, out.with_name("again.nc")))
    assert sorted(p.name for p in out.parent.iterdir()) == ["again.nc", "milan.nc", "raw"]


def test_another_step_or_a_changed_file_is_read_anew(raw, out, reads):
    reads.limit = 1
    for options in ({}, {"step": "30min"}):
        with pytest.raises(Killed):
            milan.prepare(raw, out, **options)
        reads.limit += 1
    write_day(raw, "2013-11-01", cells=(1, 2, 3))
    reads.limit = 99
    assert prepare(raw, out).sizes["cell"] == 3
    assert reads == [1, 1, 1, 2]


@pytest.mark.quick(2)
@pytest.mark.parametrize("packed", [False, True])
def test_a_file_changed_in_all_but_size_and_time_is_read_anew(raw, out, reads, packed):
    path = raw / f"{PREFIX}2013-11-01.txt"
    if packed:
        path = path.rename(path.with_name(f"{path.name}.gz"))
    pack = (lambda text: gzip.compress(text, mtime=0, compresslevel=0)) if packed else bytes
    text = path.read_bytes()
    path.write_bytes(pack(text))
    before = path.stat()
    reads.limit = 1
    with pytest.raises(Killed):
        milan.prepare(raw, out)
    cell, start, country, *rest = text.split(b"\n")[0].split(b"\t")
    other = b"\t".join([cell, start, country, *rest[:-1], b"9" * len(rest[-1])])
    path.write_bytes(pack(other + text[len(other) :]))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert path.stat().st_size == before.st_size
    reads.limit = 99
    resumed = prepare(raw, out)
    assert reads == [1, 1, 2]
    assert resumed.identical(prepare(raw, out.with_name("again.nc")))


def test_a_file_that_was_only_touched_is_not_read_again(raw, out, reads):
    reads.limit = 1
    with pytest.raises(Killed):
        milan.prepare(raw, out)
    os.utime(raw / f"{PREFIX}2013-11-01.txt")
    reads.limit = 99
    prepare(raw, out)
    assert reads == [1, 2]


def test_a_damaged_store_is_read_anew(raw, out, reads):
    reads.limit = 1
    with pytest.raises(Killed):
        milan.prepare(raw, out)
    (stored,) = (out.parent / ".milan.nc.days").iterdir()
    stored.write_bytes(stored.read_bytes()[:100])
    reads.limit = 99
    prepare(raw, out)
    assert reads == [1, 1, 2]


def test_progress_is_shown_only_if_asked_for(raw, out, capsys):
    milan.prepare(raw, out)
    assert capsys.readouterr() == ("", "")
    milan.prepare(raw, out, progress=True)
    assert "2/2" in capsys.readouterr().err


@pytest.mark.parametrize("module", [milan, trentino])
def test_the_command_line_can_be_made_from_the_function(module):
    signature = inspect.signature(module.prepare, eval_str=True)
    options = [p for p in signature.parameters.values() if p.kind is p.KEYWORD_ONLY]
    assert [p.name for p in signature.parameters.values() if p.kind is not p.KEYWORD_ONLY] == [
        "raw",
        "out",
    ]
    args = inspect.getdoc(module.prepare).partition("Args:")[2].partition("Returns:")[0]
    for option in options:
        assert f"\n    {option.name}: " in args
        assert option.default is not inspect.Parameter.empty


def test_trentino_takes_its_own_files_and_ids_with_holes(raw, out):
    for date in ("2013-11-01", "2013-11-02"):
        write_day(raw, date, cells=(38, 11_454), prefix="sms-call-internet-tn-")
    with open_cube(trentino.prepare(raw, out)) as ds:
        assert ds["cell"].values.tolist() == [38, 11_454]
        assert ds.attrs["source"] == "doi:10.7910/DVN/QLCABU"


def independent_reader(folder):
    """The real files with pandas: `(time, cell)` internet, times in UTC."""
    names = ["cell", "t", "country", *SERVICES]
    frames = [
        pd.read_csv(p, sep="\t", header=None, names=names) for p in sorted(folder.glob("*.txt"))
    ]
    frame = pd.concat(frames)
    time = pd.to_datetime(frame["t"], unit="ms")
    return frame.assign(time=time).pivot(index="time", columns="cell", values="internet")


@pytest.mark.repeats
def test_real_days_at_ten_minutes(traffic_dir, out):
    raw = traffic_dir / "milan-25cells-raw"
    ds = prepare(raw, out, step="10min", grid=traffic_dir / "milano-grid.geojson.gz")
    net = ds["net"].values
    assert net.shape == (4320, 25)
    assert (net.min(), net.mean(), net.max()) == pytest.approx((10.54, 202.33, 3136.28), abs=0.005)
    expected = independent_reader(raw)
    np.testing.assert_allclose(net, expected.to_numpy(), rtol=1e-12)
    assert (ds["time"].values == expected.index.to_numpy()).all()
    assert (ds["cell"].values == expected.columns).all()
    assert (ds[["sms", "call"]].to_array() == 0).all()
    assert float(ds["lat"].sel(cell=4142)) < float(ds["lat"].sel(cell=4542))


def test_real_days_at_one_hour(traffic_dir, out):
    raw = traffic_dir / "milan-25cells-raw"
    net = prepare(raw, out)["net"].values
    expected = independent_reader(raw).resample("1h").sum()
    assert net.shape == (720, 25)
    np.testing.assert_allclose(net, expected.to_numpy(), rtol=1e-14)
    # The night minimum lies at 04 h local time, which is 03 h UTC in winter.
    assert net.mean(axis=1).reshape(30, 24).mean(axis=0).argmin() == 4


@pytest.mark.parametrize(
    ("fields", "service"), [("1e308\t1e308\t\t\t", "sms"), ("1e308\t\t\t\t", "sms_in")]
)
def test_finite_activity_of_an_infinite_sum_is_refused(raw, out, fields, service, recwarn):
    path = raw / f"{PREFIX}2013-11-01.txt"
    lines = path.read_text().splitlines()
    cell, start, *_ = lines[0].split("\t")
    rows = [f"{cell}\t{start}\t{country}\t{fields}" for country in (997, 998)]
    path.write_text("\n".join([*rows, *lines]) + "\n")
    with pytest.raises(InputError, match=rf": {service}(_in)? .*inf .*, cell {cell}, "):
        milan.prepare(raw, out)
    assert not recwarn
