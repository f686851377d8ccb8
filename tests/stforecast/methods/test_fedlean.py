import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.base import clone

from data_prep.base.errors import InputError
from stforecast import Forecaster
from stforecast.baselines.pretrained import Past, WallClock, forecasts
from stforecast.data.prepared import prepare
from stforecast.data.series import as_series
from stforecast.data.window_spec import WindowSpec
from stforecast.federated.core.data import ClientData
from stforecast.forecasting.config import defaults, resolve
from stforecast.forecasting.fit import prepare_series
from stforecast.forecasting.mixed_forecasts import pretrained_weight
from stforecast.forecasting.mixture import UsualWeight
from stforecast.forecasting.runs import facts_of
from stforecast.forecasting.trained_method import build_method, client_samples, federate
from stforecast.methods import fedlean
from stforecast.methods.fedlean import (
    DAY_CYCLES,
    MAP,
    OWN,
    RelativeInputs,
    n_linear,
    solve,
    symmetric,
)
from stforecast.methods.mixing import WEEK
from stforecast.models import MODELS

SPLIT = "days:15,3,3"
SMALL = {
    "profile": "none", "split": SPLIT, "extra_lags": "2,24", "calendar": "day", "horizon": 2,
    "refit": "never", "pretrained": "none",
}  # fmt: skip


@pytest.fixture
def table(drifting_table):
    return drifting_table


def windows_of(table, forecaster):
    """Return z, newest readings, targets and mask of the training windows, in double precision."""
    config = forecaster.config
    data = prepare(as_series(table), config.window, SPLIT, "cell")
    windows = data.windows(data.split.train)
    inputs = RelativeInputs(torch.from_numpy(windows.x), config.window)
    arrays = (inputs.linear, inputs.base, torch.from_numpy(windows.y))
    return *(t.double().numpy() for t in arrays), windows.mask


def snapshot(forecaster):
    return forecaster._evaluations["last"].model.predictor.snapshot


def ridge(products, moments, penalties):
    return np.linalg.solve(products + np.diag(penalties), moments)


def test_it_comes_with_the_settings_that_it_is_made_for():
    config = resolve("fedlean")
    assert (config.run.model, config.run.select, config.loss.loss) == ("mlp", "last", "huber")
    assert (config.window.extra_lags, config.window.calendar) == ("auto", "auto-weekdays")
    assert (config.training.schedule, config.training.rounds) == ("cosine", 41)
    plain = {"extra_lags": "", "calendar": "none", "profile": "none"}
    assert resolve("fedlean", model="dual_gru", **plain).window.n_inputs == 1
    assert defaults("fuels") == {"model": "dual_gru"}
    assert resolve("fuels").run.model == "dual_gru"


def test_its_networks_dropout_is_the_default_of_that_network_alone():
    assert resolve("fedlean").model_options.dropout == 0.1
    assert resolve("fedlean", model="mlp").model_options.dropout == 0.1
    assert resolve("fedlean", dropout=0.0).model_options.dropout == 0
    assert resolve("fedavg", model="mlp").model_options.dropout == 0
    assert "dropout" not in resolve("fedlean", model="linear").flat()
    stid = resolve("fedlean", model="stid")
    assert (stid.model_options, stid.training.rounds) == (MODELS["stid"].Options(), 41)
    assert resolve(**stid.flat()) == stid


def test_few_cells_train_fewer_rounds(table):
    asked = resolve("fedlean")
    per_cell = asked.method_options.rounds_per_cell
    assert asked.for_cells(1).training.rounds == 1 + per_cell
    assert asked.for_cells(2).training.rounds == 1 + 2 * per_cell
    assert asked.for_cells(100) == asked
    assert asked.for_cells(1000).training.participation == 0.1
    assert asked.for_cells(1000).training.full_start
    assert not asked.for_cells(1001).training.full_start
    assert resolve("fedlean", participation=0.01).for_cells(1000).training.participation == 0.01
    assert resolve("fedlean", rounds=3).for_cells(1).training.rounds == 3
    assert resolve("fedavg").for_cells(1) == resolve("fedavg")
    assert resolve("ridge").for_cells(1) == resolve("ridge")
    forecaster = Forecaster("fedlean", rounds=9, rounds_per_cell=1, **SMALL).fit(table)
    assert len(forecaster.rounds_) == 1 + table.shape[1]
    assert facts_of(forecaster)["chosen"] == {}


