"""Fixtures shared by all tests: where the real data are."""

import logging
import os
from pathlib import Path

import pytest

# Tests are tiny: two threads wait for each other longer than they compute.
os.environ.setdefault("OMP_NUM_THREADS", "1")

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(autouse=True)
def log_levels():
    """The command line sets them for its process; tests must not meet another's."""
    loggers = [logging.getLogger(p) for p in ("data_prep", "stforecast", "vision", "experiments")]
    before = [logger.level for logger in loggers]
    yield
    for logger, level in zip(loggers, before, strict=True):
        logger.setLevel(level)


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
