"""How often forecasts are made, and from what."""

import gc
import pickle

import numpy as np
import pandas as pd
import pytest
import xarray as xr

from data_prep.netcdf import netcdf_target
from stforecast import Forecaster
from stforecast.baselines.ridge import Ridge
from stforecast.data import series as reading
from stforecast.federated.core.data import ClientData
from stforecast.forecasting import evaluate, trained_method
from stforecast.forecasting.config import read_by
from stforecast.forecasting.forecaster import BITS
from stforecast.forecasting.runs import run
from stforecast.forecasting.trained_method import TrainedMethod


@pytest.fixture
def asked(monkeypatch):
    """Numbers of windows that predictors were asked for, in turn."""
    windows = []
    for kind in (TrainedMethod, Ridge):
        quantiles = kind.quantiles

        def counted(self, series, starts, calendar, quantiles=quantiles):
            windows.append(len(starts))
            return quantiles(self, series, starts, calendar)

        monkeypatch.setattr(kind, "quantiles", counted)
    return windows


INTERVALS = {"service": "internet", "split": "days:7,1,2", "intervals": "conformal", "horizon": 2}


def test_each_part_is_forecast_once_by_each_model(cube, tiny, tmp_path, asked):
    settings = {**tiny, **INTERVALS}
    for method, models in (("ridge", 1), ("fedavg", 2), ("fedrep", 2)):
        own = INTERVALS if method == "ridge" else settings
        forecaster = Forecaster(method, **read_by(method, own)).fit(cube)
        asked.clear()
        forecaster.save(tmp_path / method)
        table, forecasts = forecaster.evaluate(), forecaster.test_forecasts()
        # 23 windows of the validation part, 47 of the test part.
        assert sorted(asked) == [23] * models + [47] * models
        pd.testing.assert_frame_equal(forecaster.evaluate(), table)
        assert forecasts.identical(forecaster.test_forecasts())
        assert len(asked) == 2 * models, "they are kept"


def test_a_history_is_read_once_for_forecast_and_bounds(cube, tiny, monkeypatch):
    forecaster = Forecaster("fedavg", **{**tiny, **INTERVALS}).fit(cube)
    twice = forecaster.predict(cube, 3), forecaster.predict_interval(cube, 3)
    read, read_covariates = [], reading.read_covariates
    monkeypatch.setattr(
        reading, "read_covariates", lambda *a: read.append(a) or read_covariates(*a)
    )
    history = forecaster.read(cube)
    once = forecaster.predict(history, 3), forecaster.predict_interval(history, 3)
    assert len(read) == 1
    pd.testing.assert_frame_equal(once[0], twice[0])
    pd.testing.assert_frame_equal(once[1].upper, twice[1].upper)


@pytest.mark.parametrize(("method", "reads"), [("fuels", True), ("fedavg", False)])
def test_next_inputs_are_made_for_the_method_that_reads_them(
    cube, tiny, monkeypatch, method, reads
):
    made, client_data = [], trained_method.client_data

    def watched(windows, locations):
        made.append(windows.x_next is not None)
        return client_data(windows, locations)

    monkeypatch.setattr(trained_method, "client_data", watched)
    Forecaster(method, **read_by(method, tiny), service="internet").fit(cube)
    assert made == [reads, False], "never of the validation part"


@pytest.mark.parametrize(
    "method",
    [
        pytest.param("fedlean", marks=pytest.mark.repeats),
        pytest.param("fuels", marks=pytest.mark.slow),
        "fedtrees",
    ],
)
def test_windows_cut_for_a_few_cells_at_a_time_change_no_number(cube, tiny, monkeypatch, method):
    own = {"extra_lags": "23h"} if method == "fedtrees" else read_by(method, tiny)
    settings = {**own, **INTERVALS, "rounds": 2, "cohort": 2}
    whole, taken, take = Forecaster(method, **settings).fit(cube), [], ClientData.take

    def watched(data, ids):
        taken.append(data.cut is not None)
        return take(data, ids)

    monkeypatch.setattr(ClientData, "take", watched)
    for name, value in {"WHOLE": 0, "BLOCK": 0, "COHORT": 2}.items():
        monkeypatch.setattr(trained_method, name, value)
    parts = Forecaster(method, **settings).fit(cube)
    assert parts.test_forecasts().identical(whole.test_forecasts())
    assert any(taken), "inputs were in memory together"
    pd.testing.assert_frame_equal(parts.evaluate(), whole.evaluate())


@pytest.mark.parametrize("method", ["ridge", "fedavg", "last_value"])
def test_without_levels_the_only_quantile_is_the_forecast(cube, tiny, method):
    settings = {"split": tiny["split"]} if method != "fedavg" else tiny
    forecaster = Forecaster(method, **read_by(method, settings), service="internet").fit(cube)
    predictor, data = forecaster.model_.predictor, forecaster.data_
    starts = data.split.test[:5]
    quantiles = predictor.quantiles(data.z, starts, data.calendar)
    assert predictor.levels == ()
    assert quantiles.shape == (3, 5, 1, 1)
    np.testing.assert_array_equal(
        quantiles[..., 0], predictor.predict(data.z, starts, data.calendar)
    )


