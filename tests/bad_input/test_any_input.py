"""Property tests: whatever the bytes, a parser reads them right or raises `InputError`.

Never another exception, and what a writer wrote is read back equal.
"""

import datetime
import io
import json
import tomllib

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from data_prep.base.errors import InputError
from data_prep.base.files import checksum
from data_prep.cube import make_cube, open_cube, write_cube
from data_prep.readers.cells import keep_cells
from data_prep.readers.npz import read_npz
from data_prep.sets.fedda_h5 import prepare as prepare_fedda
from data_prep.sets.fedda_h5 import write as write_fedda
from data_prep.sets.table import prepare as prepare_table
from data_prep.sets.telecom_italia.cdr import SERVICES, read_day
from data_prep.sets.telecom_italia.cells import read_grid
from data_prep.sets.telecom_italia.raw_day import RawDay
from stforecast.bench.grid import load_grid
from stforecast.forecasting.config import resolve, sections
from stforecast.forecasting.forecaster import Forecaster

pytestmark = pytest.mark.attack("absurd input")

START = 1383260400000
DATE = datetime.date(2013, 11, 1)
CELLS = np.arange(1, 10)
NAN = np.nan

few = settings(
    max_examples=40,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
many = settings(few, max_examples=3000)


def read_or_refuse(read, *args, **options):
    """What `read` gives, or None if it raises `InputError`, which must be one short line."""
    try:
        return read(*args, **options)
    except InputError as e:
        message = str(e)
    assert "\n" not in message
    assert len(message) < 2000
    return None


number = st.sampled_from(
    ["", "0", "1", "1.5", "-1", "+1", "1e-5", "1e999", "nan", "inf", "x", " 1", "1 ", ".5", "٣"]
) | st.floats(0, 1e9).map(repr)
raw_line = st.one_of(
    st.tuples(
        st.integers(-1, 11).map(str) | number,
        st.integers(-1, 145).map(lambda i: str(START + 600_000 * i)) | number,
        st.sampled_from(["39", "0", "-1", "", "2147483648"]) | number,
        *[number] * 5,
    ).map(lambda fields: "\t".join(fields).encode()),
    st.binary(max_size=60),
)
raw_day = st.lists(raw_line, max_size=6).map(b"\n".join) | st.binary(max_size=400)


def sums_by_hand(text):
    """The sums of a good raw day, line by line in plain Python: `{(cell, interval): [5 sums]}`."""
    sums = {}
    for line in text.decode().splitlines():
        cell, time, _, *activity = line.split("\t")
        key = int(cell), (int(time) - START) // 600_000
        old = sums.setdefault(key, [0.0] * 5)
        sums[key] = [a + float(b or 0) for a, b in zip(old, activity, strict=True)]
    return sums


def check_raw_day(tmp_path, text):
    path = tmp_path / "day.txt"
    path.write_bytes(text)
    found = read_or_refuse(read_day, RawDay(path, DATE, CELLS))
    if found is None:
        return
    expected = sums_by_hand(text)
    assert {int(c) for c in found.cells} == {cell for cell, _ in expected}
    for (cell, interval), values in expected.items():
        got = found.values[:, interval, list(found.cells).index(cell)]
        np.testing.assert_allclose(got, values, rtol=1e-12)
    assert np.nansum(found.values) == pytest.approx(sum(map(sum, expected.values())))


@few
@given(text=raw_day)
@example(text=b"1\t1383260400000\t39\t1\t2\t3\t4\t5\n")
@example(text=b"1\t1383260400000\t39\t1\t2\t3\t4\t5\r\n")
def test_any_raw_day(tmp_path, text):
    check_raw_day(tmp_path, text)


@pytest.mark.slow
@many
@given(text=raw_day)
def test_any_raw_day_many_times(tmp_path, text):
    check_raw_day(tmp_path, text)


activity = st.none() | st.floats(0, 1e12, allow_nan=False)
rows = st.dictionaries(
    st.tuples(st.integers(1, 9), st.integers(0, 143), st.integers(0, 2**31 - 1)),
    st.tuples(*[activity] * 5),
    min_size=1,
    max_size=12,
)


@few
@given(rows=rows)
def test_a_raw_day_that_is_written_is_read_equal(tmp_path, rows):
    path = tmp_path / "day.txt"
    fields = [
        [c, START + 600_000 * i, k, *("" if v is None else repr(v) for v in values)]
        for (c, i, k), values in rows.items()
    ]
    path.write_text("".join("\t".join(map(str, row)) + "\n" for row in fields))
    found = read_day(RawDay(path, DATE, CELLS))
    expected = np.zeros((len(SERVICES), 144, 10))
    for (cell, interval, _), values in rows.items():
        expected[:, interval, cell] += [v or 0.0 for v in values]
    recorded = sorted({interval for _, interval, _ in rows})
    np.testing.assert_allclose(
        found.values[:, recorded], expected[:, recorded][:, :, found.cells], rtol=1e-12
    )


csv_field = st.sampled_from(
    ["", "1", "2.5", "-3", "nan", "inf", "x", '"a', "2024-01-01", "2024-01-02T00:00Z",
     "2024-01-01T01:00", "0001-01-01", "1700000000", "1e400", "7" * 30, "é", "\x00"]
)  # fmt: skip
csv_text = st.tuples(
    st.sampled_from(["time,cell,v", "time;cell;v", "time,1,2", ",1,2", "time,time,v", "time", ""]),
    st.lists(st.lists(csv_field, min_size=1, max_size=4), max_size=6),
    st.sampled_from(",;\t"),
).map(lambda t: "\n".join([t[0], *(t[2].join(row) for row in t[1])]).encode())


def check_table(tmp_path, data, name, **options):
    raw, out = tmp_path / name, tmp_path / "out.nc"
    out.unlink(missing_ok=True)
    raw.write_bytes(data)
    if read_or_refuse(prepare_table, raw, out, **options) is None:
        assert not out.exists()
    else:
        open_cube(out).close()


@few
@given(data=csv_text | st.binary(max_size=200), gaps=st.booleans())
@example(data=b"datetime,cellid", gaps=False)
@example(data=b'time,cell,v\n"2024-01-01\n', gaps=False)
@example(data=b"time,cell,v\n,," + b"7" * 30, gaps=False)
@example(data=b"time,1,2\n,,1\n,,1", gaps=False)
def test_any_csv(tmp_path, data, gaps):
    check_table(tmp_path, data, "t.csv", allow_gaps=gaps)


@pytest.mark.slow
@many
@given(data=csv_text | st.binary(max_size=200), gaps=st.booleans())
@example(data=b"datetime,cellid", gaps=False)
def test_any_csv_many_times(tmp_path, data, gaps):
    check_table(tmp_path, data, "t.csv", allow_gaps=gaps)


def damaged(data, spoils):
    """Bytes with some of them changed, or cut."""
    found = bytearray(data)
    for place, byte in spoils:
        found[place % len(found)] = byte
    return bytes(found)


spoils = st.lists(st.tuples(st.integers(0, 2**20), st.integers(0, 255)), min_size=1, max_size=8)


@settings(few, max_examples=8)
@given(spoils=spoils)
def test_a_spoilt_parquet_file(tmp_path, sound, spoils):
    check_table(tmp_path, damaged((sound / "long.parquet").read_bytes(), spoils), "t.parquet")


@few
@given(spoils=spoils)
def test_a_spoilt_npz_file(tmp_path, sound, spoils):
    path = tmp_path / "a.npz"
    path.write_bytes(damaged((sound / "metr-la-adjacency.npz").read_bytes(), spoils))
    read_or_refuse(read_npz, path, ["sensor_id", "adjacency"])


@few
@given(spoils=spoils)
def test_a_spoilt_state_of_a_model(tmp_path, sound, spoils):
    for name in ("forecaster.json", "state.safetensors"):
        data = (sound / "run-ridge" / "model" / name).read_bytes()
        (tmp_path / name).write_bytes(damaged(data, spoils) if name.endswith("s") else data)
    about = json.loads((tmp_path / "forecaster.json").read_text())
    about["state"] = checksum(tmp_path / "state.safetensors")  # Who spoilt it mended that, too.
    (tmp_path / "forecaster.json").write_text(json.dumps(about))
    read_or_refuse(Forecaster.load, tmp_path, "cpu")


json_value = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=5,
)


