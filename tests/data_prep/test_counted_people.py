"""Pedestrians, passengers and taxi trips: wide tables on the wall clock, against plain pandas."""

import numpy as np
import pandas as pd
import pytest

from data_prep import DATA_SETS
from data_prep.cube import local_time

FILES = {
    "auckland-pedestrians": ("pedestrians-auckland-21counters-7years", (61368, 21), 0.053),
    "hangzhou-metro": ("metro-hangzhou-80stations-25days", (3564, 80), None),
    "newyork-taxi": ("taxi-newyork-900pairs-61days", (1464, 900), 0.0),
}


@pytest.mark.parametrize("name", FILES)
def test_a_small_copy_is_read_as_pandas_reads_it(name, tmp_path):
    times = pd.date_range("2019-01-01 06:00", periods=40, freq="10min").delete([7, 8])
    frame = pd.DataFrame({"a": range(38), "b": 2.0}, times).rename_axis("time")
    frame.to_csv(tmp_path / "raw.csv.gz")
    ds = DATA_SETS[name].read(tmp_path / "raw.csv.gz")
    (service,) = ds.data_vars
    expected = frame.asfreq("10min")
    np.testing.assert_array_equal(ds[service], expected)
    assert list(local_time(ds)) == list(expected.index)
    assert "/" in ds.attrs["time_zone"]
    assert ds.attrs["license"] != "not stated"


@pytest.mark.parametrize("name", FILES)
def test_the_real_file_has_its_published_size(name, traffic_dir):
    file, shape, missing = FILES[name]
    path = traffic_dir / "traffic" / f"{file}.csv.gz"
    if not path.exists():
        pytest.skip("no real data here")
    ds = DATA_SETS[name].read(path)
    (values,) = ds.data_vars.values()
    assert values.shape == shape
    if missing is not None:
        assert float(values.isnull().mean()) == pytest.approx(missing, abs=1e-3)
    raw = pd.read_csv(path, index_col="time")
    assert float(values.sum()) == float(raw.sum().sum())
