"""Events known in advance: a town where a match adds a known amount at the cells that it is at."""

import logging

import numpy as np
import pandas as pd
import pytest
from mentions import mentions

from data_prep.base.errors import InputError
from data_prep.cube import make_cube
from stforecast import Forecaster
from stforecast.data.clock import Calendar
from stforecast.data.events import read_events
from stforecast.data.series import as_series
from stforecast.data.window_spec import WindowSpec
from stforecast.data.windows import input_windows
from stforecast.flower.settings import check_config
from stforecast.forecasting.config import read_by, resolve

HOUR = pd.Timedelta("1h")
CELLS = np.array([11, 22, 33])
ROME = Calendar(pd.Timestamp("2013-11-01"), HOUR, "Europe/Rome")
SETTINGS = {"split": "days:7,1,2", "closeness": 1, "periods": 0, "device": "cpu"}
HEAD = "kind,start,end,cells"


def written(path, *lines):
    path.write_text("\n".join(lines) + "\n")
    return path


BEGINS = [3, 16, 20, 41, 47, 66, 70, 89, 107, 111, 136, 148, 161, 166, 190, 199, 215, 236, 239]
"""First steps of the matches, which last an hour and a half; the last ends after the data."""

HOURS = pd.date_range("2013-11-01", periods=240, freq="h")
LOSS = 1.5 * len(BEGINS) / 240


@pytest.fixture
def matches(tmp_path):
    """Matches at two of three cells, in local time."""
    lines = []
    for i in BEGINS:
        begin = HOURS[i].tz_localize("UTC").tz_convert("Europe/Rome").tz_localize(None)
        lines.append(f"match,{begin},{begin + pd.Timedelta('90min')},11;33")
    return written(tmp_path / "matches.csv", HEAD, *lines)


@pytest.fixture(scope="module")
def town():
    """Cells 11 and 33 gain 10 and 40 an hour of a match, and lose a little in each hour."""
    played = np.zeros(241)
    played[BEGINS] += 1.0
    played[np.array(BEGINS) + 1] += 0.5
    values = 1000 + np.cumsum(played[:240, None] - LOSS, axis=0) * [10.0, 0.0, 40.0]
    return make_cube(
        {"internet": values}, HOURS, CELLS,
        title="a town", source="invented", license="none", units="MB", time_zone="Europe/Rome",
    )  # fmt: skip


def test_an_event_takes_the_share_of_each_step_at_its_cells_and_kinds_are_apart(tmp_path):
    path = written(
        tmp_path / "e.csv", HEAD,
        "match,2013-11-01 02:45,2013-11-01 04:30,22",
        "match,2013-11-01T02:00Z,2013-11-01T03:15Z,11; 22",
        "works,2013-11-01,2013-11-01,",
    )  # fmt: skip
    shares = read_events(path, CELLS, ROME, "town").shares(ROME.start, HOUR, 24)
    assert shares.shape == (3, 24, 2)
    # 02:45 in Rome is 01:45 UTC; overlapping matches count once.
    np.testing.assert_allclose(shares[0, :5, 0], [0, 0, 1, 0.25, 0])
    np.testing.assert_allclose(shares[1, :5, 0], [0, 0.25, 1, 0.75, 0])
    assert not shares[2, :, 0].any()
    # All of 1 November ends at midnight in Rome, 23:00 UTC.
    np.testing.assert_array_equal(shares[:, :, 1], np.tile([1.0] * 23 + [0.0], (3, 1)))


def test_days_are_local_and_last_as_long_as_clocks_say(tmp_path):
    path = written(tmp_path / "e.csv", "kind,date", "fair,2013-10-27")
    events = read_events(path, CELLS, ROME, "town")
    assert events.end - events.begin == np.timedelta64(25, "h")  # Clocks went back.
    assert events.begin == np.datetime64("2013-10-26T22:00")
    local = Calendar(pd.Timestamp("2013-11-01"), HOUR)
    assert read_events(path, CELLS, local, "town").begin == np.datetime64("2013-10-27")
    hour = written(tmp_path / "h.csv", HEAD, "fair,2013-10-27 02:00,2013-10-27 02:30,")
    twice = read_events(hour, CELLS, ROME, "town")
    assert twice.end - twice.begin == np.timedelta64(90, "m")  # 02:00 to 02:30 came twice.


@pytest.mark.parametrize("end", ["2013-11-04", "20131104"])
def test_an_end_that_is_a_day_includes_it(end, tmp_path):
    path = written(tmp_path / "e.csv", "kind,start,end", f"fair,2013-11-03,{end}")
    events = read_events(path, CELLS, ROME, "town")
    assert events.end - events.begin == np.timedelta64(48, "h")


def test_rare_events_have_large_inputs(tmp_path):
    path = written(
        tmp_path / "e.csv",
        HEAD,
        "a,2013-11-01 01:00,2013-11-01 02:00,22",
        "b,2013-11-02,2013-11-02,",
    )
    events = read_events(path, CELLS, ROME, "town")
    scale = events.fit_scale(ROME, slice(0, 50), "town")
    np.testing.assert_allclose(scale, [(1 / 50) ** -0.5, (24 / 50) ** -0.5])
    assert events.fit_scale(ROME, slice(0, 9999), "town")[0] == pytest.approx(10)


