import pytest
import torch

from stforecast.federated.core.data import ClientData
from stforecast.federated.core.state import (
    Clients,
    Cohort,
    State,
    cohorts,
    generator,
    row_major,
    seeded,
)
from stforecast.federated.core.training import STEPS, Training, zero_moments

CLIENTS = 5


def make_clients(training, sizes=(4,) * CLIENTS):
    """Clients whose tensors differ from client to client."""
    own = torch.arange(float(len(sizes)))[:, None]
    params = {"w": 1 + own.repeat(1, 3), "b": own.clone()}
    return Clients(
        params=params,
        buffers={"seen": own.long().squeeze(1)},
        moments=zero_moments(params, training),
        sizes=torch.tensor(sizes),
        memory={"mean": own.repeat(1, 2)},
    )


def make_data(sizes):
    g = torch.Generator().manual_seed(0)
    x = torch.randn(len(sizes), max(sizes), 3, generator=g)
    y = torch.randn(len(sizes), max(sizes), generator=g)
    return ClientData({"x": x, "y": y}, torch.tensor(sizes))


def make_cohort(clients, ids, data, training, round=0, seed=7):
    ids = torch.tensor(ids)
    return Cohort(clients, ids, data.take(ids), training, seed, round)


def squared_error(params, batch):
    y_hat = (batch["x"] @ params["w"][..., None]).squeeze(-1) + params["b"]
    return (y_hat - batch["y"]).square().mean(1)


def draw(*key):
    return torch.rand(4, generator=generator(*key))


def test_generators_are_keyed():
    assert torch.equal(draw(1, 2, 3), draw(1, 2, 3))
    keys = [(1, 2, 3), (2, 2, 3), (1, 3, 3), (1, 2, 4), (1, 3, 2), (1, 2, 3, 1)]
    assert len({tuple(draw(*key).tolist()) for key in keys}) == len(keys)


@pytest.mark.parametrize("gpu", [False, True])
def test_seeds_are_those_of_torch_and_end_with_the_context(gpu, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpu)
    seen = []
    monkeypatch.setattr(torch.cuda, "manual_seed_all", seen.append)
    before = torch.get_rng_state()
    with seeded(5):
        drawn = torch.rand(3)
    assert torch.equal(torch.get_rng_state(), before)
    assert seen == [5] * gpu
    assert torch.equal(drawn, torch.rand(3, generator=torch.Generator().manual_seed(5)))


def test_a_round_draws_no_numbers_of_its_first_client():
    assert not torch.equal(draw(1, 2), draw(1, 2, 0))


def test_a_secret_order_has_each_number_once_and_does_not_follow_from_the_seed():
    clients, data = make_clients(Training(), sizes=(8, 8)), make_data((8, 8))
    ids, settings = torch.tensor([0, 1]), (Training(), 7, 0)
    keyed, other = (Cohort(clients, ids, data, *settings).secret_order(50) for _ in range(2))
    assert torch.equal(keyed, other)
    secret, other = (
        Cohort(clients, ids, data, *settings, secret=True).secret_order(50) for _ in range(2)
    )
    assert torch.equal(secret.sort().values, torch.arange(50).expand(2, 50))
    assert len({tuple(order) for order in torch.cat([secret, other, keyed]).tolist()}) == 6


