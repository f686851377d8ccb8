"""The forecaster on three cells and ten days; forecasts are checked against numbers by hand."""

import dataclasses
import json
import logging
import pickle

import numpy as np
import pandas as pd
import pytest
import xarray as xr
from mentions import mentions
from safetensors.numpy import load_file

from data_prep.base.errors import InputError
from stforecast import Forecaster
from stforecast.data.scaling import Scaler
from stforecast.federated.engine.rounds import RoundReport
from stforecast.forecasting.config import read_by
from stforecast.forecasting.model import FittedModel

METHODS = ["fuels", "fedavg", "solo", "ridge", "boosting", "historical_average", "last_value"]


@pytest.fixture(scope="module")
def fitted(table, tiny):
    """One forecaster of each kind, fitted once."""
    cache = {}

    def fit(method):
        if method not in cache:
            cache[method] = Forecaster(method, **read_by(method, tiny)).fit(table)
        return cache[method]

    return fit


@pytest.mark.quick(3)
@pytest.mark.parametrize("method", METHODS)
def test_a_loaded_forecaster_predicts_bit_for_bit_what_the_saved_one_does(
    fitted, method, table, tmp_path
):
    forecaster = fitted(method)
    loaded = Forecaster.load(forecaster.save(tmp_path / "a" / "model"), device="cpu")
    pd.testing.assert_frame_equal(
        loaded.predict(table, 5), forecaster.predict(table, 5), check_exact=True
    )
    assert loaded.config == forecaster.config


@pytest.mark.parametrize("method", METHODS)
def test_a_pickled_forecaster_keeps_its_model_and_its_errors(fitted, method, table):
    forecaster = fitted(method)
    pickled = pickle.loads(pickle.dumps(forecaster))
    pd.testing.assert_frame_equal(
        pickled.predict(table, 5), forecaster.predict(table, 5), check_exact=True
    )
    pd.testing.assert_frame_equal(pickled.evaluate(), forecaster.evaluate(), check_exact=True)


def test_a_loaded_forecaster_saves_the_same_bytes(fitted, tmp_path):
    folder = fitted("fuels").save(tmp_path / "first")
    again = Forecaster.load(folder, device="cpu").save(tmp_path / "second")
    for name in ("forecaster.json", "state.safetensors"):
        assert (folder / name).read_bytes() == (again / name).read_bytes()


def test_changes_of_a_mapped_model_stay_in_the_process(fitted, table, tmp_path):
    folder = fitted("fuels").save(tmp_path)
    before = (folder / "state.safetensors").read_bytes()
    mapped = Forecaster.load(folder, device="cpu", mapped=True)
    pd.testing.assert_frame_equal(
        mapped.predict(table), fitted("fuels").predict(table), check_exact=True
    )
    for tensor in mapped.model_.latest.snapshot.flat().values():
        tensor.zero_()
    assert (folder / "state.safetensors").read_bytes() == before


@pytest.mark.quick(2)
@pytest.mark.parametrize("method", ["scaffold", "fedavg_ft"])
def test_what_predicting_does_not_need_is_not_saved(method, table, tiny, tmp_path):
    """Of a global model no client's copy or memory; of fine-tuned ones no optimiser."""
    forecaster = Forecaster(method, **read_by(method, tiny)).fit(table)
    saved = load_file(forecaster.save(tmp_path) / "state.safetensors")
    of_clients = {name.split("/")[1] for name in saved if name.startswith("clients/")}
    assert of_clients == ({"sizes"} if method == "scaffold" else {"params", "sizes"})
    loaded = Forecaster.load(tmp_path, device="cpu")
    pd.testing.assert_frame_equal(loaded.predict(table), forecaster.predict(table))


@pytest.mark.parametrize("progress", [True, False])
def test_a_bar_of_rounds_is_shown_if_asked_for(progress, table, tiny, capsys):
    Forecaster("fedavg", **read_by("fedavg", tiny)).fit(table, progress=progress)
    assert ("rounds:" in capsys.readouterr().err) is progress


