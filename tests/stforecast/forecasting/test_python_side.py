"""The forecaster as a user of Python meets it: parameters, errors, texts, drawings, hooks."""

import re
import sys
from types import SimpleNamespace

import numpy as np
import pandas as pd
import polars as pl
import pytest
from matplotlib.dates import date2num, num2date
from mentions import mentions
from sklearn.base import clone
from sklearn.metrics import r2_score
from sklearn.model_selection import GridSearchCV, TimeSeriesSplit

import stforecast
from data_prep.base.errors import InputError
from data_prep.cube import write_cube
from stforecast import Forecaster
from stforecast.forecasting.config import read_by
from stforecast.tracking import Callback, MLflow, TensorBoard, WeightsAndBiases

ANY = (-np.inf, np.inf)
RIDGE = {"split": "days:7,1,2"}


@pytest.fixture(scope="module")
def fitted(table):
    return Forecaster("ridge", intervals="conformal", horizon=2, **RIDGE).fit(table)


def test_parameters_are_read_set_and_cloned(fitted, table):
    given = {"method": "ridge", "intervals": "conformal", "horizon": 2, **RIDGE}
    assert fitted.get_params() == given
    copy = clone(fitted)
    assert copy.get_params() == given
    with pytest.raises(InputError, match="not fitted"):
        copy.predict(table)
    assert copy.set_params(horizon=3).config.window.horizon == 3
    with pytest.raises(InputError, match="unknown"):
        copy.set_params(horizont=3)


def test_scikit_learn_searches_settings(table):
    search = GridSearchCV(
        Forecaster("ridge", split="time:0.6,0.2,0.2", periods=0), {"closeness": [2, 6]},
        cv=TimeSeriesSplit(n_splits=2), error_score="raise",
    )  # fmt: skip
    search.fit(table)
    scores = search.cv_results_["mean_test_score"]
    assert np.isfinite(scores).all()
    assert search.best_score_ == scores.max()
    assert search.best_estimator_.config.window.closeness == search.best_params_["closeness"]


def test_score_is_r2_of_the_test_part_and_of_other_data(fitted, table):
    tested = fitted.test_forecasts()
    std = tested["std"].to_numpy()
    y, y_hat = (tested[name].to_numpy() for name in ("y", "y_hat"))
    errors = (((y - y_hat) / std[:, None, None]) ** 2).sum()
    spread = (((y - y.mean(axis=(1, 2), keepdims=True)) / std[:, None, None]) ** 2).sum()
    assert fitted.score() == pytest.approx(1 - errors / spread, rel=1e-4)
    one = Forecaster("ridge", **RIDGE).fit(table[[11]])
    forecasts = one.test_forecasts()
    pairs = forecasts["y"].to_numpy().ravel(), forecasts["y_hat"].to_numpy().ravel()
    assert one.score() == pytest.approx(r2_score(*pairs), rel=1e-4)
    # The test part alone, with the inputs before it, gives the same.
    test = table[[11]][192 - 72 :]
    assert one.score(test) == pytest.approx(one.score(), rel=1e-5)


def test_errors_on_other_data_are_those_of_the_same_targets(fitted, table):
    own = fitted.evaluate()
    own = own[(own["split"] == "test") & (own["selection"] == "best")]
    other = fitted.evaluate(table[192 - 72 :])
    assert set(other["split"]) == {"test"}
    keys = ["client", "horizon", "metric"]
    both = own.set_index(keys)["value"].align(other.set_index(keys)["value"], join="right")
    assert {"mse", "raw_mae", "coverage", "width"} <= set(other["metric"])
    assert "mase" not in set(other["metric"])
    np.testing.assert_allclose(*both, rtol=1e-4)
    with pytest.raises(InputError, match=r"73 steps; .* 72 .*2 "):
        fitted.evaluate(table[:73])


def test_a_loaded_forecaster_evaluates_other_data(fitted, table, tmp_path):
    loaded = Forecaster.load(fitted.save(tmp_path))
    later = table[100:]
    pd.testing.assert_frame_equal(loaded.evaluate(later), fitted.evaluate(later), rtol=1e-5)
    assert loaded.score(later) == pytest.approx(fitted.score(later))


