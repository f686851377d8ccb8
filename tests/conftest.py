"""Fixtures shared by all tests: where the real data are."""

import gc
import json
import logging
import os
import sys
import time
import zlib
from collections import Counter, defaultdict
from pathlib import Path

import numpy as np
import pytest

from data_prep.base import progress

# Tests are tiny: two threads wait for each other longer than they compute.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.fsync = lambda handle: (
    None
)  # No test outlives the machine; disks take 10 ms, ten thousand times.

try:
    from hypothesis import settings
except ModuleNotFoundError:
    pass  # Only some tests need it.
else:
    # The machine may be busy.
    settings.register_profile("quick", deadline=None, max_examples=30)
    settings.load_profile("quick")

ROOT = Path(__file__).resolve().parent.parent
START = time.perf_counter()


ATTACKS = 4


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Sample the contract of methods: of a test's cases with one method, one is not slow.

    Which one follows from the names, so that every test meets every model with some methods, and
    every method in some tests. Of tests that are marked as `sampled(n)`, every n-th case is not
    slow; the largest n counts if a file has a mark, too. Of the attacks it is every fourth.
    `make test-slow` runs them all. Of what is left of a test that is marked as `quick(n)`, all
    cases but every n-th are `repeats`, which `make test-repeats` runs.
    """
    sampled, cases, quick = defaultdict(list), defaultdict(list), defaultdict(list)
    for item in items:
        params = getattr(getattr(item, "callspec", None), "params", {})
        one_in = largest(item, "sampled")
        if params and item.get_closest_marker("attack"):
            one_in = max(one_in, ATTACKS)
        if one_in > 1:
            sampled[item.path, item.originalname, one_in].append(item)
        if "case" in params:
            cases[item.path, item.originalname, params["case"][0]].append(item)
    leave_out(sampled, pytest.mark.slow)
    for (_, *names), group in cases.items():
        kept = zlib.crc32(" ".join(names).encode()) % len(group)
        for item in (*group[:kept], *group[kept + 1 :]):
            item.add_marker(pytest.mark.slow)
    for item in items:
        if (one_in := largest(item, "quick")) > 1 and not item.get_closest_marker("slow"):
            quick[item.path, item.originalname, one_in].append(item)
    leave_out(quick, pytest.mark.repeats)
    for item in items:
        if marker := item.get_closest_marker("attack"):
            item.user_properties.append(("attack", marker.args[0]))


def largest(item, name):
    """Return the largest n of the marks `name(n)` of a test and its file."""
    return max((marker.args[0] for marker in item.iter_markers(name)), default=1)


def leave_out(groups, mark):
    """Mark all tests but one in n of each group; the keys of groups are (file, name, n)."""
    for (_, name, one_in), group in groups.items():
        first = zlib.crc32(name.encode()) % min(one_in, len(group))
        for i, item in enumerate(group):
            if i % one_in != first:
                item.add_marker(mark)


def pytest_addoption(parser):
    parser.addoption("--attacks", metavar="FILE", help="write how many tests of each attack passed")


class AttackCounter:
    """Counts the outcomes of tests marked as `attack(kind)`, by kind, and writes them as JSON.

    Kinds of which no test ran keep what the file says.
    """

    def __init__(self, path):
        self.path, self.found = Path(path), defaultdict(Counter)

    def pytest_runtest_logreport(self, report):
        kind = dict(report.user_properties).get("attack")
        if kind and (report.when == "call" or report.outcome != "passed"):
            self.found[kind][report.outcome] += 1

    def pytest_sessionfinish(self):
        ran = {kind: n for kind, n in self.found.items() if set(n) - {"skipped"}}
        before = json.loads(self.path.read_text()) if self.path.exists() else {}
        self.path.write_text(json.dumps({**before, **ran}, indent=1, sort_keys=True) + "\n")


def calibration():
    """Return the seconds that this machine takes for a fixed amount of work in Python and numpy."""
    start = time.perf_counter()
    matrix = np.linspace(-1, 1, 500**2).reshape(500, 500)
    for _ in range(20):
        matrix = np.tanh(matrix @ matrix.T)
    sorted(str(i) for i in range(10**6))
    return time.perf_counter() - start


def pytest_terminal_summary(terminalreporter):
    """Print how long the tests took, also in units that are comparable between machines."""
    seconds, unit = time.perf_counter() - START, calibration()
    terminalreporter.write_line(f"{seconds:.0f} s, {seconds / unit:.0f} times the calibration")


def pytest_configure(config):
    path = config.getoption("--attacks")
    if path and not hasattr(config, "workerinput"):
        config.pluginmanager.register(AttackCounter(path))


gc.disable()  # Importing and collecting make no garbage to speak of.


def pytest_collection_finish():
    """Look for garbage now and then, but not among the modules and tests that are there."""
    gc.freeze()
    gc.set_threshold(50_000)
    gc.enable()


@pytest.fixture(autouse=True)
def settings_of_the_process():
    """Log levels, threads and random numbers: no test meets those of the one before."""
    for package in ("data_prep", "stforecast", "vision", "experiments"):
        logging.getLogger(package).setLevel(logging.NOTSET)
    progress.FIRST = 3600.0  # The machine may be busy: no test waits for a line by accident.
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
        sys.modules["torch"].default_generator.manual_seed(0)


@pytest.fixture
def alone():
    """Makes the clients of a federation anew: `alone(federation)[1].params`."""
    from reference_client import ReferenceClient

    return ReferenceClient.all_of


@pytest.fixture
def double():
    """Double precision for all numbers of the test; the tolerances that a reference then keeps."""
    import torch

    torch.set_default_dtype(torch.float64)
    yield {"rtol": 1e-9, "atol": 1e-9}
    torch.set_default_dtype(torch.float32)


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """Real data: `../shared/data` from the project's root, or where STFORECAST_DATA points."""
    path = Path(os.environ.get("STFORECAST_DATA", ROOT.parent / "shared" / "data"))
    if not path.is_dir():
        message = f"no real data at {path}; set STFORECAST_DATA to their folder"
        if os.environ.get("STFORECAST_REQUIRE_DATA"):
            pytest.fail(message)
        pytest.skip(message)
    return path


@pytest.fixture(scope="session")
def traffic_dir(data_dir: Path) -> Path:
    return data_dir / "traffic"


@pytest.fixture(scope="session")
def exports_dir(data_dir: Path) -> Path:
    return data_dir / "exports"


@pytest.fixture(scope="session")
def town(tmp_path_factory):
    """Path of a cube: three cells, ten days of hours, services internet and sms."""
    import numpy as np
    import pandas as pd

    from data_prep.cube import make_cube, write_cube

    hours = pd.date_range("2013-11-01", periods=240, freq="h")
    rng = np.random.default_rng(0)
    wave = 1 + 0.5 * np.sin(2 * np.pi * hours.hour.to_numpy() / 24)
    values = np.array([100.0, 50.0, 400.0]) * (wave[:, None] + 0.1 * rng.normal(size=(240, 3)))
    cube = make_cube(
        {"internet": values, "sms": 2 * values},
        hours,
        np.array([11, 22, 33]),
        title="a small town",
        source="invented",
        license="none",
        units="MB",
        time_zone="Europe/Rome",
    )
    return write_cube(cube, tmp_path_factory.mktemp("town") / "town.nc")
