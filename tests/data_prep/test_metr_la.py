"""METR-LA: pandas' HDF5 frames without pandas or pickle, the road graph, and the real files."""

import json
import logging
import pickle

import h5py
import numpy as np
import pandas as pd
import pytest
from mentions import mentions

from data_prep.base.errors import InputError
from data_prep.cube import local_time, observed, open_cube
from data_prep.download import Archive
from data_prep.sets.dcrnn import MetrLA
from data_prep.sets.roads.sensors import gaussian_kernel, read_adjacency

NAN = np.nan
IDS = ["773869", "767541", "717447"]
TIMES = pd.date_range("2012-03-01", periods=6, freq="5min")
SPEEDS = np.array([[60, 0, NAN], [0, 0, 50], [30, 0, 40], [70, 65, 0], [0, NAN, 5], [50, 55, 7.0]])


@pytest.fixture
def prepared(write_frame, tmp_path):
    """Write a frame, prepare it and open the cube."""

    def prepare_frame(options=None, **frame):
        raw = tmp_path / "metr-la.h5"
        raw.unlink(missing_ok=True)
        write_frame(raw, **frame)
        return open_cube(MetrLA.prepare(raw, tmp_path / "out.nc", **(options or {}))).load()

    return prepare_frame


@pytest.mark.quick(5)
@pytest.mark.parametrize(
    "kind", ["datetime64[ns]", "datetime64[us]", "datetime64[ms]", "datetime64[s]", "datetime64"]
)
def test_cube_in_every_unit_of_time(prepared, kind):
    ds = prepared(kind=kind)
    assert list(ds.indexes["time"]) == list(TIMES)
    assert ds["cell"].values.tolist() == IDS
    np.testing.assert_array_equal(ds["speed"], SPEEDS)
    assert ds["speed"].attrs["units"] == "mile/hour"
    assert ds["speed"].attrs["zero_is_missing"] == 1
    assert ds.attrs["time_zone"] == "America/Los_Angeles"
    assert set(ds.variables) == {"speed", "time", "cell"}


def test_zero_is_kept_and_observed_as_missing(prepared):
    ds = prepared()
    assert ds["speed"].values[0, 1] == 0
    np.testing.assert_array_equal(observed(ds, "speed")[0], [60, NAN, NAN])


def test_clock_is_never_adjusted_for_daylight_saving(prepared):
    times = pd.date_range("2012-03-11T01:50", periods=6, freq="5min")
    assert list(local_time(prepared(times=times))) == list(times)


@pytest.mark.parametrize(
    ("kind", "year"), [("datetime64[us]", "44133"), ("datetime64[s]", "[0-9]+")]
)
def test_wrong_unit_never_shifts_the_dates(write_frame, tmp_path, kind, year):
    raw = write_frame(tmp_path / "metr-la.h5")
    with h5py.File(raw, "a") as file:
        file["df/axis1"].attrs["kind"] = np.bytes_(kind)
    with pytest.raises(InputError, match=rf"metr-la\.h5: /df/axis1 .* {year}, .* 2012"):
        MetrLA.prepare(raw, tmp_path / "out.nc")


def test_microseconds_called_nanoseconds_are_refused(write_frame, tmp_path):
    raw = write_frame(tmp_path / "metr-la.h5", kind="datetime64[us]")
    with h5py.File(raw, "a") as file:
        file["df/axis1"].attrs["kind"] = np.bytes_("datetime64[ns]")
    with pytest.raises(InputError, match="year 1970, expected 2012"):
        MetrLA.prepare(raw, tmp_path / "out.nc")


@pytest.mark.parametrize(("attribute", "value"), [("kind", "integer"), ("tz", "US/Pacific")])
def test_other_times_are_refused(write_frame, tmp_path, attribute, value):
    raw = write_frame(tmp_path / "metr-la.h5")
    with h5py.File(raw, "a") as file:
        file["df/axis1"].attrs[attribute] = np.bytes_(value)
    with pytest.raises(InputError, match=f"'{value}'.* expected datetime64"):
        MetrLA.prepare(raw, tmp_path / "out.nc")


def test_any_key_and_integer_ids(prepared):
    ds = prepared(key="speed", ids=[773869, 767541, 717447])
    assert ds["cell"].values.tolist() == IDS


