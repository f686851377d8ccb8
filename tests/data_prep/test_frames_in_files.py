"""Frames in files of columns: Parquet, Arrow, Feather, and HDF5 as pandas writes it."""

import h5py
import numpy as np
import pandas as pd
import polars as pl
import pytest

from data_prep.base.errors import InputError
from data_prep.readers.formats.columnar import arrow_size
from data_prep.sets.table import read
from stforecast.cli.info import describe
from stforecast.data.cubes import is_table, open_cube

HOURS = pd.date_range("2024-01-01", periods=72, freq="h")
VALUES = np.random.default_rng(3).uniform(0, 9, (72, 3))


@pytest.mark.quick(4)
@pytest.mark.parametrize("packed", ["uncompressed", "lz4", "zstd"])
@pytest.mark.parametrize("suffix", ["feather", "arrow", "ipc"])
def test_arrow_is_read_with_categories_as_text(tmp_path, suffix, packed):
    path = tmp_path / f"my.{suffix}"
    cells = pl.Series(["a", "b", "c"] * 72, dtype=pl.Categorical)
    frame = pl.DataFrame({"time": np.repeat(HOURS, 3), "cell": cells, "v": VALUES.ravel()})
    frame.write_ipc(path, compression=packed)
    ds = read(path)
    assert ds["cell"].values.tolist() == ["a", "b", "c"]
    np.testing.assert_array_equal(ds["v"], VALUES)
    np.testing.assert_array_equal(open_cube(path)["v"], VALUES)


def test_what_an_arrow_file_unpacks_to_is_known_before(tmp_path):
    path = tmp_path / "zeros.arrow"
    pl.DataFrame({"v": np.zeros(2**20)}).write_ipc(path, compression="zstd")
    assert 2**23 <= arrow_size(path) < 2**23 + 2**17
    texts = pl.DataFrame({"time": HOURS, "t": ["x" * 2**22] * 72, "v": 1.0})
    texts.write_ipc(path, compression="zstd")
    with pytest.raises(InputError, match=r"zeros\.arrow: unpacked"):
        read(path)
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(InputError, match=r"zeros\.arrow: .* as Arrow"):
        read(path)


def write_frame(path, index, blocks, **about):
    """Write what `DataFrame.to_hdf` does in the fixed format; blocks are (names, values)."""
    with h5py.File(path, "w") as file:
        group = file.create_group("df")
        group.attrs["pandas_type"], group.attrs["nblocks"] = "frame", len(blocks)
        names = [name for own, _ in blocks for name in own]
        group["axis0"] = np.array(names, "S")
        group["axis1"] = index
        for key, value in about.items():
            group["axis1"].attrs[key] = value
        for i, (own, values) in enumerate(blocks):
            group[f"block{i}_items"] = np.array(own, "S")
            group[f"block{i}_values"] = values
    return path


@pytest.mark.parametrize(
    ("name", "data_set"), [("metr-la.h5", "metr-la"), ("PEMS-BAY.h5", "pems-bay"), ("my.h5", None)]
)
def test_published_records_read_as_a_table_are_said(tmp_path, caplog, name, data_set):
    """Their 0 is a missing value, and their times are not UTC, which the file does not tell."""
    write_frame(tmp_path / name, HOURS.asi8, [(["1", "2"], VALUES[:, :2])], kind="datetime64")
    read(tmp_path, layout="wide")
    assert ("0 means" in caplog.text) == (data_set is not None)
    assert f"`stforecast prepare {data_set}`" in caplog.text or data_set is None


def test_a_frame_of_pandas_is_read_without_pytables(tmp_path):
    blocks = [(["a", "c"], VALUES[:, :2]), (["b"], np.arange(72)[:, None])]
    micro = HOURS.as_unit("us").asi8
    path = write_frame(tmp_path / "my.h5", micro, blocks, kind="datetime64[us]", tz="Asia/Tokyo")
    ds = read(path, layout="wide")
    assert ds["cell"].values.tolist() == ["a", "c", "b"]
    np.testing.assert_array_equal(ds["value"][:, :2], VALUES[:, :2])
    np.testing.assert_array_equal(ds["value"][:, 2], np.arange(72))
    np.testing.assert_array_equal(ds["time"], HOURS.as_unit("ns"))
    assert ds.attrs["time_zone"] == "Asia/Tokyo"
    assert is_table(path)
    with h5py.File(path, "w") as file:
        file["v"] = VALUES
    assert not is_table(path)


def test_a_long_frame_has_its_times_in_a_block(tmp_path):
    rows = np.column_stack([np.tile([7, 8, 9], 72), VALUES.ravel().round(3) * 1000]).astype(int)
    path = write_frame(tmp_path / "my.h5", np.arange(216), [
        (["time"], np.repeat(HOURS.as_unit("ns").asi8, 3)[:, None]), (["cell", "v"], rows),
    ], kind="integer")  # fmt: skip
    with h5py.File(path, "a") as file:
        file["df/block0_values"].attrs["value_type"] = "datetime64[ns]"
    ds = read(path)
    np.testing.assert_array_equal(ds["v"], VALUES.round(3) * 1000 // 1)
    assert describe(path).kind == "table"


def test_pickles_in_a_frame_are_refused(tmp_path):
    path = write_frame(tmp_path / "my.h5", HOURS.asi8, [(["v"], VALUES[:, :1])], kind="datetime64")
    with h5py.File(path, "a") as file:
        del file["df/block0_values"]
        kind = h5py.vlen_dtype(np.uint8)
        made = file["df"].create_dataset("block0_values", (1,), kind, maxshape=(None,))
        made[0] = np.frombuffer(b"cos\nsystem\n", np.uint8)
    with pytest.raises(InputError, match=r"pandas pickles.*DataFrame\.to_parquet"):
        read(path)
    with h5py.File(path, "a") as file:
        file["df"].attrs["pandas_type"] = "frame_table"
    with pytest.raises(InputError, match=r"fixed format.*frame_table.*format='fixed'"):
        read(path)


def test_other_kinds_are_to_be_exported(tmp_path):
    for name, text in {"my.dta": "unknown kind of file '.dta'", "my.xml": "known kind"}.items():
        (tmp_path / name).write_text("<a/>")
        with pytest.raises(InputError, match=f"{text}.*CSV"):
            read(tmp_path / name)


def test_lengths_of_time_are_seconds(tmp_path):
    spans = pl.Series([0, 90_000, None]).cast(pl.Duration("ms"))
    times = pd.date_range("2024-05-10", periods=3, freq="h").to_numpy()
    pl.DataFrame({"time": times, "wait": spans}).write_parquet(tmp_path / "a.parquet")
    wait = read(tmp_path / "a.parquet", layout="services")["wait"]
    np.testing.assert_array_equal(wait.to_numpy().ravel(), [0, 90, np.nan])
    assert wait.attrs["units"] == "s"