@pytest.mark.parametrize("below", [False, True])
def test_forecasts_are_not_below_zero_unless_the_training_part_was(table, below):
    """The last value is -5, which is believed only if some of the training part is below 0."""
    values = np.where(np.arange(240) < 168, np.arange(240) % 9 + 1.0, -5.0)
    values[[50, 60]] = [-1.0, -2.0] if below else 1.0
    data = pd.DataFrame({"a": values}, table.index)
    forecaster = Forecaster("last_value", **RIDGE).fit(data)
    assert forecaster.model_.non_negative == (not below)
    assert forecaster.predict(data).iloc[0, 0] == pytest.approx(-5.0 if below else 6.0)
    # Whoever believes all readings forecasts -5, unless that is beyond a limit.
    believing = Forecaster("last_value", outliers="keep", **RIDGE).fit(data)
    for limits, expected in ((None, -5.0 if below else 0.0), (ANY, -5.0), ((0, np.inf), 0.0)):
        assert believing.predict(data, limits=limits).iloc[0, 0] == pytest.approx(expected)


def test_bounds_are_not_below_zero_when_asked(fitted, table, tmp_path):
    lower = table - 300
    bounds = fitted.predict_interval(lower, limits=(0, np.inf))
    assert bounds.lower.min(axis=None) == 0
    loaded = Forecaster.load(fitted.save(tmp_path))
    assert loaded.model_.non_negative
    pd.testing.assert_frame_equal(loaded.predict_interval(lower).lower, bounds.lower)


@pytest.mark.parametrize("limits", [5, (1, 2, 3), ("a", "b"), (0, None), ()])
def test_limits_are_a_pair_of_numbers(fitted, table, limits):
    for method in (fitted.predict, fitted.predict_interval, fitted.outlook):
        with pytest.raises(InputError) as refused:
            method(table, limits=limits)
        assert f"limits is {limits!r}, " in str(refused.value)
    with pytest.raises(InputError, match="lower_limit is 2"):
        fitted.predict(table, limits=(2, 1))


@pytest.mark.parametrize("horizon", ["x", 1.5, None])
def test_a_horizon_is_a_whole_number(table, horizon):
    with pytest.raises(InputError, match=f"horizon is {horizon!r}; "):
        stforecast.forecast(table, horizon=horizon)


@pytest.mark.parametrize(
    ("option", "value"), [("units", 5), ("time_zone", 5), ("cells", 5), ("time", ["time"])]
)
def test_options_of_tables_are_text(table, option, value):
    with pytest.raises(InputError, match=rf"{option} is {re.escape(repr(value))}, "):
        stforecast.open_cube(table.rename_axis("time").reset_index(), **{option: value})


@pytest.mark.parametrize("steps", [None, 1, 50])
def test_an_outlook_is_the_forecast_and_its_bounds(fitted, table, steps):
    forecast, bounds = fitted.outlook(table, steps)
    pd.testing.assert_frame_equal(forecast, fitted.predict(table, steps))
    for one, other in zip(bounds, fitted.predict_interval(table, steps), strict=True):
        pd.testing.assert_frame_equal(one, other)


@pytest.mark.parametrize("limits", [None, (0, np.inf), ANY, (-np.inf, -150), (-200, -150)])
def test_a_forecast_lies_between_its_bounds_whatever_their_limits(fitted, table, limits):
    """Far below what was seen, forecast and bounds meet at a limit."""
    history = table - 300  # Of cell 33 no reading just before the forecast is believed.
    bounds = fitted.predict_interval(history, limits=limits)
    bounds = bounds._replace(lower=bounds.lower[[11, 22]], upper=bounds.upper[[11, 22]])
    values = fitted.predict(history, limits=limits)[: len(bounds.lower)][[11, 22]]
    lowest, highest = limits or (0, np.inf)
    assert (values >= lowest).all(axis=None)
    assert (bounds.upper <= highest).all(axis=None)
    assert (values < 0).any(axis=None) == (lowest < 0)
    assert (bounds.lower <= values).all(axis=None)
    assert (values <= bounds.upper).all(axis=None)
    assert bounds.lower.attrs["coverage"] == bounds.upper.attrs["coverage"] == 0.9


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (None, "data is None, .*DataFrame"),
        (pd.Series([1.0, 2.0]), r"pandas Series, .* series.to_frame\('cell'\)"),
        (np.ones((3, 2)), "numpy ndarray .* periods=3"),
        ([1, 2], "type list .* periods=2"),
        ({"a": [1.0, 2.0, 3.0]}, "type dict .* periods=3"),
        (5, "type int, .*DataFrame"),
        (pl.DataFrame({"a": [1.0]}), r"polars DataFrame, .*data.to_pandas\(\)"),
        (
            pd.DataFrame({"v": 1.0}, pd.MultiIndex.from_tuples([("a", 1)], names=["cell", "time"])),
            r"2 levels \('cell', 'time'\), .*df.reset_index\(\)",
        ),
    ],
)
def test_what_is_no_data_is_named(fitted, data, message):
    # Without a history, a model forecasts from the data of its fit.
    calls = [Forecaster("ridge").fit, fitted.predict]
    for call in calls[: 1 if data is None else 2]:
        with pytest.raises(InputError, match=message):
            call(data)


