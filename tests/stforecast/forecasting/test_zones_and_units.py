"""Histories in another time zone or unit than the data that a model was fitted on."""

import dataclasses
import json
import logging

import numpy as np
import pandas as pd
import pytest
from mentions import mentions

from data_prep.base.errors import InputError
from stforecast.data.cubes import open_cube
from stforecast.data.series import as_series
from stforecast.forecasting.config import read_by
from stforecast.forecasting.forecaster import Forecaster

ROME, YORK = "Europe/Rome", "America/New_York"
METHODS = ("fedlean", "fedtrees", "ridge", "historical_average", "seasonal_day")
SETTINGS = {"split": "days:8,1,1", "device": "cpu"}


@pytest.fixture(scope="module")
def zoned():
    """Ten days of hours in Rome with a change of daylight saving time; weekends are quieter."""
    hours = pd.date_range("2013-10-20", periods=240, freq="h", tz=ROME)
    rng = np.random.default_rng(0)
    wave = 1 + 0.5 * (hours.hour >= 20) + 0.3 * (hours.day_of_week < 5)
    values = 100 * (np.asarray(wave)[:, None] + 0.1 * rng.normal(size=(240, 2)))
    return pd.DataFrame(values, hours, ["a", "b"])


@pytest.fixture(scope="module", params=METHODS)
def fitted(request, zoned):
    own = {"fedlean": {"rounds": 2}, "fedtrees": {"rounds": 5}}.get(request.param)
    settings = {**SETTINGS, **(own or {"calendar": "week"})}
    return Forecaster(request.param, **read_by(request.param, settings), horizon=5).fit(zoned)


@pytest.mark.quick(4)
@pytest.mark.parametrize("zone", ["UTC", YORK, "Asia/Kathmandu"])
def test_the_same_instants_in_another_zone_give_the_same_forecasts(fitted, zoned, zone, tmp_path):
    expected = fitted.predict(zoned)
    loaded = Forecaster.load(fitted.save(tmp_path))
    for model in (fitted, loaded):
        found = model.predict(zoned.tz_convert(zone))
        np.testing.assert_array_equal(found.to_numpy(), expected.to_numpy())
        assert str(found.index.tz) == zone
        assert (found.index == expected.index).all()


@pytest.mark.parametrize(
    ("day", "freq", "steps", "left"),
    [
        ("2013-10-27", "h", 24, "2013-10-27 23:00"),
        ("2013-10-27", "15min", 96, "2013-10-27 23:00 to 2013-10-27 23:45"),
        ("2013-10-27", "h", 25, ""), ("2013-10-27", "h", 12, ""), ("2014-03-30", "h", 24, ""),
    ],
)  # fmt: skip
def test_a_day_that_the_steps_do_not_cover_is_told(day, freq, steps, left, caplog):
    end, step = pd.Timestamp(day, tz=ROME), pd.Timedelta(pd.tseries.frequencies.to_offset(freq))
    times = pd.date_range(end - pd.Timedelta("9D"), end, freq=step, inclusive="left")
    history = pd.DataFrame({"a": np.arange(len(times)) % 7.0}, times)
    model = Forecaster("last_value", horizon=steps, split="windows:0.7,0.1,0.2").fit(history)
    caplog.clear()
    model.predict()
    found = [r.getMessage() for r in caplog.records if "set back" in r.getMessage()]
    assert len(found) == bool(left)
    if left:
        more = steps + int(pd.Timedelta("1h") / step)
        assert (
            f"{steps} steps, which leave {left} without a forecast; predict steps={more}"
            in found[0]
        )
        assert str(model.predict(steps=more).index[-1])[:16] == left[-16:]


def test_a_cube_of_another_zone_is_converted_and_it_is_said(cube, tiny, caplog):
    model = Forecaster("ridge", split=tiny["split"], service="internet", calendar="week").fit(cube)
    caplog.set_level(logging.INFO)
    found = model.predict(cube.assign_attrs(time_zone=YORK))
    np.testing.assert_array_equal(found.to_numpy(), model.predict(cube).to_numpy())
    assert mentions(caplog.text, f"{YORK}", "converted", f"{ROME},")


