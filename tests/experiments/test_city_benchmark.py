"""The benchmark of cities, on a few cells."""

import os
import time

import pytest

from data_prep.cube import open_cube
from experiments.benchmarks.city import (
    FIRST,
    OTHERS,
    PHASES,
    SUMMARY,
    Usage,
    city_table,
    generate_city,
    measure_phases,
)

pytestmark = pytest.mark.skipif(
    not os.access("/proc/self/clear_refs", os.W_OK), reason="the peak cannot be reset here"
)


def test_time_within_a_phase_is_not_that_of_the_phase_around_it():
    usage = Usage()
    with usage.phase("outer"), usage.phase("inner"):
        time.sleep(0.02)
        held = bytearray(100_000_000)  # So large that the allocator gives it back.
    del held
    with usage.phase("after"):
        pass
    assert usage.of["inner"]["wall"] >= 0.02 > usage.of["outer"]["wall"] >= 0
    assert usage.of["inner"]["peak"] > usage.of["after"]["peak"] > 0


def test_each_phase_of_a_run_is_measured(tmp_path):
    cube = tmp_path / "city.nc"
    generate_city(cube, 3, 21)
    with open_cube(cube) as ds:
        assert dict(ds.sizes) == {"time": 21 * 24, "cell": 3}
    rows = [
        {"cells": 3, "horizon": 1, "method": method, **row}
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
