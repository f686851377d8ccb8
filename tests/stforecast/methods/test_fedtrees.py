"""FedTrees equals boosting of the pooled samples, whoever holds them and whoever is absent."""

import itertools

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.linear_model import Ridge
from torch import nn

from data_prep.base.errors import InputError
from stforecast import Forecaster
from stforecast.federated.core.data import ClientData
from stforecast.federated.core.layers import ClientLinear
from stforecast.federated.core.method import predictions
from stforecast.federated.core.population import Population, SplitModel
from stforecast.federated.core.state import State
from stforecast.federated.core.training import Training
from stforecast.federated.core.trees import GRID
from stforecast.federated.engine.rounds import Federation
from stforecast.federated.uploads.robust import Robust
from stforecast.federated.uploads.uplink import Uplink
from stforecast.forecasting.task import ForecastTask, LossOptions
from stforecast.methods.fedtrees import FedTrees, FedTreesOptions, residuals

pytestmark = pytest.mark.usefixtures("double")

INPUTS = 3
SMALL = {"depth": 2, "bins": 16, "min_samples": 5, "shrinkage": 0.5}


def samples_of(sizes, outputs=1, seed=0, dtype=torch.float64):
    """Samples of a rough function; padding is NaN, one target in ten was not observed."""
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(len(sizes), max(sizes), INPUTS, generator=g, dtype=dtype)
    further = torch.randn(*x.shape[:2], outputs, generator=g, dtype=dtype)
    y = (x[..., :1] > 0) * x[..., 1:2] + x[..., 2:] * torch.arange(1, outputs + 1) + 0.1 * further
    mask = torch.rand(y.shape, generator=g) < 0.9
    real = (torch.arange(max(sizes)) < torch.tensor(sizes)[:, None])[..., None]
    tensors = {"x": x.where(real, torch.nan), "y": y.where(real, torch.nan), "mask": mask & real}
    return ClientData(tensors, torch.tensor(sizes))


def pooled(data):
    """The samples of all clients as those of one."""
    real = torch.cat(
        [torch.arange(n) + i * len(data.tensors["x"][0]) for i, n in enumerate(data.sizes)]
    )
    tensors = {name: t.flatten(0, 1)[real][None] for name, t in data.tensors.items()}
    return ClientData(tensors, torch.tensor([len(real)]))


def federate(data, loss="mse", rounds=10, participation=1.0, guards=None, **options):
    task = ForecastTask(1, LossOptions(loss=loss))
    outputs = data.tensors["y"].shape[2] * task.options.n_outputs
    method = FedTrees(
        Population(lambda: SplitModel(nn.Identity(), ClientLinear(INPUTS, outputs))),
        task,
        Training(rounds=rounds, batch_size=1, participation=participation),
        FedTreesOptions(**{**SMALL, **options}),
    )
    return Federation(method, data, seed=1, **(guards or {}))


def forecasts(federation, data):
    parts = [y for _, y in predictions(federation.method, federation.ready(), data)]
    return torch.cat(parts, dim=1)


@pytest.mark.quick(2)
@pytest.mark.parametrize("outputs", [1, 6])
@pytest.mark.parametrize("loss", ["mse", "huber", "quantile"])
def test_clients_grow_the_trees_of_their_pooled_samples(loss, outputs):
    data, new = samples_of((40, 25, 60), outputs), samples_of((30,), outputs, seed=1)
    apart, together = federate(data, loss), federate(pooled(data), loss)
    for federation in (apart, together):
        federation.run()
    server, other = apart.state.server, together.state.server
    assert len(server["feature"]) >= 3
    assert server["feature"].unique().numel() > 1
    for name in ("feature", "split", "bin_ends"):
        assert torch.equal(server[name], other[name])
    for name in ("value", "linear"):
        torch.testing.assert_close(server[name], other[name], rtol=1e-9, atol=1e-9)
    three = ClientData(
        {n: t.expand(3, *t.shape[1:]) for n, t in new.tensors.items()}, torch.tensor([30] * 3)
    )
    expected = forecasts(together, new).expand(3, -1, -1)
    torch.testing.assert_close(forecasts(apart, three), expected, rtol=1e-9, atol=1e-9)


