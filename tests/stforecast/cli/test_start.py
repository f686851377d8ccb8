"""Short commands start without the packages that they do not need."""

import json
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
import json, sys
from stforecast.__main__ import main

for command in json.loads(sys.argv[1]):
    sys.argv[1:] = command.split()
    try:
        main()
    except SystemExit as done:
        # A stand-in of a package has no file.
        real = {n.partition(".")[0] for n, m in sys.modules.items() if getattr(m, "__file__", None)}
        print("ended:", done.code or 0, *real)
"""

CUBES = {"h5netcdf", "h5py", "pandas", "xarray"}

PROCESSES = {
    "that describes": [
        ("--help", 0, set()),
        ("plot --help", 0, set()),
        ("plot heatmap --help", 0, set()),
        ("run --help", 0, set()),
        ("vision run --help", 0, set()),
        ("list metrics", 0, {"tabulate"}),
        ("list data", 0, {"tabulate"}),
        ("list methods", 0, {"tabulate"}),
        ("vision list methods", 0, {"tabulate"}),
    ],
    "that computes nothing": [
        ("info nowhere", 2, set()),
        ("run --data nowhere.nc --out r", 2, set()),
        ("backtest --data nowhere.nc --method ridge --out r", 2, set()),
        ("predict nowhere --history h.nc --out f.csv", 2, set()),
        ("compare nowhere", 2, set()),
        ("report nowhere --out r.html", 2, set()),
        ("plot bars nowhere --out f.png", 2, set()),
        ("bench --list", 0, {"tabulate"}),
        ("info TOWN", 0, {*CUBES, "tabulate"}),
        ("info RUN", 0, {*CUBES, "tabulate"}),
    ],
    "that looks for a table": [
        ("forecast nowhere.csv --out f", 2, {*CUBES, "polars", "tqdm"}),
        ("prepare table --raw nowhere.csv --out t.nc", 2, {*CUBES, "polars", "tqdm"}),
    ],
}
"""Commands that share a process, with exit codes and what is imported by then: it only grows."""


@pytest.mark.parametrize("process", PROCESSES)
def test_commands_import_what_they_need(process, town, make_run):
    words = {"TOWN": str(town), "RUN": str(make_run().folder)}
    commands = [
        " ".join(words.get(word, word) for word in command.split())
        for command, _, _ in PROCESSES[process]
    ]
    said = in_new_process(SCRIPT, json.dumps(commands))
    ended = [line.split()[1:] for line in said if line.startswith("ended: ")]
    for (command, code, needed), (found, *imported) in zip(PROCESSES[process], ended, strict=True):
        assert int(found) == code, command
        assert HEAVY.intersection(imported) <= needed, command


def in_new_process(script, *args):
    """The lines that a script prints."""
    command = [sys.executable, "-c", script, *args]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


DESCRIPTIONS = """
import contextlib, hashlib, io, sys
import stforecast.cli.main as cli
from experiments.stand_ins import use_stand_ins

if sys.argv[1] == "real":
    import matplotlib, polars, torch
use_stand_ins(["--help"])
text = io.StringIO()
for command in sys.argv[2:]:
    with contextlib.redirect_stdout(text), contextlib.suppress(SystemExit):
        cli.main(command.split())
real = bool(getattr(sys.modules["torch"], "__file__", None))
print(real, len(text.getvalue()), hashlib.sha256(text.getvalue().encode()).hexdigest())
"""

DESCRIBED = (
    "list methods", "list models", "list metrics", "list data", "vision list methods",
    "vision list data", "vision list partitions", "vision list models", "plot --help",
    "plot heatmap --help", "vision plot --help", "run --help", "run --method fedtrees --help",
    "vision run --help", "vision run --method gldp --help", "prepare --help", "federate --help",
)  # fmt: skip


@pytest.mark.slow
def test_stand_ins_change_no_description():
    real, size, digest = in_new_process(DESCRIPTIONS, "real", *DESCRIBED)[-1].split()
    light, same_size, same_digest = in_new_process(DESCRIPTIONS, "light", *DESCRIBED)[-1].split()
    assert (real, light) == ("True", "False")
    assert int(size) > 10_000
    assert (size, digest) == (same_size, same_digest)
