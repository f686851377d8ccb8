import json
import logging
import math
import os
import random
import resource
import shlex
import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import pandas as pd
import pytest
import xarray as xr
from in_service import DAYS, RULE, values, write
from mentions import mentions

from data_prep.base.errors import InputError
from data_prep.cube import open_cube, write_cube
from data_prep.sets.table import prepare
from stforecast.cli.main import main
from stforecast.federated.runs import model_files
from stforecast.forecasting import runs
from stforecast.forecasting.forecaster import Forecaster
from stforecast.service import cells, folder, judge
from stforecast.service import expected as measure
from stforecast.service import update as module
from stforecast.service.folder import ServiceState, UpdateStanding, last_state, read_state
from stforecast.service.settings import UpdateOptions
from stforecast.service.update import (
    ANEW,
    CODES,
    FURTHER,
    KEPT,
    UNCHANGED,
    compare_models,
    decide,
    update,
)


def contents(run):
    """All files of the state, by name."""
    where = last_state(run)
    return {str(p.relative_to(where)): p.read_bytes() for p in where.rglob("*") if p.is_file()}


def test_an_update_appends_the_records_and_forecasts_what_follows(service, tmp_path):
    run, day = service
    done = update(run, day(DAYS))
    assert done.about["steps"] == 24
    assert done.about["changed"] == 72
    history = read_state(last_state(run)).history
    expected = values().iloc[: 24 * (DAYS + 1)].to_numpy()
    np.testing.assert_array_equal(history["load"].to_numpy(), expected)
    cube = write_cube(history, tmp_path / "kept.nc")
    forecast = Forecaster.load(run).predict(cube)
    pd.testing.assert_frame_equal(done.forecast, forecast)
    assert forecast.index[0] == pd.Timestamp("2024-02-11", tz="Europe/Rome")
    table = pd.read_csv(last_state(run) / "forecast.csv")
    assert list(table) == ["time", "cell", "load", "lower", "upper"]
    assert len(table) == 72


def test_the_same_day_twice_changes_nothing(updated):
    run, day = updated
    before = contents(run)
    assert update(run, day(DAYS)).action == UNCHANGED
    assert contents(run) == before


def test_a_corrected_day_replaces_and_is_scored_again(updated, tmp_path):
    run, day = updated
    update(run, day(DAYS + 1))
    scored = read_state(last_state(run)).issued["y"].to_numpy()
    wide = values().iloc[24 * (DAYS + 1) : 24 * (DAYS + 2)].copy()
    wide.loc[wide.index[5], "b"] = 77.0
    done = update(run, write(wide, tmp_path / "corrected.csv"))
    assert (done.about["changed"], done.about["steps"]) == (1, 0)
    state = read_state(last_state(run))
    differs = (state.issued["y"].to_numpy() != scored) & np.isfinite(scored)
    assert differs.sum() == 1
    assert state.issued["y"].to_numpy()[differs] == [77.0]
    assert state.issued.sizes["time"] == 2


def test_scores_are_those_of_the_forecast_of_that_day(service):
    run, day = service
    first = update(run, day(DAYS))
    about = update(run, day(DAYS + 1)).about
    truth = values().iloc[24 * (DAYS + 1) : 24 * (DAYS + 2)].to_numpy()
    error = first.forecast.to_numpy() - truth
    inside = (first.interval.lower.to_numpy() <= truth) & (truth <= first.interval.upper.to_numpy())
    assert about["day_n"] == 72
    assert about["day_mae"] == pytest.approx(np.abs(error).mean(), rel=1e-3)
    assert about["day_bias"] == pytest.approx(error.mean(), rel=1e-2, abs=1e-3)
    assert about["day_coverage"] == pytest.approx(inside.mean(), abs=1e-4)
    assert len(pd.read_csv(last_state(run) / "service.csv")) == 2


@pytest.mark.repeats
def test_a_gap_and_other_cells_are_told_and_forecast_nevertheless(service, tmp_path, caplog):
    run, _ = service
    wide = values().iloc[24 * (DAYS + 7) : 24 * (DAYS + 8)]
    later = wide.assign(new=1.0).drop(columns="b").rename_axis("Station", axis=1)
    with caplog.at_level(logging.WARNING):
        done = update(run, write(later, tmp_path / "later.csv"))
    notes = " ".join(done.about["notes"])
    assert mentions(notes, "168 steps", f"{later.index[0]}")
    assert mentions(notes, "1 cell", ": new")
    assert mentions(notes, "1 cell", "records: b")
    assert done.about["steps"] == 24 * 8
    assert np.isfinite(done.forecast[["a", "c"]].to_numpy()).all()


