"""The contract of all federated methods, for those of images on a classification task."""

import dataclasses
import importlib.util
from functools import partial
from pathlib import Path

import pytest

from vision.methods import METHODS as ALL

# In double precision, as normalising a batch of four magnifies rounding.
pytestmark = [pytest.mark.sampled(6), pytest.mark.usefixtures("double")]

OTHERS = "stforecast.federated.", "vision.references."
METHODS = {n: m for n, m in ALL.items() if not m.__module__.startswith(OTHERS)}
QUICK = {
    "fedgen": {"hidden": 16, "server_steps": 5},
    "mfcl": {"noise_width": 8, "hidden": 16, "server_steps": 5, "replay": 16},
    "target": {"synthetic": 40, "server_batch_size": 16, "warm_up": 1, "student_steps": 3},
}
"""Settings for which the contract needs less time."""
VIEWS = {"personal", "global", "local", "nearest", "fused"}


def shared_tests():
    """The tests of `tests/federated/test_contract.py`, whose fixtures this folder defines anew."""
    path = Path(__file__).parents[2] / "federated" / "test_contract.py"
    spec = importlib.util.spec_from_file_location("federated_contract", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return {name: f for name, f in vars(module).items() if name.startswith("test_")}


SHARED = shared_tests()
del SHARED["test_it_describes_itself"]
globals().update(SHARED)


def builds(method):
    """The models that the contract tries with a method."""
    return ["frozen"] if method.defaults.get("model") == "vit" else ["stacked", "module"]


CASES = [(name, build) for name, method in METHODS.items() for build in builds(method)]


@pytest.fixture(params=CASES, ids="-".join)
def case(request):
    return request.param


@pytest.fixture
def method(case, monkeypatch):
    found = METHODS[case[0]]
    quick = partial(found.Options, **QUICK.get(found.name, {}))
    monkeypatch.setattr(found, "Options", staticmethod(quick))
    return found


@pytest.fixture
def build(case):
    return case[1]


@pytest.fixture
def n_classes():
    return 2


@pytest.mark.parametrize("name", METHODS)
def test_it_describes_itself(name):
    method = METHODS[name]
    assert method.summary
    assert method.paper
    assert set(method.views) <= VIEWS
    assert dataclasses.is_dataclass(method.Options)
    assert method.Options.__dataclass_params__.frozen
    assert method.Options() == method.Options()


def test_the_shared_contract_is_used():
    assert len(SHARED) > 10