def test_the_base_learner_is_the_pooled_ridge_regression():
    data = samples_of((40, 30), outputs=2)
    federation = federate(data, rounds=1, ridge=3.0)
    federation.run()
    all_samples = {name: t[0] for name, t in pooled(data).tensors.items()}
    known = all_samples["mask"].all(1)
    ridge = Ridge(alpha=3.0).fit(all_samples["x"][known].numpy(), all_samples["y"][known].numpy())
    weights = federation.state.server["linear"].numpy()
    np.testing.assert_allclose(weights[:-1], ridge.coef_.T, rtol=1e-8, atol=1e-8)
    np.testing.assert_allclose(weights[-1], ridge.intercept_, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("directions", [0, 2])
def test_a_node_has_its_samples_mean_residual(directions):
    """Whatever the directions that chose the splits: of the ridge regression's residuals."""
    data = samples_of((50, 30), outputs=5)
    federation = federate(data, rounds=4, l2=2.0, directions=directions)
    federation.run()
    server, of = federation.state.server, {n: t[0] for n, t in pooled(data).tensors.items()}
    x, weight = of["x"], of["mask"].double().mean(1)
    error = torch.where(of["mask"], of["y"] - x @ server["linear"][:-1] - server["linear"][-1], 0)
    right = [
        x[:, f] > server["bin_ends"][f, s]
        for f, s in zip(server["feature"][0].long(), server["split"][0].long(), strict=True)
    ]
    leaf = 2 * right[0] + torch.where(right[0], right[2], right[1])
    assert leaf.unique().tolist() == [0, 1, 2, 3]
    for i in range(4):
        expected = 0.5 * error[leaf == i].sum(0) / (weight[leaf == i].sum() + 2.0)
        torch.testing.assert_close(server["value"][0, i], expected)


def test_every_level_lowers_the_training_loss_of_the_squared_error():
    federation = federate(samples_of((100,)), rounds=16, l2=0.0)
    federation.run()
    losses = [r.train_loss for r in federation.reports]
    assert all(b <= a for a, b in itertools.pairwise(losses[1:]))
    assert losses[-1] < 0.5 * losses[1] < 0.5 * losses[0]


def test_bytes_are_those_of_the_formula():
    f, k, c, b = INPUTS, 6, 4, 16
    federation = federate(samples_of((60, 40), outputs=k), rounds=5)
    federation.run()
    sent = [r.bytes_up / 2 / 8 for r in federation.reports]
    tree = [k + 1 + f * b * (c + 1), 2 * (k + 1) + f * b * (c + 1), 4 * (k + 1)]
    assert sent == [GRID * f + (f + 1) * (f + 1 + k), *tree, tree[0]]
    both = federate(samples_of((60, 40), outputs=k), rounds=5, participation=0.9)
    both.run()
    tree[1] += f * b * (c + 1)
    assert [r.bytes_up / r.participants / 8 for r in both.reports][1:4] == tree


def absent(federation, rounds, client):
    """Let a client be absent in some rounds, by number from 1."""
    draw = federation.server.participants

    def participants(*args):
        everyone = draw(*args)
        here = everyone.ids != (client if federation.state.round + 1 in rounds else -1)
        return type(everyone)(everyone.ids[here], everyone.sizes[here], everyone.round)

    federation.server.participants = participants
    return federation


def test_a_tree_ends_where_its_clients_change():
    data = samples_of((40, 30, 30))
    federation = absent(federate(data, rounds=7, depth=3), rounds=(4,), client=2)
    levels = []
    federation.run(lambda report: levels.append(int(federation.state.server["level"])))
    # Round 4 is to split the second of three levels, but the parents' histograms are of others.
    assert levels == [0, 1, 2, 0, 1, 2, 3]
    assert len(federation.state.server["feature"]) == 2


def test_a_client_that_was_absent_catches_up():
    data = samples_of((40, 30, 30))
    federation = absent(federate(data, rounds=12), rounds=(2, 3, 4, 5, 6, 7, 8), client=1)
    federation.run()
    memory = federation.state.clients.memory
    finished = int(memory["trees"][0])
    assert finished > 2
    assert memory["trees"].tolist() == [finished] * 3
    server, x = federation.state.server, data.tensors["x"][1, :30]
    method = federation.method
    sent = {n: server[n][:finished] for n in ("feature", "split", "value")}
    sent |= {n: server[n] for n in ("bin_ends", "linear")}
    found = method.predict({}, {n: t[None] for n, t in sent.items()}, x[None], "global")[0]
    torch.testing.assert_close(memory["prediction"][1, :30], found)


def test_the_members_of_a_tree_are_known_among_other_clients():
    federation = federate(samples_of((40, 30, 20)), rounds=2)
    federation.run()
    server = federation.method.server_for(federation.state.server, torch.tensor([2, -1, 0]))
    assert server["members"].tolist() == [20, 0, 40]


@pytest.mark.repeats
def test_it_learns_from_a_share_of_the_clients():
    federation = federate(samples_of((60, 60, 60, 60)), rounds=31, participation=0.5)
    federation.run()
    losses = [r.train_loss for r in federation.reports]
    assert len(federation.state.server["feature"]) == 10
    assert np.mean(losses[-3:]) < 0.5 * np.mean(losses[1:4])


@pytest.mark.quick(2)
@pytest.mark.parametrize("participation", [1.0, 0.5])
def test_it_goes_on_from_its_state(participation):
    whole = federate(samples_of((40, 30, 30)), rounds=9, participation=participation)
    whole.run()
    first, second = (
        federate(samples_of((40, 30, 30)), rounds=9, participation=participation) for _ in range(2)
    )
    for _ in range(5):
        first.run_round()
    kept = {name: t.clone() for name, t in first.state.flat().items()}
    second.restore(State.from_flat(kept, first.state.round, first.state.seed), None, first.reports)
    second.run()
    torch.testing.assert_close(second.state.flat(), whole.state.flat(), rtol=0, atol=0)


@pytest.mark.quick(6)
@pytest.mark.parametrize(
    "guards",
    [
        {"uplink": Uplink(bits=8)},
        {"uplink": Uplink(bits=8, delta_coding=True)},
        {"uplink": Uplink(delta_coding=True)},
        {"uplink": Uplink(noise="laplace", noise_std=0.05)},
        {"uplink": Uplink(noise="gaussian", noise_std=0.01, clip=1e4)},
        {"robust": Robust("drop")},
    ],
    ids=str,
)
def test_uploads_may_be_coded_and_guarded(guards):
    torch.set_default_dtype(torch.float32)
    data = samples_of((60, 50, 60, 70, 60), dtype=torch.float32)
    federation = federate(data, rounds=13, guards=guards)
    federation.run()
    first, last = (federation.reports[i].train_loss for i in (0, -1))
    assert last < first / 4
    assert all(t.isfinite().all() for t in federation.state.server.values())


@pytest.mark.attack("hostile values")
def test_trees_of_honest_clients_are_those_without_the_liar(monkeypatch):
    """Its sums are dropped as a whole, as if it were absent in each round."""
    sizes = (50, 90, 40, 60, 70)
    attacked = federate(samples_of(sizes), guards={"robust": Robust("drop")})
    truth = attacked.method.local_update

    def lie(cohort, payload):
        upload = truth(cohort, payload)
        for t in upload.values():
            t[cohort.ids == 3] *= -10
        return upload

    monkeypatch.setattr(attacked.method, "local_update", lie)
    data, others = samples_of(sizes), torch.tensor([0, 1, 2, 4])
    honest = federate(data.take(others))
    for federation in (attacked, honest):
        federation.run()
    for name in ("feature", "split", "value", "linear"):
        torch.testing.assert_close(attacked.state.server[name], honest.state.server[name])


def test_residuals_have_the_unit_of_the_target():
    y = torch.tensor([[[1.0], [2.0], [3.0], [9.0]]])
    batch = {"y": y, "mask": torch.tensor([[[True], [True], [True], [False]]])}
    y_hat = torch.tensor([[[0.8], [2.0], [5.0], [0.0]]])
    expected = {"mse": [0.2, 0, -2, 0], "huber": [0.2, 0, -0.5, 0], "mae": [1, 0, -1, 0]}
    for loss, values in expected.items():
        found = residuals(ForecastTask(1, LossOptions(loss=loss)), y_hat, batch)
        assert found.flatten().tolist() == pytest.approx(values), loss
    quantiles = ForecastTask(1, LossOptions(loss="quantile", quantiles="0.1,0.5,0.9"))
    found = residuals(quantiles, y_hat[:, :, [0, 0, 0]], batch)[0]
    assert (found[0] * 3).tolist() == pytest.approx([0.1, 0.5, 0.9])
    assert (found[2] * 3).tolist() == pytest.approx([-0.9, -0.5, -0.1])


@pytest.fixture
def hours():
    """Two weeks of three cells with a daily wave."""
    torch.set_default_dtype(torch.float32)
    rng = np.random.default_rng(0)
    times = pd.date_range("2013-11-01", periods=24 * 14, freq="h")
    wave = np.sin(2 * np.pi * times.hour / 24).to_numpy()[:, None]
    return pd.DataFrame(wave + 0.1 * rng.normal(size=(len(times), 3)), times, ["a", "b", "c"])


SETTINGS = {"split": "days:8,3,3", "device": "cpu", "depth": 2, "rounds": 8}


def test_a_saved_forecaster_forecasts_the_same(hours, tmp_path):
    forecaster = Forecaster("fedtrees", horizon=6, **SETTINGS).fit(hours)
    again = Forecaster.load(forecaster.save(tmp_path))
    pd.testing.assert_frame_equal(again.predict(hours, 8), forecaster.predict(hours, 8))
    assert not forecaster.find_leaks(hours)


@pytest.mark.repeats
def test_refits_go_on_with_longer_data(hours):
    forecaster = Forecaster("fedtrees", refit="daily", refit_rounds=4, **SETTINGS).fit(hours)
    assert np.isfinite(forecaster.test_forecasts().y_hat).all()
    trees = [len(m.snapshot.server["feature"]) for m in forecaster.model_.predictor.models]
    assert trees == sorted(set(trees))
    assert len(trees) == 3


@pytest.mark.parametrize("wrong", [{"depth": 9}, {"bins": 257}, {"shrinkage": 0.0}, {"ridge": 0.0}])
def test_options_out_of_range_are_refused(wrong):
    with pytest.raises(InputError, match=f"^{next(iter(wrong))} is "):
        FedTreesOptions(**wrong)
