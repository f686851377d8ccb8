"""Run the whole suite as other machines would run it: `make test-machines`.

A machine is a choice of instruction sets, of flags for the C compiler, of threads, of an
interpreter and of the packages' versions; each runs the tests in a random order of its own. An
interpreter that is not installed is reported and left out.

    python tests/machines.py                # all of them, about five minutes each on two cores
    python tests/machines.py sse python3.13 # some of them
"""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import click

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / ".machines"
"""Virtual environments and the output of the runs."""


@dataclass(frozen=True)
class Machine:
    """One simulated machine.

    Attributes:
        about: what it stands for.
        environment: variables of its own.
        python: name of its interpreter; the one of `make setup` where it is empty.
        oldest: whether the packages have the lowest versions that `pyproject.toml` allows.
    """

    about: str
    environment: dict[str, str] = field(default_factory=dict)
    python: str = ""
    oldest: bool = False


MACHINES = {
    "sse": Machine(
        "a processor with SSE4.2 and one thread",
        {
            "ATEN_CPU_CAPABILITY": "default",
            "MKL_ENABLE_INSTRUCTIONS": "SSE4_2",
            "ONEDNN_MAX_CPU_ISA": "SSE41",
            "CFLAGS": "-march=x86-64-v2",
            "OMP_NUM_THREADS": "1",
        },
    ),
    "avx2": Machine(
        "a processor with AVX2 and two threads",
        {
            "ATEN_CPU_CAPABILITY": "avx2",
            "MKL_ENABLE_INSTRUCTIONS": "AVX2",
            "ONEDNN_MAX_CPU_ISA": "AVX2",
            "CFLAGS": "-march=x86-64-v3",
            "OMP_NUM_THREADS": "2",
        },
    ),
    "no-kernels": Machine("no C compiler", {"STFORECAST_KERNELS": "off"}),
    "oldest": Machine("the oldest versions of the packages", python="python3.11", oldest=True),
    "python3.12": Machine("Python 3.12", python="python3.12"),
    "python3.13": Machine("Python 3.13", python="python3.13"),
}


def main(names: list[str]) -> int:
    """Run the suite on some machines, by default on all; the exit code is 1 if one fails."""
    if unknown := set(names) - MACHINES.keys():
        click.echo(f"no machine {', '.join(sorted(unknown))}; choose from {', '.join(MACHINES)}")
        return 2
    FOLDER.mkdir(exist_ok=True)
    results = {name: run(name, MACHINES[name]) for name in names or MACHINES}
    width = max(map(len, results))
    for name, (_, line) in results.items():
        click.echo(f"{name:{width}}  {MACHINES[name].about}: {line}")
    return int(any(failed for failed, _ in results.values()))


def run(name: str, machine: Machine) -> tuple[bool, str]:
    """Whether the suite failed on a machine, and its last line."""
    python = environment(name, machine) if machine.python else Path(sys.executable)
    if python is None:
        return False, f"left out, {machine.python} is not installed"
    seed = random.randrange(2**16)
    command = [str(python), "-m", "pytest", "-n", "auto", "--maxprocesses", "8"]
    command += ["-m", "not slow", "--random-order", f"--random-order-seed={seed}"]
    click.echo(f"{name}: {' '.join(command[1:])}")
    start, output = time.monotonic(), FOLDER / f"{name}.txt"
    with output.open("w") as file:
        variables = {**os.environ, "MPLBACKEND": "Agg", **machine.environment}
        done = subprocess.run(
            command, cwd=ROOT, env=variables, stdout=file, stderr=subprocess.STDOUT
        )
    lines = output.read_text().splitlines() or ["no output"]
    click.echo("\n".join(line for line in lines if line.startswith(("FAILED", "ERROR"))))
    click.echo(f"{name}: {lines[-1]}, {time.monotonic() - start:.0f} s, see {output}")
    return done.returncode != 0, lines[-1]


def environment(name: str, machine: Machine) -> Path | None:
    """The interpreter of a virtual environment made for a machine; None if it cannot be."""
    found = interpreter(machine.python)
    if found is None:
        return None
    folder = FOLDER / name
    python, made = folder / "bin" / "python", folder / "made"
    if not made.exists():
        subprocess.run([found, "-m", "venv", "--clear", folder], check=True)
        pip = [python, "-m", "pip", "install", "-q", "--disable-pip-version-check"]
        if machine.oldest:
            subprocess.run([*pip, "-c", "constraints.txt", "uv"], cwd=ROOT, check=True)
            oldest = folder / "oldest.txt"
            lowest = ["--resolution", "lowest-direct", "--extra", "dev", "-o", oldest]
            compile_ = [python, "-m", "uv", "pip", "compile", "-q", *lowest, "pyproject.toml"]
            subprocess.run(compile_, cwd=ROOT, check=True)
            subprocess.run([*pip, "-r", oldest], cwd=ROOT, check=True)
            subprocess.run([*pip, "--no-deps", "-e", "."], cwd=ROOT, check=True)
        else:
            dev = ["-c", "constraints.txt", "-e", ".[dev]"]
            subprocess.run([*pip, *dev], cwd=ROOT, check=True)
        made.touch()
    return python


def interpreter(name: str) -> str | None:
    """Path of an interpreter that runs, on the path or in pyenv's folder."""
    version = name.removeprefix("python")
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    candidates = [shutil.which(name), *sorted(pyenv.glob(f"{version}.*/bin/python"))]
    for candidate in filter(None, candidates):
        if subprocess.run([candidate, "-c", ""], capture_output=True).returncode == 0:
            return str(candidate)
    return None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
