import numpy as np

from experiments.forecasts.ranks import rank_groups
from stforecast.bench.run_groups import group_runs


def test_variants_rank_by_the_mean_over_seeds_and_who_diverged_is_last(make_run):
    nan = float("nan")
    runs = [
        make_run("solo", seed=1, clients={"1": 1.0, "2": 1.0, "3": 1.0, "4": nan}),
        make_run("solo", seed=2, clients={"1": 5.0, "2": 5.0, "3": 1.0, "4": nan}),
        make_run("fedavg", clients={"1": 2.0, "2": 4.0, "3": 9.0, "4": nan}),
        make_run("fuels", clients={"1": 4.0, "2": 2.0, "3": nan, "4": nan}),
    ]
    found = rank_groups([(v, "") for v in group_runs(runs)])
    # solo is 3.0 at clients 1 and 2, between the others; at client 3 fuels has no number. Client 4
    # was tested by none.
    assert found.n_clients == 3
    np.testing.assert_allclose(found.ranks, [5 / 3, 2, 7 / 3])
    assert "mean over 3 clients" in str(found)


def test_too_few_rows_or_clients_have_no_ranks(make_run):
    runs = [make_run(m, clients={"1": 1.0, "2": 2.0}) for m in ("solo", "fedavg", "fuels")]
    rows = [(v, "") for v in group_runs(runs)]
    assert rank_groups(rows) is not None
    assert rank_groups(rows[:2]) is None
    lonely = [make_run(m, clients={"1": 1.0}) for m in ("solo", "fedavg", "fuels")]
    assert rank_groups([(v, "") for v in group_runs(lonely)]) is None
