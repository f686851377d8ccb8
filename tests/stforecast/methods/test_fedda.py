"""FedDA against loops over its rules: NumPy and plain torch, one client and one layer at a time."""

import numpy as np
import pytest
import torch
from cut_windows import cut_windows
from torch import nn

from data_prep.base.errors import InputError
from stforecast.data.profiles import cluster_clients, mean_windows, zscored
from stforecast.data.window_spec import WindowSpec
from stforecast.federated.core.data import ClientData
from stforecast.federated.core.layers import ClientLinear
from stforecast.federated.core.population import PerClient, Population, SplitModel
from stforecast.federated.core.state import Cohort, Participants, generator
from stforecast.federated.core.training import Training
from stforecast.federated.engine.rounds import Federation
from stforecast.forecasting.config import read_by, resolve
from stforecast.forecasting.forecaster import Forecaster
from stforecast.forecasting.task import ForecastTask, client_data
from stforecast.methods.fedda import FedDA, FedDAClusters, FedDAOptions, attend

P, N_INPUTS, HORIZON, WIDTH = 4, 4, 2, 3
SPEC = WindowSpec(closeness=2, periods=2, period=P, horizon=HORIZON)
LAYERS = ("encoder.0.weight", "encoder.0.bias", "head.weight", "head.bias")
QUICK = {"warmup_epochs": 3, "warmup_lr": 0.05}