@settings(few, max_examples=8)
@given(key=st.integers(0, 8), value=json_value)
def test_a_spoilt_description_of_a_model(tmp_path, sound, key, value):
    model = sound / "run-ridge" / "model"
    (tmp_path / "state.safetensors").write_bytes((model / "state.safetensors").read_bytes())
    about = json.loads((model / "forecaster.json").read_text())
    about[sorted(about)[key % len(about)]] = value
    (tmp_path / "forecaster.json").write_text(json.dumps(about))
    read_or_refuse(Forecaster.load, tmp_path, "cpu")


square = {"properties": {"cellId": 1}, "geometry": {"type": "Polygon", "coordinates": [[]]}}
feature = json_value | st.builds(
    lambda cell, ring: {
        "properties": {"cellId": cell},
        "geometry": {"type": "Polygon", "coordinates": [ring]},
    },
    json_value,
    st.lists(st.tuples(json_value, json_value), max_size=4),
)


@few
@given(content=json_value | st.fixed_dictionaries({"features": st.lists(feature, max_size=3)}))
def test_any_grid(tmp_path, content):
    path = tmp_path / "grid.geojson"
    path.write_text(json.dumps(content))
    read_or_refuse(read_grid, path)


toml_value = st.sampled_from(
    ["1", "-1", "0", "1.5", "nan", "inf", "true", '"x"', '"days:7,1,2"', "[1]", "[]", "{}",
     '["solo"]', "2024-01-01", "{ method = 1 }", '[{ method = "ridge" }]', "1" + "0" * 30,
     '[{ plot = "cdf" }]', '[{ plot = [1] }]', '{ source = "a", mse.sms = { solo = 1.0 } }']
)  # fmt: skip
names = ["title", "data", "services", "seeds", "methods", "figures", "published", "settings", "x"]
toml_text = st.dictionaries(st.sampled_from(names), toml_value).map(
    lambda table: "".join(f"{key} = {value}\n" for key, value in table.items())
)


