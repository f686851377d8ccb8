"""Backtests: benchmarks whose runs are folds, from a file or by the command."""

import json
import re

import numpy as np
import pandas as pd
import pytest

from data_prep.base.errors import InputError
from stforecast import Forecaster
from stforecast.bench import RAY
from stforecast.bench.grid import load_grid
from stforecast.bench.jobs import grid_jobs, run_grid
from stforecast.cli.main import main
from stforecast.comparison.errors import hourly_errors, model_errors
from stforecast.comparison.names import different_tests, seasonal_errors
from stforecast.federated.runs.run_folder import is_begun
from stforecast.forecasting import runs as running
from stforecast.forecasting.runs import run

FOLDS = '[backtest]\nfolds = 2\ntest = "36h"\nvalidation = "1d"\ngap = "12h"\n'
SETTINGS = 'rounds = 1\nhidden_size = 8\ndevice = "cpu"\nhorizon = 3\n'
SPLITS = [
    "dates:2013-11-01T01:00:00/2013-11-06T13:00:00,2013-11-06T13:00:00/2013-11-07T13:00:00,"
    "2013-11-08T01:00:00/2013-11-09T13:00:00",
    "dates:2013-11-01T01:00:00/2013-11-08T01:00:00,2013-11-08T01:00:00/2013-11-09T01:00:00,"
    "2013-11-09T13:00:00/2013-11-11T01:00:00",
]
"""In Rome, where the town lies, it begins and ends at 01:00."""


@pytest.fixture
def backtest(write):
    """Makes a backtest of the town."""

    def make(methods='["ridge", "fedavg"]', more='services = ["sms"]', settings=SETTINGS, **given):
        return write(methods, f"{more}\n{FOLDS}", settings, **given)

    return make


@pytest.fixture(scope="module")
def finished(town, tmp_path_factory):
    """The folder of a backtest of ridge and FedAvg, and its outcome."""
    path = tmp_path_factory.mktemp("backtest") / "bench.toml"
    begin = f'data = ["{town}"]\nmethods = ["ridge", "fedavg"]\nservices = ["sms"]\n'
    path.write_text(f"{begin}{FOLDS}[settings]\n{SETTINGS}")
    return path.parent / "out", run_grid(load_grid(path), path.parent / "out")


def test_every_fold_of_a_seed_comes_before_the_next_seed(backtest, tmp_path):
    jobs = grid_jobs(backtest(more='services = ["sms"]\nseeds = [5, 2]'), tmp_path, progress=False)
    assert [str(job.folder.relative_to(tmp_path)) for job in jobs] == [
        f"runs/town/sms/{label}/fold-{fold}/seed-{seed}"
        for seed in (5, 2)
        for fold in (1, 2)
        for label in ("ridge", "fedavg")
    ]
    assert jobs[2].name == "ridge, fold 2, seed 5"
    assert [job.settings["split"] for job in jobs[:4:2]] == SPLITS


def test_a_row_with_fewer_seeds_is_run_in_the_first_turns(backtest, tmp_path):
    grid = backtest(
        '[{ method = "ridge", seeds = [7] }, "fedavg"]', 'seeds = [5, 2]\nservices = ["sms"]'
    )
    jobs = grid_jobs(grid, tmp_path, progress=False)
    assert [job.name for job in jobs] == [
        "ridge, fold 1, seed 7", "fedavg, fold 1, seed 5",
        "ridge, fold 2, seed 7", "fedavg, fold 2, seed 5",
        "fedavg, fold 1, seed 2", "fedavg, fold 2, seed 2",
    ]  # fmt: skip


def test_a_fold_equals_a_run_with_its_split(finished, town, tmp_path):
    _, outcome = finished
    assert [(r.label, r.fold) for r in outcome.runs] == [
        ("ridge", 1), ("fedavg", 1), ("ridge", 2), ("fedavg", 2),
    ]  # fmt: skip
    fold = outcome.runs[3]
    assert fold.about["backtest"] == "2 folds of 36 hours (validation 1 day, gap 12 hours)"
    settings = {"rounds": 1, "hidden_size": 8, "device": "cpu", "horizon": 3, "service": "sms"}
    alone = run("fedavg", town, tmp_path / "alone", {**settings, "split": SPLITS[1]})
    pd.testing.assert_frame_equal(fold.metrics().drop(columns="fold"), alone.metrics())
    assert alone.fold == 0
    assert alone.about["parts"] == fold.about["parts"]


