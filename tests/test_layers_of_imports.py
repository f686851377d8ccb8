"""Imports go one way, experiments → vision → stforecast → data_prep, and nothing is unpickled."""

import ast
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
LAYERS = ("data_prep", "stforecast", "vision", "experiments")
CORE, BENCH = "stforecast.federated", "stforecast.bench"
COMMAND = ("stforecast.cli", "stforecast.report")
"""What the commands of other packages share with those of forecasts."""

PICKLERS = {"pickle", "_pickle", "cPickle", "cloudpickle", "dill", "joblib", "marshal", "shelve"}
CALLS = {"load", "print", "read_pickle", "save", "to_pickle"}
FILES = [p for layer in LAYERS for p in sorted((ROOT / layer).rglob("*.py"))]


def within(module, package):
    return module == package or module.startswith(f"{package}.")


def module_name(path):
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def imported(nodes, package):
    """Dotted names of everything imported by some nodes of a module of `package`."""
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parents = package.split(".")[: len(package.split(".")) + 1 - node.level]
            parts = (parents if node.level else []) + ([node.module] if node.module else [])
            yield from (".".join([*parts, alias.name]) for alias in node.names)


def forbidden_import(name, module):
    """Why `module` must not import `name`, or None."""
    layer, own = name.partition(".")[0], module.partition(".")[0]
    if layer in PICKLERS:
        return "pickles"
    if own == "data_prep" and layer in ("torch", "torchvision"):
        return "torch below stforecast"
    if layer not in LAYERS:
        return None
    if LAYERS.index(layer) > LAYERS.index(own):
        return "upwards"
    shared = within(name, CORE) or within(name, BENCH)
    if within(module, "vision.cli") and any(within(name, package) for package in COMMAND):
        return None
    if own == "vision" and layer == "stforecast" and not shared:
        return "vision uses the core and what benchmarks share alone"
    if within(module, BENCH) and layer == "stforecast" and not shared:
        return "a benchmark knows no kind of run"
    if within(module, CORE) and layer == "stforecast" and not within(name, CORE):
        return "the core uses nothing above it"
    return None


def forbidden_call(node):
    """Why this call must not stand in a package, or None."""
    name = getattr(node.func, "attr", getattr(node.func, "id", ""))
    call = ast.unparse(node.func) if name in CALLS else ""
    told = (k for k in node.keywords if k.arg in ("allow_pickle", "weights_only"))
    keywords = {k.arg: ast.unparse(k.value) for k in told}
    if call == "print":
        return "prints"
    if call == "torch.load" and keywords.get("weights_only") != "True":
        return "unpickles"
    if call.endswith((".read_pickle", ".to_pickle")) or call == "torch.save":
        return "pickles"
    return "unpickles" if keywords.get("allow_pickle", "False") != "False" else None


def violations(tree, module, package):
    """What a module does that it must not, one line each."""
    nodes = list(ast.walk(tree))
    for name in imported(nodes, package):
        if reason := forbidden_import(name, module):
            yield f"{module} imports {name}: {reason}"
    for node in nodes:
        if isinstance(node, ast.Call) and (reason := forbidden_call(node)):
            yield f"{module}:{node.lineno} {ast.unparse(node)}: {reason}"


@cache
def read(path):
    """What a file does that it must not, and what it imports, but for type checkers."""
    module = module_name(path)
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    tree = ast.parse(path.read_text())
    found = list(violations(tree, module, package))
    for node in tree.body:
        if isinstance(node, ast.If) and getattr(node.test, "id", "") == "TYPE_CHECKING":
            node.body = []
    return found, set(imported(ast.walk(tree), package))


def imports_of(path, modules):
    """Modules of ours that a module imports anywhere, but for type checkers."""
    names = read(path)[1]
    return {name if name in modules else name.rpartition(".")[0] for name in names} & modules


def test_no_import_leads_back():
    modules = {module_name(path) for path in FILES}
    graph = {module_name(path): imports_of(path, modules) for path in FILES}
    graph = {module: names - {module} for module, names in graph.items()}
    assert len(list(TopologicalSorter(graph).static_order())) == len(modules)


def test_every_module_keeps_to_its_layer():
    assert [line for path in FILES for line in read(path)[0]] == []


def test_every_package_is_there():
    assert {path.relative_to(ROOT).parts[0] for path in FILES} == set(LAYERS)


@pytest.mark.parametrize(
    ("module", "source", "reason"),
    [
        ("data_prep.cube", "import torch.nn", "torch below"),
        ("data_prep.cube", "def f():\n    from stforecast import windows", "upwards"),
        ("stforecast.data.windows", "from vision.gldp import x", "upwards"),
        ("vision.gldp", "import experiments.docs as docs", "upwards"),
        ("vision.gldp", "import stforecast.cli.options", "share alone"),
        ("stforecast.cli.main", "from vision.cli.commands import vision", "upwards"),
        ("vision.gldp", "from stforecast import Forecaster", "share alone"),
        ("vision.gldp", "import stforecast.federated_too", "share alone"),
        ("vision.plots.bars", "from stforecast.benchmarks import bars", "share alone"),
        (
            "stforecast.bench.grid",
            "from stforecast.forecasting.results import ForecastRun",
            "no kind of run",
        ),
        ("stforecast.bench.grid", "from ..config import resolve", "no kind of run"),
        ("stforecast.bench.grid", "from vision.config import resolve", "upwards"),
        (
            "stforecast.federated.core.state",
            "from stforecast.bench.grid import Grid",
            "nothing above",
        ),
        (
            "stforecast.federated.core.state",
            "from stforecast.data.windows import x",
            "nothing above",
        ),
        ("stforecast.federated.core.state", "from ...windows import x", "nothing above"),
        ("stforecast.federated.core.state", "from ... import windows", "nothing above"),
        ("stforecast.data.windows", "import numpy, pickle", "pickles"),
        ("stforecast.data.windows", "torch.load(f)", "unpickles"),
        ("stforecast.data.windows", "torch.load(f, weights_only=False)", "unpickles"),
        ("stforecast.data.windows", "np.load(f, allow_pickle=True)", "unpickles"),
        ("stforecast.data.windows", "table.to_pickle(f)", "pickles"),
        ("experiments.docs", "print('done')", "prints"),
    ],
)
def test_what_is_forbidden_is_found(module, source, reason):
    (found,) = violations(ast.parse(source), module, module.rpartition(".")[0])
    assert reason in found


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("data_prep.cube", "from data_prep.base.errors import InputError\nimport numpy, xarray"),
        ("stforecast.data.windows", "import torch, data_prep\ntorch.load(f, weights_only=True)"),
        ("stforecast.federated.engine.rounds", "from .state import Cohort\nfrom . import state"),
        (
            "vision.gldp",
            "from stforecast.federated.core.method import Method\nimport data_prep.base.errors",
        ),
        ("vision.gldp", "from stforecast import federated\nimport stforecast.federated"),
        ("vision.plots.bars", "from stforecast.bench.charts import score_bars"),
        (
            "stforecast.bench.grid",
            "from . import jobs\nimport stforecast.federated.runs.run_folder",
        ),
        ("stforecast.bench.grid", "from data_prep.base.errors import InputError"),
        ("stforecast.forecasting.results", "from stforecast.bench.run_groups import select"),
        ("vision.cli.page", "from stforecast.report.section import Chart"),
        ("experiments.docs", "from stforecast import Forecaster\nimport vision\npprint(1)"),
    ],
)
def test_what_is_allowed_is_passed(module, source):
    assert list(violations(ast.parse(source), module, module.rpartition(".")[0])) == []
