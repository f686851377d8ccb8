"""Exported graphs, run by onnxruntime, forecast what the model does."""

import contextlib

import numpy as np
import pandas as pd
import pytest

from data_prep.base.errors import InputError
from data_prep.cube import make_cube
from stforecast.forecasting.config import read_by
from stforecast.forecasting.export import check_exportable, export_onnx, fewest_steps, graph_inputs
from stforecast.forecasting.forecaster import Forecaster
from stforecast.methods import METHODS as ALL

SPLIT = "time:0.7,0.15,0.15"
AVERAGED = {
    "fedavg of GRUs": ("fedavg", {"batch_size": 24}),
    "fedavg of linear maps": ("fedavg", {"model": "linear"}),
    "fedprox": ("fedprox", {"model": "mlp"}),
    "fedper": ("fedper", {"model": "mlp"}),
}
METHODS = {
    "quantiles": ("fedavg", {"model": "mlp", "loss": "quantile", "intervals": "none"}),
    "fuels": ("fuels", {}),
    **AVERAGED,
}

REFUSED = {
    "central": "since its clients have several cells",
    **dict.fromkeys(("fedcp", "fedpm", "gpfl"), "since torch cannot trace its network"),
}


def town(days=40, begin="2013-10-01", gaps=True):
    """A town of three cells whose clock changes on 27 October."""
    rng = np.random.default_rng(0)
    times = pd.date_range(begin, periods=24 * days, freq="h")
    wave = np.sin(2 * np.pi * (times.hour.to_numpy() + 2) / 24)[:, None]
    values = (10 + 5 * wave + rng.normal(size=(len(times), 3))) * [1, 20, 300]
    if gaps:
        values[-30:-20, 1] = np.nan
        values[-1, 2] = np.nan
        values[-60, 0], values[-50:-45, 1] = 1e4, -1e6  # not believed, but the last three
    return make_cube(
        {"internet": values}, times, np.array([7, 8, 9]), title="t", source="s", license="l",
        units="1", time_zone="Europe/Rome",
    )  # fmt: skip


BEFORE_THE_CHANGE, AFTER_THE_CHANGE = "2013-09-30 23:00", "2013-10-10 23:00"
"""First hours of towns whose clock is set back after the history, and ten days before its end."""


DEFAULT = "fedlean", {"rounds": 2, "intervals": "normalised"}


@pytest.fixture(scope="module")
def default(tmp_path_factory):
    """The default's model of a town before the change, its graph, and how many steps it reads."""
    return exported(*DEFAULT, town(days=26, begin=BEFORE_THE_CHANGE), tmp_path_factory.mktemp("d"))


def test_the_defaults_graph_forecasts_what_the_model_does(default):
    compare(*default, town(days=26, begin=BEFORE_THE_CHANGE))


@pytest.mark.repeats
def test_a_graph_of_a_town_whose_clock_was_set_back_forecasts_what_the_model_does(tmp_path):
    check_graph(*DEFAULT, town(days=26, begin=AFTER_THE_CHANGE), tmp_path)


@pytest.mark.quick(2)
@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", METHODS)
def test_a_graph_forecasts_what_the_model_does(name, tmp_path):
    method, settings = METHODS[name]
    settings = {"rounds": 2, "intervals": "normalised", **settings}
    cube = town(days=26, begin=BEFORE_THE_CHANGE, gaps=name != "fuels")
    check_graph(method, settings, cube, tmp_path)


@pytest.mark.repeats
@pytest.mark.sampled(36)
@pytest.mark.parametrize(
    "method", sorted(ALL.keys() - {"fedlean", *(name for name, _ in METHODS.values())})
)
def test_every_method_is_exported_or_says_why(method, tmp_path):
    width = {} if method in ("fedpm", "fedtrees") else {"hidden_size": 8}
    settings = read_by(method, {"rounds": 1, "device": "cpu", **width})
    reason = REFUSED.get(method)
    with pytest.raises(InputError, match=reason) if reason else contextlib.nullcontext():
        check_graph(method, settings, town(days=26, gaps=False), tmp_path)


def test_a_graph_has_the_trees_of_the_model(tmp_path):
    settings = {"rounds": 7, "depth": 2, "shrinkage": 1.0, "min_samples": 20}
    check_graph("fedtrees", settings, town(days=26, gaps=False), tmp_path)


def test_a_graph_believes_a_moved_level_after_the_change_as_the_model_does(default):
    moved = town(days=26, begin=AFTER_THE_CHANGE, gaps=False)
    moved["internet"][-240:, 1] *= 40.0
    compare(*default, moved)


def check_graph(method, settings, cube, tmp_path):
    """Export a fitted model; compare the graph with it on its own data."""
    compare(*exported(method, settings, cube, tmp_path), cube)


def exported(method, settings, cube, tmp_path):
    """Return a fitted model, its graph, and the number of steps that the graph reads."""
    pytest.importorskip("onnx")
    fitted = Forecaster(method, split=SPLIT, horizon=6, **settings).fit(cube)
    # In service, the last state of a model forecasts, from whatever history.
    forecaster = Forecaster.load(fitted.save(tmp_path))
    model, out = forecaster.model_, tmp_path / "model.onnx"
    n_steps = min(fewest_steps(model), cube.sizes["time"])
    assert export_onnx(model, out, n_steps) == n_steps
    return forecaster, out, n_steps


def compare(forecaster, out, n_steps, history):
    """Compare the forecasts of a graph and its model."""
    graph = pytest.importorskip("onnxruntime").InferenceSession(out)
    series = forecaster.read(history.isel(time=slice(-n_steps, None)))
    found = graph.run(None, graph_inputs(forecaster.model_, series, n_steps))
    expected = [forecaster.predict(series), *(forecaster.predict_interval(series) or ())]
    for ours, theirs in zip(found, expected, strict=True):
        size = np.abs(theirs.to_numpy()).max(axis=0)
        assert (np.abs(ours - theirs.to_numpy()) <= 1e-5 * size).all()
    names = [node.name for node in graph.get_outputs()]
    assert names == ["forecast", "lower", "upper"][: len(expected)]
    about = graph.get_modelmeta().custom_metadata_map
    assert about["cells"].split("\n") == ["7", "8", "9"]
    assert int(about["steps"]) == n_steps


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"method": "ridge"}, "ridge .*network"),
        ({"method": "fedavg", "model": "linear", "target": "day"}, "differences"),
        ({"method": "fedavg", "model": "linear", "clients": "all"}, "several cells"),
        ({"method": "fedavg", "model": "linear", "impute": "last-week"}, "gaps by last-week"),
    ],
)
def test_a_model_that_cannot_be_exported_says_why(settings, reason):
    rounds = {} if settings["method"] == "ridge" else {"rounds": 1}
    forecaster = Forecaster(split="days:8,3,3", **rounds, **settings).fit(town(14))
    with pytest.raises(InputError, match=reason):
        check_exportable(forecaster.model_)


def test_too_short_a_graph_or_history_is_refused(tmp_path):
    forecaster = Forecaster("fedavg", model="linear", rounds=1, split="days:8,3,3").fit(town(14))
    with pytest.raises(InputError, match="least 72"):
        export_onnx(forecaster.model_, tmp_path / "m.onnx", 10)
    with pytest.raises(InputError, match=r"reads 1000; .*steps"):
        graph_inputs(forecaster.model_, forecaster.data_.series, 1000)