@pytest.mark.slow
def test_the_forecaster_in_memory_gives_the_same_errors(backtest, town, tmp_path):
    run_grid(backtest('["fedavg"]'), tmp_path)
    settings = {"rounds": 1, "hidden_size": 8, "device": "cpu", "horizon": 3, "service": "sms"}
    spans = {"folds": 2, "test": "36h", "validation": "1d", "gap": "12h"}
    found = Forecaster("fedavg", **settings).backtest(town, **spans)
    written = pd.read_csv(tmp_path / "metrics.csv", dtype={"client": str, "horizon": str})
    same = {"check_dtype": False, "rtol": 1e-4}
    pd.testing.assert_frame_equal(written[found.metrics.columns], found.metrics, **same)


@pytest.mark.repeats
def test_a_backtest_that_was_stopped_goes_on(backtest, tmp_path, monkeypatch):
    def stop(*args, notes, after_round, **options):
        def stopped(report):
            if notes["fold"] == 2 and report.round == 2:
                raise KeyboardInterrupt

        return original(*args, notes=notes, after_round=stopped, **options)

    original = running.run
    settings = SETTINGS.replace("rounds = 1", "rounds = 2\ncheckpoint_every = 1")
    grid = backtest('["fedavg"]', settings=settings)
    monkeypatch.setattr(running, "run", stop)
    with pytest.raises(KeyboardInterrupt):
        run_grid(grid, tmp_path / "stopped")
    first, second = (tmp_path / f"stopped/runs/town/sms/fedavg/fold-{n}/seed-1" for n in (1, 2))
    finished = (first / "run.json").stat().st_mtime_ns
    assert is_begun(second)
    monkeypatch.setattr(running, "run", original)
    resumed = run_grid(grid, tmp_path / "stopped").runs
    assert (first / "run.json").stat().st_mtime_ns == finished
    assert [run.fold for run in resumed] == [1, 2]
    for one, other in zip(resumed, run_grid(grid, tmp_path / "whole").runs, strict=True):
        pd.testing.assert_frame_equal(one.metrics(), other.metrics())


def test_tables_have_the_fold(finished):
    folder, _ = finished
    table = pd.read_csv(folder / "metrics.csv")
    found = table[["fold", "seed", "label"]].drop_duplicates().to_numpy().tolist()
    assert found == [[fold, 1, label] for fold in (1, 2) for label in ("ridge", "fedavg")]


def test_errors_of_an_hour_are_those_of_its_targets_in_local_time(finished):
    _, outcome = finished
    forecasts = outcome.runs[0].forecasts()
    table = hourly_errors(forecasts)
    errors = {hour: [] for hour in range(24)}
    for i, start in enumerate(forecasts.indexes["time"]):
        for ahead in range(3):
            there = (start + pd.Timedelta(hours=ahead)).tz_localize("UTC").tz_convert("Europe/Rome")
            y, y_hat = (forecasts[name][1, i, ahead].item() for name in ("y", "y_hat"))
            errors[there.hour].append(abs(y - y_hat))
    own = table[(table.client == "22") & (table.metric == "raw_mae")]
    assert own.hour.tolist() == list(range(24))
    np.testing.assert_allclose(own.value, [np.mean(errors[hour]) for hour in range(24)])
    everybody = table[(table.client == "all") & (table.metric == "mse")]
    np.testing.assert_allclose(everybody.value, model_errors(forecasts, "mse").by_hour())


def test_the_compared_error_is_pooled_over_the_days_of_all_folds(finished, tables):
    _, outcome = finished
    forecasts = [run.forecasts() for run in outcome.runs if run.label == "ridge"]
    squares = [((f["y"] - f["y_hat"]) / f["std"]).to_numpy() ** 2 for f in forecasts]
    pooled = np.concatenate([s.ravel() for s in squares]).mean()
    (compared,) = [t for t in tables(outcome.table) if t[0][1] == "MSE [95 %]"]
    (shown,) = [row[1] for row in compared if row[0] == "ridge"]
    digits = len(shown.partition(" ")[0].partition(".")[2])
    assert float(shown.partition(" ")[0]) == pytest.approx(pooled, abs=0.51 * 10**-digits)


