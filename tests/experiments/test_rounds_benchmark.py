import pytest
import torch

from experiments.benchmarks.client_loop import ClientLoop
from experiments.benchmarks.flower_round import restore, snapshot
from experiments.benchmarks.problem import make_federation
from experiments.benchmarks.rounds import Row, Variant, draw, gigaflop, make_runner, table


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def losses(variant, n=3):
    run_round = make_runner(variant, n_clients=4, n_batches=2)
    return [run_round() for _ in range(n)]


@pytest.mark.parametrize("loop", ["peers", "tuned"])
def test_a_loop_over_clients_computes_what_the_stacked_path_does(loop):
    assert losses(Variant("loop", loop)) == pytest.approx(losses(Variant("ours")), rel=1e-4)


def test_the_seed_matters():
    other = Variant("other", settings=(("seed", 2),))
    assert losses(other, 1) != pytest.approx(losses(Variant("ours"), 1), rel=1e-3)


def test_a_client_goes_on_from_its_snapshot():
    federation = make_federation(3, 2)
    straight, broken = (ClientLoop(federation, tuned=True) for _ in range(2))
    straight.run_round()
    broken.run_round()
    kept = [{name: t.clone() for name, t in snapshot(c).items()} for c in broken.clients]
    broken.clients = ClientLoop(federation, tuned=True).clients
    for client, tensors in zip(broken.clients, kept, strict=True):
        restore(client, tensors)
    assert straight.run_round() == broken.run_round()


def test_the_arithmetic_of_the_reference_round():
    assert gigaflop(100, 37) == pytest.approx(209.5, abs=0.1)


def test_table_and_figure_show_every_path():
    rows = [
        Row(n, name, 2.0, 3.5, 1.5, 1.2, 0.25, 1e-7, [1.0])
        for n in (10, 100)
        for name in ("loop", "stacked")
    ]
    assert table(rows).count("25%") == 4
    fig = draw(rows)
    assert [len(ax.patches) for ax in fig.axes] == [2, 2]
    assert [t.get_text() for t in fig.axes[0].texts] == [" 2 s, 1.5×"] * 2
