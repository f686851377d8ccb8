"""The benchmark of cities, on a few cells."""

import dataclasses
import os
import time

import numpy as np
import pytest
from click.testing import CliRunner

from data_prep.base.errors import InputError
from data_prep.city.simulate import CITIES
from data_prep.cube import open_cube
from experiments.benchmarks.__main__ import main
from experiments.benchmarks.city import (
    FIRST,
    OTHERS,
    PHASES,
    SUMMARY,
    Usage,
    city_table,
    generate_city,
    measure_phases,
    run_as_child,
    spread_table,
)

pytestmark = pytest.mark.skipif(
    not os.access("/proc/self/clear_refs", os.W_OK), reason="the peak cannot be reset here"
)


def test_time_within_a_phase_is_not_that_of_the_phase_around_it():
    usage, began = Usage(), time.perf_counter()
    with usage.phase("outer"), usage.phase("inner"):
        time.sleep(0.02)
        held = b"1" * 100_000_000  # So large that the allocator gives it back.
    total = time.perf_counter() - began
    del held
    with usage.phase("after"):
        pass
    assert usage.of["inner"]["wall"] >= 0.02
    assert 0 <= usage.of["outer"]["wall"] <= total - usage.of["inner"]["wall"]
    assert usage.of["inner"]["peak"] > usage.of["after"]["peak"] > 0


TINY = dataclasses.replace(CITIES["milan"], rows=2, columns=2, n_cells=4, centre=1)


@pytest.mark.repeats
def test_each_phase_of_a_run_is_measured(tmp_path):
    cube = tmp_path / "city.nc"
    generate_city(cube, 3, 21)
    with open_cube(cube) as ds:
        assert dict(ds.sizes) == {"time": 21 * 24, "cell": 3}
    rows = [
        {"cells": 3, "days": 21, "horizon": 1, "method": method, **row}
        for method in ("fedlean", "ridge")
        for row in measure_phases(method, cube, 1, 1)
    ]
    phases = {row["phase"] for row in rows if row["method"] == "fedlean"}
    assert phases == {*PHASES, FIRST, SUMMARY, OTHERS}
    assert {"open", "training", "bounds"} < {r["phase"] for r in rows if r["method"] == "ridge"}
    assert all(row["mse"] < 1 for row in rows)
    lines = city_table(rows).splitlines()
    assert len(lines) == 4
    assert "nan" not in lines[-1], "ridge has no rounds"


def rows_of(actors, *phases, files="same"):
    """Rows of a run over actors; each phase is its name, CPU seconds and seconds."""
    run = {"cells": 9, "days": 62, "horizon": 24, "method": "fedlean", "actors": actors}
    return [{**run, "phase": n, "cpu": c, "wall": w, "files": files} for n, c, w in phases]


def test_actors_are_compared_with_one_process():
    rows = rows_of(0, ("rounds", 50.0, 55.0), ("bounds", 40.0, 45.0))
    rows += rows_of(2, ("Ray", 60.0, 5.0), ("rounds", 45.0, 45.0))
    lines = [[of.strip() for of in line.split("|")[2:-1]] for line in
             spread_table(rows).splitlines()[2:]]  # fmt: skip
    assert lines == [["0", "100", "1.00", "90", "0"], ["2", "50", "2.00", "105", "60"]]


def test_actors_that_write_other_files_than_one_process_are_refused():
    rows = rows_of(0, ("rounds", 9.0, 9.0)) + rows_of(2, ("rounds", 9.0, 9.0), files="other")
    with pytest.raises(InputError, match=r"^cells 9, .*, actors 2: not the files"):
        spread_table(rows)


@pytest.mark.slow
def test_actors_and_one_process_are_measured_in_one_run(tmp_path):
    pytest.importorskip("ray", reason="needs the extra ray: pip install 'stforecast[ray]'")
    command = ["city", "--cells=3", "--days=21", "--horizons=1", "--methods=fedlean"]
    command += ["--threads=1", "--actors=0,2", "--out", str(tmp_path)]
    found = CliRunner().invoke(main, command, catch_exceptions=False)
    last = [line.split("|")[2:-1] for line in found.output.splitlines()[-2:]]
    assert [line[0].strip() for line in last] == ["0", "2"]
    assert float(last[1][-1]) > 0, "Ray's processes took no time"


def test_a_city_of_more_cells_than_milans_has_further_draws(tmp_path, monkeypatch):
    cube = tmp_path / "city.nc"
    monkeypatch.setattr("experiments.benchmarks.city.CITIES", {"milan": TINY})
    generate_city(cube, 6, 1)
    with open_cube(cube) as ds:
        assert len(np.unique(ds["cell"])) == 6
        first, second = ds["internet"].values[:, :4], ds["internet"].values[:, 4:]
    assert not np.isclose(first[:, :2], second).any()


@pytest.mark.slow
def test_what_a_command_uses_is_measured(tmp_path):
    command = ["simulate", "--cells=2", "--days=1", "--out", "raw"]
    used = run_as_child(tmp_path, command)
    files = list((tmp_path / "raw").iterdir())
    assert used["written"] == sum(path.stat().st_size for path in files) / 1e9 > 0
    assert used["cpu"] > 0 < used["peak"]
    with pytest.raises(InputError, match=r"prepare nothing: .*'nothing'"):
        run_as_child(tmp_path, ["prepare", "nothing"])


@pytest.mark.slow
def test_the_way_from_raw_files_to_the_report_is_measured_once(tmp_path):
    options = ["--folder", str(tmp_path / "city"), "--cells=3", "--days=21"]
    command = ["raw-to-report", *options, "--out", str(tmp_path)]
    shown = [CliRunner().invoke(main, command, catch_exceptions=False) for _ in range(2)]
    assert shown[0].output == shown[1].output
    assert "| report run --out report.html " in shown[0].output
    assert (tmp_path / "city" / "report.html").stat().st_size > 10_000