def test_two_fits_with_one_seed_are_equal_and_another_seed_differs(fitted, table, tiny):
    first = fitted("solo").predict(table)
    pd.testing.assert_frame_equal(first, Forecaster("solo", **tiny).fit(table).predict(table))
    other = Forecaster("solo", **tiny, seed=2).fit(table).predict(table)
    assert not np.allclose(first, other)


def test_forecasts_are_in_the_datas_own_units_at_the_times_that_follow(fitted, table):
    forecast = fitted("last_value").predict(table, 3)
    np.testing.assert_allclose(forecast, np.tile(table.to_numpy()[-1], (3, 1)), rtol=1e-6)
    assert forecast.index.tolist() == list(pd.date_range("2013-11-11", periods=3, freq="h"))
    assert forecast.columns.tolist() == [11, 22, 33]
    assert forecast.attrs == {"service": "value", "units": "1", "limits": (0, np.inf)}


def test_beyond_the_horizon_forecasts_are_fed_back(fitted, table):
    forecaster = fitted("ridge")
    forecast = forecaster.predict(table, 3)
    history = table
    for step in range(3):
        one = forecaster.predict(history)
        np.testing.assert_allclose(one.iloc[0], forecast.iloc[step], rtol=1e-5)
        history = pd.concat([history, one])


def test_within_the_horizon_forecasts_are_direct(table, tiny):
    forecaster = Forecaster("ridge", **read_by("ridge", tiny), horizon=4).fit(table)
    forecast = forecaster.predict(table)
    assert len(forecast) == 4
    pd.testing.assert_frame_equal(forecaster.predict(table, 2), forecast[:2])
    pd.testing.assert_frame_equal(forecaster.predict(table, 6)[:4], forecast)
    last = forecaster.test_forecasts().isel(time=-1)
    np.testing.assert_allclose(forecaster.predict(table[:236]), last["y_hat"].T, rtol=1e-5)


def test_only_the_end_of_the_history_counts(fitted, table):
    pd.testing.assert_frame_equal(
        fitted("fuels").predict(table[-72:]), fitted("fuels").predict(table), rtol=1e-5
    )


def test_columns_may_come_in_another_order_and_with_others(fitted, table, caplog):
    mixed = table[[33, 11, 22]].assign(**{"44": 1.0}).rename(columns={"44": 44})
    forecaster = fitted("ridge")
    caplog.clear()
    pd.testing.assert_frame_equal(forecaster.predict(mixed), forecaster.predict(table))
    assert caplog.messages == [
        "the table: no forecasts for 1 cell that the model has not seen; `stforecast adapt` or "
        "Forecaster.adapt makes a model of them, too"
    ]


def test_ids_of_cells_are_text(fitted, table):
    named = table.rename(columns=str)
    forecaster = fitted("ridge")
    pd.testing.assert_frame_equal(forecaster.predict(named), forecaster.predict(table))
    adapted = forecaster.adapt(named.assign(new=table[22]))
    assert adapted.cells.tolist() == ["11", "22", "33", "new"]
    pd.testing.assert_frame_equal(
        adapted.predict(named.assign(new=table[22]))[["11", "22", "33"]].rename(columns=int),
        forecaster.predict(table),
        check_names=False,
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t[[11, 33]], "table: 1 .* 3 cells .* 22"),
        (lambda t: t.resample("2h").mean(), "120 minutes.* 60 minutes"),
        (lambda t: t[-71:], "71 steps; .*72 "),
    ],
)
def test_a_history_that_does_not_fit_is_refused(fitted, table, change, message):
    with pytest.raises(InputError, match=message):
        fitted("solo").predict(change(table))


@pytest.mark.parametrize("steps", [0, 1.5])
def test_no_steps_and_half_steps_are_refused(fitted, table, tiny, steps):
    match = f"steps is {steps}; forecast at least 1, a whole number"
    with pytest.raises(InputError, match=match):
        fitted("ridge").predict(table, steps)
    forecaster = Forecaster("ridge", **read_by("ridge", {**tiny, "intervals": "conformal"}))
    with pytest.raises(InputError, match=match):
        forecaster.fit(table).predict_interval(table, steps)