@pytest.mark.quick(3)
@pytest.mark.parametrize("intervals", ["none", "conformal", "normalised"])
def test_files_written_for_a_few_cells_at_a_time_are_those_of_all(
    cube, tmp_path, monkeypatch, intervals
):
    settings = {**INTERVALS, "intervals": intervals, "lower_limit": 0.0}

    def written():
        forecaster = Forecaster("ridge", **settings).fit(cube)
        with netcdf_target(tmp_path / "forecasts.nc") as target:
            forecaster.dump_forecasts(target)
        with xr.open_dataset(tmp_path / "forecasts.nc", engine="h5netcdf") as ds:
            return forecaster, ds.load()

    forecaster, whole = written()
    exact = forecaster.test_forecasts()
    for name, values in exact.items():
        most = 2.0 ** -(BITS + 1) * exact["std"] * (name not in ("y", "seasonal_naive"))
        assert (np.abs(whole[name] - values).fillna(0.0) <= most * (1 + 1e-12)).all(), name
        assert (whole[name].isnull() == values.isnull()).all(), name
    xr.testing.assert_identical(whole.assign(exact.data_vars), exact)
    for name in ("evaluate.CELLS", "forecaster.IN_CHUNK"):
        monkeypatch.setattr(f"stforecast.forecasting.{name}", 1)
    monkeypatch.setattr("stforecast.intervals.calibration.VALUES", 1)
    forecaster, by_cell = written()
    xr.testing.assert_identical(by_cell, whole)
    select = forecaster.config.run.select
    firsts = [first for first, _ in evaluate.forecast_blocks(forecaster._evaluations, select)]
    assert firsts == [0, 1, 2]


def elsewhere(work, do=evaluate.evaluate_shard):
    """Do work as another process does, which receives and returns copies."""
    work = pickle.loads(pickle.dumps(work))
    assert {part.whole for part in work.parts.values()} == {None}
    return pickle.loads(pickle.dumps(do(work)))


@pytest.mark.quick(8)
@pytest.mark.parametrize(
    ("intervals", "sent"),
    [("normalised", True), ("normalised", False), ("conformal", True), ("none", False)],
)
@pytest.mark.parametrize("method", ["fedlean", "fedavg"])
def test_a_run_by_shards_of_cells_writes_the_files_of_a_run_of_all(
    tiny, tmp_path, monkeypatch, caplog, method, intervals, sent
):
    rng, hours = np.random.default_rng(2), pd.date_range("2013-11-04", periods=24 * 10, freq="h")
    daily = 50 + 40 * np.sin(2 * np.pi * (np.asarray(hours.hour)[:, None] + np.arange(5)) / 24)
    table = pd.DataFrame(daily + rng.normal(0, 5, daily.shape), hours, range(1, 6))
    table.iloc[30:40, 1] = np.nan
    table[4] = 7.0
    table.loc[hours[24 * 7 : 24 * 8], 5] = np.nan  # Its bounds are infinite.
    data = tmp_path / "table.csv"
    table.to_csv(data, index_label="time")
    own = {**read_by(method, tiny), **INTERVALS, "intervals": intervals, "rounds": 2}
    settings = {**own, "service": None, "lower_limit": 0.0, "select": "last", "refit": "once"}
    made, found = [], evaluate.Evaluation.found

    def written(name):
        caplog.clear()
        run(method, data, tmp_path / name, settings)
        on_other_data = Forecaster.load(tmp_path / name).evaluate(table)
        files = ("metrics.csv", "model/state.safetensors")
        files = [(tmp_path / name / file).read_bytes() for file in files]
        with xr.open_dataset(tmp_path / name / "forecasts.nc", engine="h5netcdf") as ds:
            return ds.load(), on_other_data, (files, caplog.text)

    whole = written("whole")
    monkeypatch.setattr(evaluate, "SHARD", 2)
    if sent:
        monkeypatch.setattr(evaluate, "evaluate_shard", elsewhere)
    monkeypatch.setattr("stforecast.federated.engine.trainer.IN_FILES", 0)
    monkeypatch.setattr(
        evaluate.Evaluation, "found", lambda of, **asked: made.append(of.some) or found(of, **asked)
    )
    of_shards = written("shards")
    xr.testing.assert_identical(of_shards[0], whole[0])
    pd.testing.assert_frame_equal(of_shards[1], whole[1])
    assert of_shards[2] == whole[2]
    assert slice(0, 2) in made, "all cells were one shard"


def test_a_shard_is_dropped_before_the_next_is_forecast(cube, tiny, tmp_path, monkeypatch):
    monkeypatch.setattr(evaluate, "SHARD", 1)
    settings = {**read_by("fedavg", tiny), **INTERVALS, "refit": "once"}
    forecaster, alive = Forecaster("fedavg", **settings).fit(cube), []
    found = evaluate.Evaluation.found

    def watched(self, **asked):
        gc.collect()
        parts = [of for of in gc.get_objects() if type(of) is evaluate.Evaluation]
        parts = [of for of in parts if of.whole in forecaster._evaluations.values()]
        own = self.some.start
        alive.append({of.some.start for of in parts if of.some.start != own})
        return found(self, **asked)

    monkeypatch.setattr(evaluate.Evaluation, "found", watched)
    with netcdf_target(tmp_path / "forecasts.nc") as target:
        forecaster.dump_forecasts(target)
    assert alive == [set()] * 6, "two models, three shards"


def test_of_many_cells_tables_have_the_errors_of_cells_and_of_steps(cube, monkeypatch):
    whole = Forecaster("ridge", **INTERVALS).fit(cube).evaluate()
    monkeypatch.setattr("stforecast.forecasting.evaluate.MOST_CROSSED", 5)
    margins = Forecaster("ridge", **INTERVALS).fit(cube).evaluate()
    kept = (whole["client"] == "all") | (whole["horizon"] == "all")
    assert (~kept).sum() == kept.sum() > 0, "three cells at two steps, against 3 + 2 + 1"
    pd.testing.assert_frame_equal(margins, whole[kept].reset_index(drop=True))