def test_of_many_cells_a_part_trains_in_each_round_after_the_first(table):
    small = {**SMALL, "rounds": 3, "participants": 2}
    forecaster = Forecaster("fedlean", **small).fit(table)
    assert forecaster.rounds_["participants"].tolist() == [3, 2, 2]


def test_a_saved_model_has_what_the_server_sends_once(table, tmp_path):
    forecaster = Forecaster("fedlean", **{**SMALL, "rounds": 3}).fit(table)
    forecaster.save(tmp_path)
    state = snapshot(forecaster)
    names = forecaster._evaluations["last"].model.predictor.state()
    assert {n for n in names if n.startswith("clients/")} == {
        f"clients/memory/{OWN}",
        "clients/sizes",
    }
    assert {f"server/{name}" for name in state.server} <= names.keys()
    assert not state.clients.params  # Copies for each of many cells would take gigabytes.
    later = Forecaster.load(tmp_path).predict(table)
    pd.testing.assert_frame_equal(later, forecaster.predict(table))


def test_between_rounds_clients_keep_neither_models_nor_corrections(table):
    config, data = prepare_series(resolve("fedlean", **{**SMALL, "rounds": 2}), table)
    parts = data.split.train, data.split.validation
    federation = federate(config, build_method(config), data, *parts)
    federation.run()
    clients = federation.state.clients
    assert ({*clients.params}, {*clients.memory}) == (set(), set())
    assert federation.ready().clients.memory[OWN].any()


def test_corrections_of_many_clients_are_kept_in_half_precision(table, tmp_path, monkeypatch):
    single = Forecaster("fedlean", **{**SMALL, "rounds": 2, "refit": "once"}).fit(table)
    monkeypatch.setattr(fedlean, "MANY", 2)
    half = clone(single).fit(table)
    corrections = half._evaluations["last"].model.latest.snapshot.clients.memory[OWN]
    assert corrections.dtype is torch.float16
    pd.testing.assert_frame_equal(half.predict(table), single.predict(table), rtol=1e-3)
    half.save(tmp_path)
    pd.testing.assert_frame_equal(Forecaster.load(tmp_path).predict(table), half.predict(table))


@pytest.mark.repeats
def test_each_20th_round_and_the_last_are_validated(table):
    small = {"rounds_per_cell": 100, **SMALL}
    losses = Forecaster("fedlean", **{**small, "rounds": 23}).fit(table).rounds_["validation_loss"]
    assert (losses.dropna().index + 1).tolist() == [1, 21, 23]
    patient = Forecaster("fedlean", **{**small, "rounds": 3, "patience": 9}).fit(table).rounds_
    assert patient["validation_loss"].notna().all()


def test_forecasts_in_blocks_are_those_of_all_windows_at_once(table, monkeypatch):
    predictor = Forecaster("fedlean", **{**SMALL, "rounds": 2}).fit(table).model_.predictor
    series, starts = table.to_numpy(), np.arange(200, 400)
    calendar = as_series(table).calendar
    whole = predictor.predict(series, starts, calendar)
    monkeypatch.setattr("stforecast.forecasting.trained_method.BLOCK", 1)
    np.testing.assert_allclose(predictor.predict(series, starts, calendar), whole, rtol=1e-6)


def test_readings_are_relative_to_the_newest_one_and_the_calendar_is_kept():
    window = WindowSpec(closeness=2, periods=0, extra_lags="24", calendar="day")
    x = torch.tensor([[[1.0, 3.0, 7.0, 0.1, 0.2, 0.3, 0.4]]])
    inputs = RelativeInputs(x, window)
    calendar = [pytest.approx(c) for c in (0.1, 0.2, 0.3, 0.4)]
    assert inputs.base.tolist() == [[[3.0]]]
    assert inputs.linear[..., :4].tolist() == [[[1.0, -2.0, 0.0, 4.0]]]
    assert inputs.network.tolist() == [[[-2.0, 3.0, 4.0, *calendar]]]


