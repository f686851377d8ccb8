"""LargeST: small yearly files in the published layout, the real ones being too large."""

import json
import pickle

import numpy as np
import pandas as pd
import pytest

from data_prep.base.errors import InputError
from data_prep.cube import observed, open_cube
from data_prep.sets import largest

IDS = ["318711", "400001", "1108148", "716076", "817263", "1201171"]
DISTRICTS = [3, 4, 11, 7, 8, 12]
ROADS = np.arange(36, dtype=np.float32).reshape(6, 6)
TIMES = pd.date_range("2019-01-01", periods=6, freq="5min")


def flows(start=0):
    values = np.arange(start, start + 36, dtype=float).reshape(6, 6)
    values[1, 2] = np.nan
    return values


@pytest.fixture
def folder(write_frame, tmp_path):
    meta = {
        "ID": IDS, "Lat": [38.5, 37.3, 32.7, 34.0, 34.1, 33.7],
        "Lng": [-121.0 - i for i in range(6)],
        "District": DISTRICTS, "County": list("abcdef"), "Fwy": ["I80-E"] * 6, "Lane": range(1, 7),
        "Type": ["Mainline"] * 6, "Direction": ["E"] * 6, "ID2": range(6),
    }  # fmt: skip
    pd.DataFrame(meta).to_csv(tmp_path / "ca_meta.csv", index=False)
    np.save(tmp_path / "ca_rn_adj.npy", ROADS)
    write_frame(tmp_path / "ca_his_raw_2019.h5", flows(), TIMES, IDS, key="t")
    return tmp_path


@pytest.mark.quick(4)
@pytest.mark.parametrize(
    ("subset", "at"), [("SD", [2]), ("GBA", [1]), ("GLA", [3, 4, 5]), ("CA", list(range(6)))]
)
def test_a_subset_is_its_districts_with_their_roads_and_places(folder, tmp_path, subset, at):
    ds = open_cube(largest.prepare(folder, tmp_path / "out.nc", subset=subset)).load()
    assert ds["cell"].values.tolist() == [IDS[i] for i in at]
    np.testing.assert_array_equal(ds["flow"], flows()[:, at])
    np.testing.assert_array_equal(ds["adjacency"], ROADS[np.ix_(at, at)])
    np.testing.assert_array_equal(ds["lon"], [-121.0 - i for i in at])
    assert ds["district"].values.tolist() == [DISTRICTS[i] for i in at]
    assert ds["county"].values.tolist() == [list("abcdef")[i] for i in at]
    assert ds.attrs["license"] == "CC BY-NC 4.0"
    assert sorted(json.loads(ds.attrs["source_checksums"])) == [
        "ca_his_raw_2019.h5", "ca_meta.csv", "ca_rn_adj.npy",
    ]  # fmt: skip


def test_columns_are_found_by_their_names(write_frame, folder):
    raw = folder / "ca_his_raw_2019.h5"
    raw.unlink()
    write_frame(raw, flows()[:, ::-1], TIMES, IDS[::-1])
    np.testing.assert_array_equal(largest.read(folder, subset="GLA")["flow"], flows()[:, 3:])


def test_steps_of_a_quarter_are_rounded_means_as_in_the_benchmark(folder):
    ds = largest.read(folder, subset="CA", step="15min")
    frame = pd.DataFrame(flows(), index=TIMES)
    np.testing.assert_array_equal(ds["flow"], frame.resample("15min").mean().round(0))
    assert ds["flow"][0, 2] == 8  # of 2 and 14


def test_zeros_are_data_unless_they_are_said_to_be_missing(folder):
    assert observed(largest.read(folder, subset="CA"), "flow")[0, 0] == 0
    masked = observed(largest.read(folder, subset="CA", zero_is_missing=True), "flow")
    assert np.isnan(masked[0, 0])


def test_years_follow_each_other(write_frame, folder):
    before = pd.date_range("2018-12-31T23:30", periods=6, freq="5min")
    write_frame(folder / "ca_his_raw_2018.h5", flows(100), before, IDS)
    ds = largest.read(folder, subset="CA", years="2019, 2018")
    assert list(ds.indexes["time"]) == [*before, *TIMES]
    np.testing.assert_array_equal(ds["flow"], np.vstack([flows(100), flows()]))
    alone = largest.read(folder / "ca_his_raw_2018.h5", subset="CA")
    assert list(alone.indexes["time"]) == list(before)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"years": "2019,2016"}, "years is '2019,2016'.*'2016'.*2017 .*2021"),
        ({"years": "2021"}, r"ca_his_raw_2021\.h5: .*kaggle.*years"),
        ({"step": "7min"}, "step '7min'"),
    ],
)
def test_options_that_do_not_fit(folder, options, message):
    with pytest.raises(InputError, match=message):
        largest.read(folder, **options)


def test_tables_that_do_not_fit(folder):
    meta = pd.read_csv(folder / "ca_meta.csv")
    meta.drop(columns="District").to_csv(folder / "ca_meta.csv", index=False)
    with pytest.raises(InputError, match=r"ca_meta\.csv: no column 'District'"):
        largest.read(folder)
    meta[meta["District"] != 11].to_csv(folder / "ca_meta.csv", index=False)
    with pytest.raises(InputError, match=r"ca_meta\.csv: .* SD \(District 11\) among 5"):
        largest.read(folder)
    meta.assign(ID=range(6)).to_csv(folder / "ca_meta.csv", index=False)
    with pytest.raises(InputError, match=r"ca_his_raw_2019\.h5: .* 2 \(1 of 1 "):
        largest.read(folder)
    (folder / "ca_meta.csv").unlink()
    with pytest.raises(InputError, match=r"ca_meta\.csv: .*kaggle"):
        largest.read(folder)


@pytest.mark.parametrize(
    ("matrix", "message"),
    [
        (ROADS[:5], r"float32 .*\(5, 6\).*row"),
        (ROADS[:2, :2], r"float32 .*\(2, 2\)"),
        (ROADS.astype(str), r"\(6, 6\).*numbers"),
        (ROADS.astype(object), "objects.*pickled"),
        (-ROADS - 1, "negative.*finite"),
    ],
)
def test_graphs_that_do_not_fit(folder, matrix, message):
    np.save(folder / "ca_rn_adj.npy", matrix)
    with pytest.raises(InputError, match=rf"ca_rn_adj\.npy: .*{message}"):
        largest.read(folder)


def test_damaged_and_pickled_graphs(folder):
    path = folder / "ca_rn_adj.npy"
    path.write_bytes(path.read_bytes()[:-4])
    with pytest.raises(InputError, match=r"268 bytes.*fit"):
        largest.read(folder)
    path.write_bytes(b"no array")
    with pytest.raises(InputError, match="plain array"):
        largest.read(folder)
    (folder / "adj_mx.pkl").write_bytes(pickle.dumps([1]))
    with pytest.raises(InputError, match=r"adj_mx\.pkl: a pickle"):
        largest.read(folder, adjacency=folder / "adj_mx.pkl")


def test_a_file_of_another_year_or_name(write_frame, folder):
    write_frame(folder / "records.h5", flows(), TIMES, IDS)
    with pytest.raises(InputError, match=r"records\.h5: no year"):
        largest.read(folder / "records.h5")
    (folder / "records.h5").rename(folder / "ca_his_raw_2020.h5")
    with pytest.raises(InputError, match="year 2019, expected 2020"):
        largest.read(folder / "ca_his_raw_2020.h5")
    with pytest.raises(InputError, match=r"nowhere: .*kaggle"):
        largest.read(folder / "nowhere")
