"""What comes from elsewhere: no network but where it is asked for, no telemetry, safe unpacking.

That downloads are verified by checksum, resumed, and unpacked nowhere else is tested in
`data_prep/test_download.py`; that nothing is unpickled, in `test_layers_of_imports.py`.
"""

import ast
import contextlib
import os
import subprocess
import sys
import tomllib
from importlib.metadata import PackageNotFoundError, distribution
from itertools import chain
from pathlib import Path

import licences
import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from data_prep import DATA_SETS
from data_prep.download import Dataverse

ROOT = Path(__file__).resolve().parent.parent
LAYERS = ("data_prep", "stforecast", "vision", "experiments")
FILES = [p for layer in LAYERS for p in sorted((ROOT / layer).rglob("*.py"))]

NETWORK = {"aiohttp", "ftplib", "http", "httpx", "requests", "smtplib", "socket", "urllib3"}
ALLOWED = {
    "data_prep/download/http.py",
    "experiments/benchmarks/serving.py",  # Asks a server on this machine.
    "experiments/local_flower.py",
    "stforecast/flower/gate.py",  # To the SuperLink on this machine.
    "stforecast/flower/own_supernode.py",  # Names an error of Flower's client.
    "stforecast/flower/superlink.py",  # Listens for nodes, for whoever starts a server.
    "stforecast/flower/supernode.py",  # Asks for a free port of this machine.
    "stforecast/service/serve.py",  # Listens for whoever asks for forecasts.
}
"""Where files are fetched, and what stays on this machine."""

LOCK = ROOT / "constraints.txt"