@pytest.mark.quick(3)
@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda wide: wide.add_prefix("other "), "3 cells, .*other a"),
        (lambda wide: wide.rename(columns={"a": "00a", "b": "new"}), "'00a' is likely 'a'"),
        (lambda wide: wide.shift(freq="30min"), "60 minutes"),
        (lambda wide: wide.shift(freq="100D"), "longer .*history"),
        (lambda wide: wide.rename_axis("Date"), "no column 'When'"),
    ],
)
def test_records_that_do_not_fit_change_nothing(updated, tmp_path, edit, message):
    run, _ = updated
    before = contents(run)
    wide = edit(values().iloc[24 * (DAYS + 1) : 24 * (DAYS + 2)])
    wide.columns.name = "Station"
    time_name = wide.index.name
    path = tmp_path / "odd.csv"
    write(wide.rename_axis("When"), path)
    path.write_text(path.read_text().replace("When", time_name, 1))
    with pytest.raises(InputError, match=message):
        update(run, path)
    assert contents(run) == before


def test_advice_on_a_table_is_a_command_that_has_these_options(service, tmp_path, capsys):
    run, day = service
    twice = tmp_path / "twice.csv"
    head, *rows = day(DAYS).read_text().splitlines()
    twice.write_text("\n".join([head, *rows, rows[0].rpartition(";")[0] + ";1,5"]))
    with pytest.raises(SystemExit):
        main(["update", str(run), "--new", str(twice)])
    shown = capsys.readouterr().err
    assert "--duplicates" in shown
    words = shlex.split(shown[shown.rindex("stforecast prepare table") :].rstrip().rstrip(")"))
    words[words.index("--out") + 1] = cube = str(tmp_path / "twice.nc")
    for args in ([*words[1:], "--duplicates", "mean"], ["update", str(run), "--new", cube]):
        with pytest.raises(SystemExit) as end:
            main(args)
        assert not end.value.code


def test_a_cut_file_and_another_unit(service, tmp_path):
    run, day = service
    text = day(DAYS).read_text()
    cut = tmp_path / "cut.csv"
    cut.write_text(text[: len(text) // 2] + ";;")
    with pytest.raises(InputError, match=r"cut\.csv") as told:
        update(run, cut)
    assert "--time-zone Europe/Rome" in str(told.value)
    assert "'auto'" not in str(told.value)  # Options that were not chosen are not listed.
    assert last_state(run) is None
    with open_cube(json.loads((run / "run.json").read_text())["data_path"]) as ds:
        later = ds.load().isel(time=slice(-24, None))
    later = later.assign_coords(time=later["time"] + np.timedelta64(24, "h"))
    later["load"] = (later["load"] * 1000).assign_attrs(units="MB")
    update(run, write_cube(later, tmp_path / "mb.nc"))
    kept = read_state(last_state(run)).history["load"].to_numpy()
    np.testing.assert_allclose(kept[-24:], kept[-48:-24])


def test_a_killed_update_changes_nothing(updated, monkeypatch):
    run, day = updated
    before = contents(run)
    written = folder.write_state

    def killed(state, where):
        written(state, where)
        raise KeyboardInterrupt

    monkeypatch.setattr(folder, "write_state", killed)
    with pytest.raises(KeyboardInterrupt):
        update(run, day(DAYS + 1))
    assert contents(run) == before
    monkeypatch.undo()
    again = update(run, day(DAYS + 1))
    assert again.about["update"] == 2
    assert sorted(p.name for p in (run / "service").iterdir()) == ["1", "2", "current"]


@pytest.mark.slow
def test_kills_at_random_change_nothing(service, tmp_path):
    """A replay of which each update is killed at a random time ends as an undisturbed one."""
    run, day = service
    calm = tmp_path / "calm"
    subprocess.run(["cp", "-r", run, calm], check=True)
    last, dice, kills = DAYS + 6, random.Random(5), 0
    for n in range(DAYS, last):
        update(calm, day(n))
        command = [sys.executable, "-m", "stforecast", "update", str(run), "--new", str(day(n))]
        begin = time.monotonic()
        subprocess.run(command, check=False, env={**os.environ}, capture_output=True)
        took = time.monotonic() - begin
        # The day is done; the next is killed at any time of what the last took.
        if n + 1 < last:
            command[-1] = str(day(n + 1))
            process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
            time.sleep(dice.uniform(0.3, 1.0) * took)
            process.send_signal(signal.SIGKILL)
            kills += process.wait() == -signal.SIGKILL
    assert kills
    assert contents(run) == contents(calm)


def test_two_updates_at_a_time_are_refused(service):
    run, day = service
    with folder.update_lock(run), pytest.raises(InputError, match=r"; wait .*$"):
        update(run, day(DAYS))


def test_a_full_disk_is_told_and_changes_nothing(service):
    run, day = service
    update(run, day(DAYS))
    before = contents(run)
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limit[1]))
    try:
        with pytest.raises(InputError, match=r"too large.*; .*the same"):
            update(run, day(DAYS + 1))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    assert contents(run) == before


