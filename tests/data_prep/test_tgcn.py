"""Los-loop and SZ-taxi: small files in the published layout."""

import numpy as np
import pandas as pd
import pytest

from data_prep.base.errors import InputError
from data_prep.cube import observed, open_cube
from data_prep.sets.tgcn import LosLoop, SZTaxi

SPEEDS = np.array([[64.375, 67.625], [0, 68.5], [60, 61], [30, 31], [33, 34], [36, 37.0]])
SETS = {
    "los": (LosLoop, ["773869", "767541"], "2012-03-01", "5min", "mile/hour"),
    "sz": (SZTaxi, ["90217", "90218"], "2015-01-01", "15min", "1"),
}


@pytest.fixture(params=SETS)
def name(request, tmp_path):
    _, cells, *_ = SETS[request.param]
    pd.DataFrame(SPEEDS, columns=cells).to_csv(tmp_path / f"{request.param}_speed.csv", index=False)
    (tmp_path / f"{request.param}_adj.csv").write_text("1,0.260935932\n0,1\n")
    return request.param


def test_the_published_files_become_a_cube(tmp_path, name):
    module, cells, start, step, units = SETS[name]
    ds = open_cube(module.prepare(tmp_path, tmp_path / "out.nc")).load()
    assert ds["cell"].values.tolist() == cells
    assert list(ds.indexes["time"]) == list(pd.date_range(start, periods=6, freq=step))
    np.testing.assert_array_equal(ds["speed"], SPEEDS)
    np.testing.assert_array_equal(ds["adjacency"], [[1, 0.260935932], [0, 1]])
    assert ds["speed"].attrs["units"] == units
    assert observed(ds, "speed")[1, 0] == 0
    assert "lon" not in ds.coords


def test_longer_steps_and_zeros_that_are_missing(tmp_path, name):
    module, _, _, step, _ = SETS[name]
    longer = str(3 * pd.Timedelta(step))
    ds = module.read(tmp_path, step=longer, zero_is_missing=True)
    np.testing.assert_allclose(ds["speed"][:, 0], [(64.375 + 60) / 2, 33])
    plain = module.read(tmp_path, step=longer)
    np.testing.assert_allclose(plain["speed"][:, 0], [(64.375 + 60) / 3, 33])
    too_short = str(pd.Timedelta(step) / 5)
    with pytest.raises(InputError, match="a multiple of"):
        module.read(tmp_path, step=too_short)


def test_positions_beside_the_speeds_are_used(tmp_path, name):
    module, cells, *_ = SETS[name]
    rows = [f"{i},{cell},34.{i},-118\n" for i, cell in enumerate(reversed(cells))]
    text = "index,sensor_id,latitude,longitude\n" + "".join(rows)
    (tmp_path / "graph_sensor_locations.csv").write_text(text)
    np.testing.assert_array_equal(module.read(tmp_path)["lat"], [34.1, 34.0])


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        ("adj", "1,0\n0,1\n0,0\n", "3 × 2 values.* 2 × 2 "),
        ("adj", "1,far\n0,1\n", "line 1: .*'2' .*'far'"),
        ("adj", "1,-1\n0,1\n", "negative.*finite"),
        ("adj", "1,\n0,1\n", "negative.*finite"),
        ("speed", "a,b\n1,2\n3\n", "line 3: 1 field, .*2"),
        ("speed", "a,b\n1,x\n", "line 2: .*'b' .*'x'"),
        ("speed", "a,b\n-1,2\n", "speed -1.* sensor a, "),
        ("speed", "a,b\n", "no row"),
        ("speed", "60.5,61.25\n60,61\n", "values.*columns' names"),
    ],
)
def test_files_that_do_not_fit(tmp_path, name, file, text, message):
    (tmp_path / f"{name}_{file}.csv").write_text(text)
    with pytest.raises(InputError, match=rf"{name}_{file}\.csv.*{message}") as raised:
        SETS[name][0].read(tmp_path)
    assert "\n" not in str(raised.value)


def test_the_other_set_in_the_folder_is_not_taken(tmp_path, name):
    other = {"los": SZTaxi, "sz": LosLoop}[name]
    with pytest.raises(InputError, match=r"no (los|sz)_speed\.csv"):
        other.read(tmp_path)
    (tmp_path / "adj.pkl").write_bytes(b"")
    with pytest.raises(InputError, match=r"adj\.pkl: a pickle"):
        SETS[name][0].read(tmp_path, adjacency=tmp_path / "adj.pkl")


def test_files_are_fetched_at_a_fixed_commit():
    sources = (*LosLoop.SOURCES, *SZTaxi.SOURCES)
    assert all("/219a2346f5bf68d54d91a948e7a41a08f9edc46b/" in source.url for source in sources)
    assert [source.name for source in sources if source.checksum is None] == ["sz_speed.csv"]
