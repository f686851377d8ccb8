"""Fixtures shared by all tests: where the real data are."""

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


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