def test_a_history_that_is_no_data_is_named_by_the_model_of_a_file(table, tmp_path):
    table.rename_axis("time").to_csv(tmp_path / "cells.csv")
    forecaster = Forecaster("ridge", **RIDGE).fit(tmp_path / "cells.csv")
    with pytest.raises(InputError, match="pandas Series"):
        forecaster.predict(table[table.columns[0]])


def test_a_history_with_values_that_training_never_had_is_told_of(fitted, table, caplog):
    fitted.predict(table)
    assert not caplog.messages
    history = table.astype(float)
    history.iloc[-1, 0] = -1.0
    fitted.predict(history)
    assert mentions(caplog.text, "1 value", "0 and inf,", "-1 ")


def test_advice_names_parameters_of_python(table):
    gap = table.drop(table.index[5])
    with pytest.raises(InputError, match=r"`cube = open_cube\(df, allow_gaps=True\)` to"):
        Forecaster("ridge", **RIDGE).fit(gap)
    cube = stforecast.open_cube(gap, allow_gaps=True, units="MB")
    assert Forecaster("ridge", **RIDGE).fit(cube).model_.units == "MB"


def test_a_table_with_times_as_index_is_put_into_longer_steps(table):
    cube = stforecast.open_cube(table, resample="2h", agg="sum")
    np.testing.assert_allclose(cube["value"], table.resample("2h").sum())
    with pytest.raises(InputError, match=r"event, .*df.reset_index\(\)"):
        stforecast.open_cube(table, resample="2h", agg="count")


def test_fit_open_and_forecast_take_the_same(table, tmp_path):
    """A table, the path of a table, a cube and the path of a cube give the same forecasts."""
    table = table.rename_axis("time")
    table.to_csv(tmp_path / "cells.csv")
    cube = stforecast.open_cube(tmp_path / "cells.csv")
    path = write_cube(cube, tmp_path / "cells.nc")
    kinds = (table, tmp_path / "cells.csv", cube, path)
    opened = [stforecast.open_cube(data)["value"].to_numpy() for data in kinds]
    fitted = [Forecaster("ridge", **RIDGE).fit(data) for data in kinds]
    quick = [stforecast.forecast(data, 1, method="seasonal_day").forecast for data in kinds]
    others = [fitted[0].predict(data) for data in kinds]
    each = [f.predict(data) for f, data in zip(fitted, kinds, strict=True)]
    assert all(np.array_equal(found, opened[0]) for found in opened)
    for group in (map(np.asarray, each), map(np.asarray, others), map(np.asarray, quick)):
        first, *rest = group
        for found in rest:
            np.testing.assert_allclose(found, first, rtol=1e-12)
    with pytest.raises(InputError, match="option of open_cube"):
        stforecast.open_cube(tmp_path / "cells.csv", unit="MB")
    with pytest.raises(InputError, match=r"units .*option"):
        stforecast.open_cube(path, units="MB")