def test_the_network_reads_the_time_of_day_alone_of_the_calendar():
    window = WindowSpec(closeness=1, periods=0, calendar="weekdays", holidays="IT")
    x = torch.ones(1, 1, window.n_inputs)
    assert RelativeInputs(x, window).network.tolist() == [[[1.0] * 5 + [0.0] * 8]]


@pytest.mark.parametrize("calendar", ["none", "day", "weekdays"])
@pytest.mark.parametrize("holidays", ["", "IT"])
def test_the_linear_inputs_have_the_known_inputs_and_their_products_with_the_time_of_day(
    calendar, holidays
):
    window = WindowSpec(closeness=2, periods=0, calendar=calendar, holidays=holidays)
    x = torch.rand(1, 1, window.n_inputs, generator=torch.Generator().manual_seed(0))
    found = RelativeInputs(x, window).linear[0, 0, 3:].tolist()
    known = x[0, 0, 2:].tolist()
    of_day = [] if calendar == "none" else known[:DAY_CYCLES]
    pairs = [(a, b) for i, a in enumerate(of_day) for b in known[i:]]
    expected = [*known, *(a * b for a, b in pairs)]
    assert found == pytest.approx(expected)
    assert n_linear(window) == 3 + len(expected)


@pytest.mark.repeats
def test_the_map_has_a_daily_profile_for_each_weekday():
    """One that is the product of hour and weekday, which neither of them shows alone."""
    hours = pd.date_range("2013-11-04", periods=24 * 28, freq="h")
    sign = np.where(hours.day_of_week < 3, 1.0, -1.0)
    table = pd.DataFrame({"a": sign * np.sin(2 * np.pi * hours.hour / 24)}, hours)
    settings = {"split": "days:21,0,7", "extra_lags": "", "rounds": 1, "ridge": 1e-3, "horizon": 6}
    errors = {}
    for calendar in ("day", "weekdays"):
        m = Forecaster("fedlean", calendar=calendar, **settings).fit(table).evaluate()
        whole = m[(m.client == "all") & (m.horizon == "all") & (m.metric == "mse")]
        errors[calendar] = whole[whole.split == "test"].value.iloc[0]
    assert errors["weekdays"] < 0.5 * errors["day"]


def test_the_newest_reading_may_be_a_further_lag():
    window = WindowSpec(closeness=0, periods=1, period=24, extra_lags="2,1")
    inputs = RelativeInputs(torch.tensor([[[7.0, 1.0, 3.0]]]), window)
    assert inputs.base.tolist() == [[[3.0]]]
    assert inputs.linear.tolist() == [[[1.0, 4.0, -2.0, 0.0]]]
    assert inputs.network.tolist() == [[[4.0, -2.0, 3.0]]]


def test_the_first_round_is_the_ridge_regression_of_all_clients_data(table):
    forecaster = Forecaster("fedlean", rounds=1, shrinkage=0, ridge=0.3, **SMALL).fit(table)
    z, newest, y, _ = windows_of(table, forecaster)
    pooled, error = z.reshape(-1, z.shape[-1]), (y - newest).reshape(-1, 2)
    penalties = np.array([0.3e-6, *[0.3] * (z.shape[-1] - 1)])
    expected = ridge(pooled.T @ pooled / len(pooled), pooled.T @ error / len(pooled), penalties)
    np.testing.assert_allclose(snapshot(forecaster).server[MAP], expected, rtol=1e-3, atol=1e-5)
    forecasts = forecaster._evaluations["last"].model.predictor.predict(
        *_last_window(table, forecaster)
    )
    data = prepare(as_series(table), forecaster.config.window, SPLIT, "cell")
    x = torch.from_numpy(data.windows(data.split.test[:1]).x)
    inputs = RelativeInputs(x, forecaster.config.window)
    by_hand = inputs.base + inputs.linear @ torch.from_numpy(expected).float()
    np.testing.assert_allclose(forecasts, by_hand, rtol=1e-3, atol=1e-4)


def _last_window(table, forecaster):
    data = prepare(as_series(table), forecaster.config.window, SPLIT, "cell")
    return data.z, data.split.test[:1], data.calendar