def test_a_window_reads_events_of_each_target_step_also_beyond_the_series(tmp_path):
    path = written(tmp_path / "e.csv", "kind,start,end", "a,2013-11-01 03:00,2013-11-01 05:00")
    calendar = Calendar(pd.Timestamp("2013-11-01"), HOUR)
    hours = pd.date_range("2013-11-01", periods=4, freq="h")
    series = as_series(pd.DataFrame(np.zeros((4, 2)), hours))
    spec = WindowSpec(closeness=1, periods=0, horizon=3, events="a, b")
    series = series.with_events(path, spec.kinds)
    x = input_windows(series.values, np.array([1, 4]), spec, series.calendar)
    assert x.shape == (2, 2, spec.n_inputs) == (2, 2, 7)
    np.testing.assert_array_equal(x[0], [[0, 0, 0, 0, 0, 1, 0], [0, 1, 0, 0, 0, 0, 0]])
    later = series.since(1).calendar
    inputs = later.events.inputs(np.array([0]), spec.horizon, later)
    np.testing.assert_array_equal(inputs.reshape(2, 1, -1), x[:, :1, 1:])
    assert later.events.inputs(np.arange(0), spec.horizon, later).shape == (2, 0, 3, 2)
    with pytest.raises(InputError, match="without a table"):
        input_windows(series.values, np.array([1]), spec, calendar)


LEAN = {
    "extra_lags": "", "calendar": "none", "rounds": 1, "refit": "never", "pretrained": "none",
}  # fmt: skip
"""The closed form of fedlean alone."""


@pytest.mark.parametrize(
    ("method", "settings"),
    [("ridge", {"alpha": 1e-6}), ("fedlean", {**LEAN, "ridge": 1e-6, "shrinkage": 1e-6})],
)  # fmt: skip
def test_a_known_amount_is_recovered_where_the_event_is(method, settings, town, matches):
    errors = {}
    for events in ("", str(matches)):
        forecaster = Forecaster(method, **read_by(method, SETTINGS), **settings, events=events).fit(
            town
        )
        errors[events] = 1 - forecaster.score()
    assert errors[str(matches)] < 1e-3 * errors[""]
    forecast = forecaster.predict(town.isel(time=slice(0, 236)), 4)
    expected = town["internet"][236:].to_numpy()
    np.testing.assert_allclose(forecast, expected, atol=0.05)
    assert expected[0, 2] - expected[1, 2] == pytest.approx(-20 + 40 * LOSS)


@pytest.mark.repeats
def test_the_default_method_follows_rare_events_without_other_settings(town, matches):
    errors = [
        1 - Forecaster(split="days:7,1,2", device="cpu", rounds=1, events=events).fit(town).score()
        for events in ("", str(matches))
    ]
    assert errors[1] < 0.6 * errors[0]


@pytest.mark.parametrize("method", ["fedlean", "fedavg"])
def test_quantiles_read_events(method, town, matches):
    settings = {"loss": "quantile", "horizon": 2, "model": "linear", "rounds": 2, "device": "cpu"}
    forecaster = Forecaster(method, split="days:7,1,2", events=matches, **settings).fit(town)
    assert np.isfinite(forecaster.predict(town.isel(time=slice(0, 236)))).all().all()


@pytest.mark.quick(2)
@pytest.mark.sampled(2)
@pytest.mark.parametrize("method", ["ridge", "boosting", "fedlean", "fedtrees", "fedavg"])
def test_a_saved_model_names_its_kinds_and_needs_their_table_again(method, town, matches, tmp_path):
    settings = {**SETTINGS, "horizon": 2, "events": str(matches)}
    if method.startswith("fed"):
        settings |= {"rounds": 2, "model": "linear", "extra_lags": "2"}
    forecaster = Forecaster(method, **read_by(method, settings)).fit(town)
    forecast = forecaster.predict(town, 3)
    loaded = Forecaster.load(forecaster.save(tmp_path / "model"), device="cpu")
    assert loaded.config.window.kinds == ("match",)
    pd.testing.assert_frame_equal(loaded.predict(town, 3, events=matches), forecast)
    series = loaded.read(town, matches)
    pd.testing.assert_frame_equal(loaded.predict(series, 3), forecast)
    assert not loaded.find_leaks(series)
    with pytest.raises(InputError, match=r"\(match\).*header") as e:
        loaded.predict(town)
    assert "\n" not in str(e.value)
    none = written(tmp_path / "none.csv", HEAD)
    assert np.isfinite(loaded.predict(town, events=none).to_numpy()).all()