def test_values_go_by_their_own_labels(write_frame, tmp_path):
    raw = write_frame(tmp_path / "metr-la.h5")
    with h5py.File(raw, "a") as file:
        file["df/block0_items"] = np.array(IDS[::-1], dtype="S6")
    ds = open_cube(MetrLA.prepare(raw, tmp_path / "out.nc"))
    np.testing.assert_array_equal(ds["speed"].sel(cell=IDS), SPEEDS[:, ::-1])


def test_labels_that_contradict_the_axis_are_refused(write_frame, tmp_path):
    raw = write_frame(tmp_path / "metr-la.h5")
    with h5py.File(raw, "a") as file:
        file["df/block0_items"] = np.array([*IDS[:-1], "999999"], dtype="S6")
    with pytest.raises(InputError, match=r"axis0 and block0_items .* .717447"):
        MetrLA.prepare(raw, tmp_path / "out.nc")


def test_two_frames_are_ambiguous(write_frame, tmp_path):
    raw = write_frame(tmp_path / "metr-la.h5")
    write_frame(raw, key="other")
    with pytest.raises(InputError, match=r"2 frames .* \{'df': 'frame', 'other': 'frame'\}"):
        MetrLA.prepare(raw, tmp_path / "out.nc")


@pytest.mark.parametrize(
    ("attribute", "value", "message"),
    [
        ("pandas_type", np.bytes_("frame_table"), "0 frames .*fixed"),
        ("nblocks", 2, "columns.* 2"),
    ],
)
def test_other_pandas_formats_are_refused(write_frame, tmp_path, attribute, value, message):
    raw = write_frame(tmp_path / "metr-la.h5")
    with h5py.File(raw, "a") as file:
        file["df"].attrs[attribute] = value
    with pytest.raises(InputError, match=message):
        MetrLA.prepare(raw, tmp_path / "out.nc")


