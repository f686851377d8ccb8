"""A user's file with the name of one of our packages is named, wherever it is found first."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from stforecast.hidden import check_not_hidden

ROOT = Path(__file__).resolve().parents[2]


def run(folder, *words):
    """Run Python in a folder that comes first on its path, ours next."""
    paths = os.pathsep.join([str(folder), str(ROOT)])
    return subprocess.run(
        [sys.executable, *words], cwd=folder, env={**os.environ, "PYTHONPATH": paths},
        capture_output=True, text=True, check=False,
    )  # fmt: skip


def test_our_own_packages_are_not_hidden():
    check_not_hidden("data_prep", "vision", "experiments")


@pytest.mark.parametrize("name", ["data_prep.py", "vision.py", "experiments/__init__.py"])
def test_the_command_names_the_file(tmp_path, name):
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text("")
    done = run(tmp_path, "-m", "stforecast", "--version")
    assert done.returncode == 1
    hidden = name.removesuffix(".py").partition("/")[0]
    assert f"{tmp_path / name} hides the package {hidden}" in done.stderr.splitlines()[-1]


def test_python_names_the_file(tmp_path):
    (tmp_path / "data_prep.py").write_text("")
    done = run(tmp_path, "-c", "from stforecast import Forecaster")
    assert done.stderr.splitlines()[-1].startswith(
        f"ImportError: {tmp_path / 'data_prep.py'} hides"
    )


def test_a_file_that_nothing_needs_does_no_harm(tmp_path):
    (tmp_path / "vision.py").write_text("")
    assert run(tmp_path, "-c", "import stforecast").returncode == 0


def test_a_folder_without_code_hides_nothing(tmp_path):
    (tmp_path / "experiments").mkdir()
    assert run(tmp_path, "-m", "stforecast", "--version").returncode == 0