def check_toml(tmp_path, text):
    path = tmp_path / "b.toml"
    path.write_bytes(text)
    grid = read_or_refuse(lambda path: load_grid(path), path)
    if grid is not None:
        table = tomllib.loads(text.decode())
        assert len(grid.entries) == len(table["methods"])


@few
@given(text=toml_text.map(str.encode) | st.binary(max_size=100))
def test_any_benchmark(tmp_path, text):
    check_toml(tmp_path, b'data = ["a.nc"]\n' + text if b"data" not in text else text)


every_setting = sorted(
    {
        field
        for method in ("fuels", "fedda", "ridge", "boosting")
        for section in sections(method).values()
        for field in section.__dataclass_fields__
    }
)
setting = st.one_of(
    st.integers(-3, 100),
    st.floats(-1000, 1000),
    st.sampled_from([NAN, np.inf, -np.inf]),
    st.text(max_size=6),
    st.booleans(),
    st.none(),
    st.lists(st.integers(), max_size=2),
    st.sampled_from(["days:7,1,2", "days:1e5,1,1", "steps:a", "1,2", "inf", "nan", "cpu", "week"]),
)


@few
@given(
    method=st.sampled_from(["fuels", "fedda", "solo", "ridge", "boosting"]),
    chosen=st.dictionaries(st.sampled_from(every_setting), setting, max_size=3),
)
def test_any_settings(method, chosen):
    config = read_or_refuse(resolve, method, **chosen)
    if config is not None:
        assert resolve(**config.flat()) == config


@few
@given(text=st.text(alphabet="0123456789-, x٣", max_size=12))
def test_any_list_of_cells(text):
    cells = list(range(1, 100))
    kept = read_or_refuse(keep_cells, text, cells, "cells")
    if kept is not None:
        again = keep_cells(",".join(map(str, np.array(cells)[kept])), cells, "cells")
        assert again.tolist() == kept.tolist()


cube_values = st.integers(2, 5).flatmap(
    lambda n: st.lists(
        st.lists(st.floats(0, 1e6) | st.just(NAN), min_size=3, max_size=3), min_size=n, max_size=n
    )
)


@settings(few, max_examples=8)
@given(values=cube_values, ids=st.permutations([1, 4, 7]))
def test_a_cube_that_is_written_is_read_equal(tmp_path, values, ids):
    ds = cube(values, ids)
    back = open_cube(write_cube(ds, tmp_path / "a.nc")).load()
    pd.testing.assert_frame_equal(back["net"].to_pandas(), ds["net"].to_pandas())
    assert back.attrs == ds.attrs
    if not np.isnan(values).any():
        h5 = write_fedda(ds, tmp_path / "a.h5")
        again = open_cube(prepare_fedda(h5, tmp_path / "b.nc")).load()
        pd.testing.assert_frame_equal(again["net"].to_pandas(), ds["net"].to_pandas())


@settings(few, max_examples=8)
@given(values=cube_values, ids=st.permutations([1, 4, 7]))
def test_a_table_that_is_written_is_read_equal(tmp_path, values, ids):
    frame = cube(values, ids)["net"].to_pandas()
    text = io.StringIO()
    frame.to_csv(text)
    (tmp_path / "a.csv").write_text(text.getvalue())
    back = open_cube(prepare_table(tmp_path / "a.csv", tmp_path / "a.nc")).load()
    np.testing.assert_array_equal(back["value"], frame)
    assert back["cell"].values.tolist() == list(ids)


def cube(values, ids):
    times = pd.date_range("2013-10-31T23:00", periods=len(values), freq="h")
    return make_cube(
        {"net": np.array(values)}, times, np.array(ids), title="t", source="s", license="l",
        units="1", time_zone="Europe/Rome",
    )  # fmt: skip