def test_peak_and_off_peak_errors_are_pooled_over_all_folds(finished, tables):
    _, outcome = finished
    totals, loads = np.zeros((24, 2)), [[] for _ in range(24)]
    for forecasts in (fold.forecasts() for fold in outcome.runs if fold.label == "ridge"):
        for i, start in enumerate(forecasts.indexes["time"]):
            for ahead in range(3):
                hour = (start + pd.Timedelta(hours=ahead + 1)).hour  # Rome is ahead by an hour.
                y, y_hat = (forecasts[name][:, i, ahead].to_numpy() for name in ("y", "y_hat"))
                totals[hour] += np.abs(y - y_hat).sum(), len(y)
                loads[hour] += y.tolist()
    means = np.array([np.mean(load) for load in loads])
    busy = means > means.mean()
    (found,) = [t for t in tables(outcome.table) if t[0][1] == "peak"]
    expected = [totals[hours].sum(axis=0) for hours in (busy, ~busy)]
    (shown,) = [[float(cell) for cell in row[1:]] for row in found if row[0] == "ridge"]
    np.testing.assert_allclose(shown, [total / n for total, n in expected], rtol=1e-3)


def test_dates_of_the_folds_stand_above_the_table(finished, tables):
    _, outcome = finished
    assert outcome.table.startswith(
        "**town, sms**: 3 cells, 2 folds of 36 hours (validation 1 day, gap 12 hours), 3 steps"
    )
    header, first, _ = tables(outcome.table)[0]
    assert header == ["fold", "training", "validation", "test"]
    assert first[2:] == [
        "2013-11-06 13:00 to 2013-11-07 12:00", "2013-11-08 01:00 to 2013-11-09 12:00",
    ]  # fmt: skip


@pytest.mark.repeats
def test_a_reference_that_failed_is_replaced(backtest, tmp_path, monkeypatch):
    def fail(method, *args, notes, **options):
        if method == failing and notes["fold"] == 2:
            raise RuntimeError("out of luck")
        return original(method, *args, notes=notes, **options)

    original, failing = running.run, "ridge"
    monkeypatch.setattr(running, "run", fail)
    grid = backtest('["last_value", "ridge"]', 'services = ["sms"]\nreference = "ridge"')
    outcome = run_grid(grid, tmp_path)
    assert outcome.failures == {"town/sms/ridge/fold-2/seed-1": "RuntimeError: out of luck"}
    assert "Left out, since folds are missing: ridge." in outcome.table


@pytest.mark.slow
def test_figures_pool_the_folds(backtest, tmp_path):
    outcome = run_grid(
        backtest(more='services = ["sms"]\nfigures = ["hours", "horizon"]'), tmp_path
    )
    assert len(outcome.gallery.drawn) == 2
    assert not different_tests(outcome.runs)
    alone = [run for run in outcome.runs if run.fold == 1]
    naive = seasonal_errors(outcome.runs, "raw_mae")
    parts = [seasonal_errors(alone, "raw_mae"), seasonal_errors(outcome.runs[2:], "raw_mae")]
    assert naive.total.sum() == pytest.approx(sum(part.total.sum() for part in parts))


