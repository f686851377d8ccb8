"""Task streams: which data, which clients and which rounds."""

import copy

import pytest
import torch

from data_prep.base.errors import InputError
from stforecast.federated.core.data import ClientData, Stream
from stforecast.federated.core.population import Population
from stforecast.federated.core.training import STEPS, Training
from stforecast.federated.engine.rounds import Federation
from stforecast.federated.methods.fedavg import FedAvg
from stforecast.federated.methods.fedavg_ft import FedAvgFT


class Seen(FedAvg):
    """FedAvg that notes which samples each client trained on."""

    log: list[tuple[int, int, int, list[int]]]

    def local_update(self, cohort, payload):
        for i, client in enumerate(cohort.ids.tolist()):
            size = int(cohort.data.sizes[i])
            samples = cohort.data.tensors["sample"][i, :size].tolist()
            self.log.append((cohort.round, cohort.stage, client, samples))
        return super().local_update(cohort, payload)


def federation(task, stacked, stages, order="inside", **settings):
    settings = {"rounds": 2, "batch_size": 2, "drop_last": False, **settings}
    method = Seen(Population(stacked), task, Training(**settings))
    method.log = []
    return Federation(method, Stream(stages, order))


def part(make_data, sizes, first):
    data = make_data(sizes)
    return ClientData({**data.tensors, "sample": data.tensors["sample"] + first}, data.sizes)


def test_inside_visits_all_stages_with_the_same_clients(task, stacked, make_data):
    stages = [part(make_data, [4, 4, 4, 4], first) for first in (0, 100, 200)]
    f = federation(task, stacked, stages, participation=0.5, full_start=False)
    f.run()
    assert [r.round for r in f.reports] == [1, 2, 3, 4, 5, 6]
    by_round = {r: {(s, c) for n, s, c, _ in f.method.log if n == r} for r in range(6)}
    assert [sorted({s for s, _ in by_round[r]}) for r in range(6)] == [[0], [1], [2]] * 2
    clients = [{c for _, c in by_round[r]} for r in range(6)]
    assert len(clients[0]) == 2
    assert clients[0] == clients[1] == clients[2]
    assert clients[3] == clients[4] == clients[5]
    assert all(min(samples) == 100 * stage for _, stage, _, samples in f.method.log)


def test_sequential_stays_at_a_stage(task, stacked, make_data):
    stages = [part(make_data, [4, 4], first) for first in (0, 100)]
    f = federation(task, stacked, stages, "sequential")
    f.run()
    assert [s for _, s, c, _ in f.method.log if c == 0] == [0, 0, 1, 1]


def test_clients_without_samples_sit_a_stage_out(task, stacked, make_data):
    stages = [part(make_data, [4, 3], 0), part(make_data, [4, 0], 100)]
    f = federation(task, stacked, stages, rounds=1)
    f.run()
    assert [(r.participants) for r in f.reports] == [2, 1]
    assert [(s, c, len(x)) for _, s, c, x in f.method.log] == [(0, 0, 4), (0, 1, 3), (1, 0, 4)]


def test_one_stage_equals_no_stream(task, stacked, make_data):
    data, states = make_data([4, 6]), []
    for train in (data, Stream([data])):
        method = FedAvg(Population(stacked), task, Training(rounds=2, batch_size=2))
        f = Federation(method, train)
        f.run()
        states.append(f.state.flat())
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])


def test_impossible_streams_are_refused(task, stacked, make_data):
    one, none = make_data([4, 4]), make_data([4, 4])
    none = ClientData(none.tensors, torch.tensor([0, 0]))
    with pytest.raises(InputError, match=r"no client .* 1"):
        federation(task, stacked, [one, none])
    with pytest.raises(InputError, match="needs constant"):
        federation(task, stacked, [one, one], schedule="cosine")
    few = ClientData(one.tensors, torch.tensor([4, 1]))
    with pytest.raises(InputError, match=r"client 1 .*1 .*stage 1"):
        federation(task, stacked, [one, few], drop_last=True)


def test_the_first_round_can_be_a_sample(task, stacked, make_data):
    f = federation(task, stacked, [make_data([4] * 4)], participation=0.5, full_start=False)
    assert len(f.participants().ids) == 2
    f = federation(task, stacked, [make_data([4] * 4)], participation=0.5)
    assert len(f.participants().ids) == 4


def test_a_client_without_samples_predicts_with_what_it_receives(task, stacked, make_data):
    training = Training(rounds=2, batch_size=2, drop_last=False)
    stages = Stream([make_data([4, 4]), make_data([4, 0])], "sequential")
    f = Federation(FedAvgFT(Population(stacked), task, training), stages)
    f.run()
    fitted = f.ready()
    for name, t in fitted.server.items():
        assert torch.equal(fitted.clients.params[name][1], t)
    assert any(not torch.equal(fitted.clients.params[n][0], t) for n, t in fitted.server.items())


@pytest.mark.parametrize(
    ("state", "order", "steps"),
    [("keep", "sequential", 8), ("stage", "sequential", 4), ("stage", "inside", 2)],
)
def test_optimisers_last_for_the_run_or_for_a_stage(task, stacked, make_data, state, order, steps):
    """Two rounds of two stages, and two steps in a round."""
    stages = [part(make_data, [4, 4], first) for first in (0, 100)]
    f = federation(task, stacked, stages, order, optimizer_state=state)
    f.run()
    counts = torch.stack(list(f.state.clients.moments[STEPS].values()))
    assert (counts == steps).all()


def test_a_client_that_missed_the_beginning_of_a_stage_forgets_the_last_one_too(
    task, stacked, make_data
):
    stages = [part(make_data, sizes, 100 * i) for i, sizes in enumerate(([4, 4], [4, 0], [4, 4]))]
    f = federation(task, stacked, stages, "sequential", optimizer_state="stage", rounds=1)
    f.run()
    assert all((t == 2).all() for t in f.state.clients.moments[STEPS].values())


@pytest.mark.parametrize("done", [1, 2, 3])
def test_optimisers_of_a_stage_are_restored(task, stacked, make_data, done):
    stages = [part(make_data, [4, 4], first) for first in (0, 100)]
    whole, first, second = (
        federation(task, stacked, stages, "sequential", optimizer_state="stage") for _ in range(3)
    )
    whole.run()
    for _ in range(done):
        first.run_round()
    second.restore(copy.deepcopy(first.state), None, first.reports)
    second.run()
    expected = whole.state.flat()
    assert all(torch.equal(t, expected[name]) for name, t in second.state.flat().items())
