"""Settings that are chosen from a grid on the validation part."""

import dataclasses
import itertools
import json
import sys
from types import SimpleNamespace
from unittest.mock import patch

import numpy as np
import pandas as pd
import pytest

from data_prep.base.errors import InputError
from stforecast.baselines import BASELINES
from stforecast.cli.main import main
from stforecast.federated.methods.fedavg import FedAvg
from stforecast.forecasting.config import check_read
from stforecast.forecasting.forecaster import Forecaster
from stforecast.forecasting.results import ForecastRun
from stforecast.forecasting.sweep import parse_grid, sweep
from stforecast.methods import METHODS

SPLIT = {"split": "days:6,2,2", "periods": 1}
LINEAR = {**SPLIT, "model": "linear", "device": "cpu", "rounds": 6}


def test_the_lowest_validation_error_is_chosen_whatever_the_test_part(table):
    found = sweep("ridge", table, SPLIT, {"alpha": [0.1, 10.0, 1e5]})
    errors = []
    for alpha in (0.1, 10.0, 1e5):
        own = Forecaster("ridge", **SPLIT, alpha=alpha).fit(table).evaluate()
        own = own.query("client == 'all' and horizon == 'all' and selection == 'best'")
        errors.append(own.query("split == 'validation' and metric == 'mse'")["value"].item())
    np.testing.assert_allclose(found.trials["validation_mse"], errors, rtol=1e-6)
    assert found.chosen == {"alpha": found.trials["alpha"][int(np.argmin(errors))]}
    odd = table.copy()
    odd.iloc[-48:] = odd.iloc[-48:].to_numpy()[::-1] + 500
    again = sweep("ridge", odd, SPLIT, {"alpha": [0.1, 10.0, 1e5]})
    pd.testing.assert_frame_equal(again.trials, found.trials, rtol=1e-6)


def test_the_worst_candidates_train_for_a_third_of_the_rounds_only(table):
    found = sweep("fedavg", table, LINEAR, {"lr": [1e-6, 1e-5, 1e-3, 1e-2]})
    assert found.trials["rounds"].fillna(6).tolist() == [2, 2, 2, 2, 6, 6]
    first = found.trials.iloc[:4].sort_values("validation_mse")["lr"].tolist()
    assert sorted(found.trials["lr"][4:]) == sorted(first[:2])
    last = found.trials.iloc[4:]
    assert found.chosen == {"lr": last["lr"][last["validation_mse"].idxmin()]}
    assert found.swept == "lr=1e-06|1e-05|0.001|0.01 (6 trainings)"


def test_a_candidate_that_diverges_is_the_worst(table):
    found = sweep("fedavg", table, {**LINEAR, "optimizer": "sgd"}, {"lr": [1e30, 1e-3]})
    assert found.chosen == {"lr": 1e-3}
    assert found.trials["validation_mse"].tolist()[0] == np.inf


@pytest.mark.parametrize(
    "method",
    [
        "ridge",
        pytest.param("lightgbm", marks=pytest.mark.repeats),
        pytest.param("boosting", marks=pytest.mark.slow),
    ],
)
def test_tune_sweeps_the_grid_of_the_method(table, method, tmp_path):
    if method == "lightgbm":
        pytest.importorskip("lightgbm", reason="the extra peers is not installed")
    (name, values), *_ = BASELINES[method].grid.items()
    grid = {name: values[:2]}
    settings = {**SPLIT, "target": "validation", "refit": "daily"}
    with patch.object(BASELINES[method], "grid", grid):
        forecaster = Forecaster(method, **settings, tune=True).fit(table)
        chosen = sweep(method, table, settings, grid).chosen
        options = dataclasses.asdict(forecaster.config.method_options)
        assert chosen.items() <= options.items()
        # Loaded, refitted and asked for by name, these options give the same forecasts.
        loaded = Forecaster.load(forecaster.save(tmp_path))
        pd.testing.assert_frame_equal(loaded.predict(table), forecaster.predict(table))
        by_name = Forecaster.recorded(forecaster.config.flat()).fit(table)
        assert by_name.test_forecasts().identical(forecaster.test_forecasts())