def test_a_zoned_table_is_forecast_in_its_zone_by_its_local_calendar(table, tiny):
    zoned = table.tz_localize("Asia/Tokyo")
    forecaster = Forecaster("historical_average", **read_by("historical_average", tiny)).fit(zoned)
    forecast = forecaster.predict(zoned)
    assert str(forecast.index.tz) == "Asia/Tokyo"
    assert forecast.index[0] == pd.Timestamp("2013-11-11", tz="Asia/Tokyo")
    assert pd.concat([zoned, forecast]).index.is_monotonic_increasing
    plain = (
        Forecaster("historical_average", **read_by("historical_average", tiny))
        .fit(table)
        .predict(table)
    )
    np.testing.assert_allclose(forecast.to_numpy(), plain.to_numpy())


@pytest.mark.parametrize("clock", ["utc", "local"])
def test_a_cube_gives_service_unit_and_clock_to_forecasts(cube, tiny, clock):
    cube = cube.assign_attrs(clock=clock)
    forecaster = Forecaster("ridge", service="internet", **read_by("ridge", tiny)).fit(cube)
    forecast = forecaster.predict(cube)
    assert forecast.attrs == {"service": "internet", "units": "MB", "limits": (0, np.inf)}
    first = pd.Timestamp("2013-11-11")  # The cube's times are UTC, or local without an offset.
    known = pd.Timestamp("2013-11-11 01:00", tz="Europe/Rome")
    assert forecast.index[0] == (known if clock == "utc" else first)
    tested = forecaster.test_forecasts()
    about = {"service": "internet", "method": "ridge", "clock": clock, "step_minutes": 60.0}
    zone = {"time_zone": "Europe/Rome"} if clock == "utc" else {}
    assert tested.attrs == {**about, **zone, "lower_limit": 0.0}
    assert tested["y_hat"].attrs["selection"] == "last, best"
    assert tested["y"].attrs["units"] == "MB"


def test_test_forecasts_hold_what_was_observed(cube, tiny):
    gap = cube.copy(deep=True)
    gap["internet"][200, 0] = np.nan
    tested = Forecaster(
        "last_value", service="internet", **read_by("last_value", tiny), horizon=2
    ).fit(gap)
    ds = tested.test_forecasts()
    assert dict(ds.sizes) == {"cell": 3, "time": 47, "horizon": 2}
    assert ds.indexes["time"][0] == pd.Timestamp("2013-11-09")
    observed = gap["internet"].to_numpy()
    np.testing.assert_allclose(ds["y"][:, :, 0], observed[192:239].T, rtol=1e-6)
    np.testing.assert_allclose(ds["y"][:, :, 1], observed[193:240].T, rtol=1e-6)
    assert np.isnan(ds["y"][0, 8, 0])
    np.testing.assert_allclose(ds["y_hat"][1, :, 0], observed[191:238, 1], rtol=1e-6)
    np.testing.assert_allclose(ds["y_hat"][1, :, 1], observed[191:238, 1], rtol=1e-6)


def test_forecasts_do_not_depend_on_how_many_are_made_at_once(fitted, monkeypatch):
    together = fitted("fuels").test_forecasts()
    monkeypatch.setattr("stforecast.federated.core.method.ROWS_ON_CPU", 10)
    xr.testing.assert_allclose(fitted("fuels").test_forecasts(), together, rtol=1e-5)


def test_rounds_are_reported(fitted, table, tiny):
    assert fitted("fuels").rounds_["round"].tolist() == [1, 2]
    assert fitted("ridge").rounds_.empty
    reports = []
    Forecaster("solo", **tiny).fit(table, reports.append)
    assert [(type(r), r.round) for r in reports] == [(RoundReport, 1), (RoundReport, 2)]


