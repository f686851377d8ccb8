import dataclasses
import json
import time

import numpy as np
import pandas as pd
import pytest
import torch
from waiting import started

from stforecast import Forecaster
from stforecast.data.clock import Calendar
from stforecast.forecasting.config import read_by
from stforecast.forecasting.forecaster import BITS
from stforecast.forecasting.results import ForecastRun
from stforecast.forecasting.rolling import Rolling
from stforecast.forecasting.runs import resume, run
from stforecast.forecasting.trained_method import federate

RIDGE = {"service": "internet", "split": "days:6,1,3", "periods": 0}


class Constant:
    """Forecasts its own number."""

    def __init__(self, value):
        self.value = value

    def predict(self, series, starts, calendar):
        return np.full((2, len(starts), 1), self.value)


def test_the_latest_model_forecasts():
    calendar = Calendar(pd.Timestamp("2024-01-01"), pd.Timedelta("1h"))
    models = [Constant(0.0), Constant(1.0), Constant(2.0)]
    rolling = Rolling(models, np.array([10, 20]), calendar.start)
    starts = np.array([25, 9, 10, 19, 20, 3])
    forecasts = rolling.predict(np.zeros((30, 2)), starts, calendar)
    np.testing.assert_array_equal(forecasts[1, :, 0], [2, 0, 1, 1, 2, 0])
    later = dataclasses.replace(calendar, start=calendar.start + pd.Timedelta("5h"))
    forecasts = rolling.predict(np.zeros((25, 2)), starts - 5, later)
    np.testing.assert_array_equal(forecasts[1, :, 0], [2, 0, 1, 1, 2, 0])


def test_a_history_that_begins_later_is_forecast_by_the_newest_model(table, tmp_path):
    settings = {"split": "days:6,1,3", "periods": 0, "refit": "once"}
    forecaster = Forecaster("ridge", **settings).fit(table)
    newer = table.iloc[-100:]  # As many steps as the training part has, and fewer.
    loaded = Forecaster.load(forecaster.save(tmp_path))
    pd.testing.assert_frame_equal(forecaster.predict(newer), loaded.predict(newer))
    pd.testing.assert_frame_equal(forecaster.predict(newer), forecaster.predict(table))


@pytest.mark.parametrize(("horizon", "target"), [(1, "level"), (5, "level"), (5, "day")])
def test_a_refit_equals_a_fit_to_what_was_known_that_day(table, horizon, target):
    settings = {**RIDGE, "service": None, "horizon": horizon, "target": target}
    rolling = Forecaster("ridge", refit="daily", **read_by("ridge", settings))
    forecasts = rolling.fit(table).test_forecasts()
    never = Forecaster("ridge", **read_by("ridge", settings)).fit(table)
    assert rolling.refits_["time"].dt.hour.tolist() == [0, 0]
    assert rolling.refits_["windows"].tolist() == [
        # Ridge reads 3 steps; training begins at the first midnight after them.
        24 * days - 24 + 1 - horizon
        for days in (8, 9)
    ]
    first_day = forecasts.isel(time=slice(24))
    np.testing.assert_array_equal(first_day.y_hat, never.test_forecasts().y_hat[:, :24])
    # A model fitted to the first nine days, with the scaler of the first six, on the last day.
    z = never.model_.scaler.transform(table.to_numpy())
    evaluation = never._evaluation()
    whole = evaluation.shard
    again = type(never.model_.predictor)(never.config.method_options)
    known = np.arange(24, 24 * 9 + 1 - horizon)
    again.fit(z[: 24 * 9], known, never.config.window, evaluation.data.calendar)
    starts = np.arange(24 * 9, 24 * 10 + 1 - horizon)
    expected = whole.raw(again.predict(z, starts, evaluation.data.calendar), slice(None))
    np.testing.assert_allclose(forecasts.y_hat[:, 48:], expected, rtol=1e-6)


@pytest.mark.parametrize("method", ["ridge", pytest.param("fedavg", marks=pytest.mark.repeats)])
def test_refits_keep_the_target_that_was_chosen(table, tiny, method):
    settings = {**(tiny if method == "fedavg" else {}), "split": "days:6,1,3", "refit": "daily"}
    chosen = Forecaster(method, target="validation", **read_by(method, settings)).fit(table)
    again = Forecaster(method, target=chosen.config.window.target, **read_by(method, settings)).fit(
        table
    )
    assert chosen.test_forecasts().identical(again.test_forecasts())