def samples_of(n_clients=4, samples=26, first=2 * P, missing=(), seed=7):
    """Windows of daily waves, half of the clients upside down, two places of two clients each."""
    rng = np.random.default_rng(seed)
    steps = np.arange(first + samples + HORIZON - 1)
    sign = np.where(np.arange(n_clients) % 2, -1, 1)
    series = sign * np.sin(2 * np.pi * steps[:, None] / P) + 0.3 * rng.normal(
        size=(len(steps), n_clients)
    )
    for step, client in missing:
        series[step, client] = np.nan
    starts = np.arange(first, first + samples)
    places = np.stack([np.arange(n_clients) // 2, rng.random(n_clients) / 10], axis=1)
    return client_data(cut_windows(series, starts, SPEC), places)


def without_location(data):
    return ClientData({n: t for n, t in data.tensors.items() if n != "location"}, data.sizes)


def tanh_model():
    encoder = nn.Sequential(ClientLinear(N_INPUTS, WIDTH), nn.Tanh())
    return SplitModel(encoder, ClientLinear(WIDTH, HORIZON))


def normed_model():
    encoder = nn.Sequential(nn.Linear(N_INPUTS, WIDTH), nn.BatchNorm1d(WIDTH))
    return SplitModel(PerClient(encoder), PerClient(nn.Linear(WIDTH, HORIZON)))


def federation(data, *, method=FedDA, build=tanh_model, cohort=None, training=None, **options):
    training = {"batch_size": 8, "optimizer": "sgd", "lr": 0.1, "rounds": 3, **(training or {})}
    chosen = method.Options(**{**QUICK, **options})
    method = method(Population(build, seed=2), ForecastTask(P), Training(**training), chosen)
    return Federation(method, data, seed=11, cohort_size=cohort)


def first_upload(run, ids):
    ids = torch.tensor(ids)
    data, training = run.train.take(ids), run.method.training
    cohort = Cohort(run.state.clients, ids, data, training, run.state.seed, round=0)
    payload = run.method.broadcast(run.state.server, Participants(ids, data.sizes, 0))
    return run.method.local_update(cohort, payload)


# Mean windows


def plain_means(data, client, week_periods, samples):
    """Mean window of each (week, slot): lists gathered sample by sample."""
    week = P * week_periods
    n_weeks = max(1, samples // week)
    rows = {name: data[name][client].double().numpy() for name in ("x", "y")}
    gathered = {(w, s): ([], []) for w in range(n_weeks) for s in range(P)}
    for i in range(samples):
        xs, ys = gathered[min(i // week, n_weeks - 1), int(data["slot"][client, i])]
        xs.append(rows["x"][i])
        ys.append(np.where(data["mask"][client, i], rows["y"][i], np.nan))
    x = np.array([np.mean(xs, axis=0) for xs, _ in gathered.values()])
    y = np.full((len(x), HORIZON), np.nan)
    for row, (_, ys) in zip(y, gathered.values(), strict=True):
        for h in range(HORIZON):
            if seen := [v[h] for v in ys if not np.isnan(v[h])]:
                row[h] = np.mean(seen)
    return x, y


MISSING = [(20, 0), (14, 1), *((step, 2) for step in range(9, 34, P))]
"""Steps without a record; client 2 has none in a whole slot."""


@pytest.mark.parametrize(("week_periods", "weeks"), [(2, 3), (3, 2), (7, 1), (1, 6)])
@pytest.mark.parametrize("first", [2 * P, 2 * P + 3])
def test_windows_are_averaged_by_week_and_slot(week_periods, weeks, first):
    data = samples_of(first=first, missing=MISSING).tensors
    means = mean_windows(data, P, week_periods)
    assert means["x"].shape == (4, weeks * P, N_INPUTS)
    for client in range(4):
        x, y = plain_means(data, client, week_periods, 26)
        np.testing.assert_allclose(means["x"][client], x, atol=1e-5)
        assert np.array_equal(means["mask"][client], ~np.isnan(y))
        np.testing.assert_allclose(means["y"][client], np.nan_to_num(y), atol=1e-5)
    assert not means["mask"][2].all()


def test_a_sample_is_zscored_by_the_observed_profile():
    x = torch.tensor([[[3.0], [5.0], [9.0]], [[1.0], [1.0], [1.0]]])
    y = torch.tensor([[[1.0, 7.0], [5.0, 0.0], [0.0, 3.0]], [[2.0, 4.0]] * 3])
    mask = torch.tensor([[[True, True], [True, False], [False, True]], [[True, True]] * 3])
    z = zscored({"x": x, "y": y, "mask": mask})
    # Client 0: first targets 1 and 5, mean 3, deviation 2. Client 1 is constant: mean 2 only.
    assert z["x"].squeeze(-1).tolist() == [[0, 1, 3], [-1, -1, -1]]
    assert z["y"].tolist() == [[[-1, 2], [1, 0], [0, 0]], [[0, 2]] * 3]
    assert torch.equal(z["mask"], mask)


# What a client sends first


@pytest.mark.parametrize(("phi", "rows"), [(1.0, 12), (0.5, 6), (0.3, 3), (0.01, 1)])
def test_a_client_sends_a_drawn_share_of_its_mean_windows(phi, rows):
    run = federation(samples_of(missing=MISSING), phi=phi, profile_periods=2)
    upload = first_upload(run, [0, 1, 2, 3])
    means = zscored(mean_windows(run.train.tensors, P, 2))
    for client in range(4):
        g = generator(11, 0, client)
        drawn = torch.randint(12, (rows,), generator=g).tolist()
        for name in ("x", "y", "mask"):
            assert torch.equal(upload[name][client], means[name][client][drawn])
    assert torch.equal(upload["profile"], means["y"][..., 0])
    assert torch.equal(upload["location"], run.train.tensors["location"][:, 0])
    alone = first_upload(run, [2])
    for name, t in alone.items():
        torch.testing.assert_close(t[0], upload[name][2])


def test_a_profile_may_stay_in_the_units_of_the_data():
    run = federation(samples_of(), profile_zscore=False)
    profile = first_upload(run, [0, 1, 2, 3])["profile"]
    assert torch.equal(profile, mean_windows(run.train.tensors, P, 7)["y"][..., 0])
    assert not torch.equal(profile, first_upload(federation(samples_of()), [0, 1, 2, 3])["profile"])


@pytest.mark.parametrize("known", [True, False], ids=["with places", "without"])
def test_bytes_of_the_first_round_and_of_the_next(known):
    data = samples_of() if known else without_location(samples_of())
    run = federation(data, phi=0.5, profile_periods=2)
    first, second = run.run_round(), run.run_round()
    windows, profile = 6, 12
    floats = windows * (N_INPUTS + HORIZON) + profile + 2 * known
    assert first.bytes_up == 4 * (4 * floats + windows * HORIZON)
    assert first.bytes_down == 4 * 8
    model = (N_INPUTS + 1) * WIDTH + (WIDTH + 1) * HORIZON
    assert second.bytes_up == second.bytes_down == 4 * 4 * model


def test_clients_of_other_sizes_send_profiles_of_equal_length():
    data = samples_of(3)
    sizes = torch.tensor([26, 9, 17])
    run = federation(ClientData(data.tensors, sizes), profile_periods=1)
    run.run_round()
    upload = first_upload(run_start := federation(ClientData(data.tensors, sizes)), [0])
    cut = {name: data.tensors[name][:1, :9] for name in ("x", "y", "mask", "slot")}
    expected = zscored(mean_windows(cut, P, 7))
    assert torch.equal(upload["profile"], expected["y"][..., 0])
    assert run_start.state.server["samples"] == 9


def test_the_first_round_trains_no_client_and_reports_the_untrained_loss():
    run = federation(samples_of())
    before = {name: t.clone() for name, t in run.state.clients.params.items()}
    report = run.run_round()
    assert all(torch.equal(t, before[name]) for name, t in run.state.clients.params.items())
    state, tensors = before, run.train.tensors
    used = {name: t[:, :24] for name, t in tensors.items()}
    y_hat = run.method.population.decode(state, run.method.population.encode(state, used["x"]))
    loss = run.method.task.loss(y_hat, used).mean().item()
    assert report.train_loss == report.train_task_loss == pytest.approx(loss, rel=1e-5)


# The server before the second round


@pytest.mark.parametrize(("epochs", "rates"), [(5, [1, 1, 0.1, 0.01, 0.01]), (0, []), (1, [0.01])])
def test_the_quasi_global_model_is_that_of_a_plain_loop(epochs, rates):
    """One ordinary network, SGD with momentum, the clients' windows one after another."""
    options = {"warmup_epochs": epochs, "warmup_lr": 0.3, "warmup_batch_size": 7}
    run = federation(samples_of(missing=MISSING), profile_periods=2, **options)
    sample = first_upload(run, [0, 1, 2, 3])
    initial = {name: t[0].clone() for name, t in run.method.population.initial().items()}
    quasi = run.method.quasi_global(initial, sample, seed=0)
    model = nn.Sequential(nn.Linear(N_INPUTS, WIDTH), nn.Tanh(), nn.Linear(WIDTH, HORIZON))
    with torch.no_grad():
        for p, name in zip(model.parameters(), LAYERS, strict=True):
            p.copy_(initial[name].t())
    x, y, mask = (torch.cat(list(sample[name])) for name in ("x", "y", "mask"))
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0, momentum=0.9)
    for rate in rates:
        optimizer.param_groups[0]["lr"] = 0.3 * rate
        for i in range(0, len(x), 7):
            error = (model(x[i : i + 7]) - y[i : i + 7])[mask[i : i + 7]]
            optimizer.zero_grad()
            error.square().mean().backward()
            optimizer.step()
    for p, name in zip(model.parameters(), LAYERS, strict=True):
        torch.testing.assert_close(quasi[name], p.detach().t(), rtol=1e-4, atol=1e-5)
        assert torch.equal(quasi[name], initial[name]) == (epochs == 0)
        assert not quasi[name].requires_grad


def test_every_model_starts_from_the_quasi_global_one():
    run = federation(samples_of(), clusters=2)
    sample = first_upload(run, [0, 1, 2, 3])
    initial = {name: t[0] for name, t in run.method.population.initial().items()}
    run.run_round()
    server = run.state.server
    quasi = run.method.quasi_global(initial, sample, seed=0)
    for name, t in quasi.items():
        assert torch.equal(server[f"quasi.{name}"], t)
        assert torch.equal(server[f"global.{name}"], t)
        assert torch.equal(server[f"cluster.{name}"], torch.stack([t, t]))
    assert server["label"].tolist() in ([0, 1, 0, 1], [1, 0, 1, 0])


@pytest.mark.parametrize("expected", [[0, 0, 1, 1], [0, 1, 0, 1]])
def test_places_reach_the_clustering(expected):
    run = federation(samples_of(), clusters=2)
    uploads = first_upload(run, [0, 1, 2, 3])
    uploads["profile"] = torch.tensor([[0.0, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 1.0]])
    uploads["location"] = torch.tensor([[0.0, 0.0], [9.0, 9.0]])[expected]
    uploads["location"] += 0.01 * uploads["profile"]
    of = Participants(torch.arange(4), run.train.sizes, 0)
    assert same_groups(run.method.warm_up(run.state.server, of, uploads)["label"], expected)


def test_a_diverging_warm_up_says_so():
    run = federation(samples_of(), warmup_lr=1e8, warmup_epochs=50)
    with pytest.raises(InputError, match=r"warmup_lr is 100000000.0"):
        run.run_round()


def test_dropout_of_the_warm_up_is_keyed_to_the_seed():
    def dropping_model():
        encoder = nn.Sequential(ClientLinear(N_INPUTS, WIDTH), nn.Dropout(0.5))
        return SplitModel(encoder, ClientLinear(WIDTH, HORIZON))

    run = federation(samples_of(), build=dropping_model)
    sample = first_upload(run, [0, 1, 2, 3])
    initial = {name: t[0] for name, t in run.method.population.initial().items()}
    run.method.population.train(False)
    before = torch.get_rng_state()
    first, same, other = (run.method.quasi_global(initial, sample, seed) for seed in (1, 1, 2))
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(first["head.weight"], same["head.weight"])
    assert not torch.equal(first["head.weight"], other["head.weight"])


# Clustering


def same_groups(labels, expected):
    pairs = set(zip(labels.tolist(), expected, strict=True))
    return len(pairs) == len(set(expected)) == len(set(labels.tolist()))


PLANTED = [0, 1, 2, 0, 1, 2, 0, 1, 2, 0]


@pytest.mark.parametrize("located", [True, False])
def test_planted_groups_are_found(located):
    rng = np.random.default_rng(0)
    profiles = 10 * np.eye(3, 6)[PLANTED] + 0.1 * rng.normal(size=(10, 6))
    places = 10 * np.eye(3, 2)[PLANTED] + 0.1 * rng.normal(size=(10, 2))
    labels = cluster_clients(profiles, places if located else None, 3, seed=0)
    assert same_groups(labels, PLANTED)
    assert labels.dtype == np.int64


def test_where_place_and_profile_differ_the_profile_counts():
    rng = np.random.default_rng(0)
    profiles = 10 * np.eye(3, 6)[PLANTED] + 0.1 * rng.normal(size=(10, 6))
    places = rng.normal(size=(10, 2))
    assert same_groups(cluster_clients(profiles, places, 3, seed=0), PLANTED)


@pytest.mark.parametrize("expected", [[0, 0, 1, 1], [0, 1, 0, 1]])
def test_places_decide_between_equally_good_profiles(expected):
    """Profiles on the corners of a square fall into two pairs in two ways."""
    corners = np.array([[0.0, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 1.0]])
    places = np.array([[0.0, 0.0], [9.0, 9.0]])[expected] + 0.01 * corners
    for seed in range(5):
        assert same_groups(cluster_clients(corners, places, 2, seed), expected)


def test_profiles_move_the_groups_of_the_places():
    """Client 2 lives between the two places, nearer to 0; its profile is that of group 1."""
    places = np.array([[0.0, 0], [0.1, 0], [0.45, 0], [1.0, 0], [1.1, 0]])
    profiles = np.array([[0.0], [0.1], [5.0], [5.1], [5.2]])
    for seed in range(5):
        assert same_groups(cluster_clients(profiles, places, 2, seed), [0, 0, 1, 1, 1])


def plain_kmeans(points, labels):
    """Lloyd's algorithm from the means of the given groups, none of which may run empty."""
    while True:
        centres = np.array([points[labels == k].mean(0) for k in range(labels.max() + 1)])
        nearest = np.array([np.linalg.norm(centres - point, axis=1).argmin() for point in points])
        if (nearest == labels).all():
            return labels
        labels = nearest


@pytest.mark.parametrize(("seed", "expected_turns"), [(9, 1), (739, 2), (1674, 3), (87, 20)])
def test_turns_are_those_of_a_plain_loop(seed, expected_turns):
    """Places along a line, profiles loosely in its order."""
    rng = np.random.default_rng(seed)
    line = np.linspace(0, 1, 12)[:, None]
    profiles = 3 * line + rng.normal(size=(12, 2))
    places = 10 * line + rng.normal(size=(12, 2))
    by_place = plain_kmeans(places, (np.arange(12) >= 6).astype(int))
    turns = 0
    while True:
        turns += 1
        by_profile = plain_kmeans(profiles, by_place)
        if (by_profile == by_place).all() or turns == 20:
            break
        by_place = plain_kmeans(places, by_profile)
    assert same_groups(cluster_clients(profiles, places, 2, seed=0), by_profile.tolist())
    assert turns == expected_turns


@pytest.mark.filterwarnings("error")
def test_there_are_no_more_groups_than_different_clients():
    places, profiles = np.zeros((3, 2)), np.eye(3)
    assert cluster_clients(profiles, places, 3, seed=0).tolist() == [0, 0, 0]
    assert same_groups(cluster_clients(profiles, None, 16, seed=0), [0, 1, 2])
    assert same_groups(cluster_clients(np.eye(2)[[0, 1, 0]], None, 3, seed=0), [0, 1, 0])
    assert cluster_clients(np.ones((1, 4)), np.ones((1, 2)), 16, seed=0).tolist() == [0]


# Attention


def softmax(values):
    e = np.exp(np.array(values) - max(values))
    return e / e.sum()


def plain_attention(model, clients, quasi, rho, epsilon):
    """One model: dictionaries of arrays, a loop for every sum."""
    pulls = softmax([np.linalg.norm(model[name] - quasi[name]) for name in model])
    result = {}
    for (name, w), pull in zip(model.items(), pulls, strict=True):
        attention = softmax([np.linalg.norm(w - client[name]) for client in clients])
        step = np.zeros_like(w)
        for share, client in zip(attention, clients, strict=True):
            step += share * (w - client[name])
        step += rho * pull * (w - quasi[name])
        result[name] = w - epsilon * step
    return result


def random_layers(n, seed):
    g = torch.Generator().manual_seed(seed)
    shapes = {"a": (3, 2), "b": (4,), "c": (1, 2, 2)}
    return {
        k: torch.randn(n, *shape, generator=g, dtype=torch.float64) for k, shape in shapes.items()
    }


def row(tensors, i):
    return {name: t[i].double().numpy() for name, t in tensors.items()}


@pytest.mark.parametrize(("rho", "epsilon"), [(0.2, 1.0), (-0.3, 0.5), (0.0, 1.3)])
@pytest.mark.parametrize("n", [1, 5])
def test_attention_is_that_of_loops(n, rho, epsilon):
    model, quasi = ({k: t[0] for k, t in random_layers(1, seed).items()} for seed in (1, 2))
    uploads = random_layers(n, seed=3)
    moved = attend(model, uploads, quasi, rho, epsilon)
    clients = [{name: t[i].numpy() for name, t in uploads.items()} for i in range(n)]
    plain = [{name: t.numpy() for name, t in tensors.items()} for tensors in (model, quasi)]
    expected = plain_attention(plain[0], clients, plain[1], rho, epsilon)
    for name, t in expected.items():
        np.testing.assert_allclose(moved[name], t)


def test_without_rho_and_at_equal_distances_it_is_the_mean():
    zero, one = {"a": torch.zeros(2)}, {"a": torch.ones(2)}
    uploads = {"a": torch.tensor([[3.0, 4.0], [-5.0, 0.0], [0.0, 5.0]])}
    moved = attend(zero, uploads, one, 0.0, 1.0)
    torch.testing.assert_close(moved["a"], uploads["a"].mean(0))
    half = attend(zero, uploads, one, 0.0, 0.5)
    torch.testing.assert_close(half["a"], uploads["a"].mean(0) / 2)


def test_who_is_farther_counts_more():
    """Distances 0 and log 3 give shares 1/4 and 3/4."""
    far, zero = float(np.log(3)), {"a": torch.zeros(1)}
    moved = attend(zero, {"a": torch.tensor([[0.0], [far]])}, zero, 0.0, 1.0)
    assert moved["a"].item() == pytest.approx(0.75 * far)


def test_rho_pulls_to_the_quasi_global_model_the_farthest_layer_most():
    """A lone client that did not move; layers at distances log 3 and 0 from w_Q."""
    far = float(np.log(3))
    model = {"a": torch.full((1,), far), "b": torch.zeros(1)}
    quasi = {"a": torch.zeros(1), "b": torch.zeros(1)}
    uploads = {name: t[None] for name, t in model.items()}
    moved = attend(model, uploads, quasi, 0.2, 1.0)
    assert moved["a"].item() == pytest.approx(far * (1 - 0.2 * 0.75))
    assert moved["b"].item() == 0


def test_models_join_first_within_then_between_clusters():
    """Of three clusters two took part, the first with two clients; buffers are means by samples."""
    options = {"clusters": 3, "rho": 0.4, "epsilon": 0.7}
    run = federation(samples_of(3), build=normed_model, update_clusters=True, **options)
    run.run_round()
    buffer = "encoder.module.1.running_mean"
    names = list(run.method.population.parameters(1))
    g = torch.Generator().manual_seed(1)
    uploads, server = {}, dict(run.state.server, label=torch.tensor([2, 1, 0, 2]))
    for name in run.method.population.names:
        t = server[f"global.{name}"]
        uploads[name] = torch.randn(3, *t.shape, generator=g).to(t.dtype)
        for side, shape in {"cluster": (3, *t.shape), "quasi": t.shape}.items():
            server[f"{side}.{name}"] = torch.randn(shape, generator=g).to(t.dtype)
    of = Participants(torch.tensor([0, 2, 3]), torch.tensor([10, 20, 50]), 1)
    after = run.method.aggregate(server, of, uploads)
    quasi, start, one = (
        {n: side(server, n).double().numpy() for n in names}
        for side in (
            lambda s, n: s[f"quasi.{n}"],
            lambda s, n: s[f"cluster.{n}"],
            lambda s, n: s[f"global.{n}"],
        )
    )
    met = []
    for k, members in {0: [1], 2: [0, 2]}.items():
        clients = [row({n: uploads[n] for n in names}, i) for i in members]
        expected = plain_attention({n: start[n][k] for n in names}, clients, quasi, 0.4, 0.7)
        met.append(expected)
        for n, t in expected.items():
            np.testing.assert_allclose(after[f"cluster.{n}"][k], t, rtol=1e-4, atol=1e-5)
    for n, t in plain_attention(one, met, quasi, 0.4, 0.7).items():
        np.testing.assert_allclose(after[f"global.{n}"], t, rtol=1e-4, atol=1e-5)
    a, b, c = uploads[buffer]
    torch.testing.assert_close(after[f"cluster.{buffer}"][2], (10 * a + 50 * c) / 60)
    torch.testing.assert_close(after[f"global.{buffer}"], (10 * a + 20 * b + 50 * c) / 80)
    for name in run.method.population.names:
        before = server[f"cluster.{name}"][1]
        assert torch.equal(after[f"cluster.{name}"][1], before), "cluster 1 had no one"
    always_anew = federation(samples_of(3), build=normed_model, **options).method
    kept = always_anew.aggregate(server, of, uploads)
    for name in run.method.population.names:
        assert torch.equal(kept[f"cluster.{name}"], server[f"cluster.{name}"])
        assert torch.equal(kept[f"global.{name}"], after[f"global.{name}"])


def test_the_order_in_which_a_checkpoint_was_read_changes_no_bit():
    run = federation(samples_of(6), training={"rounds": 2, "lr": 1.0}, rho=10.0)
    run.run()
    ids = torch.arange(6)
    uploads = {name: t.detach() for name, t in run.state.clients.params.items()}
    of, server = Participants(ids, torch.full((6,), 26), 2), run.state.server
    after = run.method.aggregate(server, of, uploads)
    for seed in range(30):
        names = np.random.default_rng(seed).permutation(list(server))
        other = run.method.aggregate({str(n): server[n] for n in names}, of, uploads)
        assert all(torch.equal(after[n], other[n]) for n in after)


def test_running_statistics_of_a_run_are_averaged():
    data, options = samples_of(missing=MISSING), {"clusters": 2, "rho": 0.9}
    run = federation(data, build=normed_model, update_clusters=True, **options)
    before = {name: t.clone() for name, t in run.state.clients.buffers.items()}
    run.run_round()
    assert all(torch.equal(t, before[name]) for name, t in run.state.clients.buffers.items())
    run.run()
    own, server = run.state.clients.buffers, run.state.server
    name = "encoder.module.1.running_var"
    torch.testing.assert_close(server[f"global.{name}"], own[name].mean(0))
    for cluster in range(2):
        mine = own[name][server["label"] == cluster].mean(0)
        torch.testing.assert_close(server[f"cluster.{name}"][cluster], mine)
    counter = "encoder.module.1.num_batches_tracked"
    assert server[f"global.{counter}"] == QUICK["warmup_epochs"] + 2 * 3


# Whole rounds


def trained(model, data, client, params, optimizer):
    """Two epochs of an ordinary network, from `model`, with the optimiser of its `params`."""
    with torch.no_grad():
        for name, p in params.items():
            p.copy_(torch.from_numpy(model[name]))
    rows = {name: t[client] for name, t in data.tensors.items()}
    for i in [0, 8, 16] * 2:
        x, y, mask = (rows[name][i : i + 8] for name in ("x", "y", "mask"))
        hidden = torch.tanh(x @ params["encoder.0.weight"] + params["encoder.0.bias"])
        y_hat = hidden @ params["head.weight"] + params["head.bias"]
        optimizer.zero_grad()
        (y_hat - y)[mask].square().mean().backward()
        optimizer.step()
    return {name: p.detach().numpy().copy() for name, p in params.items()}


@pytest.mark.quick(3)
@pytest.mark.usefixtures("double")
@pytest.mark.parametrize(
    ("method", "optimizer_state", "further"),
    [
        (FedDA, "round", {"update_clusters": False}),
        (FedDA, "keep", {"update_clusters": False}),
        (FedDA, "round", {"update_clusters": True}),
        (FedDAClusters, "round", {}),
        (FedDAClusters, "keep", {}),
    ],
)
def test_rounds_are_those_of_a_plain_loop(method, optimizer_state, further):
    """Three rounds after the warm-up; half of the clients take part in each.

    Every client has `torch.optim.SGD` with momentum: a new one in each round, or one for all.
    """
    data = samples_of(6, missing=MISSING)
    data = ClientData(
        {n: t.double() if t.is_floating_point() else t for n, t in data.tensors.items()}, data.sizes
    )
    settings = {
        "participation": 0.5, "rounds": 4, "epochs": 2, "momentum": 0.9,
        "optimizer_state": optimizer_state,
    }  # fmt: skip
    options = {"clusters": 3, "rho": 0.5, "epsilon": 0.8, **further}
    run = federation(data, method=method, training=settings, **options)

    def new_client():
        params = {n: torch.zeros(*run.state.clients.params[n].shape[1:]) for n in LAYERS}
        params = {n: t.requires_grad_() for n, t in params.items()}
        return params, torch.optim.SGD(params.values(), lr=0.1, momentum=0.9)

    own = {i: new_client() for i in range(6)}
    run.run_round()
    server = run.state.server
    label = server["label"].tolist()
    quasi = {name: server[f"quasi.{name}"].double().numpy() for name in LAYERS}
    clusters, everywhere = dict.fromkeys(set(label), quasi), quasi
    assert len(clusters) == 3
    rounds = []
    for _ in range(3):
        ids = run.participants().ids.tolist()
        rounds += ids
        members = {}
        for i in ids:
            start = clusters[label[i]] if method is FedDAClusters else everywhere
            client = new_client() if optimizer_state == "round" else own[i]
            members.setdefault(label[i], []).append(trained(start, data, i, *client))
        gave = {
            k: plain_attention(clusters[k], models, quasi, 0.5, 0.8)
            for k, models in members.items()
        }
        met = list(gave.values())
        if further.get("update_clusters", True):
            clusters |= gave
        everywhere = plain_attention(everywhere, met, quasi, 0.5, 0.8)
        run.run_round()
        for name in LAYERS:
            t = run.state.server[f"global.{name}"]
            np.testing.assert_allclose(t, everywhere[name], rtol=1e-9, atol=1e-12)
            for k, model in clusters.items():
                t = run.state.server[f"cluster.{name}"][k]
                np.testing.assert_allclose(t, model[name], rtol=1e-9, atol=1e-12)
    assert len(rounds) > len(set(rounds)), "somebody takes part twice"


@pytest.mark.parametrize("method", [FedDA, FedDAClusters])
def test_clients_get_the_global_model_or_that_of_their_cluster(method):
    run = federation(samples_of(), method=method, clusters=2)
    run.run()
    server, label = run.state.server, run.state.server["label"]
    to = Participants(torch.tensor([1, 2]), torch.tensor([26, 26]), 3)
    payload = run.method.broadcast(server, to)
    assert payload.keys() == set(LAYERS)
    for name, t in payload.items():
        clusters, one = server[f"cluster.{name}"], server[f"global.{name}"]
        for row, client in zip(t, (1, 2), strict=True):
            expected = clusters[label[client]] if method is FedDAClusters else one
            assert torch.equal(row, expected)
        assert torch.equal(clusters[0], clusters[1]) == (method is FedDA)


# Settings and models


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"clusters": 0}, "clusters is 0"),
        ({"phi": 0.0}, "phi is 0.0"),
        ({"phi": 1.1}, "phi is 1.1"),
        ({"rho": float("nan")}, "rho is nan"),
        ({"epsilon": 0.0}, "epsilon is 0.0"),
        ({"warmup_epochs": -1}, "warmup_epochs is -1"),
        ({"warmup_lr": 0.0}, "warmup_lr is 0.0"),
        ({"warmup_batch_size": 0}, "warmup_batch_size is 0"),
        ({"profile_periods": 0}, "profile_periods is 0"),
    ],
)
def test_impossible_options_are_refused(options, message):
    with pytest.raises(InputError, match=message):
        FedDAOptions(**options)


def test_the_defaults_are_the_released_codes():
    config = resolve("fedda")
    assert config.training.optimizer_state == "round"
    assert not config.method_options.update_clusters
    assert resolve("fedavg").training.optimizer_state == "keep"


def test_less_than_a_period_is_refused():
    data = samples_of()
    sizes = torch.tensor([26, 3, 26, 26])
    with pytest.raises(InputError, match=r"client 1 .*3 .*period .*4"):
        federation(ClientData(data.tensors, sizes), training={"batch_size": 2})


@pytest.mark.quick(3)
@pytest.mark.parametrize(
    ("method", "model"),
    [("fedda", "dual_lstm"), ("fedda", "dual_gru"), ("fedda_clusters", "dual_lstm")],
)
def test_a_forecaster_trains_and_is_saved_with_it(cube, tiny, tmp_path, method, model):
    settings = {**tiny, "service": "internet", "model": model, "rounds": 3, **QUICK}
    first, second = (Forecaster(method, **read_by(method, settings)).fit(cube) for _ in range(2))
    forecast = first.predict(cube)
    assert forecast.notna().all().all()
    assert forecast.equals(second.predict(cube))
    assert Forecaster.load(first.save(tmp_path)).predict(cube).equals(forecast)
