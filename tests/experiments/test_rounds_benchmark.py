from contextlib import nullcontext

import pytest
import torch

from experiments.benchmarks import frame
from experiments.benchmarks.client_loop import EPOCH
from experiments.benchmarks.frame import table
from experiments.benchmarks.rounds import (
    COLUMNS,
    Round,
    Variant,
    batches_for,
    better_threads,
    gigaflop,
    make_runner,
    measure,
)


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def losses(variant, n=3):
    run_round = make_runner(variant, n_clients=4, n_batches=2)
    return [run_round().loss for _ in range(n)]


@pytest.mark.quick(2)
@pytest.mark.parametrize("loop", ["peers", "tuned"])
def test_a_loop_over_clients_computes_what_the_stacked_path_does(loop):
    assert losses(Variant("loop", loop)) == pytest.approx(losses(Variant("ours")), rel=1e-4)


def test_the_seed_matters():
    other = Variant("other", settings=(("seed", 2),))
    assert losses(other, 1) != pytest.approx(losses(Variant("ours"), 1), rel=1e-3)


def test_the_arithmetic_of_the_reference_round():
    assert gigaflop(100, 37) == pytest.approx(209.5, abs=0.1)


def test_of_many_clients_fewer_batches_are_measured():
    assert [batches_for(n) for n in (10, 100, 1000, 10**6)] == [EPOCH, 20, 2, 2]


@pytest.mark.parametrize("variant", [Variant("ours"), Variant("loop", "tuned")])
def test_what_happens_once_a_round_is_timed_apart(variant):
    r = make_runner(variant, n_clients=4, n_batches=2)()
    assert 0 < r.server_seconds < r.once_seconds < r.seconds


def test_measured_batches_are_scaled_to_an_epoch_and_what_happens_once_is_not():
    one = Round(1.0, 4.0, 0.0, 0.75, 0.25)
    assert one.epoch_seconds(EPOCH // 2) == pytest.approx(3 * EPOCH / (EPOCH // 2) + 1)


def test_the_better_number_of_threads_stays():
    compared = [
        Variant("peers", "peers"),
        Variant("ours"),
        Variant("peers", "peers", threads=2),
        Variant("ours", threads=2),
    ]
    better = better_threads(compared, [3.0, 2.0, 4.0, 1.0])
    assert better == [compared[i] for i in (0, 2, 3)]
    assert better_threads(compared, [3.0, 1.1, 4.0, 1.0]) == compared


def test_paths_take_turns_and_are_compared_with_the_first(monkeypatch):
    here = lambda make, *args: nullcontext(make(*args))  # noqa: E731
    monkeypatch.setattr(frame, "own_process", here)
    monkeypatch.setenv("STFORECAST_KERNELS", "on")  # restored afterwards
    compared = [Variant("plain", "peers"), Variant("tuned", "tuned"), Variant("ours")]
    rows = measure(compared, n_clients=2, n_batches=1, repetitions=2, rate=1.0)
    assert [row["variant"] for row in rows] == ["plain", "tuned", "ours"]
    assert (rows[0]["speedup"], rows[0]["by_turn"], rows[0]["difference"]) == (1, "1 [1, 1]", 0)
    assert all(0 <= row["difference"] < 1e-4 for row in rows)
    assert set(COLUMNS) < set(rows[0])
    assert table(rows, COLUMNS).count("plain") == 1
