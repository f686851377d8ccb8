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
        print("ended:", done.code or 0, *{name.partition(".")[0] for name in sys.modules})
"""

CUBES = {"h5netcdf", "h5py", "pandas", "xarray"}

PROCESSES = {
    "that describes": [
        ("--help", 0, set()),
        ("bench --help", 0, set()),
        ("report --help", 0, set()),
        ("vision --help", 0, set()),
        ("list metrics", 0, {"pandas", "tabulate"}),
        ("list benchmarks", 0, {"pandas", "tabulate"}),
        ("list methods", 0, {"pandas", "tabulate", "torch", "tqdm"}),
        ("run --help", 0, {"pandas", "tabulate", "torch", "tqdm"}),
    ],
    "that computes nothing": [
        ("info nowhere", 2, set()),
        ("run --data nowhere.nc --out r", 2, set()),
        ("backtest --data nowhere.nc --method ridge --out r", 2, set()),
        ("predict nowhere --history h.nc --out f.csv", 2, set()),
        ("compare nowhere", 2, set()),
        ("report nowhere --out r.html", 2, set()),
        ("plot bars nowhere --out f.png", 2, set()),
        ("info TOWN", 0, {*CUBES, "scipy", "tabulate"}),
        ("compare RUN", 0, {*HEAVY} - {"torch", "sklearn"}),
    ],
    "that looks for a table": [
        ("forecast nowhere.csv --out f", 2, {*CUBES, "polars", "tqdm"}),
        ("prepare table --raw nowhere.csv --out t.nc", 2, {*CUBES, "polars", "tqdm"}),
    ],
}
"""Commands that share a process, with exit codes and what is imported by then: it only grows."""


@pytest.mark.parametrize(
    "process",
    [
        "that computes nothing",
        pytest.param("that describes", marks=pytest.mark.repeats),
        pytest.param("that looks for a table", marks=pytest.mark.repeats),
    ],
)
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


WAITING = """
import os, sys
from stforecast.__main__ import main

os.environ.pop("OMP_WAIT_POLICY", None)
try:
    main(["list", "metrics"])
except SystemExit:
    print(os.environ["OMP_WAIT_POLICY"], "torch" in sys.modules)
"""


def test_waiting_threads_sleep_from_before_the_import_of_torch_on():
    assert in_new_process(WAITING)[-1] == "PASSIVE False"


STEP = """
import sys
import torch
from stforecast.federated.core.training import Optimizer, Training

params = {"w": torch.ones(2, 3, requires_grad=True)}
steps = Optimizer(params, {}, Training(optimizer="sgd", momentum=0.0))
before = {*sys.modules}
steps.step((params["w"] ** 2).sum(dim=1))
print(*sorted({"sympy", "torch.fx.experimental.symbolic_shapes"} & ({*sys.modules} - before)), "-")
"""


def test_a_step_of_training_imports_nothing_large():
    """Otherwise the first run of a process seems to train for seconds longer than the next."""
    assert in_new_process(STEP)[-1] == "-"


def in_new_process(script, *args):
    """The lines that a script prints."""
    command = [sys.executable, "-c", script, *args]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()