def test_a_table_that_has_ended_is_said(town, matches, tmp_path, caplog):
    forecaster = Forecaster("ridge", **read_by("ridge", SETTINGS), events=str(matches)).fit(town)
    with caplog.at_level(logging.WARNING):
        forecaster.predict(town)
    assert "end before" not in caplog.text
    old = written(tmp_path / "old.csv", HEAD, "match,2013-11-02 20:00,2013-11-02 21:30,11")
    with caplog.at_level(logging.WARNING):
        forecaster.predict(town, events=old)
    assert mentions(caplog.text, "before", "2013-11-11 01:00:00 local")


def test_new_cells_read_their_events(town, matches):
    settings = {**SETTINGS, "events": str(matches), "alpha": 1e-6}
    known = matches.with_name("11.csv")
    known.write_text(matches.read_text().replace("11;33", "11"))
    forecaster = Forecaster("ridge", **read_by("ridge", {**settings, "events": str(known)}))
    forecaster.fit(town.isel(cell=[0, 1]))
    new = town.isel(time=slice(0, 236))
    adapted = forecaster.adapt(new, days=5, events=matches)
    forecast = adapted.predict(new, events=matches)
    np.testing.assert_allclose(forecast.iloc[0], town["internet"][236], atol=0.05)


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["name,start,end", "a,2013-11-01,2013-11-02"], "column 'kind', .*name, start"),
        (["kind,begin", "a,2013-11-01"], "column 'start', .*kind, begin"),
        (["kind,start", "a,2013-11-01"], r"no column 'end'"),
        ([HEAD], "no event in"),
        ([HEAD, ",2013-11-02,2013-11-03,"], "line 2: .*kind .*''"),
        ([HEAD, '"a, b",2013-11-02,2013-11-03,'], "line 2: .*'a, b'.*commas"),
        ([HEAD, "a,2013-11-02,2013-11-03,", "a,02/11/2013,2013-11-03,"], "line 3: .*ti"),
        ([HEAD, "a,2013-11-02 20:00,2013-11-02 20:00,"], "line 2: .*ends "),
        ([HEAD, "a,2013-11-03,2013-11-02,"], "line 2: .*ends .*2013-11-02, "),
        ([HEAD, "a,2013-11-02,2013-11-03,11;44"], "line 2: cell 44"),
        (["kind,date", "a,2013-11-02 20:00"], "line 2: .*date "),
        (["kind,date,start", "a,2013-11-02,20:00"], "columns 'date' and 'start'"),
        (["kind,date", "a,2014-11-02"], "'a' .*training .*2013-11-02"),
        (["kind,date", "b,2013-11-02", "a,2013-11-09"], "'a' .*training"),
    ],
)  # fmt: skip
def test_a_table_that_cannot_be_used_is_refused_in_one_line(lines, message, town, tmp_path):
    path = written(tmp_path / "events.csv", *lines)
    with pytest.raises(InputError, match=message) as e:
        Forecaster("ridge", **read_by("ridge", SETTINGS), events=str(path)).fit(town)
    assert "\n" not in str(e.value)


@pytest.mark.parametrize("text", ["nowhere.csv", "match"])
def test_what_is_no_table_is_refused(text, town):
    with pytest.raises(InputError, match=r"no table .*here"):
        Forecaster("ridge", **read_by("ridge", SETTINGS), events=text).fit(town)


def test_times_with_an_offset_need_the_zone_of_the_data(town, tmp_path):
    path = written(tmp_path / "e.csv", HEAD, "a,2013-11-02T20:00Z,2013-11-02T21:00Z,")
    with pytest.raises(InputError, match=r"line 2.*offset"):
        Forecaster("ridge", **read_by("ridge", SETTINGS), events=str(path)).fit(
            town.assign_attrs(clock="local")
        )


def test_other_kinds_and_models_without_events_are_refused(town, matches, tmp_path):
    fitted = Forecaster("ridge", **read_by("ridge", SETTINGS), events=str(matches)).fit(town)
    other = written(tmp_path / "o.csv", HEAD, "concert,2013-11-11 20:00,2013-11-11 21:00,")
    with pytest.raises(InputError, match=r"line 2: .*kind .*'concert'.* match"):
        fitted.predict(town, events=other)
    with pytest.raises(InputError, match=r"kinds match, .*con"):
        fitted.predict(as_series(town).with_events(other))
    with pytest.raises(InputError, match="no events; "):
        Forecaster("ridge", **read_by("ridge", SETTINGS)).fit(town).predict(town, events=matches)
    with pytest.raises(InputError, match=r"seasonal_day .*events"):
        Forecaster("seasonal_day", split="days:7,1,2", events=str(matches)).fit(town)
    with pytest.raises(InputError, match=r"nodes .*events"):
        check_config(resolve("fedavg", model="linear", target="level", events=str(matches)))


def test_a_resumed_run_notices_other_events(town, matches):
    first = as_series(town).with_events(matches)
    other = as_series(town).with_events(
        written(matches.with_name("o.csv"), HEAD, "match,2013-11-02,2013-11-03,")
    )
    (one, *_), (two, *_) = first.identity(), other.identity()
    assert {name for name, t in one.items() if t.shape != two[name].shape} >= {"begin", "end"}
    assert as_series(town).identity()[0].keys() == one.keys() - {"kind", "at", "begin", "end"}