def test_the_selected_model_is_the_one_that_predicts(table, tiny):
    settings = {**tiny, "rounds": 4, "lr": 0.3}
    best = Forecaster("solo", **settings).fit(table)
    last = Forecaster("solo", **settings, select="last").fit(table)
    losses = best.rounds_["validation_loss"]
    assert losses.idxmin() < 3, "the last round is the best; choose a wilder learning rate"
    stopped = Forecaster("solo", **{**settings, "rounds": int(losses.idxmin()) + 1}).fit(table)
    pd.testing.assert_frame_equal(best.predict(table), stopped.predict(table))
    assert not np.allclose(best.predict(table), last.predict(table))


def test_outliers_that_hide_all_other_values_are_pointed_out(table, tiny, caplog):
    odd, settings = table.copy(), read_by("ridge", tiny)
    odd.iloc[5, 1] = 1e12
    for data, n in ((table, 0), (odd, 1)):
        caplog.clear()
        Forecaster("ridge", **settings, outliers="keep").fit(data)
        found = [m for m in caplog.messages if "cannot be told apart" in m]
        assert len(found) == n
    assert f"1e+12 in cell {odd.columns[1]}" in found[0]


def test_readings_that_are_not_believed_count_as_missing(table, tiny, caplog, tmp_path):
    odd, gappy, settings = table.copy(), table.copy(), read_by("ridge", tiny)
    places = [(5, 1), (60, 0), (200, 2), (-1, 0)]  # in training, test and the newest readings
    for step, cell in places:
        odd.iloc[step, cell], gappy.iloc[step, cell] = 1e9 * (-1) ** cell, np.nan
    found, expected = (Forecaster("ridge", **settings).fit(data) for data in (odd, gappy))
    assert mentions(caplog.text, "4 readings", "2 of cell")
    assert found.data_.outliers() == {"11": 2, "22": 1, "33": 1}
    assert found.limits == expected.limits == (0, np.inf)
    pd.testing.assert_frame_equal(found.evaluate(), expected.evaluate())
    saved = Forecaster.load(found.save(tmp_path))
    pd.testing.assert_frame_equal(saved.predict(odd), expected.predict(gappy))
    kept = Forecaster("ridge", **settings, outliers="keep").fit(odd)
    assert not kept.data_.outliers()
    assert kept.score() < found.score()


def test_constant_cells_and_odd_periods_are_pointed_out(table, tiny, caplog):
    caplog.set_level(logging.WARNING)
    Forecaster("ridge", **read_by("ridge", tiny), period=20).fit(
        table.join(pd.DataFrame({44: 5.0}, table.index))
    )
    odd, constant = caplog.messages
    assert odd.startswith("a period of 20 steps of 60 minutes is 20 hours")
    assert constant.startswith("the table: 1 of 4 cells never change in the training part of value")


def test_an_unfitted_forecaster_says_so(table):
    with pytest.raises(InputError, match="fit or"):
        Forecaster("solo").predict(table)
    with pytest.raises(InputError, match="not fitted; call fit or"):
        Forecaster("solo").evaluate()


def test_a_loaded_forecaster_cannot_be_evaluated(fitted, tmp_path):
    loaded = Forecaster.load(fitted("ridge").save(tmp_path))
    with pytest.raises(InputError, match="the data"):
        loaded.evaluate()


def test_a_model_trained_on_a_gpu_loads_without_one(fitted, table, tmp_path):
    folder = fitted("solo").save(tmp_path)
    edit(folder, lambda about: about["settings"].update(device="cuda:7"))
    expected = fitted("solo").predict(table)
    pd.testing.assert_frame_equal(Forecaster.load(folder, device="cpu").predict(table), expected)