def test_cohorts_have_one_size_and_one_step_count():
    clients = make_clients(Training(), sizes=(8, 4, 8, 8, 4, 8))
    clients.moments[STEPS]["b"] = torch.tensor([2.0, 1.0, 2.0, 0.0, 1.0, 2.0])
    ids = torch.tensor([0, 1, 2, 3, 4, 5])
    parts = [part.tolist() for part in cohorts(ids, clients, limit=16)]
    assert sorted(parts) == [[0, 2, 5], [1, 4], [3]]
    parts = [part.tolist() for part in cohorts(ids, clients, limit=2)]
    assert sorted(parts) == [[0, 2], [1, 4], [3], [5]]
    assert [p.tolist() for p in cohorts(torch.tensor([1, 2, 4]), clients, 16)] == [[1, 4], [2]]


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_cohorts_train_as_if_every_client_were_alone(optimizer):
    """Unequal sizes and absences give unequal step counts; each client has its own reference."""
    sizes = (4, 8, 4, 9, 8)
    training = Training(
        batch_size=4, epochs=2, lr=0.1, optimizer=optimizer, momentum=0.9, weight_decay=0.1
    )
    clients, data = make_clients(training, sizes), make_data(sizes)
    alone = [{n: t[i : i + 1].clone() for n, t in clients.params.items()} for i in range(CLIENTS)]
    kind, momentum = (
        (torch.optim.Adam, {}) if optimizer == "adam" else (torch.optim.SGD, {"momentum": 0.9})
    )
    own = [
        kind([t.requires_grad_() for t in one.values()], lr=0.1, weight_decay=0.1, **momentum)
        for one in alone
    ]
    for round, present in enumerate(([0, 1, 2, 3, 4], [0, 3], [0, 2, 4], [1, 2, 3])):
        ids = torch.tensor(present)
        for part in cohorts(ids, clients, limit=2):
            cohort = make_cohort(clients, part.tolist(), data, training, round)
            for batch in cohort.batches():
                cohort.step(squared_error(cohort.params, batch))
            cohort.write_back()
        for i in present:
            for start in (0, 4) * 2 if sizes[i] >= 8 else (0, 0):
                rows = slice(start, start + 4)
                batch = {name: t[i : i + 1, rows] for name, t in data.tensors.items()}
                own[i].zero_grad()
                squared_error(alone[i], batch).sum().backward()
                own[i].step()
        for i in range(CLIENTS):
            for name, t in alone[i].items():
                torch.testing.assert_close(clients.params[name][i : i + 1], t.detach())
    for steps in clients.moments.get(STEPS, {}).values():
        assert steps.tolist() == [6, 8, 6, 12, 8]


def test_a_range_of_clients_is_trained_in_place():
    training = Training(batch_size=4)
    clients = make_clients(training)
    cohort = make_cohort(clients, [1, 2], make_data((4,) * CLIENTS), training)
    whole = {**clients.params, **clients.buffers, **clients.memory}
    for name, t in {**cohort.params, **cohort.buffers, **cohort.memory}.items():
        assert t.untyped_storage().data_ptr() == whole[name].untyped_storage().data_ptr()
    assert all(p.is_leaf and p.requires_grad for p in cohort.params.values())
    assert not any(t.requires_grad for t in clients.params.values())


@pytest.mark.parametrize("ids", [[1, 2], [0, 3], [4]], ids=str)
def test_everything_of_a_cohort_is_written_back(ids):
    training = Training(batch_size=4, epochs=3)
    clients = make_clients(training)
    before = {name: t.clone() for name, t in clients.flat().items()}
    cohort = make_cohort(clients, ids, make_data((4,) * CLIENTS), training)
    for batch in cohort.batches():
        cohort.step(squared_error(cohort.params, batch))
        cohort.buffers["seen"] += 10
        cohort.memory["mean"] = 2 * cohort.memory["mean"]
        cohort.memory["mean"] += 1
    cohort.write_back()
    for name, t in clients.flat().items():
        changed = [i for i in range(CLIENTS) if not torch.equal(t[i], before[name][i])]
        assert changed == ([] if name == "sizes" else ids), name
        assert not t.requires_grad
    assert clients.moments[STEPS]["w"][ids].tolist() == [3] * len(ids)
    assert clients.buffers["seen"][ids].tolist() == [i + 30 for i in ids]
    assert clients.memory["mean"][ids, 0].tolist() == [8 * i + 7 for i in ids]


def test_a_cohort_knows_its_epoch_and_keeps_records():
    training = Training(batch_size=2, epochs=2)
    cohort = make_cohort(make_clients(training), [0, 2], make_data((4,) * CLIENTS), training)
    epochs = []
    for batch in cohort.batches():
        epochs.append((cohort.epoch, cohort.last_epoch))
        cohort.step(squared_error(cohort.params, batch))
    assert epochs == [(0, False), (0, False), (1, True), (1, True)]
    losses = cohort.records["loss"]
    assert [loss.shape for loss in losses] == [(2,)] * 4
    assert not any(loss.requires_grad for loss in losses)