@pytest.mark.repeats
def test_any_method_may_have_a_grid_of_which_what_is_given_is_left_out(table):
    grid = {"lr": [1e-6, 1e-2], "batch_size": [16, 32]}
    with patch.object(FedAvg, "grid", grid):
        backtest = Forecaster("fedavg", **LINEAR, tune=True).backtest(table, folds=2, test="2d")
        fitted = Forecaster("fedavg", **LINEAR, batch_size=8, tune=True).fit(table)
        loose = Forecaster("fedavg", **LINEAR, tune=True).fit(table)
    assert (fitted.config.training.lr, fitted.config.training.batch_size) == (1e-2, 8)
    assert loose.config.training.batch_size in grid["batch_size"]
    assert len(backtest.results) == 2
    with pytest.raises(InputError, match=r"protoridge.*tune"):
        Forecaster("protoridge", tune=True)


def test_a_grid_whose_settings_are_all_given_has_nothing_to_choose(table, caplog):
    forecaster = Forecaster("ridge", **SPLIT, alpha=7.0, tune=True).fit(table)
    assert forecaster.config.method_options.alpha == 7.0
    assert "tune has" in caplog.text


def test_every_method_that_trains_in_rounds_tries_ten_candidates_that_it_reads():
    for name, method in METHODS.items():
        candidates = list(itertools.product(*method.grid.values()))
        assert len(candidates) == (1 if name == "protoridge" else 10), name
        for candidate in candidates:
            check_read(name, dict(zip(method.grid, candidate, strict=True)))


def test_a_run_names_what_was_swept_and_is_tracked(cube_path, tmp_path, monkeypatch, capsys):
    calls = []
    names = ("set_experiment", "start_run", "log_params", "log_metrics", "end_run")
    monkeypatch.setitem(
        sys.modules,
        "mlflow",
        SimpleNamespace(**{n: lambda *a, n=n, **k: calls.append((n, a, k)) for n in names}),
    )
    words = ["run", "--method", "fedavg", "--data", cube_path, "--service", "internet"]
    words += ["--out", tmp_path / "run", "--sweep", "lr=0.00001,0.01", "--track", "cells"]
    for name, value in {**LINEAR, "rounds": 2}.items():
        words += [f"--{name}", value]
    with pytest.raises(SystemExit) as ended:
        main([*map(str, words)])
    assert not ended.value.code, capsys.readouterr().err
    trials = pd.read_csv(tmp_path / "run" / "sweep.csv")
    best = trials["lr"][trials["validation_mse"].idxmin()]
    run = ForecastRun.open(tmp_path / "run")
    assert run.settings["lr"] == best
    assert set(pd.read_csv(tmp_path / "run" / "metrics.csv")["swept"]) == {run.about["swept"]}
    assert run.about["swept"] == "lr=1e-05|0.01 (2 trainings)"
    assert len(run.metrics())
    assert calls[0] == ("set_experiment", ("cells",), {})
    assert calls[1][2] == {"run_name": "run"}
    assert calls[2][1][0]["lr"] == best
    assert [name for name, _, _ in calls[3:]] == ["log_metrics"] * 3 + ["end_run"]
    assert json.loads((tmp_path / "run" / "run.json").read_text())["label"] == "fedavg"


@pytest.mark.parametrize("text", ["lr", "lr=0.1", "=1,2", "lr="])
def test_a_grid_needs_a_name_and_two_values(text):
    with pytest.raises(InputError, match="two values"):
        parse_grid([text])


@pytest.mark.parametrize(
    ("grid", "settings", "message"),
    [
        ({"alpah": [1, 2]}, SPLIT, "alpah"),
        ({"alpha": [1, 2]}, {**SPLIT, "alpha": 3}, "both .*alpha"),
        ({"alpha": [1, 2]}, {"split": "days:8,0,2", "periods": 1}, "validation"),
    ],
)
def test_what_cannot_be_swept_is_refused(grid, settings, message, table):
    with pytest.raises(InputError, match=message):
        sweep("ridge", table, settings, grid)


def test_tune_needs_a_validation_part(table):
    forecaster = Forecaster("ridge", split="days:8,0,2", periods=1, tune=True)
    with pytest.raises(InputError, match="observed validation"):
        forecaster.fit(table)