def test_corrections_are_each_clients_ridge_regression_of_its_residuals(table):
    forecaster = Forecaster("fedlean", rounds=1, shrinkage=2.0, **SMALL).fit(table)
    z, newest, y, _ = windows_of(table, forecaster)
    state = snapshot(forecaster)
    error = y - newest - z @ state.server[MAP].double().numpy()
    for client in range(3):
        products = z[client].T @ z[client] / z.shape[1]
        moments = z[client].T @ error[client] / z.shape[1]
        penalties = 2.0 * np.diag(products).clip(1e-3)
        expected = ridge(products, moments, penalties)
        found = state.clients.memory[OWN][client]
        np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-5)


def test_one_map_reads_the_weekly_profile_and_one_does_not(table):
    """Both are ridge regressions of the same sums; inputs of the profile have less penalty."""
    settings = {**SMALL, "profile": "auto"}
    forecaster = Forecaster("fedlean", rounds=1, shrinkage=2.0, **settings).fit(table)
    z, newest, y, _ = windows_of(table, forecaster)
    assert z.shape[-1] == 18 + 5
    products, moments = z.mT @ z / z.shape[1], z.mT @ (y - newest) / z.shape[1]
    penalties = np.array([1e-6, *[1.0] * 17, *[0.01] * 5])
    state = snapshot(forecaster)
    for i, n in enumerate((18, 23)):
        common = ridge(products.mean(0)[:n, :n], moments.mean(0)[:n], penalties[:n])
        of_map = slice(2 * i, 2 * i + 2)
        found = state.server[MAP][:, of_map]
        np.testing.assert_allclose(found[:n], common, rtol=1e-3, atol=1e-4)
        assert not found[n:].any()
        for own, g, m in zip(state.clients.memory[OWN], products, moments, strict=True):
            penalty = 2.0 * np.diag(g)[:n].clip(1e-3)
            expected = ridge(g[:n, :n], (m - g @ found.double().numpy())[:n], penalty)
            np.testing.assert_allclose(own[:n, of_map], expected, rtol=1e-3, atol=1e-4)
            assert not own[n:, of_map].any()


@pytest.mark.repeats
def test_the_profile_helps_where_weeks_repeat():
    hours = pd.date_range("2013-11-04", periods=24 * 70, freq="h")
    rng = np.random.default_rng(0)
    habits = np.tile(rng.normal(size=(168, 4)), (10, 1))
    table = pd.DataFrame(habits + 0.1 * rng.normal(size=habits.shape), hours, list("abcd"))
    settings = {"split": "days:49,7,14", "horizon": 12}
    errors = {}
    for name, method, own in (
        ("none", "fedlean", {"profile": "none", "rounds": 1, "pretrained": "none"}),
        ("auto", "fedlean", {"rounds": 1, "pretrained": "none"}),
        ("habit", "historical_average", {}),
    ):
        m = Forecaster(method, **settings, **own).fit(table).evaluate()
        whole = m[(m.client == "all") & (m.horizon == "all") & (m.metric == "mse")]
        errors[name] = whole[whole.split == "test"].value.iloc[-1]
    assert errors["auto"] < 0.5 * errors["none"]
    assert errors["auto"] < 1.5 * errors["habit"], "a plain mean must not be far better"


