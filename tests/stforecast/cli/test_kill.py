"""The command killed and stopped from outside, until it is done."""

import random
import re
import signal
import subprocess
import sys
import time

import numpy as np
import pandas as pd
import pytest
from safetensors.numpy import load_file
from waiting import Killed, killed_after, wait_for

from data_prep.base.errors import InputError
from stforecast.bench.jobs import run_grid
from stforecast.cli.main import main
from stforecast.forecasting import evaluate
from stforecast.forecasting import runs as running
from stforecast.forecasting.results import ForecastRun
from stforecast.forecasting.runs import run as run_forecast
from vision.results import ImageRun, run_images

ROUNDS = 30
CALL = [sys.executable, "-c", "from stforecast.cli.main import main; main()"]


def checkpoints(out):
    return {path.name for path in out.glob("checkpoints/round-*")}


def numbers(out):
    rounds = pd.read_csv(out / "rounds.csv").drop(columns="seconds")
    return rounds, pd.read_csv(out / "metrics.csv"), load_file(out / "model" / "state.safetensors")


SETTINGS = {
    "service": "internet", "split": "days:7,1,2", "hidden_size": 8, "device": "cpu",
    "rounds": ROUNDS, "checkpoint_every": 1,
}  # fmt: skip


@pytest.fixture
def begin(town, tmp_path):
    """Begins the command's run of FUELS in a folder of its own."""

    def make(name, rounds=ROUNDS):
        settings = {**SETTINGS, "rounds": rounds}
        flags = [w for k, v in settings.items() for w in ("--" + k.replace("_", "-"), v)]
        words = ["run", "--data", town, "--method", "fuels", *flags, "--out", tmp_path / name]
        return subprocess.Popen(
            [*CALL, *map(str, words)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    return make


@pytest.mark.attack("kills")
@pytest.mark.slow
def test_killed_at_random_and_resumed(begin, town, tmp_path):
    run_forecast("fuels", town, tmp_path / "whole", SETTINGS)
    out, chance = tmp_path / "killed", random.Random(time.time_ns())
    process = begin("killed")
    wait_for(lambda: checkpoints(out) or process.poll() is not None, 60, "a round")
    time.sleep(chance.uniform(0, 0.3))
    process.kill()
    process.wait()
    with pytest.raises(SystemExit) as done:
        main(["run", "--resume", str(out)])
    assert not done.value.code
    for a, b in zip(numbers(tmp_path / "whole"), numbers(out), strict=True):
        if isinstance(a, pd.DataFrame):
            pd.testing.assert_frame_equal(a, b, check_exact=True)
        else:
            assert a.keys() == b.keys()
            assert all(np.array_equal(t, b[name]) for name, t in a.items())
    assert not list(out.glob("**/.*.part"))


KILLED_IN_SHARDS = """
import os, signal
from stforecast.cli.main import main
from stforecast.forecasting import evaluate
do, evaluate.SHARD, begun = evaluate.evaluate_shard, 1, []

def killed(work):
    begun.append(work)
    if len(begun) == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return do(work)

evaluate.evaluate_shard = killed
main()
"""


@pytest.mark.attack("kills")
@pytest.mark.slow
def test_killed_while_it_evaluates_and_resumed_at_the_shard(town, tmp_path, monkeypatch):
    settings = {**SETTINGS, "rounds": 2, "intervals": "normalised", "refit": "once", "horizon": 2}
    flags = [w for k, v in settings.items() for w in ("--" + k.replace("_", "-"), v)]
    out = tmp_path / "killed"
    words = ["run", "--data", town, "--method", "fedlean", *flags, "--out", out]
    killed = subprocess.run([sys.executable, "-c", KILLED_IN_SHARDS, *map(str, words)], check=False)
    assert killed.returncode == -signal.SIGKILL
    assert not (out / "forecasts.nc").exists()

    monkeypatch.setattr(evaluate, "SHARD", 1)
    run_forecast("fedlean", town, tmp_path / "whole", settings)
    begun, do = [], evaluate.evaluate_shard
    monkeypatch.setattr(evaluate, "evaluate_shard", lambda work: begun.append(work) or do(work))
    running.resume(out)
    cells = [part.some.start for work in begun for part in {*work.parts.values()}]
    assert {*cells} == {*range(2, len(ForecastRun.open(out).forecasts().cell))}
    for name in ("metrics.csv", "model/state.safetensors", "forecasts.nc"):
        assert (out / name).read_bytes() == (tmp_path / "whole" / name).read_bytes(), name


@pytest.mark.attack("kills")
@pytest.mark.slow
def test_a_signal_ends_it_with_one_line_that_says_how_to_go_on(begin, tmp_path):
    out = tmp_path / "stopped"
    process = begin("stopped", rounds=10_000)  # on a busy machine the signal comes late
    wait_for(lambda: checkpoints(out) or process.poll() is not None, 60, "a round")
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGTERM
    last = err.strip().splitlines()[-1]
    assert re.fullmatch(
        r"stforecast: stopped by SIGTERM after round \d+; "
        rf"go on with: stforecast run --resume {out}", last,
    )  # fmt: skip
    assert len(checkpoints(out)) == 2


@pytest.fixture
def killed(write, tmp_path):
    """A benchmark of one run that was killed in its second round."""
    settings = 'split = "days:7,1,2"\nrounds = 3\nhidden_size = 8\ndevice = "cpu"\n'
    grid = write('["fedavg"]', 'services = ["sms"]', f"{settings}checkpoint_every = 1\n")

    def kill(*args, **options):
        return run_forecast(*args, **{**options, "after_round": killed_after(2)})

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(running, "run", kill)
        with pytest.raises(Killed):
            run_grid(grid, tmp_path / "out")
    return grid


@pytest.mark.repeats
@pytest.mark.attack("kills")
def test_a_benchmark_goes_on_in_the_middle_of_a_run(killed, tmp_path, monkeypatch):
    whole = run_grid(killed, tmp_path / "whole").runs[0]
    seen = []

    def watched(folder, data, *, after_round):
        return resume(folder, data, after_round=lambda report: seen.append(report.round))

    resume = running.resume
    monkeypatch.setattr(running, "resume", watched)
    run = run_grid(killed, tmp_path / "out").runs[0]
    assert seen == [2, 3]
    assert run.score() == whole.score()
    assert ForecastRun.open(run.folder).about["settings"] == whole.about["settings"]


def test_a_benchmark_does_not_go_on_with_a_run_of_other_settings(killed, tmp_path):
    with pytest.raises(InputError, match=r"\(rounds\)"):
        run_grid(killed.replace(settings={"rounds": 4}), tmp_path / "out")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["run"], "Missing option '--data'. See: stforecast run --help"),
        (["run", "--data", __file__], "Missing option '--out'. See: stforecast run --help"),
        (["vision", "run"], "Missing option '--out'. See: stforecast vision run --help"),
        (
            ["run", "--resume", "nowhere", "--rounds", "3"],
            "--resume uses the settings of the run; leave out --rounds. See: stforecast run --help",
        ),
        (
            ["vision", "run", "--resume", "nowhere", "--method", "solo"],
            "--resume uses the settings of the run; leave out --method. See: stforecast "
            "vision run --help",
        ),
        (
            ["run", "--resume", "nowhere"],
            "nowhere: no unfinished run here (no settings.json); begin a run with `stforecast run`",
        ),
        (
            ["vision", "run", "--resume", "nowhere"],
            "nowhere: no unfinished run here (no settings.json); begin a run with "
            "`stforecast vision run`",
        ),
    ],
)
def test_mistakes_are_told_in_one_line(words, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as stopped:
        main(words)
    assert stopped.value.code == 2
    assert capsys.readouterr().err == f"stforecast: {message}\n"


@pytest.mark.repeats
@pytest.mark.attack("kills")
def test_the_command_goes_on_with_images(tmp_path, capsys):
    settings = {"clients": 3, "rounds": 3, "size": 8, "channels": 4, "checkpoint_every": 1}
    with pytest.raises(Killed):
        run_images("fedavg", tmp_path / "run", settings, after_round=killed_after(3))
    for _ in range(2):  # What is finished is only told.
        with pytest.raises(SystemExit) as stopped:
            main(["vision", "run", "--resume", str(tmp_path / "run")])
        assert not stopped.value.code
        assert "accuracy" in capsys.readouterr().out
    assert len(ImageRun.open(tmp_path / "run").rounds()) == 3