def test_times_that_cannot_be_placed_are_refused(cube, table, tiny, zoned):
    of_rome = Forecaster("last_value", split=tiny["split"]).fit(zoned)
    with pytest.raises(InputError, match=r"cannot .*tz_localize"):
        of_rome.predict(zoned.tz_localize(None).resample("h").mean().ffill())
    of_cube = Forecaster("last_value", split=tiny["split"], service="internet").fit(cube)
    with pytest.raises(InputError, match=r"clock without"):
        of_cube.predict(cube.assign_attrs(clock="local"))
    unplaced = Forecaster("last_value", split=tiny["split"]).fit(table)
    with pytest.raises(InputError, match=rf"{ROME}.*with .*zone"):
        unplaced.predict(table.tz_localize(ROME))
    np.testing.assert_array_equal(
        unplaced.predict(table.tz_localize("UTC")), unplaced.predict(table)
    )
    of_clock = Forecaster("last_value", split=tiny["split"], service="internet").fit(
        cube.assign_attrs(clock="local")
    )
    np.testing.assert_array_equal(
        of_clock.predict(table), of_cube.predict(table.tz_localize("UTC"))
    )


def test_units_of_a_known_factor_are_converted_and_others_refused(cube, tiny, caplog):
    model = Forecaster("ridge", split=tiny["split"], service="internet").fit(cube)
    expected = model.predict(cube)
    in_gb = cube.copy()
    in_gb["internet"] = (cube["internet"] / 1000).assign_attrs(units="GB")
    caplog.set_level(logging.INFO)
    found = model.predict(in_gb)
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    assert found.attrs["units"] == "MB"
    assert mentions(caplog.text, "GB times 1000", "MB")
    for units, said in (("1", r"no unit \(1\)"), ("mph", "mph"), ("MB/s", "MB/s")):
        other = cube.copy()
        other["internet"] = cube["internet"].assign_attrs(units=units)
        with pytest.raises(InputError, match=rf"internet .*{said}, .*MB"):
            model.predict(other)


def test_a_table_has_the_unit_of_the_model_unless_it_names_another(cube, table, tiny):
    model = Forecaster("last_value", split=tiny["split"], service="internet").fit(cube)
    history = table.tz_localize("UTC")
    expected = model.predict(history)
    in_kb = 1000 * history
    in_kb.attrs["units"] = "kB"
    np.testing.assert_allclose(model.predict(in_kb), expected, rtol=1e-5)


def test_a_unit_has_several_spellings(cube, tiny, caplog):
    """Cubes of earlier tables have the spelling of the option --units."""
    caplog.set_level(logging.INFO)
    in_mph, spelled = (
        cube.assign(internet=cube["internet"].assign_attrs(units=unit))
        for unit in ("mph", "mile/hour")
    )
    model = Forecaster("last_value", split=tiny["split"], service="internet").fit(in_mph)
    np.testing.assert_array_equal(model.predict(spelled), model.predict(in_mph))
    assert "times 1" not in caplog.text


def test_a_model_is_adapted_to_cells_of_another_zone_and_unit(zoned, tiny):
    model = Forecaster("ridge", split=tiny["split"], calendar="week").fit(zoned)
    both = zoned.assign(c=zoned["a"] * 2)
    adapted = model.adapt(both)
    expected = adapted.predict(both)
    again = model.adapt(both.tz_convert(YORK))
    assert again.model_.time_zone == ROME
    np.testing.assert_array_equal(again.predict(both), expected)


