import pytest

from data_prep.sets import milan
from experiments.benchmarks import frame
from experiments.benchmarks.frame import Results, table
from experiments.benchmarks.prepare import (
    COLUMNS,
    generate,
    largest_difference,
    measure_ray,
    measure_reader,
    prepare_table,
    prepare_with_pandas,
    prepare_with_polars,
)


@pytest.fixture
def raw(tmp_path):
    generate(tmp_path / "raw", n_files=2, n_cells=12)
    return tmp_path / "raw"


@pytest.mark.quick(2)
@pytest.mark.parametrize("plain", [prepare_with_pandas, prepare_with_polars])
def test_plain_readers_make_the_same_cube_of_generated_days(tmp_path, raw, plain):
    ours, theirs = tmp_path / "ours.nc", tmp_path / "theirs.nc"
    cost = measure_reader(milan.prepare, raw, ours)
    measure_reader(plain, raw, theirs)
    assert largest_difference(ours, theirs) < 1e-14
    assert cost.cpu > 0
    assert cost.peak > 10
    assert f"| {cost.peak:.0f} |" in " ".join(
        table([{"reader": "ours", **cost._asdict()}], COLUMNS).split()
    )


def test_workers_of_ray_make_the_same_cube(tmp_path, raw):
    pytest.importorskip("ray", reason="needs the extra ray: pip install 'stforecast[ray]'")
    cost = measure_ray(2, raw, tmp_path / "workers.nc")
    milan.prepare(raw, tmp_path / "alone.nc")
    assert largest_difference(tmp_path / "workers.nc", tmp_path / "alone.nc") == 0
    assert min(cost.cpu, cost.wall, cost.start) > 0


@pytest.mark.repeats
def test_a_difference_is_seen(tmp_path):
    for i, n_cells in enumerate((3, 4)):
        generate(tmp_path / f"raw{i}", n_files=1, n_cells=n_cells)
        milan.prepare(tmp_path / f"raw{i}", tmp_path / f"{i}.nc", cells="1-3")
    assert largest_difference(tmp_path / "0.nc", tmp_path / "1.nc") > 0.01


@pytest.mark.parametrize("apart", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_readers_of_a_table_are_compared(tmp_path, monkeypatch, apart):
    """A process for each reader, which alone makes its memory known, takes seconds to start."""
    if not apart:
        monkeypatch.setattr(frame, "in_own_process", lambda function, *args: function(*args))
    results = Results(None)
    said = prepare_table(results, raw=tmp_path / "t.csv", cells=3, hours=48, repeat=1)
    assert said.startswith("a table of 0 MB")
    names = [row["reader"] for row in results.rows]
    assert names == ["stforecast", "stforecast info", "plain polars", "plain pandas"]
    assert all(row["cpu"] > 0 for row in results.rows)
    assert not (tmp_path / "t.csv").exists()
