"""The source distribution and the wheel are whole, and work where nothing else of ours lies."""

import os
import shlex
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import zipfile
from importlib.metadata import entry_points
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("data_prep", "stforecast", "vision")

DATA = (".c", ".css", ".csv", ".html", ".js", ".npz", ".toml", "py.typed")
"""Endings of files in packages that are no modules."""

SESSION = (
    "simulate --cells 2 --days 15 --out raw",
    "prepare milan --raw raw --out city.nc",
    "run --data city.nc --service internet --method ridge --split days:9,3,3 --out run",
    "predict run --history city.nc --out next.csv",
    "report run --out report.html",
    "list methods",
    "list benchmarks",
    "bench quick --data city.nc --service internet --seed 1 --rounds 1 --set split=days:9,3,3 "
    "--set hidden_size=8 --out results",
    "vision list data",
)


def test_the_installed_entry_points_are_those_of_this_source():
    """Kinds and commands are found by them: after a change, install again (`make setup`)."""
    groups = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]
    for group, points in groups.items():
        found = {p.name: p.value for p in entry_points(group=group) if p.dist.name == "stforecast"}
        assert found == points, "run: pip install -e . --no-deps"


def test_every_package_is_typed():
    assert all((ROOT / name / "py.typed").exists() for name in PACKAGES)


def call(*words, cwd, env=None):
    done = subprocess.run(
        [str(w) for w in words], cwd=cwd, env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The source distribution, and the wheel that is built from it."""
    folder = tmp_path_factory.mktemp("dist")
    copy = folder / "copy"
    call("git", "clone", "-q", "--no-hardlinks", ROOT, copy, cwd=folder)
    sdist = "from setuptools.build_meta import build_sdist as b; b('..')"
    call(sys.executable, "-c", sdist, cwd=copy)
    (archive,) = folder.glob("*.tar.gz")
    with tarfile.open(archive) as tar:
        tar.extractall(folder, filter="data")
    wheel = "from setuptools.build_meta import build_wheel as b; b('..')"
    call(sys.executable, "-c", wheel, cwd=folder / archive.name.removesuffix(".tar.gz"))
    (wheel_file,) = folder.glob("*.whl")
    return archive, wheel_file, copy


@pytest.mark.slow
def test_the_wheel_holds_every_file_of_the_packages_and_nothing_else(built):
    _, wheel, copy = built
    found = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    tracked = call("git", "ls-files", *PACKAGES, cwd=copy).split()
    assert found == {name for name in tracked if name.endswith((".py", *DATA))}


@pytest.mark.slow
def test_the_source_distribution_holds_all_that_its_tests_and_documents_need(built):
    archive, _, copy = built
    with tarfile.open(archive) as tar:
        names = {name.partition("/")[2] for name in tar.getnames()}
    left_out = set(call("git", "ls-files", cwd=copy).splitlines()) - names
    assert left_out == {".dockerignore", ".github/workflows/test.yml", ".gitignore"}


@pytest.mark.slow
def test_type_checkers_see_an_editable_install(built, tmp_path):
    """They follow a path in a `.pth` file, but not an import hook."""
    *_, copy = built
    build = f"from setuptools.build_meta import build_editable as b; b({str(tmp_path)!r})"
    call(sys.executable, "-c", build, cwd=copy)
    (wheel,) = map(zipfile.ZipFile, tmp_path.glob("*.whl"))
    (path,) = (name for name in wheel.namelist() if ".dist-info/" not in name)
    assert wheel.read(path).decode().strip() == str(copy)


@pytest.mark.parametrize(
    ("subject", "accepted"),
    [("Refuse cubes without a unit", True), ("Refuse cubes.", False), ("x" * 73, False)],
)
def test_the_hook_checks_the_subject_of_a_commit(subject, accepted, tmp_path):
    (hooks,) = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    _, script, code = shlex.split(hooks["hooks"][1]["entry"])
    (tmp_path / "message").write_text(f"{subject}\n\nA body of any length.\n")
    done = subprocess.run([sys.executable, script, code, tmp_path / "message"], check=False)
    assert (done.returncode == 0) is accepted


@pytest.mark.slow
def test_the_wheel_works_in_an_environment_of_its_own(built, tmp_path):
    """The environment borrows the packages that ours depends on, but not ours."""
    _, wheel, _ = built
    env = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"} | {"HOME": str(tmp_path)}
    call(sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv", cwd=tmp_path)
    python = tmp_path / "venv" / "bin" / "python"
    call(sys.executable, "-m", "pip", "--python", python, "install", "-q", "--no-deps",
         "--no-index", wheel, cwd=tmp_path, env=env)  # fmt: skip
    (site,) = (tmp_path / "venv").glob("lib/python*/site-packages")
    (site / "borrowed.pth").write_text(sysconfig.get_path("purelib"))
    where = "import data_prep, stforecast; print(data_prep.__file__, stforecast.__file__)"
    assert all(
        Path(p).is_relative_to(site) for p in call(python, "-c", where, cwd="/", env=env).split()
    )
    for line in SESSION:
        call(python.with_name("stforecast"), "-q", *line.split(), cwd=tmp_path, env=env)
    assert (tmp_path / "next.csv").exists()