def edit(folder, change):
    path = folder / "forecaster.json"
    about = json.loads(path.read_text())
    change(about)
    path.write_text(json.dumps(about))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (
            lambda f: (f / "forecaster.json").unlink(),
            r"forecaster.json: .*\(found noth",
        ),
        (lambda f: (f / "forecaster.json").write_text("{"), "forecaster.json: cannot"),
        (lambda f: edit(f, lambda a: a.update(format=99)), "format 99, .*reads 1"),
        (lambda f: edit(f, lambda a: a.pop("cells")), "'cells' .*model"),
        (lambda f: (f / "state.safetensors").unlink(), "state.safetensors: .*read"),
        (lambda f: (f / "state.safetensors").write_bytes(b"xx"), "state.safetensors: cannot be"),
    ],
)
def test_a_damaged_model_is_named(fitted, tmp_path, damage, message):
    folder = fitted("ridge").save(tmp_path)
    damage(folder)
    with pytest.raises(InputError, match=message):
        Forecaster.load(folder)


def test_the_folder_above_a_run_is_told_what_to_give(fitted, tmp_path):
    fitted("ridge").save(tmp_path / "a" / "run" / "model")
    with pytest.raises(InputError, match=r"model .*/a/run$"):
        Forecaster.load(tmp_path)


def test_the_saved_scaler_saw_the_training_part_only(fitted, table, tmp_path):
    state = load_file(fitted("ridge").save(tmp_path) / "state.safetensors")
    np.testing.assert_allclose(state["scaler/mean"], table[:168].mean())
    np.testing.assert_allclose(state["scaler/std"], table[:168].std(ddof=0))


@pytest.fixture
def saved(cube, tiny, tmp_path):
    """Saves a model that something was done to; tells its folder."""

    def save(method="fedavg", spoil=None, **settings):
        settings = {**tiny, "service": "internet", **settings}
        forecaster = Forecaster(method, **read_by(method, settings)).fit(cube)
        if spoil:
            spoil(forecaster)
        return forecaster.save(tmp_path / "model")

    return save


def with_scale(value):
    def spoil(forecaster):
        mean, std = forecaster.model_.scaler.mean, forecaster.model_.scaler.std.copy()
        std[1] = value
        forecaster._model = dataclasses.replace(forecaster.model_, scaler=Scaler(mean, std))

    return spoil


def with_mean(value):
    def spoil(forecaster):
        forecaster.model_.scaler.mean[2] = value

    return spoil


def with_parameter(value):
    def spoil(forecaster):
        state = forecaster.model_.predictor.snapshot
        next(iter({**state.clients.params, **state.server}.values())).flatten()[0] = value
        for t in [*state.clients.params.values(), *state.server.values()]:
            t.flatten()[-1:] = value

    return spoil


def with_weights(forecaster):
    forecaster.model_.predictor.arrays["weights"][0, 0, 0] = np.nan


@pytest.mark.parametrize(
    ("method", "spoil", "message"),
    [
        ("fedavg", with_scale(0.0), "scaler/std .*above 0"),
        ("last_value", with_scale(-1.0), "scaler/std .*above 0"),
        ("fedavg", with_scale(np.inf), "scaler/std.*finite"),
        ("fedavg", with_mean(np.nan), "scaler/mean.*finite"),
        ("fedavg", with_parameter(np.nan), "server/.* finite"),
        ("solo", with_parameter(np.inf), "clients/params/.* finite"),
        ("ridge", with_weights, "weights.*finite"),
    ],
)
def test_a_model_that_would_forecast_nonsense_is_refused(saved, method, spoil, message):
    folder = saved(method, spoil)
    with pytest.raises(InputError, match=f"model: {message}"):
        Forecaster.load(folder)


METHODS_THAT_READ = ["fedavg", "ridge", "last_value", "seasonal_day", "historical_average"]


@pytest.mark.parametrize("method", METHODS_THAT_READ)
def test_nothing_is_forecast_from_nothing(cube, table, tiny, method):
    forecaster = Forecaster(method, **read_by(method, tiny), service="internet").fit(cube)
    with pytest.raises(InputError, match="all values"):
        forecaster.predict(table.tz_localize("UTC") * np.nan)