def test_the_pretrained_network_is_mixed_in_by_known_errors(table, monkeypatch):
    """Its weight is a third of the least-squares one of seven days, and two thirds of the usual."""
    nothing = UsualWeight(0.0, 1e12)  # What is mixed in after it would have weights of its own.
    monkeypatch.setattr("stforecast.forecasting.mixture.CORRECTIONS", (nothing, nothing))
    monkeypatch.setattr("stforecast.forecasting.mixed_forecasts.NEWEST", nothing)
    monkeypatch.setattr("stforecast.forecasting.mixture.TRUSTED", 1e9)
    own, mixed = (
        Forecaster("fedlean", **{**SMALL, "rounds": 2, "pretrained": pretrained}).fit(table)
        for pretrained in ("none", "mixed")
    )
    data = prepare(as_series(table), own.config.window, SPLIT, "cell")
    start, calendar = int(data.split.test[-1]), data.series.calendar
    origins = np.arange(start - 2 - 168 + 1, start - 2 + 1)
    past = Past(torch.tensor(data.z), WallClock.of(calendar))

    def both(starts):
        ours = own._evaluations["last"].model.predictor.predict(data.z, starts, calendar)
        return ours, forecasts(past, starts, 2)

    ours, theirs = both(origins)
    y = data.z[origins[:, None] + np.arange(2)].transpose(2, 0, 1)
    change, error = theirs - ours, y - ours
    days = (int(snapshot(mixed).clients.sizes[0]) + 2 - 1) / 24
    usual = pretrained_weight(2, calendar.step, days)
    weight = ((change * error).sum((1, 2)) / (change**2).sum((1, 2)) + 2 * usual) / 3
    ours, theirs = both(np.array([start]))
    expected = ours + weight.clip(0, 1)[:, None, None] * (theirs - ours)
    found = mixed._evaluations["last"].model.predictor.predict(data.z, np.array([start]), calendar)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
    assert np.abs(found - ours).max() > 1e-3


@pytest.mark.parametrize("clients", ["cell", "all"])
def test_the_usual_weight_follows_the_training_part_without_refits(table, clients):
    settings = {**SMALL, "rounds": 2, "refit": "once", "clients": clients, "split": "days:5,9,7"}
    forecaster = Forecaster("fedlean", **{**settings, "pretrained": "mixed"}).fit(table)
    predictor = forecaster.model_.latest
    # Training begins at the first midnight with a reading before it.
    assert predictor.mixture.n_trained == 4 * 24
    usual, _ = predictor.mixture.usual_weights(pd.Timedelta("1h"))
    assert usual.weight == pytest.approx(0.45 + 0.5 * (2 / 24) ** (1 / 3), abs=1e-5)


@pytest.mark.parametrize(
    ("settings", "most", "step"),
    [
        ({}, 2, "1h"),
        ({"forecast": "mean"}, 300, "1h"),
        ({}, 300, "7min"),
    ],
    ids=["of more cells", "of means", "of a step that it does not know"],
)
def test_the_pretrained_network_is_left_out(table, settings, most, step, monkeypatch):
    monkeypatch.setattr("stforecast.forecasting.mixed_forecasts.MOST_CELLS", most)
    forecaster = Forecaster("fedlean", **{**SMALL, "rounds": 1, "pretrained": "mixed", **settings})
    predictor = forecaster.fit(table)._evaluations["last"].model.predictor
    assert not predictor.mixture.usual_weights(pd.Timedelta(step))


def test_a_larger_shrinkage_corrects_less_and_none_leaves_the_common_map(table):
    lengths = []
    for shrinkage in (0.1, 10.0, 1e6):
        forecaster = Forecaster("fedlean", rounds=1, shrinkage=shrinkage, **SMALL).fit(table)
        lengths.append(float(snapshot(forecaster).clients.memory[OWN].norm()))
    assert lengths[0] > lengths[1] > lengths[2] > 0
    forecaster = Forecaster("fedlean", rounds=1, shrinkage=0, **SMALL).fit(table)
    assert OWN not in snapshot(forecaster).clients.memory


@pytest.mark.parametrize("missing", [slice(100, 110), slice(0, 340)])
def test_windows_without_a_target_weigh_nothing_in_the_map_and_the_corrections(table, missing):
    holes = table.copy()
    holes.iloc[missing, 0] = np.nan
    settings = {**SMALL, "horizon": 1}
    forecaster = Forecaster("fedlean", rounds=1, shrinkage=2.0, **settings).fit(holes)
    z, newest, y, mask = windows_of(holes, forecaster)
    assert not mask.all()
    n_windows, state = z.shape[1], snapshot(forecaster)
    seen = [(z[c][m], (y - newest)[c][m]) for c, m in enumerate(mask[..., 0])]
    products = [z.T @ z / n_windows for z, _ in seen]
    moments = [z.T @ change / n_windows for z, change in seen]
    penalties = np.array([1e-6, *[1.0] * (z.shape[-1] - 1)])
    shared = ridge(np.mean(products, 0), np.mean(moments, 0), penalties)
    np.testing.assert_allclose(state.server[MAP], shared, rtol=1e-3, atol=1e-5)
    for own, product, moment in zip(state.clients.memory[OWN], products, moments, strict=True):
        penalties = 2.0 * np.diag(product).clip(1e-3)
        expected = ridge(product, moment - product @ state.server[MAP].double().numpy(), penalties)
        np.testing.assert_allclose(own, expected, rtol=1e-3, atol=1e-5)