class Bomb:
    """Unpickling it creates a file."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (str(self.path), "w")


def test_pickled_axis_is_refused_and_not_loaded(write_frame, tmp_path):
    raw = write_frame(tmp_path / "metr-la.h5")
    with h5py.File(raw, "a") as file:
        del file["df/axis0"]
        axis = file.create_dataset("df/axis0", (1,), dtype=h5py.vlen_dtype(np.uint8))
        axis[0] = np.frombuffer(pickle.dumps(Bomb(tmp_path / "ran")), dtype=np.uint8)
    with pytest.raises(InputError, match="/df/axis0 holds object"):
        MetrLA.prepare(raw, tmp_path / "out.nc")
    assert not (tmp_path / "ran").exists()


def test_pickled_adjacency_is_refused_and_not_loaded(tmp_path):
    (tmp_path / "adj_mx.pkl").write_bytes(pickle.dumps(Bomb(tmp_path / "ran")))
    np.savez(tmp_path / "adj.npz", sensor_id=IDS, adjacency=np.array([Bomb(tmp_path / "ran")]))
    with pytest.raises(InputError, match=r"adj_mx\.pkl: a pickle .*numpy\.savez"):
        read_adjacency(tmp_path / "adj_mx.pkl", np.array(IDS))
    with pytest.raises(InputError, match=r"adj\.npz: adjacency\.npy holds objects"):
        read_adjacency(tmp_path / "adj.npz", np.array(IDS))
    assert not (tmp_path / "ran").exists()


def with_value(value):
    values = SPEEDS.copy()
    values[2, 1] = value
    return values


@pytest.mark.parametrize(
    ("frame", "message"),
    [
        ({"values": with_value(-3.0)}, r"speed -3\.0 .*2012-03-01 00:10:00, sensor 767541"),
        ({"values": with_value(np.inf)}, "speed inf .*2012-03-01 00:10:00, sensor 767541"),
        ({"values": SPEEDS.T}, r"\(3, 6\).*\(6, 3\)"),
        ({"times": TIMES[[0, 1, 3, 2, 4, 5]]}, "00:10:00 follows 2012-03-01 00:15:00"),
        ({"times": TIMES[[0, 1, 1, 2, 3, 4]]}, "00:05:00 follows 2012-03-01 00:05:00"),
        ({"times": TIMES[:1].append(TIMES[1:] + TIMES.freq)}, "1 of 7.*row"),
        ({"times": TIMES[:5].append(TIMES[5:] + pd.Timedelta("1min"))}, "not even"),
        (
            {"times": pd.date_range("2012-03-01", periods=6, freq="15min")},
            "15 minutes.* 5 minutes",
        ),
        ({"ids": ["a", "a", "b"]}, r"metr-la\.h5: /df/axis0 .*once"),
    ],
)
def test_impossible_frames_are_refused(prepared, frame, message):
    with pytest.raises(InputError, match=message):
        prepared(**frame)


def test_allowed_gaps_are_nan_and_logged(prepared, caplog):
    times = TIMES[:1].append(TIMES[1:] + TIMES.freq)
    with caplog.at_level(logging.WARNING):
        ds = prepared({"allow_gaps": True}, times=times)
    assert ds.sizes["time"] == 7
    assert np.isnan(ds["speed"][1]).all()
    np.testing.assert_array_equal(ds["speed"][2], SPEEDS[1])
    assert mentions(caplog.text, "metr-la.h5: 1 of 7", "row")


def test_longer_steps_are_means_of_what_was_observed(prepared):
    ds = prepared({"step": "15min"})
    assert list(ds.indexes["time"]) == [TIMES[0], TIMES[3]]
    np.testing.assert_array_equal(ds["speed"], [[45, NAN, 45], [60, 60, 6]])


def test_longer_steps_begin_at_midnight(prepared):
    ds = prepared({"step": "15min"}, times=TIMES + pd.Timedelta("10min"))
    assert list(ds.indexes["time"]) == list(pd.date_range("2012-03-01", periods=3, freq="15min"))
    np.testing.assert_array_equal(ds["speed"], [[60, NAN, NAN], [50, 65, 45], [50, 55, 6]])


@pytest.mark.parametrize("step", ["1min", "7min", "35min", "0min", "soon", "2D"])
def test_steps_that_do_not_fit(prepared, step):
    with pytest.raises(InputError, match=f"step '{step}' .*30min"):
        prepared({"step": step})


@pytest.mark.parametrize(
    ("names", "chosen"),
    [(["metr-la.h5", "b.h5"], "metr-la.h5"), (["metr_la.h5"], "metr_la.h5"), (["x.h5"], "x.h5")],
)
def test_folder_with_one_candidate(write_frame, tmp_path, names, chosen):
    for name in names:
        write_frame(tmp_path / name)
    ds = open_cube(MetrLA.prepare(tmp_path, tmp_path / "out.nc"))
    assert list(json.loads(ds.attrs["source_checksums"])) == [chosen]


@pytest.mark.parametrize(
    ("names", "message"), [(["a.h5", "b.h5"], "found a.h5, b.h5, expected"), ([], "no .h5 file")]
)
def test_folder_with_none_or_several(write_frame, tmp_path, names, message):
    for name in names:
        write_frame(tmp_path / name)
    with pytest.raises(InputError, match=message):
        MetrLA.prepare(tmp_path, tmp_path / "out.nc")


def test_what_is_no_hdf5(tmp_path):
    (tmp_path / "metr-la.h5").write_text("<html>Sign in</html>")
    with pytest.raises(InputError, match=r"metr-la\.h5.*download"):
        MetrLA.prepare(tmp_path, tmp_path / "out.nc")
    with pytest.raises(InputError, match=r"none\.csv: .* \(found nothing\)"):
        MetrLA.prepare(
            tmp_path / "metr-la.h5", tmp_path / "out.nc", locations=tmp_path / "none.csv"
        )
    with pytest.raises(InputError, match=r"\(found a folder\)"):
        MetrLA.prepare(tmp_path / "metr-la.h5", tmp_path / "out.nc", adjacency=tmp_path)
    with pytest.raises(InputError, match=r"nowhere: .*nothing"):
        MetrLA.prepare(tmp_path / "nowhere", tmp_path / "out.nc")


def test_graph_and_positions_beside_the_records_are_used_in_the_order_of_the_cells(
    write_frame, tmp_path, caplog
):
    raw = write_frame(tmp_path / "metr_la.h5")
    weights = np.arange(9, dtype=np.float32).reshape(3, 3)
    np.savez(tmp_path / "metr-la-adjacency.npz", sensor_id=IDS[::-1], adjacency=weights)
    rows = [f"{i},{sensor},{34 + i},{-118 - i}" for i, sensor in enumerate([*IDS[::-1], "1"])]
    text = "\n".join(["index,sensor_id,latitude,longitude", *rows, ""])
    (tmp_path / "sensor_locations_la.csv").write_text(text)
    with caplog.at_level(logging.INFO):
        ds = open_cube(MetrLA.prepare(raw, tmp_path / "out.nc"))
    np.testing.assert_array_equal(ds["adjacency"], [[8, 7, 6], [5, 4, 3], [2, 1, 0]])
    assert ds["adjacency"].dims == ("cell", "cell_to")
    assert ds["cell_to"].values.tolist() == IDS
    assert ds["lat"].values.tolist() == [36, 35, 34]
    assert ds["lon"].values.tolist() == [-120, -119, -118]
    assert mentions(caplog.text, "metr-la-adjacency.npz", "metr_la.h5")
    assert len(json.loads(ds.attrs["source_checksums"])) == 3


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("sensor_id,latitude,longitude\n773869,34,-118\n", "no sensor 767541, 717447"),
        ("sensor,lat,lon\n773869,34,-118\n", "no column 'sensor_id'"),
        (
            "sensor_id,latitude,longitude\n"
            "773869,34,-118\n767541,34,-118\n717447,34,-118\n717447,35,-118\n",
            "a sensor .*twice",
        ),
        (
            "sensor_id,latitude,longitude\n773869,34,-118\n767541,,-118\n717447,34,-118\n",
            "line 3: 'latitude'.*empty",
        ),
    ],
)
def test_positions_that_do_not_fit(prepared, tmp_path, text, message):
    (tmp_path / "at.csv").write_text(text)
    with pytest.raises(InputError, match=rf"at\.csv.*: {message}|at\.csv, {message}"):
        prepared({"locations": tmp_path / "at.csv"})


def as_dcrnn_does(rows, ids, normalized_k=0.1):
    """The loop of DCRNN's `gen_adj_mx.py`, as an independent reference."""
    distance = np.full((len(ids), len(ids)), np.inf, dtype=np.float32)
    for start, end, cost in rows:
        if start in ids and end in ids:
            distance[ids.index(start), ids.index(end)] = cost
    std = distance[~np.isinf(distance)].flatten().std()
    weights = np.exp(-np.square(distance / std))
    weights[weights < normalized_k] = 0
    return weights