def test_messages_name_the_records_of_the_service(service, tmp_path, caplog):
    run, _ = service
    wide = values().iloc[24 * DAYS : 24 * DAYS + 24]
    wide.iloc[5, 0] = 1e6
    update(run, write(wide, tmp_path / "day.csv"))
    assert mentions(caplog.text, ": 1 reading", "believed")


def test_a_pattern_gives_several_days(service, capsys):
    run, day = service
    with pytest.raises(SystemExit) as end:
        main(["update", str(run), "--new", str(day(DAYS).parent / "2[12].csv")])
    assert not end.value.code
    assert json.loads(capsys.readouterr().out)["steps"] == 48


def test_exit_codes_and_one_line_of_json(service, capsys):
    run, day = service
    for expected in ("went on", UNCHANGED):
        with pytest.raises(SystemExit) as end:
            main(["update", str(run), "--new", str(day(DAYS))])
        assert end.value.code == CODES[expected]
        (line,) = capsys.readouterr().out.splitlines()
        assert json.loads(line)["action"] == expected


def test_predict_opens_a_table_as_the_run_was_prepared(service, tmp_path):
    run, _ = service
    forecaster = Forecaster.load(run)
    assert forecaster.model_.preparation["options"]["time_format"] == "%d/%m/%Y %H:%M"
    # 7/02 to 10/02 may be days of February, or of four months.
    days = values().iloc[24 * (DAYS - 3) : 24 * (DAYS + 1)]
    forecast = forecaster.predict(write(days, tmp_path / "days.csv"))
    assert forecast.index[0] == pd.Timestamp("2024-02-11", tz="Europe/Rome")
    assert forecast.attrs["units"] == "GB"


def test_a_challenger_replaces_the_champion_only_if_it_wins(service):
    run, day = service
    (run / "service.toml").write_text(RULE.replace("further_days = 0", "further_days = 3"))
    actions = [update(run, day(n)).action for n in range(DAYS, DAYS + 4)]
    state = read_state(last_state(run))
    # Ridge on the same kind of days learns nothing new: no difference, so the champion stays.
    assert KEPT in actions
    assert FURTHER not in actions
    assert state.standing.lost == FURTHER
    assert np.isfinite(state.standing.promised)


@pytest.mark.repeats
def test_a_trial_is_on_days_that_the_model_does_not_know(service, monkeypatch):
    run, day = service
    rule = RULE.replace("further_days = 0", "further_days = 1")
    (run / "service.toml").write_text(rule.replace("trial_days = 4", "trial_days = 14"))
    learnt, trials = 24 * (DAYS - 1), []

    def compared(models, series, n_steps, *args):
        trials.append((len(series.values), n_steps))
        return compare_models(models, series, n_steps, *args)

    monkeypatch.setattr(module, "compare_models", compared)
    monkeypatch.setattr(module, "trained_until", lambda _: values().index[learnt - 1])
    for n in range(DAYS, DAYS + 6):
        update(run, day(n))
    # Four horizons that it does not know make the first trial.
    assert trials
    assert all(n_steps == n - learnt >= 4 * 24 for n, n_steps in trials)


