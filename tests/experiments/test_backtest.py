"""Backtests: benchmarks whose runs are folds."""

import numpy as np
import pandas as pd
import pytest

from data_prep.errors import InputError
from experiments.forecasts import benchmark
from stforecast.bench.benchmark import run_grid
from stforecast.bench.jobs import grid_jobs
from stforecast.bench.ray_engine import RAY
from stforecast.comparison.errors import model_errors
from stforecast.federated.runs.run_folder import is_begun
from stforecast.runs import run

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


def test_a_fold_equals_a_run_with_its_split(backtest, town, tmp_path):
    outcome = run_grid(backtest(), tmp_path / "out")
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


def test_a_backtest_that_was_stopped_goes_on(backtest, tmp_path, monkeypatch):
    def stop(*args, notes, after_round, **options):
        def stopped(report):
            if notes["fold"] == 2 and report.round == 2:
                raise KeyboardInterrupt

        return original(*args, notes=notes, after_round=stopped, **options)

    original = benchmark.run
    settings = SETTINGS.replace("rounds = 1", "rounds = 2\ncheckpoint_every = 1")
    grid = backtest('["fedavg"]', settings=settings)
    monkeypatch.setattr(benchmark, "run", stop)
    with pytest.raises(KeyboardInterrupt):
        run_grid(grid, tmp_path / "stopped")
    first, second = (tmp_path / f"stopped/runs/town/sms/fedavg/fold-{n}/seed-1" for n in (1, 2))
    finished = (first / "run.json").stat().st_mtime_ns
    assert is_begun(second)
    monkeypatch.setattr(benchmark, "run", original)
    resumed = run_grid(grid, tmp_path / "stopped").runs
    assert (first / "run.json").stat().st_mtime_ns == finished
    assert [run.fold for run in resumed] == [1, 2]
    for one, other in zip(resumed, run_grid(grid, tmp_path / "whole").runs, strict=True):
        pd.testing.assert_frame_equal(one.metrics(), other.metrics())


def test_tables_have_the_fold(backtest, tmp_path):
    run_grid(backtest('["last_value"]', 'services = ["sms"]\nseeds = [1, 2]'), tmp_path)
    for name in ("metrics", "hours"):
        table = pd.read_csv(tmp_path / f"{name}.csv")
        found = table[["fold", "seed", "label"]].drop_duplicates().to_numpy().tolist()
        assert found == [[f, s, "last_value"] for s in (1, 2) for f in (1, 2)]


def test_errors_of_an_hour_are_those_of_its_targets_in_local_time(backtest, tmp_path):
    (first, _) = run_grid(backtest('["ridge"]'), tmp_path).runs
    table = pd.read_csv(tmp_path / "hours.csv", dtype={"client": str})
    forecasts = first.forecasts()
    errors = {hour: [] for hour in range(24)}
    for i, start in enumerate(forecasts.indexes["time"]):
        for ahead in range(3):
            there = (start + pd.Timedelta(hours=ahead)).tz_localize("UTC").tz_convert("Europe/Rome")
            y, y_hat = (forecasts[name][1, i, ahead].item() for name in ("y", "y_hat"))
            errors[there.hour].append(abs(y - y_hat))
    own = table[(table.fold == 1) & (table.client == "22") & (table.metric == "raw_mae")]
    assert own.hour.tolist() == list(range(24))
    np.testing.assert_allclose(own.value, [np.mean(errors[hour]) for hour in range(24)])
    everybody = table[(table.fold == 1) & (table.client == "all") & (table.metric == "mse")]
    np.testing.assert_allclose(everybody.value, model_errors(forecasts, "mse").by_hour())


def test_the_compared_error_is_pooled_over_the_days_of_all_folds(backtest, tmp_path, tables):
    outcome = run_grid(backtest(), tmp_path)
    forecasts = [run.forecasts() for run in outcome.runs if run.label == "ridge"]
    squares = [((f["y"] - f["y_hat"]) / f["std"]).to_numpy() ** 2 for f in forecasts]
    pooled = np.concatenate([s.ravel() for s in squares]).mean()
    (compared,) = [t for t in tables(outcome.table) if t[0][1] == "MSE [95 %]"]
    (shown,) = [row[1] for row in compared if row[0] == "ridge"]
    digits = len(shown.partition(" ")[0].partition(".")[2])
    assert float(shown.partition(" ")[0]) == pytest.approx(pooled, abs=0.51 * 10**-digits)


@pytest.mark.parametrize(
    ("methods", "changes", "message"),
    [
        ('["ridge"]', {"settings": f'split = "days:7,1,2"\n{SETTINGS}'}, "leave out split"),
        ('[{ method = "ridge", split = "fuels" }]', {}, "split is 'fuels'; a backtest makes"),
        ('["ridge", { method = "ridge", label = "far", horizon = 40 }]', {}, "horizon of 40 hours"),
        (
            '["ridge", { method = "ridge", label = "week", extra_lags = "168" }]', {},
            "fold 1 of 2: split 'dates:2013-11-01T01:00:00/.*",
        ),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused_before_the_first_run(
    backtest, tmp_path, methods, changes, message
):
    with pytest.raises(InputError, match=message):
        run_grid(backtest(methods, **changes), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_options_of_folds_are_checked_with_the_file(write):
    for options, message in (
        ("fold = 2", "unknown option of backtest 'fold'; did you mean folds"),
        ("folds = 0", "folds is 0; it must be"),
        ('test = "week"', "test is 'week'; give a time like 7d"),
    ):
        with pytest.raises(InputError, match=f"bench.toml: {message}"):
            write(more=f"[backtest]\n{options}")


def test_other_folds_in_the_same_folder_are_refused(backtest, write, tmp_path):
    run_grid(backtest('["last_value"]'), tmp_path)
    other = write('["last_value"]', 'services = ["sms"]\n[backtest]\ntest = "1d"', SETTINGS)
    with pytest.raises(InputError, match=r"seed-1 was run with other settings \(split\)"):
        run_grid(other, tmp_path)


def test_folds_in_parallel_by_ray_are_the_same(backtest, tmp_path):
    pytest.importorskip("ray", reason="needs the extra ray: pip install 'stforecast[ray]'")
    alone = run_grid(backtest(), tmp_path / "alone").runs
    spread = run_grid(backtest(), tmp_path / "spread", engine=RAY).runs
    for one, other in zip(alone, spread, strict=True):
        assert (one.label, one.fold) == (other.label, other.fold)
        np.testing.assert_allclose(one.score(), other.score())
