import platform
import subprocess
import sys

import pytest
import torch

from data_prep.base.errors import InputError
from stforecast.federated.core.layers import ClientLinear
from stforecast.federated.core.method import Method
from stforecast.federated.core.population import PerClient, Population, SplitModel
from stforecast.federated.core.tensors import total_bytes
from stforecast.federated.engine import sizing
from stforecast.federated.engine.rounds import Federation
from stforecast.federated.engine.sizing import cohort_size, parse_bytes

CPU = torch.device("cpu")


@pytest.fixture
def population():
    """A client's parameters are 1,000 weights and 10 biases: 4,040 bytes."""
    return Population(lambda: SplitModel(ClientLinear(90, 10), ClientLinear(10, 9)))


@pytest.fixture
def cache(monkeypatch, tmp_path):
    def make(**sizes):
        for name, size in sizes.items():
            (tmp_path / name).mkdir()
            (tmp_path / name / "size").write_text(f"{size}\n")
        monkeypatch.setattr(sizing, "CPU_CACHES", tmp_path)

    return make


def test_the_largest_cache_counts(cache):
    cache(index0="32K", index2="1024K", index3="8M")
    assert sizing.cache_bytes() == 8 * 2**20


def test_without_a_word_from_the_system_a_usual_cache_is_taken(cache):
    cache()
    assert sizing.cache_bytes() == sizing.USUAL_CACHE


def test_parameters_and_gradients_of_a_cohort_fit_the_cache(cache, population):
    of_client = total_bytes(population.initial())
    assert of_client == 4 * (90 * 10 + 10 + 10 * 9 + 9)
    cache(index3="128K")
    assert cohort_size(population, 1600, 1, CPU) == 2**17 // (2 * of_client) == 16
    assert cohort_size(population, 1600, 1, CPU, workers=2) == 8
    assert cohort_size(population, 1000, 1, CPU, workers=40) == sizing.FEWEST


def test_a_cohort_is_bounded_by_samples_and_shared_fairly(population):
    assert cohort_size(population, 420, 24, CPU) == sizing.ROWS // 24 == 42
    assert cohort_size(population, 6400, 1, CPU) == sizing.MOST
    assert cohort_size(population, 1000, 2000, CPU) == sizing.FEWEST
    assert cohort_size(population, 30, 24, CPU, workers=2) == 15
    assert cohort_size(population, 100, 1, torch.device("meta")) == 100


def test_all_workers_have_equally_many_cohorts(population):
    assert cohort_size(population, 100, 24, CPU, workers=1) == 34  # Three cohorts.
    assert cohort_size(population, 100, 24, CPU, workers=2) == 25  # Not three, but four.


def test_a_model_that_runs_client_by_client_has_cohorts_of_one():
    build = lambda: SplitModel(PerClient(torch.nn.Linear(3, 4)), ClientLinear(4, 2))  # noqa: E731
    assert cohort_size(Population(build), 100, 8, CPU) == 1


@pytest.mark.parametrize("text", ["", "0", "8 apples", "-1GB", "GB"])
def test_what_is_no_size_is_refused(text):
    with pytest.raises(InputError, match="memory is"):
        parse_bytes(text)


def test_sizes_are_decimal():
    assert parse_bytes("1.5 gb") == 1_500_000_000
    assert parse_bytes("7") == 7


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_predicted_memory_is_that_of_the_state(federate, optimizer):
    federation = federate(Method, (8,) * 6, optimizer=optimizer)
    memory, clients = federation.trainer.predicted_memory(), federation.state.clients
    moments = {
        f"{m}/{n}": t for m, ts in clients.moments.items() if m != "steps" for n, t in ts.items()
    }
    assert memory.clients == total_bytes({**clients.params, **moments})
    assert memory.best == total_bytes(clients.params)
    assert memory.total == memory.clients + memory.best + memory.resident


def in_bounds(federate, memory):
    made = federate(Method, (8,) * 6, participation=0.5)
    return Federation(made.method, made.train, made.validation, seed=1, memory=memory)


def test_beyond_the_memory_states_are_in_files_and_numbers_the_same(federate):
    needed = in_bounds(federate, None).trainer.predicted_memory()
    plain, stored = (in_bounds(federate, m) for m in (needed.total, needed.total - 1))
    assert plain.trainer._store is None
    folder = stored.trainer._store.folder
    for federation in (plain, stored):
        federation.run()
    torch.testing.assert_close(plain.state.flat(), stored.state.flat(), rtol=0, atol=0)
    torch.testing.assert_close(plain.best.flat(), stored.best.flat(), rtol=0, atol=0)
    assert [r.train_loss for r in plain.reports] == [r.train_loss for r in stored.reports]
    n_stored = len(list(folder.iterdir()))
    # Parameters, two moments, the best copy, and its sizes.
    assert n_stored == 4 * len(stored.state.clients.params) + 1
    del federation, stored
    assert not folder.exists()


def test_where_even_files_do_not_help_the_run_is_refused(federate):
    resident = in_bounds(federate, None).trainer.predicted_memory().resident
    with pytest.raises(InputError, match="clients' states"):
        in_bounds(federate, resident - 1)


NEW_PAGES = """
import resource, torch
from stforecast.federated.engine import sizing

def new_pages():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    several = [torch.zeros(2**21) for _ in range(8)]  # 64 MB: 16,384 pages.
    del several
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

sizing.keep_freed_memory()
print(min([new_pages() for _ in range(5)][1:]))
"""


@pytest.mark.repeats
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library")
def test_freed_memory_is_used_again():
    """In a process of its own: where the heap can grow is a matter of what others have left."""
    done = subprocess.run([sys.executable, "-c", NEW_PAGES], check=True, capture_output=True)
    assert int(done.stdout) < 2000


def test_a_c_library_that_cannot_be_told_is_left_alone(monkeypatch):
    def no_library(name):
        raise OSError(name)

    monkeypatch.setattr(sizing.ctypes, "CDLL", no_library)
    sizing.keep_freed_memory()