@pytest.mark.repeats
def test_a_change_of_the_world_brings_a_new_model(tmp_path):
    """A model of noise alone meets days with a daily wave; nothing but training helps."""
    wide = values()
    level = wide.iloc[: 24 * DAYS].to_numpy().reshape(DAYS, 24, 3)
    wide.iloc[: 24 * DAYS] = (level / level.mean(axis=0) * level.mean(axis=(0, 1))).reshape(-1, 3)
    options = {"time": "When", "time_zone": "Europe/Rome", "clock": "local"}
    first = write(wide.iloc[: 24 * DAYS], tmp_path / "first.csv")
    settings = {"split": "time:0.7,0.15,0.15", "horizon": 24, "intervals": "conformal"}
    run = tmp_path / "run"
    runs.run("ridge", prepare(first, tmp_path / "first.nc", **options), run, settings)
    (run / "service.toml").write_text(RULE)
    for n in range(DAYS, 30):
        done = update(run, write(wide.iloc[24 * n : 24 * n + 24], tmp_path / "day.csv"))
        if done.action in (FURTHER, ANEW):
            # The winner also learns the days of the trial.
            assert Forecaster.load(run).model_.trained_on["last"] == done.about["until"]
    # As many days are kept as the run's parts have, and those of the trial.
    parts = json.loads((run / "run.json").read_text())["parts"]
    span = pd.Timestamp(parts["test"]["last"]) - pd.Timestamp(parts["training"]["first"])
    kept = read_state(last_state(run)).history.sizes["time"]
    assert kept == span / pd.Timedelta(hours=1) + 1 + 4 * 24
    log = pd.read_csv(last_state(run) / "service.csv")
    won = log["action"].isin([FURTHER, ANEW])
    assert won.any()
    assert (log["against_champion_high"][won] < 0).all()
    assert log["day_mase"].iloc[-1] < log["day_mase"].iloc[1:4].min() / 2


def state_of(mase, coverage, *, trained=10, anew=10, lost="", days=8):
    """A state of one cell whose forecasts have these errors, after so many days."""
    times = pd.date_range("2024-03-01", periods=days, freq="D")
    shape = (1, days, 24)
    y = np.zeros(shape)
    y_hat = np.full(shape, float(mase))
    inside = np.zeros(24 * days)
    inside[: round(coverage * 24 * days)] = 1
    inside = np.random.default_rng(0).permutation(inside).reshape(shape)
    upper = np.where(inside == 1, 99.0, -1.0)
    dims = ("cell", "time", "horizon")
    issued = xr.Dataset(
        {"y": (dims, y), "y_hat": (dims, y_hat), "lower": (dims, upper - 200),
         "upper": (dims, upper), "seasonal_mae": ("cell", [1.0])},
        {"time": times, "cell": [1], "horizon": np.arange(1, 25)},
        {"step_minutes": 60.0},
    )  # fmt: skip
    end = times[-1] + pd.Timedelta(hours=23)
    history = xr.Dataset(coords={"time": pd.date_range(end=end, periods=3, freq="h")})

    def ago(n):
        return str(end - pd.Timedelta(days=n))

    standing = UpdateStanding(1.0, ago(trained), ago(anew), lost)
    return ServiceState(history, issued, standing, pd.DataFrame())


RULES = UpdateOptions(
    check_days=7, coverage_tolerance=0.05, error_tolerance=0.1, further_days=14, anew_days=28,
    rest_days=3,
)  # fmt: skip


@pytest.mark.parametrize(
    ("state", "how", "days", "calibrate"),
    [
        (state_of(1.0, 0.9), None, math.inf, False),
        (state_of(9.0, 0.1, days=5), None, math.inf, False),
        (state_of(1.0, 0.7), None, math.inf, True),
        (state_of(1.0, 1.0), None, math.inf, True),
        (state_of(1.2, 0.9), FURTHER, 7, False),
        (state_of(1.2, 0.9, lost=FURTHER), ANEW, 7, False),
        (state_of(1.2, 0.9, trained=2), None, math.inf, False),
        (state_of(1.0, 0.9, trained=14), FURTHER, math.inf, False),
        (state_of(1.0, 0.9, trained=14, anew=28), ANEW, math.inf, False),
        (state_of(1.2, 0.7), FURTHER, 7, True),
    ],
)
def test_the_rule(state, how, days, calibrate):
    """Where errors grew, the trial is shorter, so that a challenger learns what changed."""
    found = decide(state, RULES, 0.9)
    assert (found.how, found.most_days, found.calibrate) == (how, days, calibrate)
    assert found.reason