def test_distances_become_dcrnns_kernel(tmp_path):
    a, b, c = IDS
    rows = [(a, a, 0.0), (b, b, 0.0), (c, c, 0.0), (a, b, 1000.5), (b, a, 2500.0), (b, c, 9000.0)]
    rows += [(c, a, 1500.0), (c, b, 4000.0), (a, "9", 70000.0), ("9", "9", 0.0)]
    path = tmp_path / "distances_la.csv"
    pd.DataFrame(rows, columns=["from", "to", "cost"]).to_csv(path, index=False)
    weights = read_adjacency(path, np.array(IDS))
    np.testing.assert_array_equal(weights, as_dcrnn_does(rows, IDS))
    np.testing.assert_array_equal(weights > 0, [[1, 1, 0], [1, 1, 0], [1, 1, 1]])
    assert weights[0, 1] > weights[1, 0]


def test_kernel_by_hand():
    distance = np.array([[0.0, 3.0], [np.inf, 0.0]])  # std of 0, 3, 0 is sqrt(2)
    np.testing.assert_allclose(gaussian_kernel(distance, 0.01), [[1, np.exp(-4.5)], [0, 1]])
    np.testing.assert_array_equal(gaussian_kernel(distance), np.eye(2))
    with pytest.raises(InputError, match="standard deviation 0"):
        gaussian_kernel(np.zeros((2, 2)))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("from,to,cost\n773869,767541,5\n767541,773869,5\n", "no sensor 717447"),
        ("from,to,cost\n773869,767541,far\n767541,773869,5\n", "line 2: .*'cost' holds 'far'"),
        ("from,to,cost\n773869,767541,\n767541,773869,5\n", "line 2: 'cost'.*empty"),
        ("from,to\n773869,767541\n", "column 'cost' .*'from', 'to'"),
    ],
)
def test_distances_that_do_not_fit(tmp_path, text, message):
    (tmp_path / "distances.csv").write_text(text)
    with pytest.raises(InputError, match=rf"distances\.csv.*{message}"):
        read_adjacency(tmp_path / "distances.csv", np.array(IDS))