def test_a_triangle_becomes_a_matrix_and_noise_cannot_make_the_map_explode():
    matrix = torch.tensor([[2.0, 1.0, 0.5], [1.0, 3.0, 0.1], [0.5, 0.1, 1.0]])
    row, column = torch.triu_indices(3, 3)
    assert symmetric(matrix[row, column], 3).equal(matrix)
    noisy = torch.diag(torch.tensor([1.0, -1.0]))
    assert solve(noisy, torch.ones(2, 1), 1.0)[1].item() == pytest.approx(0.5)  # 1 / (2 · 1)


def test_a_round_sends_products_once_and_the_network_after(table):
    forecaster = Forecaster("fedlean", rounds=3, **SMALL).fit(table)
    n, outputs = 1 + 3 + 4 + 10, 2
    up, down = ((forecaster.rounds_[f"bytes_{way}"] / 3 / 4).tolist() for way in ("up", "down"))
    network = 7 * 64 + 64 + 64 * 32 + 32 + 32 * outputs + outputs
    week = 7 * 24
    assert up == [n * (n + 1) / 2 + n * outputs + week, network, network]
    assert down == [0, network + n * outputs + week, network + n * outputs + week]
    assert np.isfinite(forecaster.rounds_["train_loss"]).all()


@pytest.mark.parametrize("calendar", ["day", "weekdays"])
def test_clients_send_their_mean_week_in_the_first_round(table, calendar):
    forecaster = Forecaster("fedlean", rounds=1, **{**SMALL, "calendar": calendar}).fit(table)
    data = prepare(as_series(table), forecaster.config.window, SPLIT, "cell")
    first = pd.Series(data.z[data.split.train].mean(1), table.index[data.split.train])
    days = first.index.day_of_week if calendar == "weekdays" else 0 * first.index.hour
    found = first.groupby(24 * days + first.index.hour).agg(["sum", "size"])
    single = found["size"] == 1
    assert single.sum() == (calendar == "weekdays"), "it is the only one of its time of day"
    of_hour = found[~single].groupby(found.index[~single] % 24).sum()
    of_hour = np.resize(of_hour["sum"] / of_hour["size"], len(found))
    expected = np.where(single, of_hour, found["sum"] / found["size"])
    week = snapshot(forecaster).server[WEEK]
    np.testing.assert_allclose(week, np.resize(expected, 168), atol=1e-5)