def test_a_better_model_wins_and_an_equal_one_does_not(updated):
    run, _ = updated
    forecaster, state = Forecaster.load(run), read_state(last_state(run))
    series, model = forecaster.read(state.history), forecaster.model_
    against, equal = compare_models({"champion": model, "challenger": model}, series, 96, 0.95)
    assert (against.value, against.high) == (0.0, 0.0)

    class Zero:
        """Forecasts the mean."""

        reads_windows, levels = True, ()

        def quantiles(self, z, starts, calendar):
            return np.zeros((3, len(starts), 24, 1))

    worse = module.dataclasses.replace(model, predictor=Zero())
    against, better = compare_models({"champion": worse, "challenger": model}, series, 96, 0.95)
    assert against.high < 0
    assert better == pytest.approx(equal)


def test_models_that_believe_other_readings_are_compared_on_those_of_both(updated):
    """As a challenger that was trained on a new level believes more than the model in service."""
    run, _ = updated
    forecaster, state = Forecaster.load(run), read_state(last_state(run))
    series, model = forecaster.read(state.history), forecaster.model_
    replace, largest = module.dataclasses.replace, np.quantile(series.values, 0.98, axis=0)
    bounds = replace(model.scaler.bounds, upper=largest, lasting=1.0)
    stricter = replace(model, scaler=replace(model.scaler, bounds=bounds))
    assert np.isnan(stricter.scaler.believed(series.values[-96:])).any()
    against, error = compare_models({"champion": model, "challenger": stricter}, series, 96, 0.95)
    alone = {"champion": stricter, "challenger": stricter}
    assert np.isfinite(against.value)
    assert error == compare_models(alone, series, 96, 0.95)[1]


def test_a_model_that_stays_takes_no_room_again(updated):
    run, day = updated
    before = last_state(run) / "model" / "state.safetensors"
    number = before.stat().st_ino
    update(run, day(DAYS + 1))
    after = last_state(run) / "model" / "state.safetensors"
    assert after != before
    assert after.stat().st_ino == number


def test_tested_forecasts_of_a_large_file_are_kept_until_it_changes(service, monkeypatch):
    run, _ = service
    opened = folder.open_run(run)
    whole = measure.thinned_forecasts(opened)
    assert not (run / "service").exists()
    monkeypatch.setattr(measure, "SMALL", 0)
    xr.testing.assert_identical(measure.thinned_forecasts(opened), whole)
    monkeypatch.setattr(measure, "_tested", lambda run: whole * 2)
    xr.testing.assert_identical(measure.thinned_forecasts(opened), whole)
    os.utime(run / "forecasts.nc", (0, 0))
    xr.testing.assert_identical(measure.thinned_forecasts(opened), whole * 2)


@pytest.mark.slow
def test_what_an_update_leaves_out_changes_no_number(service, tmp_path, monkeypatch):
    """Over mornings of which one is late, one is delivered twice and one is corrected."""
    run, day = service
    wide = values().iloc[24 * DAYS : 24 * (DAYS + 1)]
    corrected = write(wide.assign(b=wide["b"].mean()), tmp_path / "corrected.csv")
    mornings = [day(DAYS), day(DAYS + 1), day(DAYS + 1), day(DAYS + 3), day(DAYS + 2), corrected]
    found = []
    for whole in (False, True):
        own = shutil.copytree(run, tmp_path / f"whole {whole}")
        if whole:
            monkeypatch.setattr(cells, "_repeats", lambda of, least: np.ones(of.shape[1]))
            monkeypatch.setattr(judge, "rarity_of", lambda *a: measure.rarity_of(*a[:4]))
            monkeypatch.setattr(model_files, "as_written", lambda about: False)
        else:
            monkeypatch.setattr(measure, "SMALL", 0)
        actions = [update(own, records).action for records in mornings]
        found.append((actions, read_state(last_state(own)), contents(own)))
    (actions, state, files), (others, other, of_other) = found
    assert actions == others
    assert actions.count(UNCHANGED) == 1
    xr.testing.assert_identical(state.issued, other.issued)
    xr.testing.assert_identical(state.history, other.history)
    for name in ("broken.csv", "forecast.csv", "service.csv", "state.json"):
        assert files[name] == of_other[name]
