"""ProtoRidge's estimates against the sums of all windows, which it never sends."""

import numpy as np
import pandas as pd
import pytest
import torch

from data_prep.base.errors import InputError
from stforecast import Forecaster
from stforecast.data.prepared import prepare
from stforecast.data.series import as_series
from stforecast.federated.core.state import Participants
from stforecast.methods.fedlean import MAP, OWN, n_linear, relative
from stforecast.methods.protoridge import ESTIMATE, PROTOTYPES

SMALL = {
    "split": "days:15,3,3", "profile": "none", "extra_lags": "2,24", "calendar": "day",
    "horizon": 2, "refit": "never", "pretrained": "none",
}  # fmt: skip


@pytest.fixture
def table():
    rng = np.random.default_rng(0)
    hours = pd.date_range("2013-11-01", periods=24 * 21, freq="h")
    daily = np.sin(2 * np.pi * hours.hour / 24)
    noise = rng.normal(size=(len(hours), 3)).cumsum(0)
    return pd.DataFrame(daily.to_numpy()[:, None] + 0.1 * noise, hours, ["a", "b", "c"])


def fitted(table, **settings):
    return Forecaster("protoridge", **{**SMALL, **settings}).fit(table)


def predictor(forecaster):
    return forecaster._evaluations["last"].model.predictor


def rows_of(table, forecaster):
    """Return z, changes and mask of the training windows of each client, in double precision."""
    config = forecaster.config
    data = prepare(as_series(table), config.window, SMALL["split"], "cell")
    windows = data.windows(data.split.train)
    inputs = relative(torch.from_numpy(windows.x), config.window)
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


def test_a_prototype_of_each_window_gives_the_sums_of_all_windows(table):
    table.iloc[50:80, 0] = np.nan
    table.iloc[100, 1] = np.nan
    forecaster = fitted(table, prototypes=1000)
    found = predictor(forecaster).snapshot.server[ESTIMATE]
    np.testing.assert_allclose(found, sums_of_all(table, forecaster), rtol=1e-4, atol=1e-5)


def estimate(method, server, prototypes, sizes, round=0):
    of = Participants(torch.arange(len(sizes)), torch.tensor(sizes), round)
    return method.aggregate(server, of, {PROTOTYPES: prototypes})


def test_the_mean_of_the_estimates_over_all_groupings_is_the_sums_of_all_windows(table):
    """Of four windows in two groups, there are three groupings."""
    trained = predictor(fitted(table, prototypes=2))
    method, server = trained.method, trained.snapshot.server
    n, columns = server[ESTIMATE].shape
    rows = torch.randn(4, columns, generator=torch.Generator().manual_seed(0)).double()
    groupings = ([[0, 1], [2, 3]], [[0, 2], [1, 3]], [[0, 3], [1, 2]])
    means = [torch.stack([rows[group].mean(0) for group in of]) for of in groupings]
    found = [estimate(method, server, m[None].float(), [4])[ESTIMATE] for m in means]
    expected = rows[:, :n].T @ rows / 4
    torch.testing.assert_close(torch.stack(found).mean(0), expected, rtol=1e-5, atol=1e-5)
    assert not torch.allclose(found[0], expected, rtol=0.1, atol=0.1)


def test_clients_count_by_their_windows(table):
    trained = predictor(fitted(table, prototypes=2))
    method, server = trained.method, trained.snapshot.server
    sent = torch.randn(2, 2, server[ESTIMATE].shape[1], generator=torch.Generator().manual_seed(0))
    each = [
        estimate(method, server, sent[i : i + 1], [n])[ESTIMATE] for i, n in enumerate((30, 10))
    ]
    both = estimate(method, server, sent, [30, 10])[ESTIMATE]
    torch.testing.assert_close(both, 0.75 * each[0] + 0.25 * each[1])


def test_the_map_is_the_ridge_regression_of_the_estimates(table):
    server = predictor(fitted(table, ridge=0.3)).snapshot.server
    found = server[ESTIMATE].numpy()
    products, moments = np.split(found, [len(found)], axis=1)
    products += np.diag([0.3e-6, *[0.3] * (len(found) - 1)])
    np.testing.assert_allclose(
        server[MAP], np.linalg.solve(products, moments), rtol=1e-4, atol=1e-5
    )


def test_further_rounds_draw_other_groups_and_take_the_mean(table):
    one, two = (predictor(fitted(table, rounds=n)).snapshot.server[ESTIMATE] for n in (1, 2))
    method, server = (lambda of: (of.method, of.snapshot.server))(predictor(fitted(table)))
    sent = torch.randn(1, 24, server[ESTIMATE].shape[1], generator=torch.Generator().manual_seed(0))
    second = estimate(method, server, sent, [100])[ESTIMATE]
    both = estimate(method, server, sent, [100], round=1)[ESTIMATE]
    torch.testing.assert_close(both, (one + second) / 2)
    assert not torch.equal(one, two)


def test_prototypes_of_slots_are_means_of_parts_of_the_day(table):
    forecaster = fitted(table, groups="slots", prototypes=12)
    z, change, _ = rows_of(table, forecaster)
    both = np.concatenate([z, change], axis=-1)
    first = 24  # The first window's first target: midnight of the second day.
    part = (first + np.arange(both.shape[1])) % 24 // 2
    means = np.stack([both[:, part == k].mean(1) for k in range(12)], axis=1)
    expected = np.mean(means[..., : z.shape[-1]].transpose(0, 2, 1) @ means / 12, axis=0)
    found = predictor(forecaster).snapshot.server[ESTIMATE]
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_a_client_sends_its_prototypes_once_and_nothing_else(table):
    forecaster = fitted(table)
    rounds = forecaster.rounds_
    floats = 24 * (n_linear(forecaster.config.window) + 2)
    assert rounds["bytes_up"].tolist() == [3 * 4 * floats]
    assert {*predictor(forecaster).snapshot.server} == {MAP, ESTIMATE, "rounds"}


def test_clients_correct_the_map_and_forecast_what_they_correct(table):
    common, own = (fitted(table, shrinkage=s) for s in (0, 1))
    assert not predictor(common).snapshot.clients.memory[OWN].any()
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


def test_a_refit_sends_prototypes_of_all_known_windows(table):
    forecaster = fitted(table, refit="once", refit_rounds=2)
    forecaster.evaluate()
    assert np.isfinite(forecaster.predict(table).to_numpy()).all()


@pytest.mark.parametrize("name", ["lr", "batch_size", "rounds_per_cell", "participants"])
def test_settings_of_a_network_are_refused(name):
    with pytest.raises(InputError, match=name):
        Forecaster("protoridge", **{name: 1})