def test_a_cohort_shuffles_every_epoch_of_every_round_anew():
    training = Training(batch_size=8, epochs=2, shuffle=True)
    clients, data = make_clients(training, (8, 8)), make_data((8, 8))
    orders = []
    for round in (0, 1):
        cohort = make_cohort(clients, [0, 1], data, training, round)
        orders += [tuple(batch["y"][0].tolist()) for batch in cohort.batches()]
    assert len(set(orders)) == 4
    again = make_cohort(clients, [0], data, training, round=1)
    assert tuple(next(again.batches())["y"][0].tolist()) == orders[2]


def test_a_client_draws_the_same_numbers_in_every_cohort():
    training = Training(batch_size=4)
    clients, data = make_clients(training), make_data((4,) * CLIENTS)
    together = make_cohort(clients, [0, 1, 3], data, training).rand(2, 3)
    assert together.shape == (3, 2, 3)
    assert ((together >= 0) & (together < 1)).all()
    assert len(together.flatten(1).unique(dim=0)) == 3
    for row, i in enumerate((0, 1, 3)):
        alone = make_cohort(clients, [i], data, training).rand(2, 3)
        assert torch.equal(alone[0], together[row])
    assert not torch.equal(together, make_cohort(clients, [0, 1, 3], data, training, 1).rand(2, 3))


def test_a_state_is_made_again_of_its_tensors():
    clients = make_clients(Training())
    state = State(clients, {"jsd": torch.eye(2), "mean": torch.ones(3)}, round=4, seed=9)
    flat = state.flat()
    assert {name.partition("/")[0] for name in flat} == {"clients", "server"}
    again = State.from_flat(flat, round=4, seed=9)
    assert (again.round, again.seed) == (4, 9)
    assert again.server.keys() == {"jsd", "mean"}
    for (group, tensors), (same, others) in zip(
        clients.groups(), again.clients.groups(), strict=True
    ):
        assert group == same
        assert tensors.keys() == others.keys()
    assert all(again.flat()[name] is t for name, t in flat.items())
    assert again.flat().keys() == flat.keys()


def test_a_state_without_moments_or_memory():
    clients = Clients({"w": torch.ones(2, 1)}, {}, {}, torch.ones(2))
    again = State.from_flat(State(clients, {}, 0, 0).flat(), 0, 0)
    assert again.clients.params.keys() == {"w"}
    assert again.clients.moments == again.clients.memory == again.server == {}


def test_a_state_names_its_tensors_and_shows_no_values():
    state = State(make_clients(Training()), {"w": torch.zeros(3)}, round=2, seed=1)
    assert repr(state).startswith("State(round=2, seed=1, clients/params/w (5, 3), clients/pa")
    assert repr(state).endswith("clients/sizes (5,), server/w (3,))")
    assert repr(state.clients).startswith("Clients(params/w (5, 3), params/b (5, 1), buffers/seen")


def test_a_state_without_sizes_is_an_error():
    with pytest.raises(KeyError, match="clients/sizes"):
        State.from_flat({"clients/params/w": torch.ones(2, 1)}, 0, 0)


def test_names_may_hold_a_slash():
    clients = make_clients(Training())
    clients.memory = {"prototypes/sum": torch.ones(CLIENTS, 2)}
    state = State(clients, {"prototypes/mean": torch.ones(2)}, 0, 0)
    assert State.from_flat(state.flat(), 0, 0).flat().keys() == state.flat().keys()


STRIDED = {
    "columns first": torch.randn(3, 4).mT,
    "one column": torch.empty_strided((5, 1), (1, 5)),
    "a part": torch.randn(10)[1:],
    "repeated": torch.randn(1, 3).expand(4, 3),
}


@pytest.mark.parametrize("how", STRIDED)
def test_a_tensor_is_laid_out_as_a_checkpoint_restores_it(how):
    given = STRIDED[how].zero_() if how == "one column" else STRIDED[how]
    found = row_major(given)
    assert torch.equal(found, given)
    assert found.stride() == torch.empty(given.shape).stride() != (1, 5)
    assert found.storage_offset() == 0
    assert row_major(found) is found
