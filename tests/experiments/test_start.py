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
    if done.code:
        raise
print(*{name.partition(".")[0] for name in sys.modules})
"""


@pytest.mark.parametrize(
    ("command", "needed"),
    [
        ("--help", set()),
        ("list metrics", {"pandas", "tabulate"}),
        ("list methods", {"pandas", "tabulate", "torch", "tqdm"}),
        ("plot --help", {"h5py", "matplotlib", "pandas", "xarray"}),
    ],
)
def test_a_command_imports_what_it_needs(command, needed):
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, *command.split()],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    imported = done.stdout.splitlines()[-1].split()
    assert HEAVY.intersection(imported) <= needed
