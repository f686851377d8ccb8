"""ProtoRidge's estimates against the sums of all windows, which it never sends."""

import itertools

import numpy as np
import pandas as pd
import pytest
import torch

from data_prep.base.errors import InputError
from stforecast import Forecaster
from stforecast.data.prepared import prepare
from stforecast.data.series import as_series
from stforecast.federated.core.state import Participants
from stforecast.federated.engine.trainer import Trainer
from stforecast.forecasting.trained_method import client_samples
from stforecast.methods import protoridge
from stforecast.methods.fedlean import MAP, OWN, RelativeInputs, n_linear
from stforecast.methods.protoridge import FEWEST, PROTOTYPES, ROUNDS

SMALL = {
    "split": "days:15,3,3", "profile": "none", "extra_lags": "2,24", "calendar": "day",
    "horizon": 2, "refit": "never", "pretrained": "none",
}  # fmt: skip


@pytest.fixture
def table(drifting_table):
    return drifting_table


def fitted(table, **settings):
    return Forecaster("protoridge", **{**SMALL, **settings}).fit(table)


def predictor(forecaster):
    return forecaster._evaluations["last"].model.predictor


def rows_of(table, forecaster):
    """Return z, changes and mask of the training windows of each client, in double precision."""
    config = forecaster.config
    data = prepare(as_series(table), config.window, SMALL["split"], "cell")
    windows = data.windows(data.split.train)
    inputs = RelativeInputs(torch.from_numpy(windows.x), config.window)
    change = torch.from_numpy(windows.y) - inputs.base
    return inputs.linear.double().numpy(), change.double().numpy(), windows.mask


def sums_of_all(table, forecaster):
    """Return the mean of z with z and changes over all windows; those without targets are 0."""
    z, change, mask = rows_of(table, forecaster)
    seen = mask.any(-1)
    z, change = z * seen[..., None], np.where(mask, change, 0)
    change *= (seen.sum(1)[:, None] / mask.sum(1))[:, None]
    both = np.concatenate([z, change], axis=-1)
    return (z.transpose(0, 2, 1) @ both / z.shape[1]).mean(0)


def ridge(sums, penalty=1.0):
    """Return the map of the mean products of all windows, with its products the first columns."""
    products, moments = np.split(sums, [len(sums)], axis=1)
    penalties = np.diag([1e-6 * penalty, *[penalty] * (len(sums) - 1)])
    return np.linalg.solve(products + penalties, moments)


def test_a_prototype_of_each_window_gives_the_map_of_all_windows(table, monkeypatch):
    monkeypatch.setattr(protoridge, "FEWEST", 1)
    table.iloc[50:80, 0] = np.nan
    table.iloc[100, 1] = np.nan
    forecaster = fitted(table, prototypes=1000, ridge=0.3)
    found = predictor(forecaster).snapshot.server[MAP]
    expected = ridge(sums_of_all(table, forecaster), 0.3)
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("groups", [([0, 1], [2, 3]), ([0, 1, 2], [3, 4])], ids=["equal", "odd"])
def test_the_mean_of_the_estimates_over_all_groupings_is_the_sums_of_all_windows(
    groups, table, monkeypatch
):
    monkeypatch.setattr(protoridge, "FEWEST", 2)
    method = predictor(fitted(table, prototypes=2)).method
    size = sum(map(len, groups))
    rows = torch.randn(size, 5, generator=torch.Generator().manual_seed(0)).double()
    found = [
        method.estimate(
            torch.stack([rows[list(order)][of].mean(0) for of in groups])[None],
            torch.tensor([size]),
            3,
        )
        for order in itertools.permutations(range(size))
    ]
    torch.testing.assert_close(torch.stack(found).mean(0), rows[:, :3].T @ rows / size)
    assert torch.stack(found).std(0).max() > 0.1


def test_clients_count_by_their_windows(table):
    method = predictor(fitted(table, prototypes=2)).method
    sent = torch.randn(2, 2, 5, generator=torch.Generator().manual_seed(0)).double()
    sizes = torch.tensor([30, 10])
    sent[1, 1] = 0  # Ten windows are one group.
    each = [method.estimate(sent[i : i + 1], sizes[i : i + 1], 3) for i in (0, 1)]
    both = method.estimate(sent, sizes, 3)
    torch.testing.assert_close(both, 0.75 * each[0] + 0.25 * each[1])
    torch.testing.assert_close(each[1], torch.outer(sent[1, 0, :3], sent[1, 0]))


def test_further_rounds_draw_other_groups_and_take_the_mean_of_their_maps(table):
    one, two = (predictor(fitted(table, rounds=n)) for n in (1, 2))
    server = one.snapshot.server
    sent = torch.randn(1, 24, sum(server[MAP].shape), generator=torch.Generator().manual_seed(0))
    first, second = (
        one.method.aggregate(
            server, Participants(torch.arange(1), torch.tensor([100]), round), {PROTOTYPES: sent}
        )
        for round in (0, 1)
    )
    torch.testing.assert_close(second[MAP], (server[MAP] + first[MAP]) / 2)
    assert (server[ROUNDS], second[ROUNDS]) == (1, 2)
    assert not torch.equal(server[MAP], two.snapshot.server[MAP])