@pytest.mark.parametrize(
    ("methods", "message"),
    [
        ('["ridge", { method = "ridge", label = "far", horizon = 40 }]', "horizon .*40 hours"),
        (
            '["ridge", { method = "ridge", label = "week", extra_lags = "168" }]',
            "fold 1 of 2, week: .*'dates:2013-11-01T01:00:00/.*",
        ),
    ],
)
def test_what_does_not_fit_is_refused_before_the_first_run(backtest, tmp_path, methods, message):
    with pytest.raises(InputError, match=message):
        run_grid(backtest(methods), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_backtest_has_no_split(backtest):
    with pytest.raises(InputError, match=r"bench.toml: split is 'days:7,1,2'"):
        backtest(settings=f'split = "days:7,1,2"\n{SETTINGS}')
    with pytest.raises(InputError, match=r"bench.toml: split is 'fuels'"):
        backtest('[{ method = "ridge", split = "fuels" }]')
    with pytest.raises(InputError, match="split is 'fedda'"):
        backtest().replace(settings={"split": "fedda"})


def test_options_of_folds_are_checked_with_the_file(write):
    for options, message in (
        ("fold = 2", "unknown option of backtest 'fold'; did you mean folds"),
        ("folds = 0", "folds is 0; it must be"),
        ('test = "week"', "test is 'week'; give a time like 7d"),
    ):
        with pytest.raises(InputError, match=f"bench.toml: {message}"):
            write(more=f"[backtest]\n{options}")


@pytest.mark.repeats
def test_other_folds_in_the_same_folder_are_refused(backtest, write, tmp_path):
    run_grid(backtest('["last_value"]'), tmp_path)
    other = write('["last_value"]', 'services = ["sms"]\n[backtest]\ntest = "1d"', SETTINGS)
    with pytest.raises(InputError, match=r"seed-1 .*\(split\)"):
        run_grid(other, tmp_path)


def test_folds_in_parallel_by_ray_are_the_same(backtest, tmp_path):
    pytest.importorskip("ray", reason="needs the extra ray: pip install 'stforecast[ray]'")
    alone = run_grid(backtest(), tmp_path / "alone").runs
    spread = run_grid(backtest(), tmp_path / "spread", engine=RAY).runs
    for one, other in zip(alone, spread, strict=True):
        assert (one.label, one.fold) == (other.label, other.fold)
        np.testing.assert_allclose(one.score(), other.score())


@pytest.fixture
def typed(town, tmp_path, capsys):
    """Types `stforecast backtest` with more words; gives exit code, output and errors."""

    def call(*words):
        begin = ["--data", town, "--service", "sms", "--out", tmp_path / "out"]
        folds = ["--folds", 2, "--test", "36h", "--validation", "1d", "--gap", "12h"]
        with pytest.raises(SystemExit) as done:
            main([str(word) for word in ("backtest", *begin, *folds, *words)])
        return done.value.code or 0, *capsys.readouterr()

    return call


def test_the_command_needs_no_file(typed, backtest, tmp_path):
    words = ["--method", "ridge", "--horizon", 3, "--set", "extra_lags=24", "--seed", 7]
    code, out, _ = typed(*words)
    assert code == 0
    assert out.startswith("**town, sms**: 3 cells, 2 folds of 36 hours")
    assert out.endswith(f"table, figures and runs in {tmp_path / 'out'}\n")
    folder = tmp_path / "out/runs/town/sms/ridge/fold-1/seed-7"
    about = json.loads((folder / "run.json").read_text())
    assert (about["settings"]["split"], about["settings"]["extra_lags"]) == (SPLITS[0], "24")
    before = (folder / "run.json").stat().st_mtime_ns
    page = (tmp_path / "out/table.md").read_text()
    assert (
        "# Backtest of town\n\n    stforecast backtest --method ridge --folds 2 --test 36h" in page
    )
    assert {p.name for p in (tmp_path / "out/figures").iterdir()} >= {
        f"town-sms-2-folds-of-36-hours-validation-1-day-gap-12-hours-{figure}.png"
        for figure in ("hours", "horizon")
    }
    assert typed(*words)[0] == 0
    assert (folder / "run.json").stat().st_mtime_ns == before, "it was run again"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--method", "rigde"], "unknown method 'rigde'; choose one of: .* (did you mean 'ridge'"),
        (["--method", "ridge", "--reference", "solo"], "unknown reference 'solo'; choose one of"),
        (["--method", "ridge", "--folds", 9], "9 folds (test 36 hours, .*) need 15.1 days"),
        (["--method", "ridge", "--horizon", 30], "the horizon of 30 hours is longer than the vali"),
        (["--method", "ridge", "--data", "absent.nc"], "absent.nc: no cube here"),
        (["--method", "ridge", "--set", "split=fuels"], "split is 'fuels', but a backtest makes"),
        (["--method", "ridge", "--test", "7"], "test is '7'; give a time like 7d"),
        (["--method", "ridge", "--seed", -1], "seed is -1; it must be 0 or more"),
        ([], "Missing option '--method'."),
    ],
)  # fmt: skip
def test_a_mistake_is_one_line(typed, words, message, tmp_path):
    code, out, err = typed(*words)
    assert (code, out) == (2, "")
    pattern = re.escape(message).replace(r"\.\*", ".*")
    assert re.fullmatch(f"stforecast: {pattern}.*\n", err), err
    assert not (tmp_path / "out").exists()