@pytest.mark.parametrize(
    ("ids", "matrix", "message"),
    [
        (IDS[:2], np.eye(2), "no sensor 717447"),
        (IDS, np.eye(2), r"\(2, 2\) .* 3 sensors"),
        (IDS, np.full((3, 3), NAN), "finite numbers"),
    ],
)
def test_matrices_that_do_not_fit(tmp_path, ids, matrix, message):
    np.savez(tmp_path / "adj.npz", sensor_id=ids, adjacency=matrix)
    with pytest.raises(InputError, match=rf"adj\.npz: .*{message}"):
        read_adjacency(tmp_path / "adj.npz", np.array(IDS))


def test_source_is_the_mirror_of_torch_spatiotemporal():
    (archive,) = MetrLA.SOURCES
    assert isinstance(archive, Archive)
    assert archive.url.startswith("https://drive.switch.ch/")


def test_real_files(traffic_dir, tmp_path):
    names = ("metr-la-raw-1026steps.h5", "metr-la-week1-filled.h5")
    raw, filled = (
        open_cube(MetrLA.prepare(traffic_dir / name, tmp_path / f"{name}.nc")).load()
        for name in names
    )
    assert dict(filled.sizes) == {"time": 2016, "cell": 207, "cell_to": 207}
    assert raw["speed"].shape == (1026, 207)
    for ds in (raw, filled):
        steps = pd.date_range("2012-03-01", periods=ds.sizes["time"], freq="5min")
        assert list(ds.indexes["time"]) == list(steps)

    speed = raw["speed"].values
    assert (speed == 0).mean() == pytest.approx(0.0275, abs=5e-5)
    np.testing.assert_array_equal(filled["speed"].values[:1026][speed > 0], speed[speed > 0])
    assert filled["speed"].values.min() == 1.0
    assert filled["speed"].values.max() == 70.0
    assert filled["speed"].values.mean() == pytest.approx(58.89, abs=5e-3)


def test_real_graph_and_positions(traffic_dir, tmp_path):
    ds = open_cube(
        MetrLA.prepare(traffic_dir / "metr-la-week1-filled.h5", tmp_path / "out.nc")
    ).load()
    ids = (traffic_dir / "graph_sensor_ids.txt").read_text().strip().split(",")
    assert ds["cell"].values.tolist() == ids
    with np.load(traffic_dir / "metr-la-adjacency.npz") as published:
        np.testing.assert_array_equal(ds["adjacency"], published["adjacency"])
    assert np.count_nonzero(ds["adjacency"]) == 1722
    table = pd.read_csv(traffic_dir / "graph_sensor_locations.csv", index_col="sensor_id")
    np.testing.assert_array_equal(ds["lat"], table["latitude"].loc[[int(i) for i in ids]])
    assert ds.sel(cell="773869")["lon"] == -118.31829


def test_real_folder_is_ambiguous_and_its_pickle_refused(traffic_dir, tmp_path):
    with pytest.raises(InputError, match=r"found metr-la-raw-1026steps\.h5, metr-la-week1-fill"):
        MetrLA.prepare(traffic_dir, tmp_path / "out.nc")
    records, graph = (traffic_dir / name for name in ("metr-la-week1-filled.h5", "adj_mx.pkl"))
    with pytest.raises(InputError, match=r"adj_mx\.pkl: a pickle"):
        MetrLA.prepare(records, tmp_path / "out.nc", adjacency=graph)


@pytest.mark.repeats
def test_real_hourly_means(traffic_dir, tmp_path):
    path = traffic_dir / "metr-la-raw-1026steps.h5"
    ds = open_cube(MetrLA.prepare(path, tmp_path / "out.nc", step="1h"))
    with h5py.File(path) as file:
        speed = file["df/block0_values"][:]
    assert ds.sizes["time"] == 86  # 1,026 steps are 85 hours and a half
    for hour in (0, 40, 85):
        part = np.where(speed == 0, NAN, speed)[12 * hour : 12 * hour + 12]
        seen = ~np.isnan(part).all(axis=0)
        np.testing.assert_allclose(ds["speed"][hour, seen], np.nanmean(part[:, seen], axis=0))
        assert np.isnan(ds["speed"][hour, ~seen]).all()