def test_a_saved_model_says_zone_unit_and_step(zoned, tiny, tmp_path):
    model = Forecaster("ridge", split=tiny["split"], calendar="week").fit(zoned)
    file = model.save(tmp_path) / "forecaster.json"
    about = json.loads(file.read_text())
    assert (about["time_zone"], about["units"], about["step"]) == (ROME, "1", "0 days 01:00:00")
    file.write_text(json.dumps({k: v for k, v in about.items() if k != "time_zone"}))
    with pytest.raises(InputError, match=r"'time_zone' .*model"):
        Forecaster.load(tmp_path)
    file.write_text(json.dumps({**about, "time_zone": "Mars/Olympus"}))
    with pytest.raises(InputError, match="zone 'Mars/Olympus'"):
        Forecaster.load(tmp_path)


def test_zeros_of_a_table_are_missing_where_they_were_for_the_model(zoned, tiny, tmp_path, caplog):
    gappy = zoned.mask(np.random.default_rng(2).random(zoned.shape) < 0.1)
    cube = open_cube(gappy.fillna(0), zero_is_missing=True)
    model = Forecaster("fedlean", **{**tiny, "periods": 0, "clients": "cell"}).fit(cube)
    loaded = Forecaster.load(model.save(tmp_path))
    caplog.set_level(logging.INFO)
    for history in (cube, gappy, gappy.fillna(0), open_cube(gappy.fillna(0))):
        np.testing.assert_array_equal(loaded.predict(history), model.predict(cube))
    assert mentions(caplog.text, "table: values", "0 ")


def test_a_series_that_was_read_is_read_again_as_it_is(zoned, tiny):
    model = Forecaster("ridge", split=tiny["split"], calendar="week").fit(zoned)
    series = model.read(zoned.tz_convert(YORK))
    assert series.time_zone == ROME
    pd.testing.assert_frame_equal(model.predict(series), model.predict(zoned.tz_convert(YORK)))
    other = dataclasses.replace(as_series(zoned), units="GB")
    with pytest.raises(InputError, match="that unit"):
        model.predict(other)


def test_the_default_forecasts_by_the_clock_after_a_change(tmp_path):
    hours = pd.date_range("2013-09-01", "2013-11-10", freq="h", tz=ROME, inclusive="left")
    weekly = 100 + 50 * (hours.hour >= 20) + 5 * hours.day_of_week + hours.hour
    table = pd.DataFrame({"a": weekly}, hours, dtype=float)
    model = Forecaster(rounds=2, split="time:0.6,0.05,0.35", horizon=24, device="cpu").fit(table)
    tested = model.test_forecasts()
    first = tested.indexes["time"].tz_localize("UTC").tz_convert(ROME)
    y_hat = pd.DataFrame(tested["y_hat"][0].to_numpy(), first.tz_localize(None))
    after = y_hat["2013-10-27 04:00":"2013-11-02"]
    before = y_hat.loc[after.index - pd.Timedelta(days=7)]
    clear = before.index < "2013-10-26 02:00"  # windows without the change
    # A week earlier, the profile is a mean of one week less; an hour off would be a third more.
    np.testing.assert_allclose(after[clear], before[clear], rtol=5e-2)


@pytest.mark.parametrize("begin", ["2024-01-01", "2024-02-01"], ids=["no change", "a change"])
def test_forecasts_of_days_begin_at_midnight_of_their_zone(begin):
    days = pd.date_range("2024-01-01", "2024-04-20", freq="D", tz=ROME)
    table = pd.DataFrame({"a": np.arange(len(days)) % 7.0}, days)
    model = Forecaster("seasonal_week", horizon=3).fit(table[begin:][:59])
    end = table.index.get_loc(pd.Timestamp("2024-03-31", tz=ROME))
    found = model.predict(table[:end])
    assert found.index.tolist() == days[end : end + 3].tolist()
    np.testing.assert_allclose(found, table[end : end + 3], atol=1e-5)


def test_ids_that_lost_their_leading_zeros_are_named(zoned):
    """No advice to adapt a model to them."""
    table = zoned.set_axis(["007", "101"], axis="columns")
    fitted = Forecaster("seasonal_day", split="days:8,1,1").fit(table)
    with pytest.raises(InputError, match="cell '7' is likely '007'"):
        fitted.predict(table.set_axis(["7", "101"], axis="columns"))