@pytest.mark.repeats
def test_a_frame_whose_index_counts_rows_is_read_like_the_table_of_a_file(table):
    table = table.rename_axis("Timestamp").rename(columns=str)
    long = table.reset_index().melt("Timestamp", var_name="cell_id", value_name="GB")
    of_each = pd.concat([part for _, part in table.reset_index().groupby(lambda row: row % 2)])
    frames = {
        "long": long,
        "wide": table.reset_index(),
        "repeated": of_each.set_axis(np.arange(len(table)) // 2),
        "texts": long.assign(Timestamp=long["Timestamp"].dt.strftime("%d.%m.%Y %H:%M")),
        "zone": long.assign(Timestamp=long["Timestamp"].dt.tz_localize("Europe/Rome")),
    }
    first = Forecaster("ridge", **RIDGE).fit(table)
    for name, frame in frames.items():
        own = Forecaster("ridge", **RIDGE).fit(frame)
        forecasts = [own.predict(), own.predict(frame)]
        for forecast in forecasts:
            np.testing.assert_allclose(forecast, first.predict(table), rtol=1e-9, err_msg=name)
    assert own.predict().index.tz is not None
    with pytest.raises(InputError, match=r"'time' .*'11', '22'"):
        Forecaster("ridge", **RIDGE).fit(table.reset_index(drop=True))


def test_a_fitted_model_forecasts_from_its_data_and_a_loaded_one_is_given_them(table, tmp_path):
    fitted = Forecaster("ridge", intervals="conformal", **RIDGE).fit(table)
    pd.testing.assert_frame_equal(fitted.predict(), fitted.predict(table))
    pd.testing.assert_frame_equal(
        fitted.predict_interval().lower, fitted.predict_interval(table).lower
    )
    with pytest.raises(InputError, match="loaded"):
        Forecaster.load(fitted.save(tmp_path)).predict()


def test_texts_tell_what_it_is(fitted, tmp_path):
    assert repr(Forecaster("ridge", horizon=3)) == "Forecaster('ridge', horizon=3)"
    text = repr(fitted)
    assert text.startswith("<Forecaster('ridge', intervals='conformal', horizon=2")
    assert text.endswith("fitted: value of 3 cells, steps of 1 hour, 2 hours ahead>")
    html = fitted._repr_html_()
    assert "test part" in html
    assert "3: 11, 22, 33" in html
    assert "&lt;i&gt;" in Forecaster("ridge", service="<i>")._repr_html_()
    assert "loaded" in Forecaster.load(fitted.save(tmp_path))._repr_html_()


def test_the_package_lists_its_methods_and_version(table):
    methods = stforecast.list_methods()
    assert methods.loc["fuels", ["federated", "pooled"]].tolist() == [True, False]
    assert not methods.loc["ridge", "federated"]
    assert stforecast.__version__[0].isdigit()


def test_the_test_part_as_a_frame_is_on_the_local_clock(cube, tiny):
    forecaster = Forecaster(
        "last_value", service="internet", horizon=2, **read_by("last_value", tiny)
    ).fit(cube)
    frame = forecaster.to_frame()
    assert str(frame["time"].dt.tz) == "Europe/Rome"
    row = frame[(frame["cell"] == 11) & (frame["horizon"] == 2)].iloc[0]
    at = row["time"].tz_convert("UTC").tz_localize(None)
    assert row["y"] == pytest.approx(cube["internet"].sel(cell=11, time=at).item())


def test_a_forecast_is_drawn_on_given_axes(fitted, cube, tiny):
    from matplotlib.figure import Figure

    ax = Figure().subplots()
    assert fitted.plot(ax=ax, cells=[22, 33]) is ax
    labels = ax.get_legend_handles_labels()[1]
    assert sorted(labels) == ["90% interval", "cell 22", "cell 33", "forecast"]
    zoned = (
        Forecaster("last_value", service="internet", **read_by("last_value", tiny)).fit(cube).plot()
    )
    assert zoned.get_xlabel() == "time (Europe/Rome), 2013"
    assert zoned.get_ylabel() == "internet (MB)"
    zoned.figure.draw_without_rendering()
    below = zoned.get_legend().get_window_extent().y0
    drawn = [line.get_transform().transform(line.get_xydata()) for line in zoned.lines[:2]]
    assert max(points[:, 1].max() for points in drawn) < below
    assert zoned.lines[1].get_marker() == "o"  # One step, which a line does not show.
    with pytest.raises(InputError, match="no cell '44'"):
        fitted.plot(cells=[44])


def test_the_repeated_hour_is_drawn_twice(tiny):
    times = pd.date_range("2024-10-17 13:00", "2024-10-27 12:00", freq="h", tz="Europe/Rome")
    table = pd.DataFrame({"a": np.arange(len(times)) % 24.0}, times)
    ax = Forecaster("last_value", **read_by("last_value", tiny)).fit(table).plot()
    for line in ax.lines[:2]:
        assert (np.diff(line.get_xdata()) > np.timedelta64(0)).all()
    drawn = num2date(date2num(ax.lines[1].get_xdata()[-1]), ax.xaxis.get_major_formatter()._tz)
    assert (drawn.hour, drawn.day) == (13, 27)


class Recorder(Callback):
    def __init__(self):
        self.calls = []

    def begin(self, settings):
        self.calls.append(("begin", settings["method"]))

    def after_round(self, report):
        self.calls.append(("round", report.round))

    def end(self, errors):
        self.calls.append(("end", *(name for name in errors if name == "test/mse")))


def test_callbacks_are_told_of_begin_rounds_and_end(table, tiny):
    recorder = Recorder()
    Forecaster("fedavg", **tiny).fit(table, callbacks=[recorder, Callback()])
    kinds = [("begin", "fedavg"), ("round", 1), ("round", 2), ("end", "test/mse")]
    assert recorder.calls == kinds


def test_tensorboard_receives_the_losses(table, tiny, tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    fitted = Forecaster("fedavg", **tiny).fit(table, callbacks=[TensorBoard(tmp_path)])
    events = EventAccumulator(str(tmp_path)).Reload()
    losses = [event.value for event in events.Scalars("validation_loss")]
    np.testing.assert_allclose(losses, fitted.rounds_["validation_loss"], rtol=1e-6)
    mse = fitted.evaluate().query("split == 'test' and selection == 'best' and metric == 'mse'")
    mse = mse.query("client == 'all' and horizon == 'all'")["value"].item()
    assert events.Scalars("test/mse")[0].value == pytest.approx(mse, rel=1e-6)


def test_mlflow_and_wandb_are_called_as_they_expect(table, tiny, monkeypatch):
    """Both packages are replaced: the calls are those of their documentation."""
    calls = []
    note = lambda name: lambda *a, **k: calls.append((name, a, k))  # noqa: E731
    names = ("set_experiment", "start_run", "log_params", "log_metrics", "end_run")
    monkeypatch.setitem(sys.modules, "mlflow", SimpleNamespace(**{n: note(n) for n in names}))
    run = SimpleNamespace(log=note("log"), summary={}, finish=note("finish"))
    wandb = SimpleNamespace(init=lambda **options: calls.append(("init", (), options)) or run)
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    hooks = [MLflow("cells", "one"), WeightsAndBiases(project="cells")]
    Forecaster("fedavg", **tiny).fit(table, callbacks=hooks)
    order = [name for name, _, _ in calls if name != "init"]
    assert order[:3] == ["set_experiment", "start_run", "log_params"]
    assert order[-3:] == ["log_metrics", "end_run", "finish"]
    init = next(options for name, _, options in calls if name == "init")
    assert (init["project"], init["config"]["method"]) == ("cells", "fedavg")
    steps = [options["step"] for name, _, options in calls if name == "log"]
    assert steps == [1, 2]
    assert run.summary["test/mse"] > 0


def test_an_absent_tracker_says_how_to_install_it(table, tiny, monkeypatch):
    monkeypatch.setitem(sys.modules, "mlflow", None)
    with pytest.raises(InputError, match=r"mlflow .*mlflow-skinny"):
        Forecaster("fedavg", **tiny).fit(table, callbacks=[MLflow()])


@pytest.mark.parametrize("method", ["fedlean", "protoridge", "fuels"])
def test_forecasts_do_not_depend_on_the_order_of_columns(method, table):
    rounds = {"rounds": 1} if method == "fuels" else {}
    other = table[table.columns[::-1]]
    settings = {"horizon": 2, "split": "days:7,1,2", **rounds}
    found = [Forecaster(method, **settings).fit(of).predict() for of in (table, other)]
    pd.testing.assert_frame_equal(*found, check_exact=True)