@pytest.mark.parametrize("clients", ["cell", "all"])
def test_prototypes_of_slots_are_means_of_parts_of_the_day(clients, table, monkeypatch):
    monkeypatch.setattr(protoridge, "CHUNK", 100)
    forecaster = fitted(table, groups="slots", prototypes=12, clients=clients)
    z, change, _ = rows_of(table, forecaster)
    both = np.concatenate([z, change], axis=-1)
    cells = 3 if clients == "all" else 1  # A time's samples of all cells follow each other.
    both = (
        both.reshape(-1, cells, *both.shape[1:])
        .swapaxes(1, 2)
        .reshape(3 // cells, -1, both.shape[-1])
    )
    # The first window's first target is midnight of the second day.
    place = np.arange(both.shape[1])
    order, group = np.argsort(place // cells % 24, kind="stable"), place * 12 // len(place)
    found = 0
    for client in both:
        for part in np.split(client[order], np.flatnonzero(np.diff(group)) + 1):
            mean = part.mean(0)
            found = found + len(part) * np.outer(mean[: z.shape[-1]], mean)
    found = ridge(found / both.shape[0] / both.shape[1])
    np.testing.assert_allclose(
        predictor(forecaster).snapshot.server[MAP], found, rtol=1e-3, atol=1e-4
    )


def test_groups_have_some_windows_each(table):
    method = predictor(fitted(table, prototypes=5)).method
    counts = method._counts(torch.tensor([3, 2 * FEWEST, 5 * FEWEST + 3, 1000]))
    assert counts.tolist()[:2] == [[3, 0, 0, 0, 0], [FEWEST, FEWEST, 0, 0, 0]]
    assert counts[2].sum() == 5 * FEWEST + 3
    assert set(counts[2].tolist()) == {FEWEST, FEWEST + 1}
    assert counts[3].tolist() == [200] * 5


@pytest.mark.attack("groups computed from the seed")
def test_on_a_node_nobody_else_can_compute_the_groups(table):
    """The server knows the seed, and so all that one process draws by it."""
    forecaster = fitted(table)
    config, method = forecaster.config, predictor(forecaster).method
    data = prepare(as_series(table), config.window, SMALL["split"], "cell")
    samples = client_samples(method, data, data.split.train, data.split.validation)
    trainer = Trainer(method, *samples, seed=config.run.seed)
    sent = []
    for secret in (False, False, True, True):
        trainer.secret_noise = secret
        sent.append(trainer.train(torch.arange(3)).upload[PROTOTYPES])
    assert torch.equal(sent[0], sent[1])
    assert not torch.allclose(sent[2], sent[0])
    assert not torch.allclose(sent[2], sent[3])


def test_a_client_sends_its_prototypes_once_and_keeps_no_network(table, tmp_path):
    forecaster = fitted(table)
    floats = 24 * (n_linear(forecaster.config.window) + 2)
    assert forecaster.rounds_["bytes_up"].tolist() == [3 * 4 * floats]
    assert {*predictor(forecaster).snapshot.server} == {MAP, ROUNDS}
    assert {n.partition("/")[2] for n in predictor(forecaster).state()} == {
        MAP, ROUNDS, f"memory/{OWN}", "sizes",
    }  # fmt: skip
    forecaster.save(tmp_path)
    later = Forecaster.load(tmp_path).predict(table)
    pd.testing.assert_frame_equal(later, forecaster.predict(table))


def test_clients_correct_the_map_and_forecast_what_they_correct(table):
    common, own = (fitted(table, shrinkage=s) for s in (0, 1))
    assert OWN not in predictor(common).snapshot.clients.memory
    corrections = predictor(own).snapshot.clients.memory[OWN]
    assert not torch.allclose(corrections[0], corrections[1])
    torch.testing.assert_close(*(predictor(f).snapshot.server[MAP] for f in (common, own)))


def test_few_prototypes_forecast_nearly_as_well_as_the_sums_of_all_windows(table):
    errors = []
    for method, own in (("protoridge", {}), ("fedlean", {"rounds": 1}), ("last_value", None)):
        settings = {"split": SMALL["split"], "horizon": 2} if own is None else {**SMALL, **own}
        m = Forecaster(method, **settings).fit(table).evaluate()
        whole = m[(m.client == "all") & (m.horizon == "all") & (m.metric == "mse")]
        errors.append(whole[whole.split == "test"].value.iloc[-1])
    assert errors[0] < 1.1 * errors[1] < errors[2]


def test_a_refit_sends_prototypes_once_more_than_its_rounds(table):
    forecaster = fitted(table, refit="once", refit_rounds=2)
    forecaster.evaluate()
    (refit,) = forecaster.refits_.to_dict("records")
    assert refit["rounds"] == 3
    assert np.isfinite(forecaster.predict(table).to_numpy()).all()


@pytest.mark.parametrize(
    "name", ["lr", "batch_size", "rounds_per_cell", "participants", "huber_delta"]
)
def test_settings_of_a_network_are_refused(name):
    with pytest.raises(InputError, match=name):
        Forecaster("protoridge", **{name: 1})


def test_bounds_may_have_other_levels(table):
    bounded = fitted(table, intervals="normalised", quantiles="0.1,0.5,0.9")
    lower, upper = bounded.predict_interval(table)
    assert (lower < upper).all(axis=None)
