"""One row of a benchmark is made again, and compared with rows whose forecasts are gone."""

import json
import re
import shutil
import tarfile

import pytest

from data_prep.base.errors import InputError
from stforecast.bench.grid import load_grid
from stforecast.bench.jobs import run_grid
from stforecast.bench.kept import ARCHIVE
from stforecast.bench.run_groups import group_runs
from stforecast.comparison.compared import compare_forecasts
from stforecast.comparison.rows import Row, read_errors
from stforecast.comparison.sums import sums_of
from stforecast.forecasting import runs as running
from stforecast.forecasting.results import ForecastRun

ROWS = """[
    "last_value",
    { method = "ridge", alpha = ALPHA, intervals = "normalised" },
    { method = "solo", rounds = 1, hidden_size = 8, device = "cpu", seeds = [1, 2] },
]"""
FOLDS = """
services = ["internet"]
reference = "ridge"
[backtest]
folds = 2
test = "2d"
"""


@pytest.fixture
def calls(monkeypatch):
    """Labels of the runs that are really done."""
    done = []

    def run(method, data, folder, settings, **options):
        done.append(options["label"])
        return original(method, data, folder, settings, **options)

    original = running.run
    monkeypatch.setattr(running, "run", run)
    return done


def parts_of(out):
    return json.loads((out / "table.json").read_text())["parts"]


def without_seconds(parts):
    """Return tables without the seconds that rows and refits took."""
    return [
        re.sub(r"in [\d.]+ s", "", part)
        if isinstance(part, str)
        else [{n: v for n, v in row.items() if not n.endswith(" s")} for row in part]
        for part in parts
    ]


def names_in(path):
    with tarfile.open(path) as archive:
        return archive.getnames()


@pytest.fixture(scope="module")
def grid_of(town, tmp_path_factory):
    """Makes the benchmark, with a penalty of ridge."""

    def make(alpha=1.0):
        path = tmp_path_factory.mktemp("grid") / "bench.toml"
        methods, settings = ROWS.replace("ALPHA", str(alpha)), "horizon = 2\ncloseness = 3\n"
        path.write_text(
            f'data = ["{town}"]\nmethods = {methods}\n{FOLDS}\n[settings]\n{settings}periods = 1\n'
        )
        return load_grid(path)

    return make


@pytest.fixture(scope="module")
def whole(grid_of, tmp_path_factory):
    """A benchmark, and the folder of all its runs, which no test changes."""
    grid, out = grid_of(), tmp_path_factory.mktemp("kept") / "out"
    run_grid(grid, out)
    return grid, out


@pytest.fixture
def made(whole, tmp_path):
    """The benchmark, the folder of all its runs, and a folder with only its archive."""
    grid, out = whole
    other = tmp_path / "other"
    other.mkdir()
    shutil.copy(out / ARCHIVE, other)
    return grid, out, other


def test_tables_of_sums_are_the_tables_of_forecasts(made, calls):
    grid, out, other = made
    run_grid(grid, other)
    assert not calls
    assert not list(other.rglob("forecasts.nc"))
    assert parts_of(other) == parts_of(out), "all digits"
    assert (other / ARCHIVE).read_bytes() == (out / ARCHIVE).read_bytes()


def test_one_row_made_again_gives_the_file_of_all(made, calls):
    grid, out, other = made
    run_grid(grid.replace(rows=["ridge"]), other)
    assert calls == ["ridge", "ridge"]
    assert without_seconds(parts_of(other)) == without_seconds(parts_of(out)), "all digits"
    assert names_in(other / ARCHIVE) == names_in(out / ARCHIVE)


def test_a_row_of_other_settings_changes_only_its_numbers(made, grid_of):
    _, out, other = made
    changed = grid_of(alpha=100.0)
    with pytest.raises(InputError, match=r"\(alpha\)"):
        run_grid(changed.replace(rows=["solo"]), other)
    run_grid(changed.replace(rows=["ridge"]), other)
    ours, theirs = (without_seconds(parts_of(folder)) for folder in (other, out))
    errors, before = (next(p for p in parts if "MSE" in p[0]) for parts in (ours, theirs))
    differing = [a["method"] for a, b in zip(errors, before, strict=True) if a != b]
    assert differing == ["ridge"]


def test_a_row_that_fails_again_stays_as_it_was_kept(made, grid_of, monkeypatch):
    grid, out, other = made

    def fail(*args, **options):
        raise RuntimeError("no luck")

    monkeypatch.setattr(running, "run", fail)
    with pytest.raises(RuntimeError, match="no luck"):
        run_grid(grid.replace(rows=["ridge"]), other)
    monkeypatch.undo()
    run_grid(grid, other)
    assert parts_of(other) == parts_of(out)
    assert (other / ARCHIVE).read_bytes() == (out / ARCHIVE).read_bytes()


def test_kept_runs_say_what_is_gone(made):
    _, out, other = made
    with tarfile.open(other / ARCHIVE) as archive:
        archive.extractall(other, filter="data")
    runs = ForecastRun.find([other])
    with pytest.raises(InputError, match="only sums"):
        runs[0].forecasts()
    with pytest.raises(InputError, match=r"sums .*mse, .*mase"):
        compare_forecasts(runs, "mase", None)
    mixed = ForecastRun.find([out / "runs" / "town" / "internet" / "ridge"]) + [
        run for run in runs if run.label != "ridge"
    ]
    found, whole = (
        read_errors([Row(group) for group in group_runs(some)], "mse").sums
        for some in (mixed, ForecastRun.find([out]))
    )
    assert found.keys() == whole.keys()
    assert all((found[name].total == whole[name].total).all() for name in whole)
    sums = sums_of(runs[0])
    sums.assign_coords(cell=[1, 2, 3]).to_netcdf(runs[0].folder / "sums.nc", engine="h5netcdf")
    with pytest.raises(InputError, match="other cells"):
        read_errors([Row(group) for group in group_runs(runs)], "mse")


def test_a_damaged_archive_is_named(made):
    grid, _, other = made
    (other / ARCHIVE).write_bytes(b"none")
    with pytest.raises(InputError, match=r"kept\.tar\.xz: .*archive"):
        run_grid(grid, other)
