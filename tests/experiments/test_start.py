"""Short commands start without the packages that they do not need."""

import subprocess
import sys

import pytest

HEAVY = {
    "h5py",
    "matplotlib",
    "pandas",
    "polars",
    "scipy",
    "sklearn",
    "tabulate",
    "torch",
    "tqdm",
    "xarray",
}

SCRIPT = """
import sys
from experiments.cli import main

try:
    main(sys.argv[1:])
except SystemExit as done:
    print(done.code or 0, *{name.partition(".")[0] for name in sys.modules})
"""

CUBES = {"h5netcdf", "h5py", "pandas", "xarray"}


@pytest.mark.parametrize(
    ("command", "code", "needed"),
    [
        ("--help", 0, set()),
        ("bench --list", 0, {"tabulate"}),
        ("info TOWN", 0, {*CUBES, "tabulate"}),
        ("info RUN", 0, {*CUBES, "tabulate"}),
        ("info nowhere", 2, set()),
        ("run --data nowhere.nc --out r", 2, set()),
        ("backtest --data nowhere.nc --method ridge --out r", 2, set()),
        ("predict nowhere --history h.nc --out f.csv", 2, set()),
        ("forecast nowhere.csv --out f", 2, {*CUBES, "polars", "tqdm"}),
        ("prepare table --raw nowhere.csv --out t.nc", 2, {*CUBES, "polars", "tqdm"}),
        ("list metrics", 0, {"pandas", "tabulate"}),
        ("list methods", 0, {"pandas", "tabulate", "torch", "tqdm"}),
        ("plot --help", 0, {*CUBES, "matplotlib", "polars", "tqdm"}),
    ],
)
def test_a_command_imports_what_it_needs(command, code, needed, town, make_run):
    words = {"TOWN": str(town), "RUN": "RUN"}
    if "RUN" in command:
        words["RUN"] = str(make_run().folder)
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, *(words.get(word, word) for word in command.split())],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    found, *imported = done.stdout.splitlines()[-1].split()
    assert int(found) == code, done.stderr
    assert HEAVY.intersection(imported) <= needed
