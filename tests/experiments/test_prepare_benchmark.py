from data_prep import milan
from experiments.benchmarks.prepare import (
    generate,
    largest_difference,
    measure,
    prepare_with_pandas,
)


def test_both_readers_make_the_same_cube_of_generated_days(tmp_path):
    raw = tmp_path / "raw"
    generate(raw, n_files=2, n_cells=12)
    ours, theirs = tmp_path / "ours.nc", tmp_path / "theirs.nc"
    cost = measure(milan.prepare, raw, ours)
    measure(prepare_with_pandas, raw, theirs)
    assert largest_difference(ours, theirs) < 1e-14
    assert cost["cpu"] > 0
    assert cost["peak"] > 10


def test_a_difference_is_seen(tmp_path):
    for i, n_cells in enumerate((3, 4)):
        generate(tmp_path / f"raw{i}", n_files=1, n_cells=n_cells)
        milan.prepare(tmp_path / f"raw{i}", tmp_path / f"{i}.nc", cells="1-3")
    assert largest_difference(tmp_path / "0.nc", tmp_path / "1.nc") > 0.01