PERMISSIVE = {
    *("0BSD", "Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "BSL-1.0", "CC0-1.0", "MIT"),
    *("MIT-CMU", "PSF-2.0", "Zlib"),
}
"""SPDX licences without a copyleft."""

UNPACKERS = {"tarfile.open", "shutil.unpack_archive"}

MAY_UNPACK = {"stforecast/bench/kept.py"}
"""Modules that unpack by themselves: they check the size, and that all lies in a folder."""

WORDS = {*NETWORK, "urllib", "tarfile", "unpack_archive", "extract"}
"""Without one of these a file need not be parsed."""

OFFLINE = """
import sys

def refuse(event, args):
    if event.startswith(("socket.connect", "socket.sendto", "socket.getaddrinfo", "socket.getho")):
        raise SystemExit(f"the network was asked for: {event} {args}")

sys.addaudithook(refuse)
"""

WITHOUT_EXTRAS = """
extras = ["dp_accounting", "flwr", "holidays", "openpyxl", "ray", "timm", "torchvision"]
sys.modules.update(dict.fromkeys(extras))

import stforecast.cli.main, experiments.federation_demo, stforecast, vision
try:
    stforecast.Forecaster("fuels", holidays="IT")
except ValueError as e:
    print(e)
"""

IMPORT_ALL = """
import importlib, pkgutil

for layer in LAYERS:
    package = importlib.import_module(layer)
    for module in pkgutil.walk_packages(package.__path__, f"{layer}."):
        importlib.import_module(module.name)
print("imported", len([m for m in sys.modules if m.partition(".")[0] in LAYERS]))
"""

A_TOUR = """
from stforecast.cli.main import main

def call(words):
    try:
        main(["-q", *words.split()])
    except SystemExit as done:
        if done.code:
            raise

call("simulate --cells 4 --days 10 --out raw")
call("prepare milan --raw raw --out city.nc")
call("run --data city.nc --service internet --method fuels --split days:7,1,2 --rounds 1 "
     "--hidden-size 4 --device cpu --out run")
call("predict run --history city.nc --out next.csv")
call("plot cdf run --out cdf.png")
call("vision run --clients 3 --rounds 1 --size 8 --channels 4 --device cpu --out images")
call("vision plot rounds images --out rounds.png")
print("toured")
"""


def offline(script, folder):
    """Runs a script in which any use of the network ends the process; gives the lines it prints."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "MPLCONFIGDIR": str(folder)}
    done = subprocess.run(
        [sys.executable, "-c", f"{OFFLINE}\nLAYERS = {LAYERS}\n{script}"],
        cwd=folder, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    return done.stdout.splitlines(), done.stderr


@pytest.mark.parametrize(
    "call",
    [
        "import socket; socket.create_connection(('127.0.0.1', 9))",
        "import socket; socket.getaddrinfo('localhost', 80)",
        "import requests; requests.get('http://127.0.0.1:9')",
    ],
)
def test_the_network_is_noticed(call, tmp_path):
    assert "the network was asked for: socket." in offline(call, tmp_path)[1]


def test_importing_asks_nothing_of_the_network_and_needs_extras_for_their_parts_only(tmp_path):
    said, err = offline(WITHOUT_EXTRAS, tmp_path)
    assert len(said) == 1, err
    assert said[0].endswith("pip install 'stforecast[holidays]'")


@pytest.mark.repeats
def test_importing_every_module_asks_nothing_of_the_network(tmp_path):
    said, err = offline(IMPORT_ALL, tmp_path)
    assert len(said) == 1, err
    assert int(said[0].removeprefix("imported ")) >= len(FILES)


@pytest.mark.slow
def test_nothing_is_told_to_anyone(tmp_path):
    """From raw records to figures, and images: no telemetry, no look for a newer version."""
    said, err = offline(A_TOUR, tmp_path)
    assert said[-1:] == ["toured"], err


def names(tree):
    """Imported modules and called functions of a module, dotted; not the functions of our own."""
    own = {
        alias.asname or alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and str(node.module).partition(".")[0] in LAYERS
        for alias in node.names
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield str(node.module)
        elif isinstance(node, ast.Call) and ast.unparse(node.func).partition(".")[0] not in own:
            yield ast.unparse(node.func)


def fetches_or_unpacks(name):
    fetches = name.partition(".")[0] in NETWORK or name.startswith("urllib.request")
    unpacks = name.endswith((".extractall", ".extract")) and not name.endswith(".str.extract")
    return fetches, name in UNPACKERS or unpacks


def test_no_module_fetches_or_unpacks_by_itself():
    found = []
    for path in FILES:
        module = path.relative_to(ROOT).as_posix()
        text = path.read_text()
        if not any(word in text for word in WORDS):
            continue
        for name in set(names(ast.parse(text))):
            fetches, unpacks = fetches_or_unpacks(name)
            unpacks = unpacks and module not in MAY_UNPACK
            if unpacks or (fetches and module not in ALLOWED):
                found.append((module, name))
    assert found == []


@pytest.mark.parametrize("name", ["requests.get", "urllib.request", "tarfile.open", "z.extractall"])
def test_a_fetching_or_unpacking_name_is_found(name):
    assert any(fetches_or_unpacks(name))


def test_every_official_file_has_a_checksum_or_is_known_to_have_none():
    """Dataverse's listings have them; the others are recorded when they are first downloaded."""
    without = {
        name
        for name, module in DATA_SETS.items()
        for source in module.SOURCES
        if not isinstance(source, Dataverse) and source.checksum is None
    }
    assert without == {
        "metr-la", "pems-bay", "pems03", "pems04", "pems07", "pems08", "sz-taxi"
    }  # fmt: skip


def test_every_dependency_is_locked_to_one_version_within_its_range():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [*project["dependencies"], *chain(*project["optional-dependencies"].values())]
    lines = [line for line in LOCK.read_text().splitlines() if line and not line.startswith("#")]
    locked = dict(line.split("==") for line in lines)
    for requirement in map(Requirement, wanted):
        if requirement.name != "stforecast":
            assert requirement.specifier.contains(locked[canonicalize_name(requirement.name)])


def test_the_core_has_no_copyleft_but_that_of_single_files():
    """MPL-2.0 covers the files of certifi, and some of tqdm's, not programs that use them."""
    rows = licences.read()
    assert list(rows) == licences.locked(), "run: make licences"
    core = {name for name, row in rows.items() if row["core"]}
    assert core >= licences.core(), "run: make licences"
    by_file = {name for name in core if "MPL-2.0" in rows[name]["licence"]}
    assert by_file == {"certifi", "tqdm"}
    words = {w for name in core - by_file for w in rows[name]["licence"].split()}
    assert words - {"AND", "OR", "WITH", "LLVM-exception"} <= PERMISSIVE


def test_licences_are_those_that_the_installed_packages_declare():
    for name, row in licences.read().items():
        with contextlib.suppress(PackageNotFoundError):
            found = licences.declared(distribution(name))
            assert found in (row["licence"], licences.UNCHECKED), f"{name}; run: make licences"


@pytest.mark.attack("unreachable service")
def test_an_audit_that_audited_nothing_fails():
    """Without `--strict`, pip-audit skips packages that the service does not know, and succeeds."""
    recipe = (ROOT / "Makefile").read_text().partition("\naudit:")[2].partition("\n\n")[0]
    assert "pip-audit --strict " in recipe