def test_no_reading_is_sent_as_the_mean_of_an_hour(table):
    """Of four days no hour of the week has two readings, of a day no hour of the day has."""
    days = pd.Series(np.arange(len(table)) // 24, table.index)
    settings = {**SMALL, "rounds": 1, "calendar": "weekdays"}
    for n, split in ((4, "days:5,1,1"), (1, "days:2,1,1")):
        some = table[days < sum(map(int, split[5:].split(",")))]
        forecaster = Forecaster("fedlean", **{**settings, "split": split}).fit(some)
        week = snapshot(forecaster).server[WEEK].reshape(7, 24)
        assert week.any() == (n > 1)
        torch.testing.assert_close(week, week[:1].expand_as(week))


@pytest.mark.parametrize("n_targets", [8, 13, 15])
def test_no_reading_follows_from_the_differences_of_the_mean_week(n_targets):
    """Of 13 days of targets, all weekdays but one have two at each time of day."""
    times = pd.date_range("2013-11-04", periods=24 * (n_targets + 3), freq="h")
    table = pd.DataFrame({"a": np.arange(len(times)) % 7.0, "b": np.arange(len(times)) % 5}, times)
    split = f"days:{n_targets + 1},1,1"
    settings = {**SMALL, "rounds": 1, "calendar": "weekdays", "split": split}
    trained = Forecaster("fedlean", **settings).fit(table)
    data, method = trained.data_, trained.model_.latest.method
    samples, _ = client_samples(method, data, data.split.train, data.split.validation[:0])
    n = len(data.split.train)
    one = {name: t[:1].expand(n, *t.shape[1:]) for name, t in samples.tensors.items()}
    one["y"] = torch.eye(n)[..., None].expand_as(one["y"])
    equations = method.mean_week(ClientData(one, torch.full((n,), n))).double().T
    _, sizes, known = torch.linalg.svd(equations, full_matrices=False)
    shares = known[sizes > 1e-6 * sizes[0]].square().sum(0)
    assert shares.max() < 0.6, "of each target, the part that the sums determine"


@pytest.mark.parametrize("settings", [{"calendar": "none"}, {"target": "day"}])
def test_no_week_is_sent_where_windows_do_not_tell_it(table, settings):
    forecaster = Forecaster("fedlean", rounds=1, **{**SMALL, **settings}).fit(table)
    assert WEEK not in snapshot(forecaster).server


def test_the_network_learns_what_the_map_leaves(table):
    curved = table.abs()
    first, *_, last = Forecaster("fedlean", **SMALL).fit(curved).rounds_["validation_loss"]
    assert last < first


@pytest.mark.quick(2)
@pytest.mark.parametrize("lags", ["2,24", "2-24"])
def test_the_compiled_kernel_trains_the_network_of_torch(table, monkeypatch, lags):
    settings = {**SMALL, "rounds": 3, "dropout": 0.0, "extra_lags": lags, "profile": "week"}
    table.iloc[30:40, 0] = np.nan
    ours = Forecaster("fedlean", **settings).fit(table)
    monkeypatch.setattr("stforecast.methods.fedlean.epoch_usable", lambda *_: False)
    in_torch = Forecaster("fedlean", **settings).fit(table)
    for name, t in snapshot(in_torch).flat().items():
        torch.testing.assert_close(snapshot(ours).flat()[name], t, rtol=0, atol=1e-4)
    columns = ["train_loss", "validation_loss", "train_task_loss"]
    np.testing.assert_allclose(ours.rounds_[columns], in_torch.rounds_[columns], rtol=1e-4)


def test_clients_of_one_and_of_two_cells_train_in_torch(table, monkeypatch, tmp_path):
    """A batch has the windows of all cells of a client, which the kernel does not know."""
    (tmp_path / "clients.csv").write_text("cell,client\na,1\nb,2\nc,2\n")
    settings = {**SMALL, "rounds": 3, "clients": str(tmp_path / "clients.csv")}
    monkeypatch.delattr("stforecast.methods.fedlean.FedLean._epoch_kernel")
    assert len(Forecaster("fedlean", **settings).fit(table).rounds_) == 3


def test_a_difference_is_learned_as_well_as_the_level(table):
    """The change from the newest reading is what the map and the network learn in any case."""
    level = Forecaster("fedlean", rounds=2, **SMALL).fit(table)
    change = Forecaster("fedlean", rounds=2, target="change", **SMALL).fit(table)
    columns = ["train_loss", "validation_loss"]
    np.testing.assert_allclose(change.rounds_[columns], level.rounds_[columns], rtol=1e-3)


def test_every_level_of_a_quantile_forecast_begins_at_the_map(table):
    settings = {"loss": "quantile", "shrinkage": 0, "rounds": 2}
    forecaster = Forecaster("fedlean", **settings, **SMALL).fit(table)
    server = snapshot(forecaster).server[MAP]
    single = Forecaster("fedlean", rounds=1, shrinkage=0, **SMALL).fit(table)
    expected = snapshot(single).server[MAP].repeat_interleave(3, dim=1)
    torch.testing.assert_close(server, expected, rtol=1e-4, atol=1e-6)


def test_quantiles_need_a_round_that_trains_the_network(table):
    with pytest.raises(InputError, match=r"1 round; .*2 "):
        Forecaster("fedlean", loss="quantile", rounds=1, **SMALL).fit(table)


@pytest.mark.repeats
def test_quantiles_read_the_profile(table):
    settings = {"loss": "quantile", "rounds": 2, "device": "cpu", "horizon": 2, "split": SPLIT}
    forecaster = Forecaster("fedlean", **settings).fit(table)
    assert forecaster.config.window.profile == "week"
    assert np.isfinite(forecaster.predict(table)).all().all()


@pytest.mark.repeats
def test_a_correction_moves_the_quantiles_of_a_step_together(table):
    settings = {"loss": "quantile", "rounds": 3, **SMALL}
    corrected = Forecaster("fedlean", shrinkage=0.1, **settings).fit(table)
    own = snapshot(corrected).clients.memory[OWN].unflatten(-1, (2, 3))
    assert own.any()
    torch.testing.assert_close(own, own[..., :1].expand_as(own), rtol=1e-4, atol=1e-6)
    common = Forecaster("fedlean", shrinkage=0, **settings).fit(table)
    data = prepare(as_series(table), common.config.window, SPLIT, "cell")
    windows = data.z, data.split.test, data.calendar
    ends = [f._evaluations["last"].model.predictor.quantiles(*windows) for f in (corrected, common)]
    widths = [q[..., -1] - q[..., 0] for q in ends]
    np.testing.assert_allclose(*widths, rtol=1e-3, atol=1e-5)
    assert not np.allclose(*ends, atol=1e-3)


def test_a_history_must_reach_as_far_back_as_the_inputs(table):
    forecaster = Forecaster("fedlean", split=SPLIT, rounds=1).fit(table)
    assert len(forecaster.predict(table[-168:])) == 1
    with pytest.raises(InputError, match=r"167 steps; .*168 "):
        forecaster.predict(table[-167:])


def test_it_forecasts_what_a_saved_one_forecasts(table, tmp_path):
    forecaster = Forecaster("fedlean", split=SPLIT, rounds=2).fit(table)
    again = Forecaster.load(forecaster.save(tmp_path))
    pd.testing.assert_frame_equal(again.predict(table, 3), forecaster.predict(table, 3))


def test_lags_and_calendar_follow_from_the_data(table):
    finer = table.resample("30min").interpolate()
    forecaster = Forecaster("fedlean", split="time:0.7,0.1,0.2", rounds=1).fit(finer)
    window = forecaster.config.window
    assert (window.lags, window.calendar) == ((1,), "weekdays")
    assert window.further_lags == (*range(2, 37), *range(46, 51), *range(334, 339))
    forecaster.fit(table)
    assert forecaster.config.window.further_lags == tuple(range(2, 169))
    forecaster = Forecaster("fedlean", split="days:5,1,2", rounds=1).fit(table[: 24 * 8])
    assert forecaster.config.window.further_lags == tuple(range(2, 49))
    assert forecaster.config.window.calendar == "day"


def test_forecasts_of_means_have_the_sum_of_the_values_where_these_are_skewed():
    rng = np.random.default_rng(0)
    hours = pd.date_range("2013-11-01", periods=24 * 21, freq="h")
    bursts = rng.exponential(size=(len(hours), 3)) ** 3
    bias = {}
    for forecast in ("median", "mean"):
        settings = {**SMALL, "horizon": 1, "rounds": 9, "forecast": forecast}
        forecaster = Forecaster("fedlean", **settings).fit(pd.DataFrame(bursts, hours))
        data, predictor = forecaster.data_, forecaster.model_.predictor
        y, _ = data.targets(data.split.train)
        y_hat = predictor.predict(data.z, data.split.train, data.calendar)
        bias[forecast] = (y_hat - y).mean(axis=(1, 2))
    assert (bias["median"] < -0.05).all()
    assert (abs(bias["mean"]) < 0.02).all()


def test_noise_raises_the_ridge_and_exact_products_do_not():
    """With eigenvalue -2 the penalty is 4; without noise, the set one counts."""
    noisy = torch.diag(torch.tensor([1.0, 3.0, -2.0], dtype=torch.float64))
    moments = torch.ones(3, 1, dtype=torch.float64)
    found = solve(noisy, moments, ridge=1.0).flatten()
    torch.testing.assert_close(found[1:], torch.tensor([1 / 7, 1 / 4], dtype=torch.float64))
    exact = solve(noisy.abs(), moments, ridge=1.0).flatten()
    torch.testing.assert_close(exact[1:], torch.tensor([1 / 4, 1 / 3], dtype=torch.float64))