def test_the_future_changes_no_earlier_forecast(table):
    changed = table.copy()
    changed.iloc[24 * 9 :] *= 3
    settings = {k: v for k, v in RIDGE.items() if k != "service"}
    first, second = (
        Forecaster("ridge", refit="daily", **read_by("ridge", settings)).fit(t).test_forecasts()
        for t in (table, changed)
    )
    np.testing.assert_array_equal(first.y_hat[:, :49], second.y_hat[:, :49])
    assert not np.array_equal(first.y_hat[:, 49:], second.y_hat[:, 49:])


@pytest.mark.sampled(3)
@pytest.mark.parametrize("method", ["fuels", "fedavg", "perfedavg"])
def test_federated_methods_go_on_from_where_they_are_and_say_what_it_cost(
    cube, tiny, method, tmp_path
):
    path = tmp_path / "town.nc"
    cube.to_netcdf(path, engine="h5netcdf")
    settings = {**tiny, "service": "internet", "split": "days:6,1,3"}
    never = Forecaster(method, **read_by(method, settings)).fit(cube)
    finished = run(
        method,
        path,
        tmp_path / "run",
        settings | {"refit": "daily", "refit_rounds": 2, "rounds": 2},
    )
    costs = ForecastRun.open(tmp_path / "run").refits()
    assert costs["rounds"].tolist() == [2, 2]
    a_round = never.rounds_.iloc[-1]
    assert costs["bytes_up"].tolist() == [2 * a_round["bytes_up"]] * 2
    assert (costs["seconds"] > 0).all()
    forecasts = finished.forecasts().y_hat
    before = never.test_forecasts().y_hat
    written = 2.0 ** -(BITS + 1) * finished.forecasts()["std"].to_numpy().max()
    np.testing.assert_allclose(forecasts[:, :24], before[:, :24], rtol=1e-6, atol=written)
    assert not np.allclose(forecasts[:, 24:], before[:, 24:], rtol=1e-4)
    # The model that is saved is the last one: it makes the forecasts of the last day.
    last = Forecaster.load(tmp_path / "run", device="cpu").predict(
        cube.isel(time=slice(24 * 9 + 5))
    )
    np.testing.assert_allclose(last.to_numpy()[0], forecasts[:, 53, 0], rtol=1e-5, atol=written)


@pytest.mark.repeats
def test_refits_are_the_same_again(cube, tiny):
    settings = {
        **tiny,
        "service": "internet",
        "split": "days:6,1,3",
        "refit": "daily",
        "shuffle": True,
    }
    first, second = (Forecaster("fedavg", **settings).fit(cube).test_forecasts() for _ in range(2))
    pd.testing.assert_frame_equal(first.y_hat.to_dataframe(), second.y_hat.to_dataframe())


@pytest.mark.slow
def test_a_run_that_gets_sigkill_in_its_refits_goes_on_after_the_last_one(
    cube_path, tiny, tmp_path
):
    settings = {**tiny, "service": "internet", "split": "days:4,1,5", "periods": 1,
                "refit": "daily", "refit_rounds": 20, "checkpoint_every": 1}  # fmt: skip
    whole = run("fedavg", cube_path, tmp_path / "whole", settings)
    flags = [word for k, v in settings.items() for word in ("--" + k.replace("_", "-"), str(v))]
    out = tmp_path / "killed"
    command = ["-c", "from stforecast.cli.main import main; main()", "-q", "run"]
    command += ["--data", cube_path, "--method", "fedavg", *flags, "--out", out]
    with started(*command) as process:
        while process.poll() is None and len(refits_of(out)) < 2:
            time.sleep(0.01)
    kept = [json.loads(path.read_text())["notes"]["seconds"] for path in refits_of(out)]
    assert 2 <= len(kept) < 4
    found = resume(out)
    seconds = found.refits()["seconds"][: len(kept)]
    np.testing.assert_allclose(seconds, kept, rtol=1e-14)  # pandas 2 loses a last digit
    columns = ["time", "windows", "rounds", "bytes_down", "bytes_up"]
    pd.testing.assert_frame_equal(found.refits()[columns], whole.refits()[columns])
    assert found.forecasts().identical(whole.forecasts())


def refits_of(out):
    """What an unfinished run has kept of its refits, in order."""
    return sorted(out.glob("checkpoints/refit-*/round-*/checkpoint.json"))


def test_a_test_part_of_less_than_a_week_is_not_refitted_weekly(cube):
    forecaster = Forecaster("ridge", refit="weekly", **read_by("ridge", RIDGE)).fit(cube)
    assert forecaster.refits_.empty