@pytest.mark.parametrize("method", METHODS_THAT_READ)
def test_a_cell_of_which_nothing_is_known_is_named_and_gets_no_forecast(
    cube, table, tiny, method, caplog
):
    settings = {**tiny, "service": "internet", "intervals": "conformal"}
    forecaster = Forecaster(method, **read_by(method, settings)).fit(cube)
    table = table.tz_localize("UTC")
    whole = forecaster.predict(table)
    assert "training mean" not in caplog.text
    gone = table.copy()
    gone[22] = np.nan
    found = forecaster.predict(gone, steps=2)
    assert found[22].isna().all()
    np.testing.assert_array_equal(found.loc[whole.index, [11, 33]], whole[[11, 33]])
    assert mentions(caplog.text, "table: 1 of 3", "22,", "inputs")
    interval = forecaster.predict_interval(gone)
    assert interval.lower[22].isna().all()
    assert interval.lower[11].notna().all()


def test_a_history_in_another_unit_is_told_of(cube, table, tiny, caplog):
    forecaster = Forecaster("fedavg", **tiny, service="internet").fit(cube)
    history = table.tz_localize("UTC")
    forecaster.predict(history)
    assert "standard deviations" not in caplog.text
    history[22] *= 1000
    forecaster.predict(history)
    assert mentions(caplog.text, "1 of 3", "22,", "lately")


def test_missing_inputs_are_told_of(cube, table, tiny, caplog):
    forecaster = Forecaster("fedavg", **tiny, service="internet").fit(cube)
    history = table.tz_localize("UTC")
    history.iloc[-1, 2] = np.nan
    assert forecaster.predict(history).notna().all(axis=None)
    assert mentions(caplog.text, "1 of 3", "33,", "inputs")


@pytest.mark.parametrize("impute", ["newest", "ffill", "last-week"])
def test_forecasts_from_old_readings_are_told_of(cube, table, tiny, caplog, impute):
    """Filled inputs look like readings, however long ago the last one was."""
    forecaster = Forecaster("fedavg", **tiny, service="internet", impute=impute).fit(cube)
    history = table.tz_localize("UTC")
    history.iloc[-1:, 1] = np.nan
    forecaster.predict(history)
    assert "reading just" not in caplog.text
    history.iloc[-2:, 1] = np.nan
    assert forecaster.predict(history).notna().all(axis=None)
    assert mentions(caplog.text, "1 of 3", "reading", "22")
    assert "last 2 hours" in caplog.text


def test_hours_that_are_never_recorded_are_not_told_of(cube, table, tiny, caplog):
    forecaster = Forecaster("fedavg", **tiny, service="internet", impute="newest").fit(cube)
    history = table.tz_localize("UTC")
    history = history[: 24 * (len(history) // 24) - 20].copy()
    history.loc[history.index.hour < 4, 22] = np.nan
    forecaster.predict(history)
    assert "reading just" not in caplog.text
    history.iloc[-5:, 1] = np.nan
    forecaster.predict(history)
    assert mentions(caplog.text, "22,", "last 5 hours")


@pytest.mark.parametrize(
    ("change", "rehearsals"),
    [
        (lambda about: None, 0),
        (lambda about: about["settings"].update(lower_limit=1.0), 1),
        (lambda about: about["versions"].update(torch="1.0"), 1),
        (lambda about: [about.pop("versions"), about.pop("checksum")], 1),
    ],
)
def test_a_model_is_rehearsed_unless_it_is_as_these_versions_wrote_it(
    fitted, tmp_path, monkeypatch, change, rehearsals
):
    folder, done = fitted("ridge").save(tmp_path), []
    edit(folder, change)
    monkeypatch.setattr(FittedModel, "_rehearse", lambda model: done.append(model))
    Forecaster.load(folder)
    assert len(done) == rehearsals


def test_training_a_loaded_model_leaves_its_file_as_it_is(saved):
    folder = saved("fedavg")
    before = (folder / "state.safetensors").read_bytes()
    snapshot = Forecaster.load(folder).model_.predictor.snapshot
    for tensor in snapshot.server.values():
        tensor.zero_()
    assert (folder / "state.safetensors").read_bytes() == before