@pytest.mark.quick(2)
@pytest.mark.parametrize("method", ["ridge", "fedavg"])
def test_a_refit_before_the_test_part_learns_the_validation_part(table, tiny, method):
    settings = {**(tiny if method == "fedavg" else RIDGE), "split": "days:6,1,3", "service": None}
    settings = read_by(method, settings | {"intervals": "conformal"})
    never, once = (
        Forecaster(method, refit=refit, **settings).fit(table) for refit in ("never", "once")
    )
    cost = once.refits_.iloc[0]
    assert cost["time"] == table.index[24 * 7]
    assert cost["windows"] == len(never.data_.split.train) + 24
    errors = [
        f.evaluate().query("split == 'validation' and metric == 'mse'") for f in (never, once)
    ]
    pd.testing.assert_frame_equal(*errors)
    before, after = never.test_forecasts(), once.test_forecasts()
    assert not np.allclose(before.y_hat, after.y_hat, rtol=1e-4)
    # Bounds keep the calibration by the errors of the model before.
    np.testing.assert_array_equal(never.model_.calibration.radius, once.model_.calibration.radius)
    assert once.model_.trained_on["last"] == str(table.index[24 * 7 - 1])


def test_a_final_refit_learns_all_data_and_changes_the_coming_forecast_only(table):
    settings = {"split": "days:6,1,3", "intervals": "conformal", "periods": 0}
    once, final = (
        Forecaster("ridge", refit=refit, **settings).fit(table) for refit in ("once", "final")
    )
    assert final.test_forecasts().identical(once.test_forecasts())
    z = final.model_.scaler.transform(table.to_numpy())
    data, starts = final.data_, np.array([len(z)])
    again = type(once.model_.predictor.models[0])(final.config.method_options)
    again.fit(z, np.arange(data.split.train[0], len(z)), data.window, data.calendar)
    expected = data.scaler.inverse(again.predict(z, starts, data.calendar)[:, 0, 0], cell_axis=0)
    np.testing.assert_allclose(final.predict(table).to_numpy()[0], expected, rtol=1e-6)
    assert not np.allclose(once.predict(table), final.predict(table), rtol=1e-6)
    assert final.model_.trained_on["last"] == str(table.index[-1])


def test_without_a_validation_part_there_is_nothing_new_to_learn(table):
    forecaster = Forecaster("ridge", split="days:7,0,3", periods=0, refit="once").fit(table)
    assert forecaster.refits_.empty


def test_a_refit_of_fedlean_solves_for_its_map_anew_and_trains_the_network_further(table):
    settings = {"split": "days:6,1,3", "rounds": 3, "refit_rounds": 2, "device": "cpu"}
    once = Forecaster("fedlean", **settings).fit(table)
    before, after = (model.snapshot for model in once.model_.predictor.models)
    data, method = once.data_.until(24 * 7), once.model_.predictor.models[0].method
    known = np.arange(data.split.train[0], 24 * 7)
    fresh = federate(once.config, method, data, known, known[:0])
    fresh.run_round()
    torch.testing.assert_close(after.server["map"], fresh.state.server["map"])
    assert not torch.allclose(before.server["map"], after.server["map"], rtol=1e-3)
    assert (after.round, once.refits_["rounds"].tolist()) == (5, [3])
    assert not torch.allclose(before.server["head.weight"], after.server["head.weight"])


@pytest.mark.repeats
def test_errors_of_the_model_before_weigh_the_experts_of_a_refitted_one(tmp_path):
    """Its own errors are too small where it was trained, and a saved model knows both."""
    hours = pd.date_range("2013-11-04", periods=24 * 24, freq="h")
    table = pd.DataFrame(np.random.default_rng(0).normal(size=(24 * 24, 2)), hours)
    settings = {"split": "days:17,4,3", "rounds": 1, "refit_rounds": 1, "device": "cpu"}
    forecaster = Forecaster("fedlean", **settings).fit(table)
    before, after = forecaster.model_.predictor.models
    assert (before.former, after.former) == (None, before)
    loaded = Forecaster.load(forecaster.save(tmp_path), device="cpu")
    pd.testing.assert_frame_equal(loaded.predict(table), forecaster.predict(table))
    alone = dataclasses.replace(after, former=None)
    windows = forecaster.data_.z, forecaster.data_.split.test[:1], forecaster.data_.calendar
    assert not np.allclose(alone.predict(*windows), after.predict(*windows), rtol=1e-4)
